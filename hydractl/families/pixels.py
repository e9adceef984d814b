"""Image modes and sizes common to all families, and random pixels as example inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from hydractl.errors import InputError
from hydractl.families.config_json import Preprocessing, are_whole_numbers
from hydractl.jsonio import shown

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

_GREY = ("1", "L", "LA", "I", "F", "I;16", "I;16B", "I;16L", "I;16N")
LARGEST = 1 << 14
"""Pixels of a side of an image at most."""


def images_of(samples: Sequence[Any]) -> list[Image.Image]:
    """Return the images of a batch that a person may have put together: a list, or one array of several images.

    Raises:
        InputError: for one image alone, and for what :func:`image_of` does not take.
    """
    shape = getattr(samples, "shape", None)
    is_one_array = shape is not None and len(shape) != 4
    if is_one_array or isinstance(samples, Image.Image):
        raise InputError("preprocess takes a list of images, not one alone", hint="preprocess([image])")
    return [image_of(sample) for sample in samples]


def image_of(sample: Any) -> Image.Image:
    """Return what a program gives as an image as a PIL image.

    Args:
        sample: a PIL image, which comes back as it is; a numpy array ``[height, width]`` or
            ``[height, width, 1 or 3]``; or a tensor ``[height, width]`` or ``[1 or 3, height, width]``. Pixels are
            bytes, or floating point numbers from 0 to 1.

    Raises:
        InputError: for anything else.
    """
    if isinstance(sample, Image.Image):
        return sample
    if not hasattr(sample, "__array__"):
        raise InputError(f"an image is a PIL image, an array or a tensor, not {type(sample).__name__}")
    import numpy as np

    pixels = _channels_last(sample)
    are_floats = pixels.dtype.kind == "f" and pixels.size > 0
    if are_floats and pixels.min() >= 0 and pixels.max() <= 1:
        levels = np.round(pixels * 255)
        pixels = levels.astype(np.uint8)
    is_empty = 0 in pixels.shape
    is_grey = pixels.ndim == 2
    is_rgb = pixels.shape[2:] == (3,)
    if pixels.dtype != np.uint8 or is_empty or not (is_grey or is_rgb):
        raise InputError(
            f"an image of {pixels.dtype} {list(sample.shape)} cannot be read",
            hint="arrays are [height, width, 3] and tensors [3, height, width], of bytes or of numbers from 0 to 1 "
            "that are not normalized",
        )
    return Image.fromarray(np.ascontiguousarray(pixels))


def _channels_last(sample: Any) -> np.ndarray:
    """Return an array or a tensor as a numpy array ``[height, width, 3]``, or ``[height, width]`` of one channel.

    An array of anything else comes back with its own shape; it is refused elsewhere.
    """
    import numpy as np

    is_tensor = hasattr(sample, "detach")
    if is_tensor and sample.is_floating_point():
        sample = sample.detach().cpu().float()  # numpy has no bfloat16
    elif is_tensor:
        sample = sample.cpu()
    pixels = np.asarray(sample)
    if is_tensor and pixels.ndim == 3:
        pixels = pixels.transpose(1, 2, 0)  # [C, height, width] -> [height, width, C]
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    return pixels


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """Return the image in mode ``L`` or ``RGB``.

    Pillow clips 16-bit images at 255 when it converts them; here the upper byte is taken instead.
    """
    if image.mode.startswith("I;16"):
        image = image.point(lambda value: value * (1 / 256), "L")
    if image.mode == "LAB":  # which Pillow makes grey by way of RGB only
        image = image.convert("RGB")
    if image.mode == mode:
        return image
    return image.convert(mode)


def grey_or_rgb(image: Image.Image) -> Image.Image:
    """Return an image of a grey mode as 8-bit grey, any other as RGB."""
    if image.mode in _GREY:
        return in_mode(image, "L")
    return in_mode(image, "RGB")


def stacked(
    transform: Callable[[Image.Image], Tensor], prepare: Callable[[Image.Image], Image.Image]
) -> Callable[[list[Any]], Tensor]:
    """Return the function from images to the pixels ``[B, C, H, W]`` that a library's transform makes of them.

    Args:
        transform: of the library, of one image.
        prepare: comes before it.
    """

    def collate(samples: list[Any]) -> Tensor:
        """Return the pixels of a batch of images, ``[B, C, H, W]``."""
        import torch

        pixels = [transform(prepare(image)) for image in images_of(samples)]
        return torch.stack(pixels)

    return collate


def mode_of(channels: int) -> str:
    """Return the mode of images of so many channels.

    Raises:
        InputError: for another number than 1 and 3.
    """
    if channels not in (1, 3):
        raise InputError(f"the model takes images of {channels} channels; only 1 (grey) and 3 (RGB) can be read")
    return "L" if channels == 1 else "RGB"


def is_size(numbers: Sequence[Any]) -> bool:
    """Return whether these are whole numbers that an image can have as its size."""
    return are_whole_numbers(numbers, 1, LARGEST - 1)


def input_size(preprocess: Preprocessing) -> list[int]:
    """Return the size ``[channels, height, width]`` that a checkpoint's preprocessing names.

    Raises:
        InputError: where it names none.
    """
    size = preprocess.get("input_size")
    if not isinstance(size, list) or len(size) != 3 or not is_size(size):
        raise InputError(f"the preprocessing has no input size [channels, height, width] but {shown(size)}")
    return size


def random_pixels(size: Sequence[int], batch: int, seed: int) -> Tensor:
    """Draw standard normal pixels ``[batch, *size]``."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randn((batch, *size), generator=generator)
