"""The course of a training: how the learning rate goes, and which of its weights it leaves."""

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
        warmup: steps, or a share of all steps where it is below 1.
        floor: where the cosine ends (paper D.2).
    """

    shape: str = "cosine"
    warmup: float = 0.05
    floor: float = 1e-5


@dataclass(frozen=True)
class Length:
    """The steps of a training.

    Attributes:
        total: all of them.
        per_epoch: those of one pass over the data.
    """

    total: int
    per_epoch: int


@dataclass(frozen=True)
class LeftModel:
    """One of several models that a training leaves.

    Attributes:
        weights: of the parameters that are trained, by name.
        steps: after which they were reached: epochs behind them are none of its history.
        facts: what its provenance says of it beside what decided the training.
    """

    weights: Mapping[str, Tensor]
    steps: int
    facts: Mapping[str, int]


class Course:
    """An ordinary training: one cycle of the learning rate, and the weights of one epoch, the best or the last.

    Methods that leave other weights override what differs.

    Attributes:
        keeps_epoch: whether the training ends with the weights of one epoch.
    """

    keeps_epoch: bool = True

    def __init__(self, length: Length, schedule: ScheduleOptions) -> None:
        self.length = length
        self.schedule = schedule

    def share_of_peak(self, step: int) -> float:
        """Return the learning rate of a step (from 0), as a share of its peak."""
        schedule = self.schedule
        total = self.length.total
        warmup = warmup_steps(schedule.warmup, total)
        return rate_share(step, total, warmup, schedule.shape, schedule.floor)

    # --- the weights that it leaves -----------------------------------------------------------------------------------

    def planned(self) -> list[dict[str, int]]:
        """Return what is known of each of several models before the training; empty for one model."""
        return []

    def collects(self, steps: int) -> bool:
        """Return whether the weights after so many steps are collected."""
        return False

    def collect(self, steps: int, weights: Iterable[tuple[str, Tensor]], log: Log, run_log: RunLog) -> None:
        """Take the weights after so many steps, by name; they are changed by the next step."""

    def finish(self, seed: int) -> Mapping[str, Tensor] | None:
        """Return the weights that the model ends with; None for those that it has."""
        return None

    def left_models(self) -> Sequence[LeftModel]:
        """Return the models that a finished training leaves where these are several."""
        return []

    def facts(self) -> Mapping[str, int]:
        """Return what the provenance of the one model says beside what decided the training."""
        return {}

    # --- saving and going on ------------------------------------------------------------------------------------------

    def progress(self) -> dict[str, int]:
        """Return the counters of an unfinished training, by names that no other part of it has."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of an unfinished training, by names that no other part of it has."""
        return {}

    def load(self, saved: Saved) -> None:
        """Go on where :meth:`progress` and :meth:`tensors` were saved."""


class CourseOptions(Protocol):
    """What a method says of the course of a training."""

    def begin(self, length: Length, schedule: ScheduleOptions) -> Course:
        """Return the course of a training of this length.

        Raises:
            UsageError: so few steps are too few.
        """
        ...


# --- learning rate ----------------------------------------------------------------------------------------------------


def warmup_steps(warmup: float, total: int) -> int:
    """Return ``warmup`` as a number of steps: below 1 it is a share of all steps, else the steps themselves."""
    if warmup < 1:
        steps = math.ceil(warmup * total)
    else:
        steps = int(warmup)
    return min(total, steps)


def rate_share(step: int, total: int, warmup: int, shape: str, floor: float = 1e-5) -> float:
    """Return the learning rate of step ``step`` (0-based) of ``total``, as a share of the peak.

    The first step of a warm-up of w steps runs at 1/w of the peak, the last at the peak.

    Args:
        step, total, warmup: in steps.
        shape: ``cosine``, ``linear`` (to zero) or ``constant``, after the warm-up.
        floor: where the cosine ends, as a share of the peak.
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
