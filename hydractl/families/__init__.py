"""Model families: one file (or folder) per library, behind :class:`hydractl.families.base.ModelFamily`.

A family and its library are imported when they are first needed. ``docs/adding-a-family.md`` describes how to add a
family.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.errors import InputError
from hydractl.families.reading import read_config
from hydractl.files.description import Description
from hydractl.files.plugins import Registry

if TYPE_CHECKING:
    from hydractl.families.base import ModelFamily

_HELPERS = (
    *("base", "imagenet", "config_json", "meta_device", "pixels", "prompts", "reading"),
    *("timm_eva", "timm_relative", "timm_torchvision", "torchvision_operators"),
)
FAMILIES: Registry[ModelFamily] = Registry(__name__, __path__, "FAMILY", helpers=_HELPERS, before_models=True)

_PUBLISHED: dict[str, tuple[str, tuple[str, ...]]] = {
    "hf": ("config.json", ("architectures", "model_type")),
    "open_clip": ("open_clip_config.json", ()),
    "timm": ("config.json", ("architecture",)),
}
"""By family, the configuration in the folders that its library publishes, and the keys that it has. A family refuses
other folders; this is known here because importing a family, which imports its library, takes seconds."""


def get_family(name: str) -> ModelFamily:
    """Return the family with this name.

    Raises:
        InputError: if there is no such family.
    """
    family = FAMILIES.get(name)
    if family is None:
        raise InputError(f"unknown model family {name!r}; known here: {', '.join(FAMILIES.names)}")
    return family


def families_for_folder(folder: Path) -> list[ModelFamily]:
    """Return the families that may load a folder, in the order in which they are asked: highest priority first.

    Those of :data:`_PUBLISHED` are imported only if the folder has what their library publishes.

    Raises:
        InputError: if a configuration in the folder cannot be read or is not JSON.
    """
    families = []
    for name in FAMILIES.names:
        if name in _PUBLISHED:
            # Skip the family unless the folder has its configuration, with the entries that are always in it.
            file_name, keys = _PUBLISHED[name]
            entries = read_config(folder / file_name)
            if entries is None or not set(keys) <= entries.keys():
                continue
        families.append(get_family(name))
    return sorted(families, key=lambda family: family.priority, reverse=True)


def classes_of(description: Description) -> int | None:
    """Return the number of classes of a model; None if it is a zero-shot model without class names."""
    classes = get_family(description.family).classes(description.config)
    if classes is not None:
        return classes
    return None if description.labels is None else len(description.labels)
