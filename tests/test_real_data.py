"""The chain on real images (Fashion-MNIST against MNIST and grey CIFAR-10), small enough for every run of the tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hydractl.cli.app import main

BASE = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=28&patch_size=7&in_chans=1"
    "&embed_dim=32&depth=3&num_heads=4&mlp_ratio=2&num_classes=10"
)


def run(*arguments: str) -> None:
    assert main(list(arguments)) == 0, arguments


def test_a_fashion_mnist_ensemble(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    images = real_data / "images"
    with np.load(images / "fashion_mnist_train.npz") as whole:
        for name, part in (("train", slice(0, 6000)), ("val", slice(6000, 6400))):
            np.savez(f"{name}.npz", x=whole["x"][part], y=whole["y"][part], classes=whole["classes"])
    train = ["--data", "train.npz", "--val", "val.npz", "--epochs", "4", "--lr", "3e-3", "-q"]
    run("finetune", BASE, *train, "-o", "base.st")
    ood = ["--ood", f"{images / 'cifar100_test.npz'}", "--limit", "200", "--batch-size", "200"]
    search = ["--data", "val.npz", *ood, "--objective", "acc,ood,avg", "--budget", "4"]
    run("extract-circuit", "base.st", *search, "-o", "c.json", "-q")
    members = []
    for objective in ("acc", "ood", "avg"):
        run("prune", "base.st", "--circuit", f"c.{objective}.json", "-o", f"{objective}.st")
        members.append(f"{objective}.st")
    run("fuse", *members, "-o", "hydra.st")
    test = ["--data", str(images / "fashion_mnist_test.npz"), "--limit", "1000"]
    sets = [f"mnist:far={images / 'mnist_test.npz'}", f"cifar:far={images / 'cifar10_test.npz'}"]
    models = ["base.st", "hydra.st", f"deep={'+'.join(members)}"]
    run("eval", *models, *test, "--ood", sets[0], "--ood", sets[1], "-o", "eval.json")
    rows = {row["name"]: row for row in json.loads(Path("eval.json").read_text())["models"]}
    single, hydra, deep = (rows[name] for name in ("base", "hydra", "deep"))
    assert single["id"]["accuracy"] > 0.7
    assert hydra["id"]["accuracy"] > single["id"]["accuracy"] - 0.1
    # Nothing was trained after pruning, so averaging equal MLPs changes nothing.
    assert hydra["id"]["nll"] == pytest.approx(deep["id"]["nll"], rel=1e-4)
    assert hydra["ood_avg"]["auroc"] == pytest.approx(deep["ood_avg"]["auroc"], abs=1e-4)
    assert hydra["far_avg"]["auroc"] == hydra["ood_avg"]["auroc"]
    assert hydra["diversity"]["mnist"]["mi"] > 0
