"""Model families: one file per library, behind one interface (:class:`hydractl.families.base.ModelFamily`)."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING

from hydractl.errors import InputError

if TYPE_CHECKING:
    from hydractl.families.base import ModelFamily

# family name -> module that defines FAMILY; a module is imported when its family is first met
MODULES = {"timm": "hydractl.families.timm_vit", "hf": "hydractl.families.hf_encoder"}


@cache
def get_family(name: str) -> ModelFamily:
    """The family of that name.

    Raises:
        InputError: for a name that this version does not know.
    """
    if name not in MODULES:
        raise InputError(f"unknown model family {name!r}; this version knows: {', '.join(MODULES)}")
    return importlib.import_module(MODULES[name]).FAMILY
