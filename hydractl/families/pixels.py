"""Image modes and sizes common to all families, and random pixels as example inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PIL import ExifTags, Image, ImageOps

from hydractl.errors import InputError
from hydractl.families.config_json import Preprocessing, are_whole_numbers
from hydractl.families.reading import refused_as
from hydractl.jsonio import shown

if TYPE_CHECKING:
    from torch import Tensor

_GREY = ("1", "L", "LA")
_CHANNELS = (1, 3, 4)
"""How many channels one image may have: grey, RGB, and RGB with transparency."""
LARGEST = 1 << 14
"""The side of an image must be shorter than this, in pixels."""

# Whatever the depth in the file, Pillow gives these numbers from 0 to 65535.
_SCALED_TO_16_BITS = ("PNG", "PPM")
# Tags of TIFF.
_BITS, _PHOTOMETRIC, _NUMBERS = 258, 262, 339
_WHITE_IS_ZERO = 0
_SIGNED = 2

# Where Pillow keeps what may say how to turn an image. Those in a TIFF it turns by itself.
_MAY_BE_TURNED = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")


def images_of(samples: Sequence[Any]) -> list[Image.Image]:
    """Return the images of a batch as PIL images.

    Args:
        samples: a list of images, or one array of several images: an array ``[N, height, width]`` or ``[N, height,
            width, 1 or 3]``, or a tensor ``[N, height, width]`` or ``[N, 1 or 3, height, width]``. Three axes of which
            the first or the last is 1, 3 or 4 may be a single image, and are refused. See :func:`image_of` for a single
            image.

    Raises:
        InputError: if ``samples`` is a single image, or may be one, or empty, or :func:`image_of` cannot read one of
            the images.
    """
    if _may_be_one_image(samples):
        raise InputError(
            "preprocess takes a list of images, not one alone",
            hint="preprocess([image]); of several grey images preprocess(list(images))",
        )
    if not len(samples):
        raise InputError("preprocess takes one image or more, and was given none")
    return [image_of(sample) for sample in samples]


def _may_be_one_image(samples: Any) -> bool:
    """Return whether ``samples`` is not surely several images: a PIL image, or an array that may be a single one."""
    if isinstance(samples, Image.Image):
        return True
    shape = getattr(samples, "shape", None)
    if shape is None:  # a list
        return False
    if len(shape) != 3:
        return len(shape) != 4

    # Three axes are several grey images, unless the first or the last is so short that it may be the channels of one.
    return shape[0] in _CHANNELS or shape[2] in _CHANNELS


def image_of(sample: Any) -> Image.Image:
    """Convert an array or a tensor to a PIL image; return a PIL image of 8 bits a channel unchanged.

    Args:
        sample: a PIL image; a numpy array ``[height, width]`` or ``[height, width, 1 or 3]``; or a tensor
            ``[height, width]`` or ``[1 or 3, height, width]``. Pixels are bytes, or floating point numbers from 0 to 1.

    Raises:
        InputError: if ``sample`` is anything else, or :func:`in_eight_bits` refuses the image.
    """
    if isinstance(sample, Image.Image):
        return in_eight_bits(sample)
    if not hasattr(sample, "__array__"):
        raise InputError(f"an image is a PIL image, an array or a tensor, not {type(sample).__name__}")
    import numpy as np

    is_tensor = hasattr(sample, "detach")
    if not is_tensor:
        pixels = np.asarray(sample)
    elif sample.is_floating_point():
        pixels = np.asarray(sample.detach().cpu().float())  # numpy has no bfloat16
    else:
        pixels = np.asarray(sample.cpu())

    # Tensors have the channels first, arrays have them last.
    if is_tensor and pixels.ndim == 3:
        pixels = pixels.transpose(1, 2, 0)  # [C, height, width] -> [height, width, C]
    has_one_channel = pixels.ndim == 3 and pixels.shape[2] == 1
    given_pixels = pixels[:, :, 0] if has_one_channel else pixels
    pixels = given_pixels

    # Floating point numbers from 0 to 1 become bytes. Others keep their type and are refused below.
    are_floats = given_pixels.dtype.kind == "f" and given_pixels.size > 0
    if are_floats and given_pixels.min() >= 0 and given_pixels.max() <= 1:
        pixels = np.round(given_pixels * 255).astype(np.uint8)

    # What Pillow can read: bytes, grey or RGB, of at least one pixel.
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


def in_eight_bits(image: Image.Image) -> Image.Image:
    """Return a grey image of 16 bits a pixel, or 9 to 15, as 8-bit grey; return an image of 8 bits or fewer unchanged.

    The upper bits are kept. Pillow's own conversion would clip such pixels at 255. Images in colour need nothing:
    Pillow reduces them to 8 bits when it reads them.

    Raises:
        InputError: if it is not known which pixel is white: 32 bits, floating point, or numbers with a sign.
    """
    # Refuse or return what has not 16 bits. Mode "I" means 32 bits, but of some formats Pillow reads 16 bits into it.
    # Only a TIFF has tags that say more than Pillow's mode.
    tags: Mapping[int, Any] = getattr(image, "tag_v2", {}) if image.format == "TIFF" else {}
    if _SIGNED in _numbers(tags, _NUMBERS):
        raise _unknown_range("numbers with a sign")
    is_of_16_bits = image.mode.startswith("I;16")
    is_scaled = image.mode == "I" and image.format in _SCALED_TO_16_BITS
    if not is_of_16_bits and not is_scaled:
        if image.mode == "I":
            raise _unknown_range("32 bits")
        if image.mode == "F":
            raise _unknown_range("floating point")
        return image
    import numpy as np

    # A TIFF may have fewer than 16 bits, as many cameras do, and Pillow leaves its numbers as they are. Shifting keeps
    # the upper 8 of them: of 12 bits, the brightest 4095 becomes 255.
    bits, *_ = _numbers(tags, _BITS) or (16,)
    upper_bits = np.asarray(image) >> (bits - 8)
    pixels = 255 - upper_bits if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO else upper_bits
    grey = Image.fromarray(pixels.astype(np.uint8))
    grey.info = image.info
    return grey


def _numbers(tags: Mapping[int, Any], tag: int) -> tuple[int, ...]:
    """Return the numbers of a tag of a TIFF; none if the file lacks it."""
    value = tags.get(tag, ())
    return value if isinstance(value, tuple) else (value,)


def _unknown_range(kind: str) -> InputError:
    """Return the error for an image of which black and white are not known."""
    return InputError(
        f"pixels of {kind} may mean any brightness", hint="convert the image to 8 bits or to grey of 16 bits (0..65535)"
    )


def is_turned(image: Image.Image) -> bool:
    """Return whether an image says that it is to be shown turned or mirrored (EXIF orientation)."""
    # Most images say nothing, and looking closer takes longer.
    if not any(key in image.info for key in _MAY_BE_TURNED):
        return False
    # Damaged EXIF makes Pillow warn or raise nearly anything, and says nothing.
    try:
        with warnings.catch_warnings(action="ignore"):
            orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:
        return False
    return orientation in range(2, 9)


def upright(image: Image.Image) -> Image.Image:
    """Return an image turned as its EXIF orientation says, which it then has no longer; any other image unchanged."""
    return ImageOps.exif_transpose(image) if is_turned(image) else image


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """Convert an image of 8 bits a channel to mode ``L`` or ``RGB``."""
    # Pillow can convert LAB to grey only through RGB.
    if image.mode == "LAB":
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


def grey_or_rgb(image: Image.Image) -> Image.Image:
    """Convert an image with a grey mode to mode ``L``, and any other image to RGB."""
    return in_mode(image, "L" if image.mode in _GREY else "RGB")


def stacked(
    make: Callable[[], Callable[[Image.Image], Tensor]], mode: str | None, size: Sequence[int], problem: str
) -> Callable[[list[Any]], Tensor]:
    """Return a function that transforms a list of images and stacks the results to ``[B, C, H, W]``.

    Args:
        make: returns the library's transform, from one image to pixels ``[C, H, W]``.
        mode: ``L`` or ``RGB``, to which images are converted before it; None if the transform converts them itself.
        size: the shape of the pixels, ``[C, H, W]``.
        problem: the start of the message of an error.

    Raises:
        InputError: the library cannot make the transform, or its results have another shape.
    """
    # Transform a blank image, because libraries check some settings only when an image is transformed.
    with refused_as(problem):
        transform = make()
        blank = Image.new(mode or "RGB", (8, 8))
        shape = list(transform(blank).shape)
    if shape != list(size):
        raise InputError(f"{problem}: they are {shape}, the checkpoint says {list(size)}")

    def collate(samples: list[Any]) -> Tensor:
        """Return the transformed pixels of a batch of images, ``[B, C, H, W]``."""
        import torch

        images = images_of(samples)
        if mode is not None:
            images = [in_mode(image, mode) for image in images]
        return torch.stack([transform(image) for image in images])

    return collate


def mode_of(channels: int) -> str:
    """Return Pillow's mode for images with 1 channel (``L``) or 3 channels (``RGB``).

    Raises:
        InputError: for any other number of channels.
    """
    if channels not in (1, 3):
        raise InputError(f"the model takes images of {channels} channels; only 1 (grey) and 3 (RGB) can be read")
    return "L" if channels == 1 else "RGB"


def is_size(numbers: Sequence[Any]) -> bool:
    """Return whether all numbers are whole and can be sides of an image: at least 1 and below :data:`LARGEST`."""
    return are_whole_numbers(numbers, 1, LARGEST - 1)


def input_size(preprocess: Preprocessing) -> list[int]:
    """Return ``input_size`` of a checkpoint's preprocessing: ``[channels, height, width]``.

    Raises:
        InputError: if the entry is missing or is not such a list.
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
