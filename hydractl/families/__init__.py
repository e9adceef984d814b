"""Model families: one file per library, behind one interface (:class:`hydractl.families.base.ModelFamily`)."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING

from hydractl.errors import InputError
from hydractl.files.description import Description

if TYPE_CHECKING:
    from hydractl.families.base import ModelFamily

# family name -> module that defines FAMILY; a module is imported when its family is first met
# A folder is offered to them in this order: those of open_clip often hold the config.json of another library as well.
MODULES = {
    "open_clip": "hydractl.families.open_clip",
    "timm": "hydractl.families.timm_vit",
    "hf": "hydractl.families.hf_encoder",
}


@cache
def get_family(name: str) -> ModelFamily:
    """The family of that name.

    Raises:
        InputError: for a name that this version does not know.
    """
    if name not in MODULES:
        raise InputError(f"unknown model family {name!r}; this version knows: {', '.join(MODULES)}")
    return importlib.import_module(MODULES[name]).FAMILY


def classes_of(description: Description) -> int | None:
    """Number of classes of a model; None for a zero-shot model whose classes have not been named."""
    own = get_family(description.family).classes(description.config)
    return own if own is not None or description.labels is None else len(description.labels)
