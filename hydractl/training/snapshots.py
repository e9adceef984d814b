"""Snapshot ensembles: one training of several cosine cycles, and the weights at the end of each as a member.

Huang et al., Snapshot Ensembles: Train 1, Get M for Free (ICLR 2017), equation 2: with T steps in all and M cycles,
each has ceil(T / M) steps, the last one those that are left, and the learning rate starts each at its peak.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hydractl.errors import UsageError


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
