"""A training that diverged, and validation data with training samples among them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hydractl.cli.app import main

MODEL = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&in_chans=1"
    "&embed_dim=12&depth=1&num_heads=3&mlp_ratio=1&num_classes=10"
)


def trained(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict[str, object], str]:
    assert main(["finetune", MODEL, *options, "-o", "a.st", "--force", "--json"]) == 0
    out, error = capsys.readouterr()
    return json.loads(out), error


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.fault(65)
def test_a_training_that_diverged(capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--train", "builtin:digits/train?take=200", "--epochs", "2", "--batch-size", "20"]
    document, error = trained(capsys, *data, "--lr", "2")  # far too high, and too low for numbers that overflow
    (warning,) = document["warnings"]  # type: ignore[misc]
    assert "above 2.303, that of the uniform prediction" in warning and f"warning: {warning}" in error
    document, error = trained(capsys, *data, "--lr", "1e-2")
    assert "warnings" not in document and "warning:" not in error


@pytest.mark.fault(65)
def test_validation_data_in_another_order(capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(0)
    classes = np.arange(200) % 2
    images = draw.integers(0, 50, (200, 8, 8)) + 200 * classes[:, None, None]  # dark and bright ones
    for name, rows, order in (("train", slice(0, 100), classes), ("val", slice(100, 200), 1 - classes)):
        np.savez(f"{name}.npz", x=images[rows].astype(np.uint8), y=order[rows])
    steps = ["--train", "train.npz", "--val", "val.npz", "--steps", "60", "--lr", "1e-2", "--batch-size", "20"]
    document, _ = trained(capsys, *steps)
    assert any("--val at the end: accuracy 0." in warning for warning in document["warnings"])  # type: ignore[attr-defined]


@pytest.mark.fault(62)
def test_training_samples_are_left_out_of_the_validation_set(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--steps", "1", "--train", "builtin:digits/train?take=100"]
    document, error = trained(capsys, *options, "--val", "builtin:digits/train?from=95&take=55")
    assert document["val_left_out"] == 5 and "warnings" not in document
    assert "5 of 55 samples of --val are among those of --train, and left out of it" in error
    document, _ = trained(capsys, *options, "--val", "builtin:digits/train?from=100&take=55")
    assert "val_left_out" not in document
    assert main(["finetune", MODEL, *options, "--val", "builtin:digits/train?from=50&take=60", "-o", "b.st"]) == 3
    assert "50 of 60 samples of --val are among the 100 of --train" in capsys.readouterr().err
