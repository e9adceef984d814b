"""Predictions that are kept are a model: the same figures without a forward pass, also after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from PIL import Image

import hydractl
from hydractl.data import open_data
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.providers import running
from hydractl.evaluation.sets import EvalSet
from hydractl.model.source import open_source
from tests.running import evaluated, run, tensors

TEST = ["--test", "builtin:digits/test?take=100"]
SETS = ["--ood", "letters:far=builtin:letters?take=90", "--ood", "near:near=builtin:symbols?take=80"]


def rows(document: Any, *without: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in ("name", "sha256", *without)} for row in document["models"]]


def test_the_logits_are_those_of_the_model() -> None:
    run("eval", "hydra.st", *TEST, "--limit", "50", "--predictions", "p.st", "-o", "e.json", "--allow-seen")
    model, data = hydractl.load("hydra.st", device="cpu"), open_data("builtin:digits/test", limit=50)
    with torch.no_grad():
        expected = model.member_logits(model.preprocess([data[i] for i in range(50)]))
    found = safetensors.numpy.load_file("p.st")
    assert np.allclose(found["sets.0.logits"], expected.numpy(), atol=1e-5)
    assert found["sets.0.labels"].tolist() == np.asarray(data.labels).tolist()


def test_a_file_of_predictions_gives_the_figures_of_the_model() -> None:
    options = [*TEST, *SETS, "--allow-seen", "--bootstrap", "20", "--ood-score", "entropy"]
    first = evaluated("hydra.st", *options, "--predictions", "p.st")
    alone = evaluated("p.st", "--allow-seen", "--bootstrap", "20", "--ood-score", "entropy")
    assert rows(alone) == rows(first)
    beside = evaluated("base.st", "again=p.st", *options)
    assert rows(beside, "difference")[1] == rows(first)[0]
    for key, spec in first["test"].items():
        assert alone["test"][key]["fingerprint"] == spec["fingerprint"] and alone["test"][key]["spec"] == "p.st"


def test_what_was_seen_is_still_known(capsys: pytest.CaptureFixture[str]) -> None:
    run("eval", "hydra.st", *TEST, *SETS, "--allow-seen", "--predictions", "p.st", "-o", "e.json")
    run("eval", "p.st", code=3)
    assert "samples of --ood near (as its predictions say)" in capsys.readouterr().err


def test_predictions_of_other_samples_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    run("eval", "base.st", *TEST, "--predictions", "p.st", "-o", "e.json")
    run("eval", "p.st", *TEST, "--limit", "20", code=3)
    assert "p.st has no predictions of id" in capsys.readouterr().err
    run("eval", "base.st", "p.st", code=2)
    assert "eval needs --test" in capsys.readouterr().err
    run("eval", "p.st", "--predictions", "q.st", code=2)
    assert "is a predictions file already" in capsys.readouterr().err


def test_a_temperature_is_fitted_on_stored_predictions_too() -> None:
    val = ["--val", "builtin:digits/val", "--temperature", "fit"]
    first = evaluated("base.st", *TEST, *val, "--predictions", "p.st")
    again = evaluated("p.st", *TEST, *val)
    assert rows(first) == rows(again) and first["models"][0]["calibration"]["temperature"] != 1.0


@pytest.mark.parametrize("gone", ["probe", "cascade"])
def test_predictions_by_what_is_gone_are_refused_by_name(capsys: pytest.CaptureFixture[str], gone: str) -> None:
    """They were features once. A reader that passes over the key would take them for the whole model's own."""
    data = open_data("builtin:digits/test", limit=30)
    entry = EvalSet("id", "id", None, data.ids, np.asarray(data.labels), data.fingerprint())
    model = {"name": "stored", gone: {"name": "knn"}}
    with PredictionsWriter(Path("p.st"), model, [entry], members=1, classes=10) as writer:
        writer.write(0, range(30), np.zeros((1, 30, 10), np.float32))
    run("eval", "p.st", code=3)
    assert f"error: p.st holds the logits of a {gone}, which hydractl 0.1.0 reads\n" in capsys.readouterr().err


@pytest.mark.fault(55)
def test_what_is_finished_is_read_and_not_computed_again(capsys: pytest.CaptureFixture[str]) -> None:
    run("eval", "base.st", *TEST, "--predictions", "p.st", "-o", "e.json")
    before, answer = Path("p.st").stat().st_mtime_ns, Path("e.json").read_bytes()
    Path("e.json").unlink()
    for _ in range(2):  # the second time the answer is there too
        run("eval", "base.st", *TEST, "--predictions", "p.st", "-o", "e.json", "--resume")
        assert "p.st is complete" in capsys.readouterr().err
        assert Path("p.st").stat().st_mtime_ns == before
        assert Path("e.json").read_bytes() == answer
    run("eval", "base.st", *TEST, "--predictions", "p.st", "-o", "e.json", "--resume", "--bootstrap", "5", code=5)
    assert "e.json holds another answer" in capsys.readouterr().err and Path("e.json").read_bytes() == answer
    run("eval", "base.st", *TEST, "--batch-size", "9", "--predictions", "p.st", "-o", "f.json", "--resume", code=3)
    assert "batch_size: 64 in the file, 9 now" in capsys.readouterr().err


