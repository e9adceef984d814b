"""Stock modules of a Python program: classifiers of timm, transformers, torchvision and open_clip, with their weights.

A module of transformers knows its configuration, and a module of timm the name of its architecture. For the other
libraries, and for modules of timm that were made with further arguments, ``arch`` names the architecture, as ``--arch``
does for a bare file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from hydractl.errors import InputError, UsageError
from hydractl.files.checkpoint import DictTensors
from hydractl.model.source import ModelOptions, Source, open_source, open_tensors

_NAME = "model"


def open_module(module: nn.Module, arch: str | None, processor: Any, folder: Path) -> Source:
    """Return a module of timm, transformers, torchvision or open_clip as a source: a model with its weights of now.

    Args:
        module: a module of a supported library.
        arch: ``timm:NAME?img_size=32``, also of a module of torchvision, or ``open_clip:ARCH``; None: what the module
            says.
        processor: the tokenizer or image processor of a transformers model.
        folder: an empty folder, which a module of transformers is saved to and read from.

    Raises:
        UsageError: the module does not tell its architecture, and ``arch`` is not given.
        InputError: the module is not a model of a supported family, or not the one that ``arch`` names.
    """
    # A module of transformers has a configuration, which only transformers can interpret: save and read it.
    saving: Any = module
    if arch is None and hasattr(module, "config") and hasattr(module, "save_pretrained"):
        saving.save_pretrained(folder)
        if processor is not None:
            processor.save_pretrained(folder)
        return open_source(str(folder), ModelOptions(bodies=True), name=_NAME)
    if processor is not None:
        raise UsageError(f"processor is for a model of transformers, and this is a {type(module).__name__}")

    # Any other module: its tensors, read as those of the architecture that ``arch`` or timm names.
    arch_name = arch or _architecture_of_timm(module)
    if arch_name is None:
        raise UsageError(
            f"a {type(module).__name__} does not say what its architecture is",
            hint="name it: hydractl.open(module, arch='open_clip:ViT-B-32'), or arch='timm:NAME?img_size=32'",
        )
    tensors = DictTensors(module.state_dict())
    if arch is not None:
        return open_tensors(tensors, arch, _NAME)
    # The module may have been made with more arguments than it tells.
    try:
        return open_tensors(tensors, arch_name, _NAME)
    except InputError as error:
        raise InputError(
            f"the {type(module).__name__} says that it is {arch_name}, and has other weights",
            hint=f"name the arguments that it was made with, as in arch='{arch_name}&depth=6'",
            problems=error.problems,
        ) from error


def _architecture_of_timm(module: nn.Module) -> str | None:
    """Return the architecture of a module of timm as text; None for a module without timm's ``pretrained_cfg``.

    E.g. ``timm:vit_tiny_patch16_224?num_classes=10``, and ``&img_size=32`` behind it if the images have another size
    than those of the published model.
    """
    # timm writes what was published into a dict: the name, the shape of an image and so on.
    published = getattr(module, "pretrained_cfg", None)
    if not isinstance(published, dict) or not published.get("architecture"):
        return None
    architecture = published["architecture"]
    classes = getattr(module, "num_classes", 0)
    arch = f"timm:{architecture}?num_classes={classes}"

    # A transformer has a patch embedding, which knows the size of its images: (height, width) in pixels.
    patch_embedding = getattr(module, "patch_embed", None)
    size = getattr(patch_embedding, "img_size", None)
    if size is None:
        return arch
    published_shape = tuple(published.get("input_size", ()))  # channels, height, width
    is_resized = tuple(size) != published_shape[1:]
    height, width = size
    if is_resized and height == width:  # img_size can only name a square
        arch += f"&img_size={height}"
    return arch
