"""Calls with objects and the command lines that are written of them: each is read as the values it was written from."""

from __future__ import annotations

import io

import pytest

from hydractl.cli.answer import Answer
from hydractl.cli.app import _parse
from hydractl.expressions.data_sets import DataSpec, OodSet
from hydractl.expressions.models import ModelRef
from hydractl.log import Log
from hydractl.methods import read_ensemble
from hydractl.options.call import gather
from hydractl.options.command import Command
from hydractl.options.verbs import declared

VAL = DataSpec.of_option("--val", "a b.npz?part=2/2&without=3,5")
COMMANDS = [
    Command("prune", ("vit.st",), {"method": "taylor", "remove": 3, "max_drop": 0.1 + 0.2, "data": VAL, "force": True}),
    Command("prune", ("vit.st",), {"circuit": "c.json", "max_drop": 0.01, "with_mask": "m.json", "share_sites": 2}),
    Command("extract-circuit", ("vit.st",), {"val": [VAL, VAL], "objective": ["acc", "ood"], "paired": False}),
    Command(
        "finetune", ("a.st", "b.st"), {"train": VAL, "lr": [1e-4, 0.03], "ensemble": read_ensemble("packed:3,9/4")}
    ),
    Command("fuse", (ModelRef("a.st"), "b.st"), {"merge": ["mlp", "norm"], "output": "-odd name.st"}),
    Command("eval", ("m=a.st+b.st",), {"ood": [OodSet.of_option("--ood-val", "x:near=x.npz")], "temperature": 0.5}),
    Command("bench", ("a.st",), {"batch_size": [1, 8], "dtype": ["float32"], "prompt": ["a {label}", "b, {label}"]}),
]


@pytest.mark.parametrize("command", COMMANDS, ids=[command.words()[0] for command in COMMANDS])
def test_a_command_line_is_read_as_the_values_that_it_was_written_from(command: Command) -> None:
    request = _parse(command.words(), Answer(io.StringIO()))
    assert request is not None and request.verb == command.verb
    typed = gather(declared(command.verb), request.given, {}, None)
    called = command.call(Log())
    assert not typed.problems and not called.problems
    assert called.values == typed.values
    assert typed.sources == called.sources


def test_a_data_set_is_named_after_the_option_that_receives_it() -> None:
    ood = OodSet.of_option("--ood-val", "x=x.npz")
    called = Command("eval", ("a.st",), {"test": VAL, "ood": [ood]}).call(Log()).values
    assert called["test"].where == f"--test {VAL}" and called["ood"][0].spec.where == "--ood x x.npz"


def test_what_is_in_memory_stands_in_a_command_by_its_name() -> None:
    held = DataSpec.of_option("--val", "memory:val", object()).with_setting("part=1/2")
    model = ModelRef.of_row("single", [ModelRef("memory:0", object())])
    command = Command("eval", (model,), {"val": held})
    assert command.words() == ["eval", "single=memory:0", "--val", "memory:val?part=1/2"]
    assert command.call(Log()).values["val"].held is held.held is not None
    assert command.call(Log()).values["model"] == [model]
