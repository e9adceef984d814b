"""Surroundings of a training beside model and data (log, checkpointing, processes), and its history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hydractl.distributed import Processes
from hydractl.log import Log
from hydractl.training.checkpointing import Checkpointing, Interruptions, Saved
from hydractl.training.run_log import RunLog

_POINTS = 60


@dataclass
class History:
    """Course of a training.

    Attributes:
        epochs: an entry for each.
        kept_epoch: whose weights were kept; None: of several.
        losses: of each step.
        stopped_early: for want of a better validation accuracy.
    """

    epochs: list[dict[str, Any]] = field(default_factory=list)
    kept_epoch: int | None = 0
    losses: list[float] = field(default_factory=list)
    stopped_early: bool = False

    def loss_curve(self) -> list[float]:
        """The loss over the steps in at most 60 points, each the mean of neighbouring steps."""
        count, points = len(self.losses), min(len(self.losses), _POINTS)
        parts = [self.losses[i * count // points : (i + 1) * count // points] for i in range(points)]
        return [sum(part) / len(part) for part in parts]

    def outcome(self) -> dict[str, Any]:
        """The course in short, as JSON."""
        return {
            "kept_epoch": self.kept_epoch,
            "stopped_early": self.stopped_early,
            "epochs": self.epochs,
            "loss_curve": self.loss_curve(),
        }

    @property
    def steps(self) -> int:
        """Steps made."""
        return len(self.losses)


@dataclass
class TrainingContext:
    """Surroundings of a training.

    Attributes:
        log: hears what happens.
        run_log: is written a line for each step.
        checkpointing: saves the unfinished run.
        team: the processes among which each batch is divided.
        extra: added to what is saved: progress and tensors of whoever runs several trainings.
        signals: notes that the run is to stop; shared by several trainings, so that none is lost between two.
    """

    log: Log
    run_log: RunLog = field(default_factory=RunLog)
    checkpointing: Checkpointing = field(default_factory=lambda: Checkpointing(None, "1"))
    team: Processes = field(default_factory=Processes)
    extra: Saved = field(default_factory=lambda: Saved({}))
    signals: Interruptions = field(default_factory=Interruptions)
