"""The types of the Python API: what a type checker of a client sees, and that it is what the verbs take."""

from __future__ import annotations

import subprocess
import sys
import types
import typing
from pathlib import Path

import pytest

import hydractl
from hydractl.api.arguments import EveryVerb
from hydractl.api.calling import arguments_of, is_data
from hydractl.api.verbs import ARGUMENTS
from hydractl.options.option import Option
from hydractl.options.verbs import SETTINGS

ROOT = Path(__file__).parents[2]
RIGHT = """
import datasets
import numpy as np
import torch
from torch.utils.data import TensorDataset
import hydractl

model = hydractl.open("vit.st")
x, y = np.zeros((2, 8, 8, 3), np.uint8), np.zeros(2, np.int64)
scores = hydractl.score(model, method="taylor", data=(x, y), samples=24)
of_torch = hydractl.score(model, method="taylor", data=TensorDataset(torch.zeros(2, 3, 8, 8), torch.zeros(2)))
of_table = hydractl.score(model, method="taylor", data=datasets.Dataset.from_dict({"text": ["a"], "label": [0]}))
pruned: hydractl.Model = hydractl.prune(model, scores=scores, keep=2, dtype="float64", force=True)
removed = hydractl.prune(model, method="magnitude", remove="auto", val="val.npz")
tuned = hydractl.finetune(pruned, train=(x, [0, 1]), lr=[1e-3, 1e-4], val=(x, y), epochs=1)
hydra = hydractl.fuse([pruned, removed], merge=["mlp", "norm"])
result = hydractl.evaluate({"single": model, "members": [pruned, removed]}, test=(x, None), ood={"noise:far": x})
accuracy: float = result.row("single").id.accuracy
names: list[str] = result.names
share: float | None = hydractl.predict(hydra, x, top=2).ood_share
bench = hydractl.bench(hydra, batch_size=[1, 8], dtype="bfloat16", data=["a text", "another"])
frame = bench.to_pandas()
"""
WRONG = {
    "hydractl.prune('vit.st', kep=2)": 'Unexpected keyword argument "kep" for "prune"',
    "hydractl.prune('vit.st', samples='many')": 'Argument "samples" to "prune" has incompatible type "str"',
    "hydractl.prune('vit.st', keep=2.5)": 'Argument "keep" to "prune" has incompatible type "float"',
    "hydractl.prune('vit.st', scope='everywhere')": 'Argument "scope" to "prune" has incompatible type',
    "hydractl.evaluate('vit.st', test=3)": 'Argument "test" to "evaluate" has incompatible type "int"',
    "hydractl.evaluate('vit.st').verdict": '"Evaluation" has no attribute "verdict"',
    "hydractl.predict('vit.st', 3)": 'Argument 2 to "predict" has incompatible type "int"',
    "hydractl.fuse('a.st', merge='head')": 'Argument "merge" to "fuse" has incompatible type',
}


@pytest.mark.release
def test_a_type_checker_takes_right_calls_and_refuses_wrong_ones(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    lines = RIGHT.strip().splitlines()
    client = tmp_path / "client.py"
    client.write_text("\n".join([*lines, *WRONG, ""]))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=", str(client)]
    command += ["--cache-dir", str(ROOT / ".mypy_cache"), "--ignore-missing-imports"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    own = [line for line in found.stdout.splitlines() if line.startswith(str(client)) and ": error:" in line]
    by_line = {int(line.split(":")[1]): line for line in own}
    assert sorted(by_line) == list(range(len(lines) + 1, len(lines) + len(WRONG) + 1)), found.stdout
    for number, message in enumerate(WRONG.values(), len(lines) + 1):
        assert message in by_line[number]


@pytest.mark.parametrize("verb", ARGUMENTS)
def test_the_types_are_those_of_the_options(verb: str) -> None:
    hints = typing.get_type_hints(ARGUMENTS[verb])
    options = arguments_of(verb)
    assert sorted(hints) == sorted(options)
    for name, option in options.items():
        assert may_be_none(hints[name]) == (option.default is None), name
        for value in examples(option):
            as_list = option.many and accepts(hints[name], [value])
            assert as_list or accepts(hints[name], value), (name, value)


def may_be_none(hint: object) -> bool:
    """Whether a type is one with ``| None`` at its end."""
    return type(None) in typing.get_args(hint)


def examples(option: Option) -> list[object]:
    """Values that an option takes, of its own type, by its own declaration."""
    if is_data(option):
        return ["data.npz"]
    if option.reads is not None:
        return [option.example, option.take(option.example)]
    values: list[object] = list(option.choices) or [{bool: True, int: 1, float: 0.5, str: "text"}[option.type]]
    if option.word is not None:
        values.append(option.word)
    for value in values:
        option.take(value)
    return values


def accepts(hint: object, value: object) -> bool:
    """Whether a value is of a type, as far as the types of arguments go."""
    if hint is typing.Any:  # what some versions of numpy say that an array holds
        return True
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hasattr(origin, "__value__"):  # an alias by a type statement, which numpy's NDArray is from 2.5 on
        origin = typing.get_origin(origin.__value__)
    if origin in (typing.Union, types.UnionType):
        return any(accepts(one, value) for one in inner)
    if origin is typing.Literal:
        return value in inner
    if origin is not None:
        of_items = isinstance(value, list) and len(inner) == 1 and all(accepts(inner[0], item) for item in value)
        return issubclass(list, origin) and of_items
    if hint is float:
        return isinstance(value, float)
    return isinstance(value, typing.cast(type, hint)) and (hint is bool or not isinstance(value, bool))


def test_every_verb_has_arguments_of_all_verbs() -> None:
    shared = set(typing.get_type_hints(EveryVerb))
    assert all(shared <= set(typing.get_type_hints(hints)) for hints in ARGUMENTS.values())
    assert {*ARGUMENTS} == {*SETTINGS}  # a verb that is a function needs none
    assert set(hydractl.__all__) >= {"Evaluation", "Benchmark", "Scores"}
