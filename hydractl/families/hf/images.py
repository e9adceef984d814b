"""Images for transformers' vision encoders: the library's own image processor with the published settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from hydractl.errors import InputError
from hydractl.families.base import ImageFormat, first_line
from hydractl.families.pixels import in_mode, input_size, is_size, mode_of
from hydractl.families.torchvision_operators import declare_operators
from hydractl.jsonio import shown

declare_operators()

import transformers  # noqa: E402
from transformers import AutoImageProcessor  # noqa: E402

PROCESSORS = ("ViTImageProcessor", "DeiTImageProcessor", "BitImageProcessor")
_FILE = "preprocessor_config.json"
_INTERPOLATION = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # Pillow's numbers


def image_preprocess(folder: Path, default: str, channels: int, size: tuple[int, int] | None) -> dict[str, Any]:
    """The image processor of a published folder, else the default of the architecture.

    Args:
        folder: may hold ``preprocessor_config.json``.
        default: the class of processor without one.
        channels: of the images that the model takes.
        size: their height and width, or None where the model takes images of any size.

    Raises:
        InputError: for a processor that is unknown or does not fit the model.
    """
    if (folder / _FILE).exists():
        try:
            processor = AutoImageProcessor.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        except Exception as error:
            raise InputError(f"transformers cannot read {folder / _FILE}: {first_line(error)}") from error
    else:
        processor = getattr(transformers, default)()
        if size is not None:
            height, width = size
            if getattr(processor, "do_center_crop", False):
                # The defaults of these classes crop 224 of 256 pixels; the same share of another size.
                processor.crop_size = {"height": height, "width": width}
                height, width = round(height * 256 / 224), round(width * 256 / 224)
            processor.size = {"height": height, "width": width}
    # Through JSON, so that what is used now is what a checkpoint will say.
    settings = json.loads(processor.to_json_string())
    shape = _try(_processor(settings), channels)
    if size is not None and shape[1:] != list(size):
        raise InputError(f"{folder} prepares images of {shape[1]}x{shape[2]}, its model takes {size[0]}x{size[1]}")
    return {"kind": "image", "input_size": shape, "processor": settings}


def image_collate(preprocess: Mapping[str, Any]) -> Callable[[list[Any]], Tensor]:
    """From a list of PIL images to pixels ``[B, C, H, W]``.

    Raises:
        InputError: for preprocessing that describes no known image processor.
    """
    size = input_size(preprocess)
    processor = _processor(preprocess.get("processor"))
    shape = _try(processor, size[0])
    if shape != size:
        raise InputError(f"the image processor makes images of {shape}, the checkpoint says {size}")
    mode = mode_of(size[0])
    return lambda samples: _pixels(processor, [in_mode(image, mode) for image in samples])


def image_format(preprocess: Mapping[str, Any]) -> ImageFormat:
    """Image format, from the settings of the image processor; its rescaling is part of mean and std."""
    settings, size = preprocess["processor"], preprocess["input_size"]
    scale = 255 * float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else 255.0
    normalized = settings.get("do_normalize", True)
    mean, std = (settings["image_mean"], settings["image_std"]) if normalized else ([0.0] * size[0], [1.0] * size[0])
    return ImageFormat(
        tuple(size),
        tuple(m / scale for m in mean),
        tuple(s / scale for s in std),
        _INTERPOLATION[settings.get("resample", 2)],
    )


def write_processor(folder: Path, preprocess: Mapping[str, Any]) -> None:
    """Write ``preprocessor_config.json``."""
    text = json.dumps(preprocess["processor"], indent=2, sort_keys=True) + "\n"
    (folder / _FILE).write_text(text, encoding="utf-8")


def _processor(settings: Any) -> Any:
    """The library's processor from its settings."""
    name = settings.get("image_processor_type") if isinstance(settings, Mapping) else None
    if name not in PROCESSORS:
        raise InputError(
            f"transformers' image processor {shown(name)} is not supported", hint=f"supported: {', '.join(PROCESSORS)}"
        )
    for key in ("size", "crop_size", "pad_size"):  # before an image of that size is made
        sizes = settings.get(key) or {}
        if not isinstance(sizes, Mapping) or not is_size([n for n in sizes.values() if n]):
            raise InputError(f"the image processor has the {key} {shown(sizes)}")
    try:
        return getattr(transformers, name).from_dict(dict(settings))
    except Exception as error:
        raise InputError(f"transformers cannot build its {name}: {first_line(error)}") from error


def _try(processor: Any, channels: int) -> list[int]:
    """The shape ``[C, H, W]`` that a processor gives: what the library checks only when it meets an image."""
    try:
        shape = list(_pixels(processor, [Image.new(mode_of(channels), (8, 8))]).shape[1:])
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"the image processor cannot be used: {first_line(error)}") from error
    if shape[0] != channels:
        raise InputError(f"the image processor gives {shape[0]} channels, the model takes {channels}")
    return shape


def _pixels(processor: Any, images: list[Image.Image]) -> Tensor:
    return processor(images=images, return_tensors="pt")["pixel_values"]
