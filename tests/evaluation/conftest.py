"""Three pruned members of a small ViT, fused, in the folder of every test."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.running import run

BASE = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=2&in_chans=1"
    "&embed_dim=24&depth=3&num_heads=3&mlp_ratio=2&num_classes=10"
)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``base.st``, ``circuit.json`` and its ``c.st``, ``t0.st`` and ``t1.st``, and all members fused: ``hydra.st``."""
    folder = tmp_path_factory.mktemp("models")
    with contextlib.chdir(folder):
        train = ["--train", "builtin:digits/train", "--limit", "300", "--epochs", "4", "--lr", "3e-3", "-q"]
        run("finetune", BASE, *train, "--batch-size", "16", "-o", "base.st")
        search = ["--val", "builtin:digits/val", "--limit", "40", "--ood-val", "builtin:symbols", "--budget", "2", "-q"]
        run("extract-circuit", "base.st", *search, "--objective", "avg", "-o", "circuit.json")
        run("prune", "base.st", "--circuit", "circuit.json", "-o", "c.st", "-q")
        for seed in ("0", "1"):
            run("prune", "base.st", "--method", "random", "--keep", "2", "--seed", seed, "-o", f"t{seed}.st", "-q")
        run("fuse", "c.st", "t0.st", "t1.st", "-o", "hydra.st", "-q")
    return folder


@pytest.fixture(autouse=True)
def inside(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test starts in a folder of its own that sees the models."""
    monkeypatch.chdir(tmp_path)
    for file in models.iterdir():
        (tmp_path / file.name).symlink_to(file)
