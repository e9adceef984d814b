"""Every option of every verb, declared once, and where its value comes from.

One dataclass per verb declares name, type, default, unit, range and help. Flags, ``HYDRACTL_*`` variables and
``hydra.yaml`` are read by the same parser and merged in :func:`merge`.
"""

from __future__ import annotations

from hydractl.settings.common import Batched, Common
from hydractl.settings.evaluating import EvalSettings
from hydractl.settings.finetuning import FinetuneSettings
from hydractl.settings.measuring import BenchSettings
from hydractl.settings.members import FuseSettings
from hydractl.settings.option import Option, Raw, options_of
from hydractl.settings.require import OodSet, Requirement
from hydractl.settings.sources import merge, unknown_variables
from hydractl.settings.verbs import SETTINGS

__all__ = [
    "SETTINGS",
    "Batched",
    "BenchSettings",
    "Common",
    "EvalSettings",
    "FinetuneSettings",
    "FuseSettings",
    "OodSet",
    "Option",
    "Raw",
    "Requirement",
    "merge",
    "options_of",
    "unknown_variables",
]
