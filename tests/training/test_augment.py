"""Augmentation against torchvision's own transforms, and that only seed, epoch and sample decide what is drawn."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hydractl.data import batches, open_data
from hydractl.errors import UsageError
from hydractl.families import get_family
from hydractl.training.data import Augmentation, Numbered
from tests.pico import shared_stock, source_of

ALL = ["crop:0.3", "flip", "randaugment:2:12"]
IMAGES = ["class-token", "hf-vit", "clip"]


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    pixels = np.random.default_rng(0).integers(0, 256, (11, 24, 24, 3), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", x=pixels, y=np.arange(11) % 5)
    return open_data(str(tmp_path / "d.npz"), need_labels=True)


def augmentation(variant: str, items: list[str], seed: int = 3) -> Augmentation:
    source = source_of(shared_stock(variant), variant)
    return Augmentation(items, source.family, source.description.preprocess, seed)


def inputs(dataset: Any, changes: Augmentation, epoch: int, workers: int = 0, size: int = 4) -> torch.Tensor:
    order = range(len(dataset))
    found = batches(Numbered(dataset), partial(changes.collate, epoch=epoch), size, workers=workers, indices=order)
    return torch.cat([batch.inputs for batch in found])


def drawn_seed(seed: int, epoch: int, number: int) -> int:
    digest = hashlib.sha256(f"hydractl.augment/1 {seed} {epoch} {number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@pytest.mark.parametrize("variant", IMAGES)
def test_it_is_torchvisions_transforms_with_the_checkpoints_numbers(variant: str, dataset: Any) -> None:
    """The checkpoints' numbers, written from the libraries' own configurations: all of them say 0.5 but open_clip."""
    from torchvision.transforms import InterpolationMode, v2  # when tests.pico has made it importable

    clip = variant == "clip"
    mean = (0.48145466, 0.4578275, 0.40821073) if clip else (0.5, 0.5, 0.5)
    std = (0.26862954, 0.26130258, 0.27577711) if clip else (0.5, 0.5, 0.5)
    interpolation = InterpolationMode.BILINEAR if variant == "hf-vit" else InterpolationMode.BICUBIC
    made = inputs(dataset, augmentation(variant, ALL), epoch=1)
    side = made.shape[-1]
    reference = v2.Compose([
        v2.RandomResizedCrop(side, scale=(0.3, 1.0), interpolation=interpolation),
        v2.RandomHorizontalFlip(),
        v2.RandAugment(2, 12),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean, std),
    ])  # fmt: skip
    for number in range(len(dataset)):
        torch.manual_seed(drawn_seed(3, 1, number))
        assert torch.allclose(made[number], reference(dataset[number]), atol=1e-6)


def test_the_random_numbers_of_the_caller_are_left_alone(dataset: Any) -> None:
    changes = augmentation("class-token", ALL)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    inputs(dataset, changes, 0)
    assert torch.equal(torch.rand(3), expected)


def test_without_a_crop_images_are_resized_as_in_evaluation(dataset: Any) -> None:
    source = source_of(shared_stock("class-token"), "class-token")
    plain = source.family.collate(source.description.preprocess)([dataset[i] for i in range(len(dataset))])
    flipped = inputs(dataset, augmentation("class-token", ["flip"]), 0)
    same = [bool(torch.equal(a, b)) for a, b in zip(plain, flipped, strict=True)]
    mirrored = [bool(torch.allclose(a.flip(-1), b, atol=0.01)) for a, b in zip(plain, flipped, strict=True)]
    assert all(s != m for s, m in zip(same, mirrored, strict=True))
    assert 0 < sum(same) < len(same)


def test_grey_images_stay_grey() -> None:
    family = get_family("timm")
    preprocess = {"input_size": [1, 8, 8], "mean": [0.5], "std": [0.25], "interpolation": "bilinear",
                  "crop_pct": 1.0, "crop_mode": "center"}  # fmt: skip
    made = Augmentation(ALL, family, preprocess, 0).collate([(0, Image.new("L", (9, 9), 128))], 0)
    assert made.shape == (1, 1, 8, 8)


def test_texts_are_refused() -> None:
    with pytest.raises(UsageError, match="--augment crop:0.3,flip,randaugment:2:12: the model reads texts"):
        augmentation("bert", ALL)
