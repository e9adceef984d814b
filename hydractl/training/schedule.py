"""Learning rate over steps: linear warm-up, then cosine, linear or constant; or several cosines, for snapshots.

Huang et al., Snapshot Ensembles: Train 1, Get M for Free (ICLR 2017), equation 2: with T steps in all and M cycles,
each has ceil(T / M) steps, the last one those that are left, and the learning rate starts each at its peak.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hydractl.errors import UsageError
from hydractl.training.options import ScheduleOptions

COSINE_FLOOR = 1e-5
"""The cosine ends at this share of the peak (paper D.2)."""


@dataclass(frozen=True)
class Cycles:
    """The cycles of a training; one of them is an ordinary training.

    Attributes:
        total: steps of all cycles.
        count: number of cycles.

    Raises:
        UsageError: where so few steps leave none to the last cycle.
    """

    total: int
    count: int = 1

    def __post_init__(self) -> None:
        if (self.count - 1) * self.length >= self.total:
            hint = f"such as --steps {self.count * self.length}; each cycle has ceil({self.total} / {self.count}) steps"
            raise UsageError(f"{self.total} steps cannot be cut into {self.count} cycles of equal length", hint=hint)

    @property
    def length(self) -> int:
        """Steps of a cycle but the last."""
        return math.ceil(self.total / self.count)

    @property
    def ends(self) -> list[int]:
        """After how many steps each cycle ends."""
        return [min(self.total, (index + 1) * self.length) for index in range(self.count)]

    def of(self, step: int) -> tuple[int, int]:
        """The cycle that a step (from 0) belongs to: its first step, and how many it has."""
        start = step // self.length * self.length
        return start, min(self.length, self.total - start)

    def share_of_peak(self, step: int, options: ScheduleOptions) -> float:
        """The learning rate of a step (from 0); the warm-up is in the first cycle only, and no longer than it."""
        start, length = self.of(step)
        warmup = 0 if start else min(warmup_steps(options.warmup, self.total), self.length)
        return factor(step - start, length, warmup, options.shape, options.floor)


def warmup_steps(warmup: float, total: int) -> int:
    """``warmup`` as a number of steps: below 1 it is a share of all steps, else the steps themselves."""
    return min(total, math.ceil(warmup * total) if warmup < 1 else int(warmup))


def factor(step: int, total: int, warmup: int, shape: str, floor: float = COSINE_FLOOR) -> float:
    """The learning rate of step ``step`` (0-based) of ``total``, as a share of the peak.

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
    progress = (step - warmup) / max(1, total - warmup)
    if shape == "linear":
        return 1.0 - progress
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
