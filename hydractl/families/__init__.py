"""Model families: one file (or folder) per library, behind :class:`hydractl.families.base.ModelFamily`.

A family and its library are imported when they are first needed. ``docs/adding-a-family.md`` describes how to add a
family.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.errors import InputError
from hydractl.files.description import Description
from hydractl.files.plugins import Registry

if TYPE_CHECKING:
    from hydractl.families.base import ModelFamily

_HELPERS = (
    *("base", "imagenet", "config_json", "meta_device", "pixels", "prompts", "reading"),
    *("timm_eva", "timm_relative", "torchvision_operators"),
)
FAMILIES: Registry[ModelFamily] = Registry(__name__, __path__, "FAMILY", helpers=_HELPERS, before_models=True)


def get_family(name: str) -> ModelFamily:
    """Return the family with this name.

    Raises:
        InputError: if there is no such family.
    """
    family = FAMILIES.get(name)
    if family is None:
        raise InputError(f"unknown model family {name!r}; known here: {', '.join(FAMILIES.names)}")
    return family


def families_for_folders() -> list[ModelFamily]:
    """Return all families in the order in which they are asked to load a folder: highest priority first."""
    families = FAMILIES.all()
    return sorted(families, key=lambda family: family.priority, reverse=True)


def classes_of(description: Description) -> int | None:
    """Return the number of classes of a model; None if it is a zero-shot model without class names."""
    classes = get_family(description.family).classes(description.config)
    if classes is not None:
        return classes
    if description.labels is None:
        return None
    return len(description.labels)
