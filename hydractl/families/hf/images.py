"""Images as inputs of transformers' models. The image processor is stored in a checkpoint as plain JSON settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import transformers
from PIL import Image
from transformers import AutoImageProcessor

from hydractl.errors import InputError
from hydractl.families.base import ImageFormat
from hydractl.families.config_json import Preprocessing, object_in
from hydractl.families.pixels import images_of, in_mode, input_size, is_size, mode_of, upright
from hydractl.families.reading import folder_for_library, names_only, read_config, refused_as, write_config
from hydractl.jsonio import shown

PROCESSORS = (
    *("ViTImageProcessor", "DeiTImageProcessor", "BitImageProcessor"),
    *("CLIPImageProcessor", "SiglipImageProcessor"),
)
_PROCESSOR_FILE = "preprocessor_config.json"
# Newer versions of transformers write the second file if there is also a tokenizer.
_PROCESSOR_FILES = (_PROCESSOR_FILE, "processor_config.json")
# What names code of its own, whatever the name.
_ELSEWHERE = ("auto_map",)
_INTERPOLATION = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # in the order of Pillow's numbers


def image_preprocess(folder: Path, default: str, channels: int, size: tuple[int, int] | None) -> dict[str, object]:
    """Return the preprocessing of images that a published folder describes.

    Args:
        folder: the folder, which has a ``preprocessor_config.json``.
        default: the class name of the processor if the file names none, e.g. ``ViTImageProcessor``.
        channels: the number of channels that the model takes.
        size: the height and width that the model takes; None if it takes images of any size.

    Returns:
        The preprocessing: ``kind``, ``input_size`` (``[C, H, W]``) and ``processor`` (its settings).

    Raises:
        InputError: if there is no processor, it is not supported, or it does not fit the model.
    """
    processor = _read_processor(folder, default)
    # Convert the settings to JSON and back, so that they are already as a checkpoint will store them.
    settings = json.loads(processor.to_json_string())
    shape = _shape_of_images(_build_processor(settings), channels)
    _, height, width = shape
    if size is not None and (height, width) != size:
        model_height, model_width = size
        raise InputError(f"{folder} prepares images of {height}x{width}, its model takes {model_height}x{model_width}")
    return {"kind": "image", "input_size": shape, "processor": settings}


def _read_processor(folder: Path, default: str) -> Any:
    """Return the image processor that a folder describes.

    Args:
        folder: the published folder.
        default: the class name of the processor if the file names none.

    Raises:
        InputError: if the folder has no file for one, the processor is not supported, or transformers cannot read it.
    """
    # There must be a file; the first is named in messages.
    possible_files = [folder / name for name in _PROCESSOR_FILES]
    existing_files = [file for file in possible_files if file.exists()]
    if not existing_files:
        raise InputError(
            f"{folder} has no {_PROCESSOR_FILE}, so it does not say how images are prepared",
            hint=f"transformers.{default}(...).save_pretrained({str(folder)!r}), with the settings of its training",
        )

    # The settings: the entry `image_processor` of a file for all inputs (transformers' newer versions), else the file
    # for images alone.
    settings = read_config(folder / _PROCESSOR_FILE)
    of_all_inputs = read_config(folder / "processor_config.json") or {}
    if isinstance(of_all_inputs.get("image_processor"), dict):
        settings = dict(object_in(of_all_inputs, "image_processor", str(folder)))
    problem = f"transformers cannot read {existing_files[0]}"
    if settings is None:
        raise InputError(f"{problem}: it describes no image processor")

    # The name of the class is checked before transformers sees it, because other processors read files, or ask the hub
    # for them. Older files say e.g. "ViTFeatureExtractor"; variants of a class are called e.g. "ViTImageProcessorFast".
    older_name = str(settings.get("feature_extractor_type") or default)
    name = settings.get("image_processor_type") or older_name.replace("FeatureExtractor", "ImageProcessor")
    if not isinstance(name, str) or name.removesuffix("Fast").removesuffix("Pil") not in PROCESSORS:
        raise _unsupported(name)

    # Open it in a temporary folder with its settings alone, without any other text that could name a file.
    document = {**names_only(settings, _ELSEWHERE), "image_processor_type": name}
    with folder_for_library([], {_PROCESSOR_FILE: document}) as settings_folder, refused_as(problem):
        return AutoImageProcessor.from_pretrained(str(settings_folder), local_files_only=True, trust_remote_code=False)


def image_collate(preprocess: Preprocessing) -> Callable[[list[Any]], Any]:
    """Return a function from a list of PIL images to pixels ``[B, C, H, W]``.

    Raises:
        InputError: if the image processor is not supported, or does not give images of the size in ``preprocess``.
    """
    size = input_size(preprocess)
    channels, _, _ = size
    processor = _build_processor(preprocess.get("processor"))
    shape = _shape_of_images(processor, channels)
    if shape != size:
        raise InputError(f"the image processor makes images of {shape}, the checkpoint says {size}")
    mode = mode_of(channels)

    def collate(samples: list[Any]) -> Any:
        """Return the pixels of a list of images."""
        # Transformers' own `load_image` turns images, too.
        images = [in_mode(upright(image), mode) for image in images_of(samples)]
        return _run_processor(processor, images)

    return collate


def image_format(preprocess: Preprocessing) -> ImageFormat:
    """Return the image format that the settings of an image processor describe.

    The mean and standard deviation of a format are for pixels from 0 to 1. Those of a processor are for pixels after
    its own rescaling, e.g. from 0 to 255, so they are divided by the range of these.
    """
    settings: Any = preprocess["processor"]
    channels, height, width = input_size(preprocess)

    # What the processor makes of the brightest pixel, the byte 255. Most processors rescale bytes by 1 / 255, which
    # makes it 1; so do processors that do not mention rescaling. Without rescaling it stays 255, and a mean of 127.5 is
    # one of 0.5 in the format.
    brightest = 255.0
    if settings.get("do_rescale", True):
        brightest = 255 * float(settings.get("rescale_factor", 1 / 255))

    # A processor that does not normalise has the mean 0 and the standard deviation 1.
    if settings.get("do_normalize", True):
        mean = settings["image_mean"]
        std = settings["image_std"]
    else:
        mean = [0.0] * channels
        std = [1.0] * channels
    resize, shorter_side = _way_of_resizing(settings, height, width)
    return ImageFormat(
        size=(channels, height, width),
        mean=tuple(number / brightest for number in mean),
        std=tuple(number / brightest for number in std),
        interpolation=_INTERPOLATION[settings.get("resample", 2)],
        resize=resize,
        shorter_side=shorter_side,
    )


def _way_of_resizing(settings: Any, height: int, width: int) -> tuple[str, int | None]:
    """Return how an image processor brings images to its size.

    Args:
        settings: the settings of the processor.
        height, width: the size of the processed images.

    Returns:
        ``squash``, ``shorter`` or ``other``, see :attr:`ImageFormat.resize`; and the length of the shorter side in
        pixels for ``shorter``, else None.
    """
    size = settings.get("size")  # e.g. {"height": 224, "width": 224} or {"shortest_edge": 256}
    # It does not resize.
    if not settings.get("do_resize", True):
        return "other", None
    # Old files have a number as the size, whose meaning depends on the class.
    if not isinstance(size, Mapping):
        return "other", None
    # Both sides are resized to the final size.
    if size == {"height": height, "width": width}:
        return "squash", None
    # The shorter side is resized, and a square is cut out of the middle.
    cuts_a_square = settings.get("do_center_crop", False) and height == width
    if cuts_a_square and set(size) == {"shortest_edge"}:
        shorter_side = size["shortest_edge"]
        if type(shorter_side) is int:
            return "shorter", shorter_side
    return "other", None


def write_processor(folder: Path, preprocess: Preprocessing) -> None:
    """Write the settings of the image processor to ``preprocessor_config.json``."""
    settings: Any = preprocess["processor"]
    write_config(folder / _PROCESSOR_FILE, settings)


def _build_processor(settings: object) -> Any:
    """Return transformers' image processor of these settings, which come from a file and may be anything.

    Raises:
        InputError: if the processor is not supported, or a size in the settings is impossible.
    """
    name = settings.get("image_processor_type") if isinstance(settings, Mapping) else None
    if not isinstance(settings, Mapping) or name not in PROCESSORS:
        raise _unsupported(name)
    # Check all sizes that are set (not None or 0) first: a huge one would make the processor fill the memory.
    for key in ("size", "crop_size", "pad_size"):
        sizes = settings.get(key) or {}
        if not isinstance(sizes, Mapping) or not is_size([length for length in sizes.values() if length]):
            raise InputError(f"the image processor has the {key} {shown(sizes)}")
    with refused_as(f"transformers cannot build its {name}"):
        processor_class = getattr(transformers, name)
        return processor_class.from_dict(names_only(settings, _ELSEWHERE))


def _unsupported(name: object) -> InputError:
    """Return the error for an image processor that is not supported."""
    hint = f"supported: {', '.join(PROCESSORS)}"
    return InputError(f"transformers' image processor {shown(name)} is not supported", hint=hint)


def _shape_of_images(processor: Any, channels: int) -> list[int]:
    """Return the shape ``[C, H, W]`` of processed images, found by processing a square and a wide blank image.

    Args:
        processor: transformers' image processor, which checks some of its settings only when it processes an image.
        channels: the number of channels that the model takes.

    Raises:
        InputError: if the processor fails, gives another number of channels, or makes wide images wider than square
            ones, which have no batch in common.
    """
    # Pillow's sizes are (width, height).
    shapes = []
    for size in ((8, 8), (12, 8)):
        with refused_as("the image processor cannot be used"):
            pixels = _run_processor(processor, [Image.new(mode_of(channels), size)])
        shapes.append(list(pixels.shape[1:]))  # [1, C, H, W] -> [C, H, W]
    shape, wide_shape = shapes
    if wide_shape != shape:
        hint = "let its preprocessor_config.json resize to a height and a width, or crop"
        raise InputError("the image processor keeps the proportions of images, so they have several sizes", hint=hint)
    if shape[0] != channels:
        raise InputError(f"the image processor gives {shape[0]} channels, the model takes {channels}")
    return shape


def _run_processor(processor: Any, images: list[Image.Image]) -> Any:
    """Process images; return pixels ``[B, C, H, W]``."""
    pixels = processor(images=images, return_tensors="pt")["pixel_values"]
    # A processor that neither rescales nor normalises gives the bytes of the image.
    return pixels if pixels.is_floating_point() else pixels.float()
