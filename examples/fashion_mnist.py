"""A ViT of 6 sites x 4 heads on Fashion-MNIST against MNIST and grey CIFAR-10; circuits chosen with grey CIFAR-100.

    python examples/fashion_mnist.py DATA [--tune] [--resume]

DATA holds ``fashion_mnist_train.npz`` (the last 3,000 become the validation set), ``fashion_mnist_test.npz``,
``mnist_test.npz``, ``cifar10_test.npz`` and ``cifar100_test.npz``: arrays ``x`` (uint8), ``y`` and ``classes``.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from chain import Study, run

RUNS = Path("runs/fashion")
VALIDATION = 3000


def split(data: Path, folder: Path) -> None:
    """Cut the validation set from the end of the training set."""
    folder.mkdir(parents=True, exist_ok=True)
    with np.load(data / "fashion_mnist_train.npz") as whole:
        for name, part in (("train", slice(None, -VALIDATION)), ("val", slice(-VALIDATION, None))):
            np.savez(folder / f"{name}.npz", x=whole["x"][part], y=whole["y"][part], classes=whole["classes"])


def study(data: Path, folder: Path) -> Study:
    """Members as pruned, without fine-tuning, and the single model."""
    training = "--epochs 2 --batch-size 64 --lr 2e-3 --weight-decay 0.05"
    return Study(
        runs=RUNS / "pruned",
        base=(
            "timm:vit_tiny_patch16_224?pretrained=0&img_size=28&patch_size=7&in_chans=1"
            "&embed_dim=64&depth=6&num_heads=4&mlp_ratio=2&num_classes=10"
        ),
        train=str(folder / "train.npz"),
        val=str(folder / "val.npz"),
        test=str(data / "fashion_mnist_test.npz"),
        ood_val=str(data / "cifar100_test.npz"),
        ood_test=[f"mnist={data / 'mnist_test.npz'}", f"cifar10={data / 'cifar10_test.npz'}"],
        remove=8,
        pretraining=training,
        deep=training,
        search="--limit 500 --batch-size 32",
        criteria=("taylor", "random"),
        evaluation="--bootstrap 1000",
        # Nothing is trained after pruning, so a fused model is its members run one after another.
        apart=False,
        timed=False,
    )


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--tune", action="store_true", help="fine-tune the members of the base already trained")
    parser.add_argument("--resume", action="store_true", help="make only what an earlier run did not finish")
    arguments = parser.parse_args()
    folder = RUNS / "data"
    split(arguments.data, folder)
    plan = study(arguments.data, folder)
    if arguments.tune:
        base = str(RUNS / "pruned" / "base.st")
        tuning = "--epochs 1 --limit 10000 --batch-size 64 --lr 2e-4"
        plan = replace(plan, runs=RUNS / "tuned", base=base, pretraining="", tuning=tuning, deep=tuning, apart=True)
    run(replace(plan, resume=arguments.resume))


if __name__ == "__main__":
    main()
