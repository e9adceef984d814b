"""Which settings belong to which verb."""

from __future__ import annotations

from hydractl.settings.common import Common
from hydractl.settings.evaluating import EvalSettings
from hydractl.settings.finetuning import FinetuneSettings
from hydractl.settings.measuring import BenchSettings
from hydractl.settings.members import FuseSettings
from hydractl.settings.pruning import CircuitSettings, PruneSettings, ScoreSettings

SETTINGS: dict[str, type[Common]] = {
    one.verb: one
    for one in (
        ScoreSettings,
        CircuitSettings,
        PruneSettings,
        FinetuneSettings,
        FuseSettings,
        EvalSettings,
        BenchSettings,
    )
}
"""The settings dataclass of each verb, in the order of the help."""
