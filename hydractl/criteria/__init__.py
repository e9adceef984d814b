"""Importance criteria: one file each, found by name. ``docs/adding-a-criterion.md`` describes how to add one.

Importing this module, or the file of a criterion, must not import torch: help texts list what the criteria declare.
"""

from __future__ import annotations

from hydractl.criteria.criterion import Calibration, Criterion, CriterionOption, Decider, Decision, ScoredModel
from hydractl.errors import UsageError
from hydractl.files.plugins import Registry

CRITERIA: Registry[Criterion] = Registry(__name__, __path__, "CRITERION", helpers=("criterion", "weights"))


def get_criterion(name: str) -> Criterion:
    """Return the criterion of that name.

    Raises:
        UsageError: there is no such criterion.
    """
    criterion = CRITERIA.get(name)
    if criterion is None:
        known = ", ".join(CRITERIA.names)
        raise UsageError(f"unknown criterion {name!r}", hint=f"one of {known}")
    return criterion


__all__ = [
    "CRITERIA",
    "Calibration",
    "Criterion",
    "CriterionOption",
    "Decider",
    "Decision",
    "ScoredModel",
    "get_criterion",
]
