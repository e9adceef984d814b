"""The course of a training: its learning rate at each step, and which of its weights it leaves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from hydractl.log import Log
    from hydractl.training.checkpointing import Saved
    from hydractl.training.run_log import RunLog


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
class Length:
    """The number of steps of a training.

    Attributes:
        total: all steps.
        per_epoch: the steps of one pass over the data.
    """

    total: int
    per_epoch: int


@dataclass(frozen=True)
class LeftModel:
    """One of several models that a training leaves.

    Attributes:
        weights: the trained parameters, by name.
        steps: the step after which the model had these weights; later epochs do not belong to its history.
        facts: numbers for its provenance, such as which of the models it is.
    """

    weights: Mapping[str, Tensor]
    steps: int
    facts: Mapping[str, int]


class Course:
    """The course of an ordinary training: one cycle of the learning rate, and the weights of the best or last epoch.

    Methods that leave other weights override what differs.

    Attributes:
        keeps_epoch: whether the training ends with the weights of one epoch.
    """

    keeps_epoch: bool = True

    def __init__(self, length: Length, schedule: ScheduleOptions) -> None:
        self.length = length
        self.schedule = schedule

    def share_of_peak(self, step: int) -> float:
        """Return the learning rate of a step (counted from 0), as a share of its peak."""
        schedule = self.schedule
        total = self.length.total
        warmup = warmup_steps(schedule.warmup, total)
        return rate_share(step, total, warmup, schedule.shape, schedule.floor)

    # --- the weights that it leaves -----------------------------------------------------------------------------------

    def collects(self, steps: int) -> bool:
        """Return whether the course collects the weights after so many steps."""
        return False

    def collect(self, steps: int, weights: Iterable[tuple[str, Tensor]], log: Log, run_log: RunLog) -> None:
        """Take over the weights after so many steps, by name. The next step changes them, so copy what is kept."""

    def finish(self, seed: int) -> Mapping[str, Tensor] | None:
        """Return the weights that the model ends with; None to leave the model as it is."""
        return None

    def left_models(self) -> Sequence[LeftModel]:
        """Return the models that a finished training leaves; empty for an ordinary training, which leaves its model."""
        return []

    def facts(self) -> Mapping[str, int]:
        """Return numbers for the provenance of the one model that the training leaves."""
        return {}

    # --- saving and going on ------------------------------------------------------------------------------------------

    def progress(self) -> dict[str, int]:
        """Return the counters of an unfinished training, by names that no other part of the state uses."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of an unfinished training, by names that no other part of the state uses."""
        return {}

    def load(self, saved: Saved) -> None:
        """Restore what :meth:`progress` and :meth:`tensors` have saved."""


class CourseOptions(Protocol):
    """The options of a method that decide the course of a training."""

    def begin(self, length: Length, schedule: ScheduleOptions) -> Course:
        """Return the course of a training of this length.

        Raises:
            UsageError: the training has too few steps.
        """
        ...


# --- learning rate ----------------------------------------------------------------------------------------------------


def warmup_steps(warmup: float, total: int) -> int:
    """Return ``warmup`` as a number of steps: below 1 it is a share of all steps, else the number itself."""
    if warmup < 1:
        steps = math.ceil(warmup * total)
    else:
        steps = int(warmup)
    return min(total, steps)


def rate_share(step: int, total: int, warmup: int, shape: str, floor: float = 1e-5) -> float:
    """Return the learning rate of step ``step`` (0-based) of ``total``, as a share of the peak.

    The first step of a warm-up of w steps runs at 1/w of the peak, the last at the peak.

    Args:
        step, total, warmup: numbers of steps.
        shape: ``cosine``, ``linear`` (to zero) or ``constant``, after the warm-up.
        floor: the share of the peak where the cosine ends.
    """
    if step < warmup:
        return (step + 1) / warmup
    if shape == "constant":
        return 1.0
    steps_behind_warmup = max(1, total - warmup)
    progress = (step - warmup) / steps_behind_warmup
    if shape == "linear":
        return 1.0 - progress
    cosine = math.cos(math.pi * progress)
    return floor + (1 - floor) * 0.5 * (1 + cosine)
