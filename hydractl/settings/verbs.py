"""The settings class of each verb."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping

from hydractl.settings.common import Common

_CLASSES = {
    "score": "hydractl.settings.pruning:ScoreSettings",
    "extract-circuit": "hydractl.settings.pruning:CircuitSettings",
    "prune": "hydractl.settings.pruning:PruneSettings",
    "finetune": "hydractl.settings.finetuning:FinetuneSettings",
    "laplace": "hydractl.settings.laplace:LaplaceSettings",
    "fuse": "hydractl.settings.members:FuseSettings",
    "eval": "hydractl.settings.evaluating:EvalSettings",
    "bench": "hydractl.settings.measuring:BenchSettings",
    "study": "hydractl.settings.studying:StudySettings",
    "push": "hydractl.settings.pushing:PushSettings",
}


class _Settings(Mapping[str, type[Common]]):
    """The classes by the names of the verbs, imported when asked for: those of some verbs look for plugins."""

    def __getitem__(self, verb: str) -> type[Common]:
        settings: type[Common] = pkgutil.resolve_name(_CLASSES[verb])
        return settings

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


SETTINGS: Mapping[str, type[Common]] = _Settings()
"""The settings dataclass of each verb, in the order of the help."""
