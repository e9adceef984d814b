"""The rows that the package adds to a study, and the commands of its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hydractl.studies.plan import Plan
from hydractl.studies.rows import KINDS
from hydractl.studies.scale import Scale
from tests.calls import study_request
from tests.image_data import write_images
from tests.running import run
from tests.test_numbers import commands_in_scripts, parse_verb

ROWS = ("abnn", "snapshots", "swa", "swag", "masksembles")
MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5"
DATA = ["--train", "train.npz", "--val", "val.npz", "--ood-val", "seen.npz", "--test", "test.npz"]
STUDY = ["study", MODEL, *DATA, "--ood", "noise:far=noise.npz", "--device", "cpu", "--batch-size", "2"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with data."""
    monkeypatch.chdir(tmp_path)
    write_images(train=40, val=20, seen=20, test=20, noise=20)


def test_they_are_there_and_no_weights_are_averaged_in_them() -> None:
    request = study_request(
        train="train.npz", val="val.npz", ood_val=["seen.npz"], test="test.npz", ood=["a=noise.npz"]
    )
    for name in ROWS:
        plan = Plan(request, Scale([name], None, None), Path("out"), {0: 4, 1: 4}, [0, 1])
        KINDS[name].make(plan)
        assert [row.name for row in plan.rows] == [name]
        fusions = [step for step in plan.steps if step.verb == "fuse"]
        assert len(fusions) == (0 if name == "swa" else 1)
        assert all(fusion.arguments["merge"] == "none" for fusion in fusions)


def test_an_average_of_twenty_weights_needs_steps(capsys: pytest.CaptureFixture[str]) -> None:
    run(*STUDY, "--rows", "swa", "--epochs", "1", code=2)
    assert "--ensemble swa is to collect weights 20 times in 10 steps" in capsys.readouterr().err


def test_the_commands_of_the_page_are_read(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[1] / "README.md"
    commands = list(commands_in_scripts(page.read_text(encoding="utf-8")))
    kinds = [words[words.index("--ensemble") + 1].partition(":")[0] for words in commands if "--ensemble" in words]
    assert set(kinds) == set(ROWS)
    for words in commands:
        parse_verb(words, tmp_path)


@pytest.mark.long
def test_a_study_makes_them() -> None:
    names = ",".join(("single", *ROWS))
    run(*STUDY, "--rows", names, "--epochs", "3", "--bootstrap", "100", "--no-timed", "-o", "runs")
    rows = json.loads(Path("runs/study.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["single", *ROWS]
