"""A snapshot ensemble: several cosines of the learning rate, one after another, and the weights at the end of each.

Huang et al., Snapshot Ensembles: Train 1, Get M for Free (ICLR 2017), equation 2: with T steps in all and M cycles,
each has ceil(T / M) steps, the last one those that are left, and the learning rate starts each at its peak.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.methods.base import CourseMethodOptions, FinetuneRequest, argument
from hydractl.methods.method import Method
from hydractl.methods.study_rows import MEMBERS, ByOneTraining, StudyRow
from hydractl.training.course import Course, LeftModel, Length, ScheduleOptions, rate_share, warmup_steps

if TYPE_CHECKING:
    from torch import Tensor

    from hydractl.log import Log
    from hydractl.training.checkpointing import Saved
    from hydractl.training.run_log import RunLog


@dataclass(frozen=True)
class SnapshotsOptions(CourseMethodOptions):
    """``snapshots:M``: members are the weights at the ends of cycles."""

    kind = "snapshots"
    summary = (
        "Split the training into M cosine cycles, and write the weights at the end of each: a.1.st, a.2.st and so on "
        "for a.st"
    )
    example = "3"
    needs_cosine = True

    cycles: int = argument("M", int, at_least=2)

    def models(self) -> int:
        """Return the number of cycles."""
        return self.cycles

    def sets_aside(self, request: FinetuneRequest) -> list[str]:
        """Return the options that mean nothing beside it: no epoch is chosen, and each cycle is a cosine."""
        unused = super().sets_aside(request)
        if request.schedule != "cosine":
            unused.append("schedule")
        return unused

    def course(self) -> CyclesOptions:
        """Return so many cycles."""
        return CyclesOptions(self.cycles)


@dataclass(frozen=True)
class CyclesOptions:
    """The number of cycles."""

    count: int

    def begin(self, length: Length, schedule: ScheduleOptions) -> Cycles:
        """Divide the steps, see :class:`hydractl.training.course.CourseOptions`."""
        return Cycles(length, schedule, self.count)


class Cycles(Course):
    """Several cosines with a snapshot at the end of each.

    Attributes:
        count: number of cycles.
        snapshots: the weights at the end of each so far, on the CPU.

    Raises:
        UsageError: where so few steps leave none to the last cycle.
    """

    keeps_epoch = False

    def __init__(self, length: Length, schedule: ScheduleOptions, count: int) -> None:
        super().__init__(length, schedule)
        self.count = count
        self.snapshots: list[dict[str, Tensor]] = []
        total = length.total
        if (count - 1) * self.steps_per_cycle >= total:
            enough = count * self.steps_per_cycle
            raise UsageError(
                f"{total} steps cannot be cut into {count} cycles of equal length",
                hint=f"such as --steps {enough}; each cycle has ceil({total} / {count}) steps",
            )

    @property
    def steps_per_cycle(self) -> int:
        """Steps of each cycle but the last."""
        return math.ceil(self.length.total / self.count)

    @property
    def ends(self) -> list[int]:
        """After how many steps each cycle ends."""
        full_cycles = [number * self.steps_per_cycle for number in range(1, self.count)]
        return [*full_cycles, self.length.total]

    def cycle_of(self, step: int) -> tuple[int, int]:
        """Return the cycle that a step (from 0) belongs to: its first step, and how many it has."""
        full_cycles_before = step // self.steps_per_cycle
        start = full_cycles_before * self.steps_per_cycle
        steps_left = self.length.total - start
        return start, min(self.steps_per_cycle, steps_left)

    def share_of_peak(self, step: int) -> float:
        """Return the learning rate; the warm-up is in the first cycle only, and no longer than it."""
        start, steps = self.cycle_of(step)
        warmup = 0
        if start == 0:
            asked_for = warmup_steps(self.schedule.warmup, self.length.total)
            warmup = min(asked_for, self.steps_per_cycle)
        step_of_cycle = step - start
        return rate_share(step_of_cycle, steps, warmup, self.schedule.shape, self.schedule.floor)

    def planned(self) -> list[dict[str, int]]:
        """Return the number and the last step of each cycle."""
        return [{"cycle": number, "steps": end} for number, end in enumerate(self.ends, start=1)]

    def collects(self, steps: int) -> bool:
        """Return whether a cycle ends here."""
        return steps == self.ends[len(self.snapshots)]

    def collect(self, steps: int, weights: Iterable[tuple[str, Tensor]], log: Log, run_log: RunLog) -> None:
        """Take the snapshot."""
        snapshot = {name: weight.to("cpu", copy=True) for name, weight in weights}
        self.snapshots.append(snapshot)
        number = len(self.snapshots)
        log.info(f"cycle {number} of {self.count} ends at step {steps}")
        run_log.event("cycle", cycle=number, step=steps)

    def left_models(self) -> list[LeftModel]:
        """Return the snapshots."""
        models = []
        for number, (weights, end) in enumerate(zip(self.snapshots, self.ends, strict=True), start=1):
            facts = {"cycle": number, "cycle_end": end}
            models.append(LeftModel(weights, end, facts))
        return models

    def progress(self) -> dict[str, int]:
        """Return the number of snapshots so far."""
        return {"snapshots": len(self.snapshots)}

    def tensors(self) -> dict[str, Tensor]:
        """Return the snapshots so far."""
        tensors = {}
        for index, weights in enumerate(self.snapshots):
            for name, weight in weights.items():
                tensors[f"snapshot.{index}.{name}"] = weight
        return tensors

    def load(self, saved: Saved) -> None:
        """Take up the snapshots of an unfinished training."""
        count = saved.progress["snapshots"]
        self.snapshots = [saved.part(f"snapshot.{index}.") for index in range(count)]


METHOD = Method(
    "snapshots",
    "The weights at the end of each of several cosines of the learning rate",
    SnapshotsOptions,
    rows=(StudyRow("snapshots", ByOneTraining(SnapshotsOptions(MEMBERS)), place=4),),
)
