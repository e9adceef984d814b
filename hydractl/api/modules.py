"""Stock modules that a program holds: classifiers of timm, transformers, torchvision and open_clip, with their weights.

A module of transformers knows its configuration, and one of timm the name of its architecture. Of the others, and of
timm's with arguments of their own, ``arch`` says what they are, as ``--arch`` does for a bare file.
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
    """Return a stock module as a source, with the weights it has now.

    Args:
        module: of a library that hydractl knows.
        arch: ``timm:NAME?img_size=32``, ``open_clip:ARCH``, ``torchvision:NAME``; None: what the module says.
        processor: the tokenizer or image processor of a transformers model.
        folder: an empty one, for what transformers can only write.

    Raises:
        UsageError: the module does not say what it is, and ``arch`` is not given.
        InputError: it is no model of a supported family, or not the one that ``arch`` names.
    """
    if arch is None and _is_of_transformers(module):
        _save_pretrained(module, processor, folder)
        return open_source(str(folder), ModelOptions(bodies=True), name=_NAME)
    if processor is not None:
        raise UsageError(f"processor is for a model of transformers, and this is a {type(module).__name__}")
    named = arch or _architecture_of_timm(module)
    if named is None:
        raise UsageError(
            f"a {type(module).__name__} does not say what its architecture is",
            hint="name it: hydractl.open(module, arch='open_clip:ViT-B-32'), or arch='timm:NAME?img_size=32'",
        )
    tensors = DictTensors(module.state_dict())
    if arch is not None:
        return open_tensors(tensors, arch, _NAME)
    try:
        return open_tensors(tensors, named, _NAME)
    except InputError as error:
        raise InputError(
            f"the {type(module).__name__} says that it is {named}, and has other weights",
            hint=f"name the arguments that it was made with, as in arch='{named}&depth=6'",
            problems=error.problems,
        ) from error


def _is_of_transformers(module: nn.Module) -> bool:
    return hasattr(module, "config") and hasattr(module, "save_pretrained")


def _save_pretrained(module: Any, processor: Any, folder: Path) -> None:
    """Write a module of transformers as it is published: nothing else reads its configuration as the library does."""
    module.save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)


def _architecture_of_timm(module: nn.Module) -> str | None:
    """Return what a module of timm is, as far as it says so itself: its name, number of classes and size of images."""
    published = getattr(module, "pretrained_cfg", None)
    if not isinstance(published, dict) or not published.get("architecture"):
        return None
    named = f"timm:{published['architecture']}?num_classes={getattr(module, 'num_classes', 0)}"
    size = getattr(getattr(module, "patch_embed", None), "img_size", None)
    published_size = tuple(published.get("input_size", ()))[1:]
    if size is not None and tuple(size) != published_size and size[0] == size[1]:
        named += f"&img_size={size[0]}"
    return named
