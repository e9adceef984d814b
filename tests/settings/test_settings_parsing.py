"""Bad values: the exact words, all of them at once, each with the option and where it came from."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from hydractl.errors import UsageError
from hydractl.options.registry import VERBS
from hydractl.options.verbs import options_of_verb
from tests.calls import checked

Refused = Callable[..., list[str]]
NEEDED: dict[str, dict[str, Any]] = {
    "prune": {"model": ["a.st"], "method": "random", "keep": "8"},
    "finetune": {"model": ["a.st"], "train": "d"},
    "bench": {"model": ["a.st"]},
    "fuse": {"model": ["a.st"]},
    "eval": {"model": ["a.st"], "test": "d"},
    "study": {"model": ["a.st"], "val": "d", "test": "e"},
}


@pytest.mark.parametrize(
    ("verb", "name", "text", "message"),
    [
        ("prune", "keep", "8.0", "--keep must be a whole number, not '8.0' (flag)"),
        ("prune", "keep", "-1", "--keep must be at least 0, not -1 (flag)"),
        ("prune", "keep", "9" * 5000, f"--keep must be a whole number, not '{'9' * 5000}' (flag)"),
        ("prune", "samples", "0", "--samples must be at least 1, not 0 (flag)"),
        ("prune", "batch_size", "many", "--batch-size must be a whole number, not 'many' (flag)"),
        (
            "prune",
            "method",
            "taylr",
            "--method must be one of cahp, gate, magnitude, oba, random, taylor, not 'taylr'; "
            "did you mean taylor? (flag)",
        ),
        ("prune", "device", "cuda:x", "--device must be auto|cpu|cuda[:i]|mps, such as cuda:0, not 'cuda:x' (flag)"),
        ("prune", "output", " ", "--output must not be empty (flag)"),
        ("prune", "model", ["a.st", ""], "MODEL must not be empty (flag)"),
        ("finetune", "lr", "nan", "--lr must be a number, not 'nan' (flag)"),
        ("finetune", "lr", "1e999", "--lr must be a number, not '1e999' (flag)"),
        ("finetune", "lr", "0", "--lr must be greater than 0, not 0.0 (flag)"),
        ("finetune", "label_smoothing", "1", "label_smoothing must be less than 1, not 1.0 (flag)"),
        ("finetune", "warmup", "1.5", "warmup must be whole steps or a fraction below 1, not 1.5 (flag)"),
        ("bench", "batch_size", ["1,,2"], "--batch-size must not be empty (flag)"),
        ("bench", "batch_size", ["1,0"], "--batch-size must be at least 1, not 0 (flag)"),
        ("bench", "batch_size", ["4,4"], "--batch-size lists something twice: 4,4 (flag)"),
        ("bench", "require", ["r=>1"], "--require must be [NAME:]KEY>=NUMBER (or <=, >, <, ==), not 'r=>1' (flag)"),
        ("fuse", "merge", ["none,mlp"], "--merge none stands alone, not with the others: none,mlp (flag)"),
        ("fuse", "merge", ["mlp,auto"], "--merge auto stands alone, not with the others: mlp,auto (flag)"),
        (
            "fuse",
            "output",
            "h.pt",
            "--output h.pt: fuse writes safetensors, so name it h.st; hydractl export makes .onnx and .pt2 of it "
            "(flag)",
        ),
        ("fuse", "output", "-", "--output - is for JSON, fuse writes weights (flag)"),
        ("study", "output", "s.json", "--output s.json: study writes a folder, so name it s (flag)"),
        (
            "eval",
            "ood",
            ["auto"],
            "--ood must be NAME[:near|far]=SPEC, not 'auto': samples that are made are for --ood-val (flag)",
        ),
        ("eval", "ood", ["svhn.npz"], "--ood must be NAME[:near|far]=SPEC, not 'svhn.npz' (flag)"),
        ("eval", "ood", ["/d/x?root=/y"], "--ood must be NAME[:near|far]=SPEC, not '/d/x?root=/y' (flag)"),
        ("eval", "ood", ["a:middle=x"], "--ood must be NAME[:near|far]=SPEC, not 'a:middle=x' (flag)"),
        ("eval", "ood", ["a=x", "a:far=y"], "--ood has the name 'a' twice (flag)"),
        ("eval", "ood", ["id:far=y"], "--ood cannot be named 'id', which the answer has a use for (flag)"),
        ("eval", "predictions", "p.txt", "--predictions must end in .st, not 'p.txt' (flag)"),
    ],
)
def test_exact_words(verb: str, name: str, text: Any, message: str, refused: Refused) -> None:
    assert refused(verb, {**NEEDED[verb], name: text}) == [message]


def test_all_problems_of_all_sources_at_once(refused: Refused) -> None:
    yaml = "prune: {samples: 0, keep: [1, 2], sope: site}\nworkers: -1\n"
    flags = {"model": ["a.st", "b.st"], "method": "random", "batch_size": "x"}
    assert refused("prune", flags, {"HYDRACTL_JSON": "perhaps"}, yaml) == [
        "--keep takes one value, not a list (hydra.yaml:prune.keep)",
        "--samples must be at least 1, not 0 (hydra.yaml:prune.samples)",
        "--workers must be at least 0, not -1 (hydra.yaml:workers)",
        "--batch-size must be a whole number, not 'x' (flag)",
        "--json must be true or false, not 'perhaps' (HYDRACTL_JSON)",
        "hydra.yaml: unknown key 'sope' of prune; did you mean 'scope'?",
        "prune takes one MODEL, not 2 (flag)",
    ]


def test_the_message_counts_and_the_hint_leads_to_help(merged: Callable[..., Any]) -> None:
    with pytest.raises(UsageError) as caught:
        merged("prune", {})
    assert caught.value.message == "2 problems with the options of prune"
    assert caught.value.problems == ["prune needs a MODEL", "prune needs one of --method, --scores, --circuit, --mask"]
    assert caught.value.hint == "hydractl prune --help"


def test_every_option_is_fully_declared() -> None:
    for verb in VERBS:
        keys = [one.key for one in options_of_verb(verb)]
        assert len(keys) == len(set(keys)), verb
        for one in options_of_verb(verb):
            assert one.help and not one.help.endswith("."), one
            assert one.type in (str, int, float, bool) or one.reads is not None, one
            assert one.complaints(one.fresh_default()) == [], one


def test_defaults_alone_never_complain_about_ranges(tmp_path: Any) -> None:
    """Every number has a lower bound or a reason: zero or less must be refused where it makes no sense."""
    unbounded = [
        (verb, one.name)
        for verb in VERBS
        for one in options_of_verb(verb)
        if one.type in (int, float) and one.at_least is None and one.above is None
    ]
    assert unbounded == []
    assert checked("fuse", {"model": ["a"]}, {}, tmp_path).merge == ["auto"]


PATTERNED = {option.flag: option for verb in VERBS for option in options_of_verb(verb) if option.pattern}


@pytest.mark.fault(73)
@pytest.mark.parametrize("flag", PATTERNED)
def test_a_value_of_another_form_is_answered_by_an_example_of_the_right_one(flag: str) -> None:
    option = PATTERNED[flag]
    with pytest.raises(ValueError) as caught:
        option.read("!")
    assert str(caught.value) == f"must be {option.placeholder()}, such as {option.example}, not '!'"
    examples = re.split(r", | or ", option.example)  # a comma within a value has no space behind it
    for example in examples:
        option.read(example)
