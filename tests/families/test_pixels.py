"""What a person may give to ``preprocess`` as images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hydractl.errors import InputError
from hydractl.families.pixels import image_of, images_of

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
GREY = PIXELS[:, :, 0]


@pytest.mark.parametrize(
    "sample",
    [
        PIXELS,
        PIXELS[::-1][::-1],
        PIXELS / 255,
        (PIXELS / 255).astype(np.float32),
        torch.from_numpy(PIXELS).permute(2, 0, 1),
        torch.from_numpy(PIXELS).permute(2, 0, 1) / 255,
        torch.nn.Parameter(torch.from_numpy(PIXELS).permute(2, 0, 1) / 255),
        Image.fromarray(PIXELS),
    ],
)
def test_pixels_of_any_kind_are_the_same_image(sample: Any) -> None:
    image = image_of(sample)
    assert image.mode == "RGB" and np.array_equal(np.asarray(image), PIXELS)


@pytest.mark.parametrize("sample", [GREY, GREY[:, :, None], torch.from_numpy(GREY.copy())[None]])
def test_grey(sample: Any) -> None:
    image = image_of(sample)
    assert image.mode == "L" and np.array_equal(np.asarray(image), GREY)


@pytest.mark.parametrize(
    "sample",
    [
        PIXELS.astype(np.int64),
        PIXELS.astype(np.float32),  # 0 to 255
        PIXELS / 255 - 0.5,
        np.where(PIXELS > 100, np.nan, 0.5),
        PIXELS.transpose(2, 0, 1),
        torch.from_numpy(PIXELS),  # channels last
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros(4, np.uint8),
        "a.png",
        None,
    ],
)
def test_what_has_no_one_meaning_is_refused(sample: Any) -> None:
    with pytest.raises(InputError):
        image_of(sample)


GREYS = np.random.default_rng(1).integers(0, 256, (6, 5, 8), dtype=np.uint8)


@pytest.mark.parametrize(
    "several",
    [
        GREYS,
        GREYS / 255,
        GREYS[..., None],
        torch.from_numpy(GREYS),
        torch.from_numpy(GREYS) / 255,
        torch.from_numpy(GREYS)[:, None],
        torch.from_numpy(GREYS[:2]),
    ],
)
def test_one_array_of_grey_images(several: Any) -> None:
    pixels = [np.asarray(image) for image in images_of(several)]
    assert len(pixels) == len(several)
    assert np.array_equal(np.stack(pixels), GREYS[: len(several)])


@pytest.mark.parametrize(
    "one",
    [
        PIXELS,
        GREY,
        GREY[:, :, None],
        np.zeros((9, 8, 4), np.uint8),
        PIXELS.transpose(2, 0, 1),  # of which three grey images look the same
        GREY[None],
        torch.from_numpy(PIXELS),  # channels last
        torch.from_numpy(PIXELS).permute(2, 0, 1),
        torch.from_numpy(GREY.copy()),
        torch.from_numpy(GREY.copy())[None],
        torch.zeros(4, 9, 8),
        Image.fromarray(PIXELS),
        np.zeros(4, np.uint8),
        np.zeros((2, 2, 5, 4, 3), np.uint8),
    ],
)
def test_one_image_alone_is_no_batch(one: Any) -> None:
    with pytest.raises(InputError, match="not one alone"):
        images_of(one)


def test_a_batch_is_a_list_or_one_array() -> None:
    assert len(images_of(np.stack([PIXELS] * 3))) == len(images_of([PIXELS, GREY, Image.fromarray(GREY)])) == 3
