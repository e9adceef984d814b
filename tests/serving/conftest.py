"""A fused model of images with everything that calibrate stores, a model of texts, and services of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import hydractl
from tests.pico import SMALL, published
from tests.running import quiet
from tests.served import Served, served


@pytest.fixture(scope="session")
def image_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two members, class names, a threshold and prediction sets."""
    folder = tmp_path_factory.mktemp("served")
    small = SMALL.replace("depth=3", "depth=1").replace("num_classes=5", "num_classes=10")
    names = folder / "names.txt"
    names.write_text("\n".join(map(str, range(10))), encoding="utf-8")
    base = hydractl.open(f"timm:vit_tiny_patch16_224?{small}&in_chans=1", labels=str(names))
    pruned = hydractl.prune(base, method="random", keep=1, output=str(folder / "pruned.st"))
    hydractl.fuse([base, pruned], output=str(folder / "hydra.st"))
    chosen = ["--ood-score", "energy", "--threshold", "id:0.3", "--conformal", "0.2", "--limit", "60"]
    quiet("calibrate", folder / "hydra.st", "--val", "builtin:digits/val", *chosen, "-o", folder / "cal.st")
    return folder / "cal.st"


@pytest.fixture(scope="session")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT as its library publishes it, without anything chosen."""
    return published("bert", tmp_path_factory.mktemp("served") / "bert")


@pytest.fixture(scope="session")
def of_images(image_model: Path) -> Iterator[Served]:
    with served(image_model) as service:
        yield service


@pytest.fixture(scope="session")
def of_texts(text_model: Path) -> Iterator[Served]:
    with served(text_model, max_text=2000) as service:
        yield service


@pytest.fixture(scope="session")
def narrow(image_model: Path) -> Iterator[Served]:
    """A service whose limits of size are small."""
    with served(image_model, max_body=50_000, max_inputs=4, max_pixels=10_000, max_requests=3) as service:
        yield service


@pytest.fixture(scope="session")
def hasty(image_model: Path) -> Iterator[Served]:
    """A service that has a second for a request; who asks it is slow."""
    with served(image_model, max_seconds=1) as service:
        yield service
