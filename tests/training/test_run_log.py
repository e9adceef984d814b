"""The lines of a training's log that a Python program gets: those of the file."""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

import hydractl
from hydractl.errors import UsageError
from hydractl.training import loop
from tests.image_data import write_images
from tests.running import json_lines

MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "finetuning.md"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(train=20, val=11)


def train(**options: Any) -> None:
    sets = {"train": "train.npz", "val": "val.npz"}
    hydractl.finetune(MODEL, **{**sets, "batch_size": 8, "device": "cpu", "output": "a.st", **options})


def lines_of_file() -> list[Mapping[str, object]]:
    return json_lines("a.log.jsonl")


def test_a_program_gets_the_lines_of_the_file() -> None:
    lines: list[Mapping[str, object]] = []
    train(epochs=2, lr=[0.001, 0.01], log="beside", on_log=lines.append)
    assert lines == lines_of_file()
    assert lines[0]["schema"] == "hydractl.training-log/1" and lines[0]["samples"] == 20
    events = [line["event"] for line in lines[1:]]
    assert events == [*["candidate", "step", "step", "step", "epoch", "step", "step", "step", "epoch"] * 2, "end"]


@pytest.mark.parametrize("log", ["beside", None])
def test_a_resumed_training_says_so_and_goes_on_behind_what_was_saved(
    log: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = loop.Training._save_or_stop

    def killed(self: Any) -> None:
        if self.history.steps == 4:
            self.save()
        if self.history.steps == 5:
            raise KeyboardInterrupt
        before(self)

    monkeypatch.setattr(loop.Training, "_save_or_stop", killed)
    with pytest.raises(KeyboardInterrupt):
        train(epochs=2, log=log)
    monkeypatch.setattr(loop.Training, "_save_or_stop", before)
    lines: list[Mapping[str, object]] = []
    train(epochs=2, log=log, resume=True, on_log=lines.append)
    assert lines[0]["event"] == "resumed"
    assert [line["step"] for line in lines if line["event"] == "step"] == [5, 6]
    if log is not None:
        assert lines_of_file()[-len(lines) :] == lines


def test_an_error_of_the_program_ends_the_training() -> None:
    def refuse(line: Mapping[str, object]) -> None:
        if line.get("step") == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(on_log=refuse)
    assert not Path("a.st").exists()


def test_several_trainings_have_no_log_in_common() -> None:
    with pytest.raises(UsageError, match="on_log is of one training"):
        train(ensemble="deep:2", on_log=print)


class Writer:
    """What torch.utils.tensorboard has, as far as the page uses it."""

    points: ClassVar[list[tuple[str, float, int]]] = []

    def __init__(self, folder: str) -> None:
        self.points.clear()

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.points.append((tag, value, step))

    def close(self) -> None:
        """Close nothing."""


def test_the_lines_of_the_page_write_the_points_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = types.ModuleType("torch.utils.tensorboard")
    stand_in.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    section = PAGE.read_text(encoding="utf-8").partition("## The log")[2]
    block = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert block is not None
    hydractl.save(hydractl.open(MODEL), "a.st")
    code = block[1].replace('train="train/", val="val/"', 'train="train.npz", val="val.npz", log="beside", epochs=2')
    exec(code, {})
    written = Path("a.tuned.log.jsonl").read_text().splitlines()
    expected = []
    for line in map(json.loads, written):
        if line.get("event") == "step":
            expected += [(f"step/{name}", line[name], line["step"]) for name in ("loss", "lr", "samples_per_s")]
        elif line.get("event") == "epoch":
            expected += [(f"epoch/{name}", line[name], line["steps"]) for name in ("loss", "val_accuracy", "val_nll")]
    assert len(expected) > 4 and sorted(Writer.points) == sorted(expected)
