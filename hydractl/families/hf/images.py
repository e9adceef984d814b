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
    files = [folder / name for name in _PROCESSOR_FILES if (folder / name).exists()]
    if files:
        with refused_as(f"transformers cannot read {files[0]}"):
            processor = AutoImageProcessor.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    else:
        processor = _default_processor(default, size, patch)
    # Through JSON, so that what is used now is what a checkpoint will say.
    settings = json.loads(processor.to_json_string())
    shape = _shape_of_images(_processor(settings), channels)
    _, height, width = shape
    if size is not None and (height, width) != size:
        model_height, model_width = size
        raise InputError(f"{folder} prepares images of {height}x{width}, its model takes {model_height}x{model_width}")
    patch_size = settings.get("patch_size")
    if patch is not None and patch_size != patch:
        raise InputError(f"{folder} cuts images into patches of {shown(patch_size)}, not of {patch}")
    return {"kind": "image", "input_size": shape, "processor": settings}


def _default_processor(name: str, size: tuple[int, int] | None, patch: int | None) -> Any:
    """Return the library's processor of this class for images of a size, see :func:`image_preprocess`."""
    processor_class = getattr(transformers, name)
    processor = processor_class() if patch is None else processor_class(patch_size=patch)
    if size is None:
        return processor
    height, width = size
    edge = processor.size.shortest_edge
    if getattr(processor, "do_center_crop", False):
        # DeiT's default crops 224 of 256 pixels, CLIP's all of them; the same share of another size.
        share = (edge or processor.size.height) / processor.crop_size.height
        processor.crop_size = {"height": height, "width": width}
        height = round(height * share)
        width = round(width * share)
    processor.size = {"shortest_edge": height} if edge else {"height": height, "width": width}
    return processor


def image_collate(preprocess: Preprocessing) -> Callable[[list[Any]], Any]:
    """Return the function from a list of PIL images to pixels ``[B, C, H, W]``, or to patches.

    With patches come which of them are not padding, and their rows and columns.

    Raises:
        InputError: for preprocessing that describes no known image processor.
    """
    size = input_size(preprocess)
    processor = _processor(preprocess.get("processor"))
    shape = _shape_of_images(processor, size[0])
    if shape != size:
        raise InputError(f"the image processor makes images of {shape}, the checkpoint says {size}")
    mode = mode_of(size[0])

    def collate(samples: list[Any]) -> Any:
        images = []
        for image in images_of(samples):
            images.append(in_mode(image, mode))
        return _pixels(processor, images)

    return collate


def image_format(preprocess: Preprocessing) -> ImageFormat:
    """Return the image format, from the settings of the image processor; its rescaling is part of mean and std."""
    settings: Any = preprocess["processor"]
    channels, height, width = input_size(preprocess)
    if "max_num_patches" in settings:
        raise UsageError("--augment: the model reads patches that its processor cuts; augment the files instead")
    scale = 255.0
    if settings.get("do_rescale", True):
        scale = 255 * float(settings.get("rescale_factor", 1 / 255))
    mean = [0.0] * channels
    std = [1.0] * channels
    if settings.get("do_normalize", True):
        mean = settings["image_mean"]
        std = settings["image_std"]
    how, shorter_side = _resize(settings, height, width)
    return ImageFormat(
        size=(channels, height, width),
        mean=tuple(number / scale for number in mean),
        std=tuple(number / scale for number in std),
        interpolation=_INTERPOLATION[settings.get("resample", 2)],
        resize=how,
        shorter_side=shorter_side,
    )


def _resize(settings: Any, height: int, width: int) -> tuple[str, int | None]:
    """Return how an image processor comes to a size, as :class:`ImageFormat` has it."""
    size = settings.get("size")
    if not settings.get("do_resize", True) or not isinstance(size, Mapping):
        return "other", None
    if set(size) == {"height", "width"} and (size["height"], size["width"]) == (height, width):
        return "squash", None
    cuts_the_middle = settings.get("do_center_crop", False) and height == width
    if set(size) == {"shortest_edge"} and cuts_the_middle and type(size["shortest_edge"]) is int:
        return "shorter", size["shortest_edge"]
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


def _processor(settings: object) -> Any:
    """Build the library's processor from its settings."""
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
    patches = [settings[key] for key in ("patch_size", "max_num_patches") if key in settings]
    if not is_size(patches):
        raise InputError(f"the image processor has the patch_size and max_num_patches {shown(patches)}")
    with refused_as(f"transformers cannot build its {name}"):
        processor_class = getattr(transformers, name)
        return processor_class.from_dict(dict(settings))


def _are_lengths(sizes: Mapping[str, object]) -> bool:
    """Return whether all sizes that a processor has set are lengths of sides of images."""
    lengths = [length for length in sizes.values() if length]
    return is_size(lengths)


def _shape_of_images(processor: Any, channels: int) -> list[int]:
    """Return the shape ``[C, H, W]`` that a processor gives: the library checks this only when it meets an image.

    Where the processor gives patches, it is the shape of the largest square of them.
    """
    example = Image.new(mode_of(channels), (8, 8))
    with refused_as("the image processor cannot be used"):
        pixels = _pixels(processor, [example])
    if isinstance(pixels, dict):
        most_patches, width = pixels["pixel_values"].shape[1:]
        side = processor.patch_size * math.isqrt(most_patches)
        shape = [width // processor.patch_size**2, side, side]
    else:
        shape = list(pixels.shape[1:])
    if shape[0] != channels:
        raise InputError(f"the image processor gives {shape[0]} channels, the model takes {channels}")
    return shape


def _pixels(processor: Any, images: list[Image.Image]) -> Any:
    batch = processor(images=images, return_tensors="pt")
    if "spatial_shapes" in batch:
        return dict(batch)
    return batch["pixel_values"]
