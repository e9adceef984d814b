"""What trackers show of a training, read back by their own readers."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydractl.log import Log
from hydractl.training import loop
from hydractl.training.run_log import RunFacts, RunLog
from hydractl.training.trackers import Tracked
from tests.running import run
from tests.spread import marked_long

MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5"
TRAIN = ["finetune", MODEL, "--train", "train.npz", "--val", "val.npz", "--device", "cpu", "-q", "--batch-size", "8"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for name, count in (("train", 20), ("val", 11)):
        pixels = draw.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", x=pixels, y=np.arange(count) % 5)


def test_where_it_is_not_installed_nothing_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else found(name))
    run(*TRAIN, "--track", "tensorboard", code=2)
    err = capsys.readouterr().err
    assert "error: --track tensorboard needs the package tensorboard, which is not installed\n" in err
    assert "hint: pip install 'hydractl[tensorboard]'" in err
    assert not Path("runs").exists()


def scalars(folder: str) -> dict[str, list[tuple[int, float]]]:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")
    events = reading.EventAccumulator(folder).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


TAGS = ["train/loss", "train/lr", "train/samples_per_s", "train/epoch_loss", "val/accuracy", "val/nll"]


@pytest.mark.parametrize("step", [6, *marked_long([4])])
def test_after_a_resumption_no_step_is_there_twice(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle of an epoch, and between the last step of one and its validation."""
    scalars(".")  # skips where there is no reader
    train = [*TRAIN, "--epochs", "3", "--log", "beside", "--track", "tensorboard"]
    before = loop.Training._save_or_stop

    def signalled(self: Any) -> None:
        if self.history.steps == step:
            self.save()
        if self.history.steps == step + 2:  # as if it had been killed: what comes after the save is lost
            raise KeyboardInterrupt
        before(self)

    monkeypatch.setattr(loop.Training, "_save_or_stop", signalled)
    run(*train, "-o", "a.st", code=130)
    monkeypatch.setattr(loop.Training, "_save_or_stop", before)
    run(*train, "-o", "a.st", "--resume")
    found = scalars("runs/a")
    assert sorted(found) == sorted(TAGS)
    events = [json.loads(line) for line in Path("a.log.jsonl").read_text().splitlines()[1:]]
    steps = [(e["step"], e["loss"], e["lr"]) for e in events if e["event"] == "step"]
    assert [s for s, _, _ in steps] == list(range(1, 10))
    lost = {step} if step == 6 else set()  # its point went with that of the validation that came again
    assert found["train/loss"] == [(s, pytest.approx(loss)) for s, loss, _ in steps if s not in lost]
    assert found["train/lr"] == [(s, pytest.approx(lr)) for s, _, lr in steps if s not in lost]
    epochs = [e for e in events if e["event"] == "epoch"]
    for tag, key in (("train/epoch_loss", "loss"), ("val/accuracy", "val_accuracy"), ("val/nll", "val_nll")):
        assert found[tag] == [(e["steps"], pytest.approx(e[key])) for e in epochs]
    assert [e["steps"] for e in epochs] == [3, 6, 9]

    Path("b").mkdir()
    run(*train, "-o", "b/a.st")  # another run of the same name takes the place of the first
    assert [s for s, _ in scalars("runs/a")["train/loss"]] == list(range(1, 10))


def test_each_learning_rate_has_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    scalars(".")
    grid = [*TRAIN, "--epochs", "1", "--lr", "0.001,0.01", "--track", "tensorboard:runs", "-o", "a.st"]
    before = loop.Training._save_or_stop

    def signalled(self: Any) -> None:
        if self.lr == 0.01 and self.history.steps == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        before(self)

    monkeypatch.setattr(loop.Training, "_save_or_stop", signalled)
    run(*grid, code=130)
    monkeypatch.setattr(loop.Training, "_save_or_stop", before)
    run(*grid, "--resume")
    assert sorted(path.name for path in Path("runs/a").iterdir()) == ["lr-0.001", "lr-0.01"]
    for name in ("lr-0.001", "lr-0.01"):
        assert [s for s, _ in scalars(f"runs/a/{name}")["train/loss"]] == [1, 2, 3]


def test_a_folder_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    scalars(".")
    Path("file").write_text("")
    run(*TRAIN, "--track", "tensorboard:file", code=5)
    assert "cannot write file" in capsys.readouterr().err
    run(*TRAIN, "-o", "out/", "--track", "tensorboard:out", code=2)
    assert "--track tensorboard:out is the name of another file" in capsys.readouterr().err


def test_what_cannot_be_written_later_is_warned_of_once() -> None:
    scalars(".")
    said: list[str] = []
    log = Log()
    log.warn = said.append  # type: ignore[method-assign]
    about = RunFacts(model="a", samples=8, steps=5, seed=0, settings={})
    board = Tracked("tensorboard", "runs", "a", 0, about, log)
    run_log = RunLog([board])
    run_log.step(1, 5, 2.0, 0.1, 8)
    board._tracker._writer.add_scalar = None  # type: ignore[union-attr]
    for step in range(2, 6):
        run_log.step(step, 5, 2.0, 0.1, 8)
    run_log.position()
    run_log.close()
    assert len(said) == 1 and "ends here" in said[0]
    assert scalars("runs/a")["train/loss"] == [(1, 2.0)]


def test_what_is_no_tracker_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in {
        "aim": "must be one of tensorboard, wandb, mlflow, not 'aim'",
        "mlflow,mlflow": "twice",
    }.items():
        run(*TRAIN, "--track", words, code=2)
        assert message in capsys.readouterr().err


@pytest.mark.long
def test_mlflow_has_the_points_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = Path("store").resolve().as_uri()
    run(*TRAIN, "--epochs", "2", "--log", "beside", "--track", f"mlflow:{store}", "-o", "a.st")
    client = mlflow.MlflowClient(store)
    (found,) = client.search_runs([client.get_experiment_by_name("hydractl").experiment_id])
    assert (found.info.run_name, found.info.status, found.data.params["samples"]) == ("a", "FINISHED", "20")
    events = [json.loads(line) for line in Path("a.log.jsonl").read_text().splitlines()[1:]]
    for tag, event, place, key in (("train/loss", "step", "step", "loss"), ("val/nll", "epoch", "steps", "val_nll")):
        points = [(one.step, one.value) for one in client.get_metric_history(found.info.run_id, tag)]
        assert points == [(e[place], pytest.approx(e[key])) for e in events if e["event"] == event]


@pytest.mark.long
def test_weights_and_biases_keeps_a_run_offline(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run(*TRAIN, "--epochs", "1", "--track", "wandb:digits", "-o", "a.st")
    (kept,) = Path("wandb").glob("offline-run-*/run-*.wandb")
    data = kept.read_bytes()
    assert all(word in data for word in (b"train/loss", b"val/accuracy", b"digits"))
    assert capfd.readouterr().out.split() == ["a.st"]
