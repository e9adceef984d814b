"""Image modes and sizes common to all families, and random pixels as example inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from hydractl.errors import InputError
from hydractl.jsonio import shown

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 1 << 14
"""Pixels of a side of an image at most."""


def images_of(samples: Sequence[Any]) -> list[Image.Image]:
    """The images of a batch that a person may have put together.

    Raises:
        InputError: for one image alone, and for what is no PIL image.
    """
    if isinstance(samples, Image.Image):
        raise InputError("preprocess takes a list of images, not one alone", hint="preprocess([image])")
    for image in samples:
        if not isinstance(image, Image.Image):
            hint = "PIL.Image.fromarray(array) makes one of an array [height, width, 3] of bytes"
            raise InputError(f"preprocess takes a list of PIL images; one of these is a {type(image).__name__}", hint)
    return list(samples)


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """The image in mode ``L`` or ``RGB``.

    Pillow clips 16-bit images at 255 when it converts them; here the upper byte is taken instead.
    """
    if image.mode.startswith("I;16"):
        image = image.point(lambda value: value * (1 / 256), "L")
    if image.mode == "LAB":  # which Pillow makes grey by way of RGB only
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


def mode_of(channels: int) -> str:
    """The mode of images of so many channels.

    Raises:
        InputError: for another number than 1 and 3.
    """
    if channels not in (1, 3):
        raise InputError(f"the model takes images of {channels} channels; only 1 (grey) and 3 (RGB) can be read")
    return "L" if channels == 1 else "RGB"


def is_size(numbers: Sequence[Any]) -> bool:
    """Whether these are whole numbers that an image can have as its size."""
    return all(type(number) is int and 0 < number < LARGEST for number in numbers)


def input_size(preprocess: Mapping[str, Any]) -> list[int]:
    """The size ``[channels, height, width]`` that a checkpoint's preprocessing names.

    Raises:
        InputError: where it names none.
    """
    size = preprocess.get("input_size")
    if not isinstance(size, list) or len(size) != 3 or not is_size(size):
        raise InputError(f"the preprocessing has no input size [channels, height, width] but {shown(size)}")
    return size


def random_pixels(size: Sequence[int], batch: int, seed: int) -> Tensor:
    """Standard normal pixels ``[batch, *size]``."""
    import torch

    return torch.randn((batch, *size), generator=torch.Generator().manual_seed(seed))
