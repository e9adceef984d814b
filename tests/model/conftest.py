"""Pico CLIPs in folders, beside data with and without class names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.pico_clip import pico_clip, publish_clip

LABELS = ["tin", "oak", "salt"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Published folders ``clip0`` to ``clip2`` with weights of their own."""
    root = tmp_path_factory.mktemp("models")
    for seed in range(3):
        (root / f"clip{seed}").mkdir()
        publish_clip(pico_clip("clip", seed), "clip", root / f"clip{seed}")
    return root


@pytest.fixture
def clip(folders: Path, here: Path) -> str:
    """The first of them, in a folder with ``data.npz`` (class names in it), ``plain.npz`` (none) and ``ood.npz``."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (12, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(12) % 3
    np.savez("data.npz", x=pixels, y=labels, classes=np.array(LABELS))
    np.savez("plain.npz", x=pixels, y=labels)
    np.savez("ood.npz", x=random.integers(0, 256, (7, 16, 16, 3), dtype=np.uint8))
    Path("names.txt").write_text("\n".join(LABELS))
    return str(folders / "clip0")