def test_predictions_are_no_members(capsys: pytest.CaptureFixture[str]) -> None:
    run("eval", "base.st", *TEST, "--predictions", "p.st", "-o", "e.json")
    for model in ("p.st+p.st", "base.st+p.st"):
        run("eval", model, *TEST, code=2)
        assert f"{model}: p.st is a predictions file, and no member of an ensemble" in capsys.readouterr().err


@pytest.mark.fault(52)
def test_what_cannot_be_read_is_in_the_batches_of_a_resumed_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    for index in range(12):
        file = tmp_path / "images" / f"{index % 2}" / f"{index:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (8, 8), dtype=np.uint8)).save(file)
    (tmp_path / "images" / "0" / "08.png").write_bytes(b"no image")
    options = ["--test", "images", "--on-bad", "skip", "--batch-size", "3", "--allow-seen", "--device", "cpu", "-q"]
    sizes: list[int] = []
    started = running.move

    def counted(inputs: torch.Tensor, *place: Any) -> torch.Tensor:
        sizes.append(len(inputs))
        if len(sizes) == 2 and resumed == []:
            raise KeyboardInterrupt
        return started(inputs, *place)

    monkeypatch.setattr(running, "move", counted)
    resumed: list[str] = []
    run("eval", "base.st", *options, "--predictions", "p.st", "-o", "e.json", code=130)
    resumed, sizes = ["--resume"], []
    run("eval", "base.st", *options, "--predictions", "p.st", "-o", "e.json", *resumed)
    assert sizes == [2, 3, 3]  # the first of these batches has an image that cannot be read
    run("eval", "base.st", *options, "--predictions", "whole.st", "-o", "f.json")
    assert Path("p.st").read_bytes() == Path("whole.st").read_bytes()


def test_nothing_to_resume_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    run("eval", "base.st", *TEST, "--predictions", "p.st", "-o", "e.json", "--resume")
    assert "nothing to resume: p.st is begun" in capsys.readouterr().err
    run("eval", "base.st", *TEST, "--resume", code=2)
    assert "--resume needs --predictions" in capsys.readouterr().err


def test_info_describes_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    run("eval", "base.st", *TEST, "--limit", "9", "--predictions", "p.st", "-o", "e.json")
    capsys.readouterr()
    run("--info", "p.st", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "base" and found["data_sets"] == ["id (9 samples)"]


def test_what_was_chosen_by_stored_predictions_becomes_a_checkpoint_without_a_pass(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of one member: products of a few rows with some columns of a matrix, as a fused model has them, have another last
    # bit where the operands lie otherwise in memory.
    train = ["--train", "builtin:digits/train", "--limit", "120", "--ood-score", "mahalanobis"]
    chosen = ["--val", "builtin:digits/val", "--temperature", "fit", "--threshold", "id:0.1"]
    computed = evaluated("t0.st", *TEST, *SETS, *chosen, *train, "--allow-seen")
    run("calibrate", "t0.st", *chosen, *train, "-o", "computed.st")
    val = ["--test", "builtin:digits/val", *train, "--allow-seen"]
    run("eval", "t0.st", *val, "--predictions", "val.st", "-o", "val.json")
    run("eval", "t0.st", *TEST, *SETS, *train, "--allow-seen", "--predictions", "test.st", "-o", "test.json")
    with monkeypatch.context() as patch:
        patch.setattr("hydractl.evaluation.providers.running.RunningModel.batches", None)
        limited = ["--limit", "120", "--ood-score", "mahalanobis"]
        run("calibrate", "t0=val.st", *chosen, *limited, "-o", "chosen.json")
        read = evaluated("test.st", "--allow-seen", "--calibration", "chosen.json")
        run("calibrate", "t0.st", *train, "--calibration", "chosen.json", "-o", "read.st")
    (row,) = rows(computed)
    row["calibration"]["stored"] = True
    assert rows(read) == [row]
    written = [open_source(name).description for name in ("computed.st", "read.st")]
    assert written[0].extra == written[1].extra and len(written[1].seen) == len(written[0].seen)
    before, after = tensors("computed.st"), tensors("read.st")
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
