"""Masks, scores and circuits of one checkpoint are not applied to another unless that is asked for."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from hydractl.model.source import open_source
from tests.running import link_files, read_json
from tests.running import quiet as run

BASE = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&in_chans=1"
    "&embed_dim=12&depth=2&num_heads=3&mlp_ratio=1&num_classes=10"
)
DATA = ["--data", "builtin:digits/train", "--limit", "20"]
TRAIN = ["--train", "builtin:digits/train", "--limit", "20", "--steps", "1"]
SEARCH = ["--val", "builtin:digits/val", "--limit", "10", "--objective", "acc", "--budget", "4"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``vit.st`` with its scores, circuit and member ``a.st``, and ``other.st`` trained from scratch like it."""
    folder = tmp_path_factory.mktemp("bases")
    with contextlib.chdir(folder):
        for name, seed in (("vit", "0"), ("other", "1")):
            run("finetune", BASE, *TRAIN, "--init", "random", "--seed", seed, "-o", f"{name}.st")
        run("score", "vit.st", "--method", "magnitude", "-o", "scores.json")
        run("extract-circuit", "vit.st", *SEARCH, "-o", "circuit.json")
        run("prune", "vit.st", "--scores", "scores.json", "--keep", "2", "-o", "a.st")
    return folder


@pytest.fixture(autouse=True)
def inside(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    link_files(models, tmp_path)


TAKING = ("--scores", "--circuit", "--mask", "--with", "--start-mask", "--share-from")
WITH_A = ["--method", "magnitude", "--keep", "2", "--share-sites", "1", "--with", "a.mask.json"]


@pytest.mark.parametrize(
    "command",
    [
        ["prune", "--scores", "scores.json", "--keep", "2"],
        ["prune", "--circuit", "circuit.json"],
        ["prune", "--mask", "a.mask.json"],
        ["prune", *WITH_A],
        ["extract-circuit", *SEARCH[:-2], "--start-mask", "a.mask.json", "--keep", "1"],
        ["extract-circuit", *SEARCH, "--share-from", "circuit.json", "--share-sites", "1"],
    ],
    ids=lambda command: next(word for word in command if word in TAKING),
)
def test_what_was_made_from_other_weights_is_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    verb, *options = command
    output = ["-o", "new.json" if verb == "extract-circuit" else "new.st"]
    run(verb, "other.st", *options, *output, code=3)
    said = capsys.readouterr().err
    assert "was made from another checkpoint" in said and "than other (" in said and "--allow-other-base" in said
    assert not Path(output[1]).exists()
    run(verb, "other.st", *options, *output, "--allow-other-base")
    assert "was made from another checkpoint" in capsys.readouterr().err


def test_what_comes_from_the_same_base_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a descendant for its base, of the base for a descendant two steps on, and of one descendant for another."""
    run("finetune", "a.st", *TRAIN, "-o", "tuned.st")
    run("prune", "tuned.st", "--circuit", "circuit.json", "--remove", "1", "-o", "again.st")
    run("prune", "vit.st", "--mask", "again.mask.json", "-o", "from-descendant.st")
    run("calibrate", "vit.st", "--temperature", "2", "-o", "c.st")
    run("prune", "c.st", "--scores", "scores.json", "--keep", "1", "-o", "of-calibrated.st")
    assert "another checkpoint" not in capsys.readouterr().err
    run("finetune", "vit.st", *TRAIN, "-o", "sibling.st")
    run("prune", "sibling.st", "--mask", "again.mask.json", "-o", "from-sibling.st")
    assert "both go back to" in capsys.readouterr().err


def test_what_is_trained_from_scratch_goes_back_to_nothing() -> None:
    """Two models trained from the same random weights are no relatives of each other."""
    run("finetune", BASE, *TRAIN, "-o", "drawn.st")
    assert open_source("drawn.st").lineage[1:] == open_source("other.st").lineage[1:] == []
    assert open_source("a.st").lineage[1:] == [open_source("vit.st").sha256]


def test_a_mask_that_does_not_say_what_it_was_made_from_is_taken() -> None:
    mask = read_json("a.mask.json")
    del mask["source"]
    Path("by-hand.json").write_text(json.dumps(mask))
    run("prune", "other.st", "--mask", "by-hand.json", "-o", "new.st")


def test_allowing_another_base_where_none_is_taken_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    run("prune", "vit.st", "--method", "magnitude", "--keep", "2", "--allow-other-base", code=2)
    assert "--allow-other-base has no effect with --method" in capsys.readouterr().err
    run("extract-circuit", "vit.st", *SEARCH, "--allow-other-base", code=2)
    assert "--allow-other-base (flag) needs --start-mask or --share-from" in capsys.readouterr().err
