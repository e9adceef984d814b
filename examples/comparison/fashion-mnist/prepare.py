"""The data sets of the study, and the model it begins with: a ViT of 6 sites with 4 heads, trained here.

``DATA`` holds ``fashion_mnist_train.npz``, ``fashion_mnist_test.npz``, ``mnist_test.npz``, ``cifar10_test.npz`` and
``cifar100_test.npz``: arrays ``x`` (uint8), ``y`` and ``classes``.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

VALIDATION, CALIBRATION = 3000, 1000
"""The end of the training set: circuits see the first of these images, temperatures the last ones alone."""
COPIED = {"test": "fashion_mnist", "mnist": "mnist", "cifar10": "cifar10", "cifar100": "cifar100"}


def prepare(data: Path, runs: Path, study: dict[str, Any], model: str | None, step: Callable[..., str]) -> str:
    """Cut the training set, unless that is done, and train the MODEL of the study, unless one is named."""
    folder = runs / "data"
    if not (folder / "calibration.npz").exists():
        cut(data, folder)
    if model is not None:
        return model
    return step("base.st", "finetune", study["base"], *shlex.split(study["pretraining"]), "--resume", "-q")


def cut(data: Path, folder: Path) -> None:
    """Write the parts of the training set, and the test sets as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in COPIED.items():
        (folder / f"{name}.npz").write_bytes((data / f"{source}_test.npz").read_bytes())
    parts = {
        "train": slice(None, -VALIDATION),
        "val": slice(-VALIDATION, -CALIBRATION),
        "calibration": slice(-CALIBRATION, None),
    }
    with np.load(data / "fashion_mnist_train.npz") as whole:
        for name, part in parts.items():
            np.savez(folder / f"{name}.npz", x=whole["x"][part], y=whole["y"][part], classes=whole["classes"])
