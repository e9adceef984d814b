"""Does it help? A small ViT of 6 sites x 4 heads, trained on Fashion-MNIST and studied with ``hydractl study``.

    python examples/study.py DATA [-o runs/study]

DATA holds ``fashion_mnist_train.npz`` (54,000 images to train on, 4,000 to validate), ``fashion_mnist_test.npz``,
``mnist_test.npz``, ``cifar10_train.npz`` and ``cifar100_test.npz``: arrays ``x`` (uint8), ``y`` and ``classes``. OOD
validation samples are grey CIFAR-10; MNIST and grey CIFAR-100 are test sets only. The same call goes on after a break.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

MODEL = (
    "timm:vit_tiny_patch16_224?pretrained=0&img_size=28&patch_size=7&in_chans=1"
    "&embed_dim=64&depth=6&num_heads=4&mlp_ratio=2&num_classes=10"
)
TRAINING = (
    f"finetune '{MODEL}' --train train.npz --val val.npz --epochs 4 --batch-size 64 --lr 2e-3 "
    "--weight-decay 0.05 --resume"
)
STUDY = (
    "--train train.npz --val val.npz --ood-val cifar10=cifar10.npz --ood-val made=auto --test test.npz "
    "--ood cifar100:far=cifar100.npz --ood mnist:far=mnist.npz --search-samples 1000"
)


def grey(images: np.ndarray) -> np.ndarray:
    """Images [N, H, W, 3] as [N, 28, 28]."""
    size, filter_ = (28, 28), Image.Resampling.BILINEAR
    return np.stack([np.asarray(Image.fromarray(image).convert("L").resize(size, filter_)) for image in images])


def cut(data: Path, folder: Path) -> None:
    """Write the data sets of the study."""
    with np.load(data / "fashion_mnist_train.npz") as whole:
        for name, part in (("train", slice(54000)), ("val", slice(54000, 58000))):
            np.savez(folder / f"{name}.npz", x=whole["x"][part], y=whole["y"][part], classes=whole["classes"])
    for name, source in (("test", "fashion_mnist"), ("mnist", "mnist")):
        (folder / f"{name}.npz").write_bytes((data / f"{source}_test.npz").read_bytes())
    for name, source, count in (("cifar10", "cifar10_train", 2500), ("cifar100", "cifar100_test", None)):
        with np.load(data / f"{source}.npz") as whole:
            np.savez(folder / f"{name}.npz", x=grey(whole["x"][:count]))


def prepare(data: Path, folder: Path) -> None:
    """Cut the data unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "cifar100.npz").exists():
        cut(data, folder)


def run(command: str, folder: Path) -> None:
    """Run one command of the tool in a folder, and show it."""
    print(f"$ hydractl {command}", flush=True)
    subprocess.run([sys.executable, "-m", "hydractl", *shlex.split(command)], cwd=folder, check=True)


def main() -> None:
    """Cut the data, train the model and study it, each unless it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/study"))
    arguments = parser.parse_args()
    prepare(arguments.data, arguments.output)
    if not (arguments.output / "vit.st").exists():
        run(f"{TRAINING} -o vit.st", arguments.output)
    run(f"study vit.st {STUDY} -o study", arguments.output)


if __name__ == "__main__":
    main()
