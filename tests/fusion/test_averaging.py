"""What ``fuse`` makes of members that averaging would harm, and what it says of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hydractl.files.atomic import Output
from hydractl.files.checkpoint import write_checkpoint
from hydractl.fusion.averaging import AUTO, plan_checked
from hydractl.log import Log
from tests.image_data import write_images
from tests.pico import mask_of, prune_source, source_of, stock
from tests.running import run

ALL = ["mlp", "norm", "embed"]


def tuned(seed: int, by: float = 0.1) -> Any:
    """One base, each of whose weights was moved by about this share of the size of its tensor."""
    model = stock("class-token", 0)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += by * weight.square().mean().sqrt() * torch.randn(weight.shape, generator=draw)
    return model


def apart(seed: int) -> Any:
    return stock("class-token", seed)


def silent(seed: int) -> Any:
    """Models of independent weights with the same answer to every input."""
    model = apart(seed)
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    return model


def loud(seed: int) -> Any:
    """Weights that are close together, and answers that are not."""
    model = tuned(seed)
    with torch.no_grad():
        model.head.weight *= 1000
    return model


@pytest.mark.parametrize(
    ("make", "least", "most", "averaged"),
    [
        (lambda _: apart(0), 0, 0, True),
        (tuned, 0.05, 0.15, True),
        (silent, 0.6, 0.9, False),
        (loud, 0.05, 0.15, False),
    ],
    ids=["equal", "tuned", "silent", "loud"],
)
def test_auto_averages_what_survives_it(make: Callable[[int], Any], least: float, most: float, averaged: bool) -> None:
    sources = [source_of(make(seed), "class-token", f"m{seed}") for seed in range(2)]
    sources[0] = prune_source(sources[0], mask_of(sources[0], [[0, 2], [1], [0, 1, 2]]))
    decided = plan_checked(sources, AUTO, torch.device("cpu"), 0, Log())
    told = decided.averaging
    assert told.done is averaged
    assert decided.plan.description.merge == (ALL if averaged else [])
    assert all(least <= distance <= most for distance in told.distance)
    assert max(decided.check.merge_log_p) == (max(told.merge_log_p) if averaged else 0)
    assert plan_checked(sources, ALL, torch.device("cpu"), 0, Log()).plan.description.merge == ALL


# --- what is said -----------------------------------------------------------------------------------------------------


@pytest.fixture
def members(here: Path) -> None:
    write_images(d=20)
    for name, model in {"a": apart(0), "b": apart(1), "c": tuned(2), "twin": tuned(3, 1e-5)}.items():
        source = source_of(model, "class-token", name)
        with Output(Path(f"{name}.st"), force=False) as output:
            write_checkpoint(output, source.tensors, source.description.to_json())


def fuse(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    capsys.readouterr()
    run("fuse", *words, "--json", "--device", "cpu", "-o", "h.st", "--force")
    out, err = capsys.readouterr()
    return json.loads(out), err


def test_averaging_that_destroys_answers_is_said(members: None, capsys: pytest.CaptureFixture[str]) -> None:
    document, err = fuse(capsys, "a.st", "b.st")
    assert document["merge"] == [] and "warnings" not in document
    assert "--merge auto keeps members whole: weights lie up to 0.7" in err and "parameters instead of" in err
    document, err = fuse(capsys, "a.st", "b.st", "--merge", "mlp,norm,embed")
    assert document["merge"] == ALL and document["averaging"]["harmful"]
    (warning,) = document["warnings"]
    assert warning.startswith("--merge mlp,norm,embed destroys what members learnt: weights lie up to 0.7")
    assert f"warning: {warning}\n" in err and warning.endswith("--merge none keeps members whole")
    document, err = fuse(capsys, "a.st", "c.st")
    assert document["merge"] == ALL and "--merge auto averages mlp,norm,embed: weights lie up to 0.0" in err
    document, err = fuse(capsys, "a.st", "b.st", "--dry-run")
    assert "averaging" not in document and "is decided when weights are read" in document["note"]


@pytest.mark.fault(23)
def test_members_that_do_not_differ_are_said(members: None, capsys: pytest.CaptureFixture[str]) -> None:
    document, err = fuse(capsys, "a.st", "twin.st")
    (warning,) = document["warnings"]
    assert warning.startswith("members hardly differ on 4 random inputs, seed 0: disagreement 0, mutual information")
    assert warning in err
    run("eval", "h.st", "a.st", "--test", "d.npz", "--json", "--device", "cpu")
    out, err = capsys.readouterr()
    (warning,) = json.loads(out)["warnings"]
    assert warning.startswith("h: members hardly differ on --test d.npz: disagreement 0, mutual information")
    assert warning in err
    # Stored predictions of several rows may come from several files: the warning names none of them.
    evaluate = ["eval", "--json", "--device", "cpu"]
    run(*evaluate, "h.st", "--test", "d.npz", "--predictions", "h.pred.st")
    capsys.readouterr()
    run(*evaluate, "a=h.pred.st", "b=h.pred.st")
    for warning in json.loads(capsys.readouterr()[0])["warnings"]:
        assert "members hardly differ on --test: disagreement" in warning
