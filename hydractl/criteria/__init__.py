"""Importance criteria: one file each, found by name. Adding one is described in ``docs/adding-a-criterion.md``."""

from __future__ import annotations

import importlib

from hydractl.criteria.base import Calibration, Criterion, Decider, Decision
from hydractl.errors import UsageError

# name -> module that defines CRITERION; imported when first asked for
MODULES = {
    "taylor": "hydractl.criteria.taylor",
    "gate": "hydractl.criteria.gate",
    "magnitude": "hydractl.criteria.magnitude",
    "random": "hydractl.criteria.random",
    "cahp": "hydractl.criteria.cahp",
}


def get_criterion(name: str) -> Criterion:
    """The criterion of that name.

    Raises:
        UsageError: for an unknown name.
    """
    if name not in MODULES:
        raise UsageError(f"unknown criterion {name!r}", hint=f"one of {', '.join(MODULES)}")
    return importlib.import_module(MODULES[name]).CRITERION


__all__ = ["MODULES", "Calibration", "Criterion", "Decider", "Decision", "get_criterion"]
