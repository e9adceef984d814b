"""Images as inputs of transformers' models: the processor as plain data, which a checkpoint holds itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from transformers import AutoImageProcessor

from hydractl.errors import InputError, UsageError
from hydractl.families.base import ImageFormat
from hydractl.families.config_json import Preprocessing
from hydractl.families.pixels import images_of, in_mode, input_size, is_size, mode_of, random_pixels
from hydractl.families.reading import refused_as, write_config
from hydractl.jsonio import shown

PROCESSORS = (
    *("ViTImageProcessor", "DeiTImageProcessor", "BitImageProcessor", "BeitImageProcessor"),
    *("CLIPImageProcessor", "SiglipImageProcessor", "Siglip2ImageProcessor", "DINOv3ViTImageProcessor"),
)
_PROCESSOR_FILE = "preprocessor_config.json"
_PROCESSOR_FILES = (_PROCESSOR_FILE, "processor_config.json")  # the latter beside a tokenizer, of newer versions
_INTERPOLATION = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # Pillow's numbers


def image_preprocess(
    folder: Path, default: str, channels: int, size: tuple[int, int] | None, patch: int | None = None
) -> dict[str, object]:
    """Read the image processor of a published folder, else the default of the architecture.

    Args:
        folder: may hold ``preprocessor_config.json``.
        default: the class of processor without one.
        channels: of the images that the model takes.
        size: their height and width, or None where the model takes images of any size.
        patch: pixels of a side of what the processor cuts them into; None: it cuts none.

    Raises:
        InputError: for a processor that is unknown or does not fit the model.
    """
    processor = _read_processor(folder)
    if processor is None:
        processor = _default_processor(default, size, patch)
    # Through JSON, so that what is used now is what a checkpoint will say.
    settings = json.loads(processor.to_json_string())
    shape = _shape_of_images(_build_processor(settings), channels)
    _, height, width = shape
    if size is not None and (height, width) != size:
        model_height, model_width = size
        raise InputError(f"{folder} prepares images of {height}x{width}, its model takes {model_height}x{model_width}")
    patch_size = settings.get("patch_size")
    if patch is not None and patch_size != patch:
        raise InputError(f"{folder} cuts images into patches of {shown(patch_size)}, not of {patch}")
    return {"kind": "image", "input_size": shape, "processor": settings}


def _read_processor(folder: Path) -> Any:
    """Return the library's image processor as a folder describes it; None where it describes none.

    Raises:
        InputError: for a description that the library cannot read.
    """
    files = [folder / name for name in _PROCESSOR_FILES]
    present = [file for file in files if file.exists()]
    if not present:
        return None
    with refused_as(f"transformers cannot read {present[0]}"):
        return AutoImageProcessor.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def _default_processor(name: str, size: tuple[int, int] | None, patch: int | None) -> Any:
    """Return the library's image processor with its own defaults, but for images of another size.

    Args:
        name: of its class.
        size: height and width of the images that it is to give; None: those that it gives by default.
        patch: pixels of a side of what it cuts images into; None: it cuts none.
    """
    processor_class = getattr(transformers, name)
    if patch is None:
        processor = processor_class()
    else:
        processor = processor_class(patch_size=patch)
    if size is None:
        return processor
    height, width = size
    shortest_edge = processor.size.shortest_edge  # None where it resizes to height and width
    if getattr(processor, "do_center_crop", False):
        # DeiT's default crops 224 of 256 pixels, CLIP's all of them; the same share of another size.
        resized_side = shortest_edge or processor.size.height
        share = resized_side / processor.crop_size.height
        processor.crop_size = {"height": height, "width": width}
        height = round(height * share)
        width = round(width * share)
    if shortest_edge:
        processor.size = {"shortest_edge": height}
    else:
        processor.size = {"height": height, "width": width}
    return processor


def image_collate(preprocess: Preprocessing) -> Callable[[list[Any]], Any]:
    """Return the function from a list of PIL images to pixels ``[B, C, H, W]``, or to patches.

    With patches come which of them are not padding, and their rows and columns.

    Raises:
        InputError: for preprocessing that describes no known image processor.
    """
    size = input_size(preprocess)
    channels, _, _ = size
    processor = _build_processor(preprocess.get("processor"))
    shape = _shape_of_images(processor, channels)
    if shape != size:
        raise InputError(f"the image processor makes images of {shape}, the checkpoint says {size}")
    mode = mode_of(channels)

    def collate(samples: list[Any]) -> Any:
        """Return the inputs of the model for a batch of images."""
        images = []
        for image in images_of(samples):
            images.append(in_mode(image, mode))
        return _run_processor(processor, images)

    return collate


def image_format(preprocess: Preprocessing) -> ImageFormat:
    """Return the image format, from the settings of the image processor.

    The format is of pixels from 0 to 1; a processor that rescales bytes by another factor, or not at all, has mean and
    standard deviation of what it makes of them, which are converted here.

    Raises:
        UsageError: for a processor that cuts images into patches.
    """
    settings: Any = preprocess["processor"]
    channels, height, width = input_size(preprocess)
    if "max_num_patches" in settings:
        raise UsageError("--augment: the model reads patches that its processor cuts; augment the files instead")
    scale = 255.0  # by which the processor multiplies pixels from 0 to 1
    if settings.get("do_rescale", True):
        scale = 255 * float(settings.get("rescale_factor", 1 / 255))
    mean = [0.0] * channels
    std = [1.0] * channels
    if settings.get("do_normalize", True):
        mean = settings["image_mean"]
        std = settings["image_std"]
    how, shorter_side = _way_of_resizing(settings, height, width)
    return ImageFormat(
        size=(channels, height, width),
        mean=tuple(number / scale for number in mean),
        std=tuple(number / scale for number in std),
        interpolation=_INTERPOLATION[settings.get("resample", 2)],
        resize=how,
        shorter_side=shorter_side,
    )


def _way_of_resizing(settings: Any, height: int, width: int) -> tuple[str, int | None]:
    """Return how an image processor comes to a size, and the pixels of the shorter side where it resizes to that.

    Args:
        settings: of the processor.
        height, width: of the images that it gives.

    Returns:
        ``squash``, ``shorter`` or ``other``, as :class:`ImageFormat` has them; and a number for ``shorter``, else None.
    """
    size = settings.get("size")
    if not settings.get("do_resize", True):
        return "other", None
    if not isinstance(size, Mapping):
        return "other", None
    if size == {"height": height, "width": width}:
        return "squash", None
    cuts_a_square = settings.get("do_center_crop", False) and height == width
    if cuts_a_square and set(size) == {"shortest_edge"}:
        shorter_side = size["shortest_edge"]
        if type(shorter_side) is int:
            return "shorter", shorter_side
    return "other", None


def random_images(preprocess: Preprocessing, batch: int, seed: int) -> Any:
    """Draw random pixels as :func:`image_collate` gives them; of patches, a square and perhaps some of padding."""
    settings: Any = preprocess["processor"]
    channels, height, width = input_size(preprocess)
    most_patches = settings.get("max_num_patches")
    if most_patches is None:
        return random_pixels([channels, height, width], batch, seed)
    patch = settings["patch_size"]
    rows = height // patch
    is_patch = torch.arange(most_patches) < rows**2  # the others are padding
    mask = is_patch.int().repeat(batch, 1)
    return {
        "pixel_values": random_pixels([most_patches, channels * patch**2], batch, seed),
        "pixel_attention_mask": mask,
        "spatial_shapes": torch.full((batch, 2), rows),
    }


def write_processor(folder: Path, preprocess: Preprocessing) -> None:
    """Write ``preprocessor_config.json``."""
    settings: Any = preprocess["processor"]
    path = folder / _PROCESSOR_FILE
    write_config(path, settings)


def _build_processor(settings: object) -> Any:
    """Build the library's image processor from its settings, which come from a file and may hold anything.

    Raises:
        InputError: for a processor that is not known, or sizes that no image has.
    """
    name = None
    if isinstance(settings, Mapping):
        name = settings.get("image_processor_type")
    if not isinstance(settings, Mapping) or name not in PROCESSORS:
        hint = f"supported: {', '.join(PROCESSORS)}"
        raise InputError(f"transformers' image processor {shown(name)} is not supported", hint=hint)
    for key in ("size", "crop_size", "pad_size"):  # before an image of that size is made
        sizes = settings.get(key) or {}
        if not isinstance(sizes, Mapping) or not _are_lengths(sizes):
            raise InputError(f"the image processor has the {key} {shown(sizes)}")
    numbers_of_patches = [settings[key] for key in ("patch_size", "max_num_patches") if key in settings]
    if not is_size(numbers_of_patches):
        raise InputError(f"the image processor has the patch_size and max_num_patches {shown(numbers_of_patches)}")
    with refused_as(f"transformers cannot build its {name}"):
        processor_class = getattr(transformers, name)
        return processor_class.from_dict(dict(settings))


def _are_lengths(sizes: Mapping[str, object]) -> bool:
    """Return whether all sizes that a processor has set are lengths of sides of images."""
    lengths = [length for length in sizes.values() if length]
    return is_size(lengths)


def _shape_of_images(processor: Any, channels: int) -> list[int]:
    """Return the shape ``[C, H, W]`` of what a processor gives, by giving it an image.

    Where the processor gives patches, it is the shape of the largest square of them.

    Args:
        processor: of the library, which checks its settings only when it meets an image.
        channels: of the images that the model takes.

    Raises:
        InputError: for settings that make no image, or one of other channels.
    """
    example = Image.new(mode_of(channels), (8, 8))
    with refused_as("the image processor cannot be used"):
        pixels = _run_processor(processor, [example])
    if isinstance(pixels, dict):
        _, most_patches, numbers_of_patch = pixels["pixel_values"].shape
        side = processor.patch_size * math.isqrt(most_patches)
        shape = [numbers_of_patch // processor.patch_size**2, side, side]
    else:
        shape = list(pixels.shape[1:])
    if shape[0] != channels:
        raise InputError(f"the image processor gives {shape[0]} channels, the model takes {channels}")
    return shape


def _run_processor(processor: Any, images: list[Image.Image]) -> Any:
    """Return what a processor makes of images: pixels ``[B, C, H, W]``, or a dict of patches and where they are."""
    batch = processor(images=images, return_tensors="pt")
    if "spatial_shapes" in batch:
        return dict(batch)
    return batch["pixel_values"]
