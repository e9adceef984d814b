"""What each verb asks for, in exact words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hydractl.errors import UsageError
from tests.calls import checked

M = {"model": ["a.st"]}


@pytest.mark.parametrize(
    ("verb", "flags", "problems"),
    [
        ("score", M, ["score needs --method"]),
        ("score", {**M, "method": "taylor"}, ["score --method taylor needs --data"]),
        ("score", {**M, "method": "random", "order": "sequential"}, ["score needs one of --keep, --remove"]),
        ("score", {**M, "method": "random", "keep": "3"}, ["--keep has no effect with --method random (flag)"]),
        (
            "extract-circuit",
            {**M, "budget": "3"},
            ["extract-circuit needs --val", "extract-circuit --objective avg needs --ood-val"],
        ),
        (
            "extract-circuit",
            {**M, "val": ["d"], "budget": "3", "objective": ["brier"]},
            ["--objective must be one of acc, ood, avg, nll, not 'brier' (flag)"],
        ),
        ("extract-circuit", {**M, "val": ["d"], "ood_val": ["o"]}, ["extract-circuit needs one of --budget, --keep"]),
        (
            "extract-circuit",
            {**M, "val": ["d"], "ood_val": ["o"], "keep": "8", "objective": ["acc,ood"], "output": "-"},
            ["--output - takes one --objective, not 2 (flag)"],
        ),
        ("prune", {**M, "method": "taylor", "keep": "8"}, ["prune --method taylor needs --data"]),
        ("prune", {**M, "scores": "s"}, ["prune needs one of --keep, --remove, --max-drop"]),
        ("prune", {**M, "mask": "m", "keep": "8"}, ["--keep has no effect with --mask m (flag)"]),
        ("prune", {**M, "circuit": "c", "order": "one-shot"}, ["--order has no effect with --circuit c (flag)"]),
        ("prune", {**M, "circuit": "c", "sample_from": "9"}, ["--sample-from (flag) needs one of --keep, --remove"]),
        (
            "prune",
            {**M, "method": "random", "keep": "8", "sample_from": "9"},
            ["--sample-from has no effect with --method random (flag)"],
        ),
        (
            "prune",
            {**M, "method": "random", "keep": "8", "scope": "global", "order": "sequential"},
            ["--order has no effect with --scope global (flag)"],
        ),
        ("prune", {**M, "mask": "m", "share_sites": "2"}, ["--share-sites (flag) needs --with"]),
        (
            "eval",
            {**M, "test": "d.npz", "output": "./r.st", "predictions": "r.st"},
            ["--predictions and --output name one file: ./r.st"],
        ),
        (
            "finetune",
            {**M, "train": "d.npz", "output": "a.st", "log": "a.st"},
            ["--log and --output name one file: a.st"],
        ),
        ("prune", {**M, "mask": "m", "with_mask": "w"}, ["--with (flag) needs --share-sites"]),
        (
            "prune",
            {**M, "mask": "-", "with_mask": "-", "share_sites": "1"},
            ["standard input can be read once, not for --mask and --with"],
        ),
        ("finetune", M, ["finetune needs --train"]),
        (
            "finetune",
            {**M, "train": "d", "epochs": "1", "steps": "2"},
            ["give only one of --epochs (flag), --steps (flag)"],
        ),
        ("finetune", {**M, "train": "d", "patience": "2"}, ["--patience (flag) needs --val"]),
        (
            "finetune",
            {**M, "train": "d", "momentum": "0.5"},
            ["momentum has no effect with --optimizer adamw (flag)"],
        ),
        (
            "finetune",
            {**M, "train": "d", "optimizer": "sdg", "momentum": "0.5"},
            ["--optimizer must be one of adamw, sgd, not 'sdg'; did you mean sgd? (flag)"],
        ),
        ("fuse", {}, ["fuse needs a MODEL"]),
        (
            "eval",
            {"model": ["a.st"], "test": "d", "ood": ["edges=s"]},
            ["--ood cannot be named 'edges', which the answer has a use for (flag)"],
        ),
        (
            "calibrate",
            {**M, "val": "d", "ood_val": ["auto"], "ood_score": ["msp,all"]},
            ["--ood-score all names every score: leave out the others (flag)"],
        ),
        ("bench", {**M, "quiet": True, "verbose": True}, ["--quiet (flag) and --verbose (flag) exclude each other"]),
    ],
)
def test_refused(verb: str, flags: dict[str, Any], problems: list[str], refused: Callable[..., list[str]]) -> None:
    assert refused(verb, flags) == problems


@pytest.mark.parametrize(
    ("verb", "flags"),
    [
        ("score", {**M, "method": "magnitude"}),
        ("score", {**M, "method": "taylor", "data": "d", "order": "sequential", "keep": "0"}),
        ("extract-circuit", {**M, "val": ["d"], "objective": ["acc"], "budget": "3", "output": "-"}),
        ("prune", {**M, "circuit": "c"}),
        ("prune", {**M, "circuit": "c", "remove": "48", "sample_from": "100"}),
        ("prune", {**M, "mask": "m", "share_sites": "3", "with_mask": "w"}),
        ("prune", {**M, "scores": "-", "keep": "8"}),
        ("finetune", {**M, "train": "d", "val": "v", "patience": "2", "optimizer": "sgd", "momentum": "0"}),
        ("fuse", {"model": ["a.st", "a.st"]}),
        ("eval", {"model": ["x=a.st+b.st"], "test": "d", "ood": ["a:near=s"], "require": ["x:ood.a.auroc >= .5"]}),
        ("bench", {"model": ["a.st", "b.st"], "dtype": ["float32,bfloat16"], "compile": True}),
    ],
)
def test_accepted(verb: str, flags: dict[str, Any], merged: Callable[..., Any]) -> None:
    merged(verb, flags)


def test_settled_defaults(merged: Callable[..., Any]) -> None:
    prune = merged("prune", {**M, "method": "random", "keep": "8"})
    assert prune.order is None and prune.scope is None  # the model decides, see test_prune.py
    assert merged("finetune", {**M, "train": "d"}).epochs == 3
    assert merged("finetune", {**M, "train": "d", "steps": "9"}).epochs is None


FOREIGN = ["h.pt", "h.PTH", "h.json", "h.npz", "h.onnx", "h.int8.onnx", "h.PT2", "h.csv", "h.md", "h.tar", "h.gguf"]


@pytest.mark.fault(68)
@pytest.mark.parametrize("name", FOREIGN)
def test_weights_are_not_written_under_the_name_of_another_kind_of_file(name: str) -> None:
    with pytest.raises(UsageError, match=f"--output {name}: prune writes safetensors, so name it"):
        checked("prune", {**M, "method": "random", "keep": "3", "output": name})
    checked("prune", {**M, "method": "random", "keep": "3", "output": "vit.taylor-8"})
    if name in ("h.onnx", "h.int8.onnx", "h.PT2"):
        checked("export", {"model": ["h.st"], "output": name})


def test_top_level_keys_of_other_modes_are_no_problem(merged: Callable[..., Any]) -> None:
    """What a file says for every verb is for those that have a use for it."""
    yaml = "model: a.st\nkeep: 8\nsamples: 100\nmomentum: 0.5\n"
    assert merged("prune", {"mask": "m"}, yaml=yaml).keep is None
    assert merged("score", {"method": "random"}, yaml=yaml).keep is None
    assert merged("finetune", {"train": "d"}, yaml=yaml).momentum == 0.9
