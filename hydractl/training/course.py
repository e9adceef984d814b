"""The course of a training: its learning rate at each step, and which of its weights it leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydractl.training.checkpointing import Saved

if TYPE_CHECKING:
    from torch import Tensor

    from hydractl.log import Log
    from hydractl.training.run_log import RunLog

Weights = Mapping[str, "Tensor"]
"""The trained parameters, by name."""


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """The learning rate over the steps, as a share of its peak.

    Attributes:
        shape: ``cosine``, ``linear`` or ``constant``, after the warm-up.
        warmup: the number of warm-up steps; a value below 1 is a share of all steps.
        floor: the share of the peak where the cosine ends (paper D.2).
    """

    shape: str = "cosine"
    warmup: float = 0.05
    floor: float = 1e-5


@dataclass(frozen=True)
class LeftModel:
    """A model that a method makes of the weights that it has collected during a training.

    Attributes:
        weights: its weights.
        steps: the step after which the model had these weights; later epochs do not belong to its history.
        facts: numbers for its provenance, such as which of the models it is.
    """

    weights: Weights
    steps: int
    facts: Mapping[str, int]


class Course:
    """The course of an ordinary training: one cycle of the learning rate, and the weights of the best or last epoch.

    Methods that leave other weights override what differs.

    Args:
        total: all steps of the training.
        per_epoch: the steps of one pass over the data.
        schedule: the learning rate over the steps.

    Attributes:
        keeps_epoch: whether the training ends with the weights of one epoch.
    """

    keeps_epoch: bool = True

    def __init__(self, total: int, per_epoch: int, schedule: ScheduleOptions) -> None:
        self.total = total
        self.per_epoch = per_epoch
        self.schedule = schedule

    def share_of_peak(self, step: int) -> float:
        """Return the learning rate of a step (counted from 0), as a share of its peak."""
        schedule = self.schedule
        warmup = warmup_steps(schedule.warmup, self.total)
        return rate_share(step, self.total, warmup, schedule.shape, schedule.floor)

    def after_step(self, steps: int, weights: Callable[[], Weights], log: Log, run_log: RunLog) -> None:
        """Collect the weights after so many steps, where the course does. The next step changes them in place."""

    def finish(self, seed: int, put: Callable[[Weights], None]) -> list[LeftModel]:
        """Return the models that a finished training leaves; empty for an ordinary one, which leaves its own weights.

        Args:
            seed: the seed of the training.
            put: puts weights into the training's model; several learning rates are compared by what it then has.
        """
        return []

    def state(self) -> Saved:
        """Return what an unfinished training has collected, by names that no other part of its state uses."""
        return Saved({})

    def load(self, saved: Saved) -> None:
        """Restore what :meth:`state` has returned."""


CourseMaker = Callable[[int, int, ScheduleOptions], Course]
"""A function that returns the course of a training, with the arguments of :class:`Course`.

It raises a UsageError if the training has too few steps.
"""


# --- learning rate ----------------------------------------------------------------------------------------------------


def warmup_steps(warmup: float, total: int) -> int:
    """Return ``warmup`` as a number of steps: below 1 it is a share of all steps, else the number itself."""
    steps = math.ceil(warmup * total) if warmup < 1 else int(warmup)
    return min(total, steps)


def rate_share(step: int, total: int, warmup: int, shape: str, floor: float = 1e-5) -> float:
    """Return the learning rate of a step as a share of the peak, 0 to 1.

    In the warm-up, the first ``warmup`` steps, it rises in a line: with 4 steps 1/4, 2/4, 3/4 and 4/4. After it, with
    t = (step - warmup) / (total - warmup), it is

    ============  ===================================================
    ``constant``  1
    ``linear``    1 - t
    ``cosine``    floor + (1 - floor) * (1 + cos(pi * t)) / 2
    ============  ===================================================

    Args:
        step: the index of the step, from 0 to ``total`` - 1.
        total: the number of steps of the training.
        warmup: the number of steps of the warm-up, perhaps 0.
        shape: ``constant``, ``linear`` or ``cosine``.
        floor: the share of the peak where the cosine ends.
    """
    if step < warmup:
        return (step + 1) / warmup
    if shape == "constant":
        return 1.0
    steps_after_warmup = max(1, total - warmup)
    progress = (step - warmup) / steps_after_warmup
    if shape == "linear":
        return 1.0 - progress
    cosine = math.cos(math.pi * progress)
    return floor + (1 - floor) * 0.5 * (1 + cosine)
