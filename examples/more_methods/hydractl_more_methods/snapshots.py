"""A snapshot ensemble: the weights at the end of each of several cosine cycles of the learning rate.

Huang et al., Snapshot Ensembles: Train 1, Get M for Free (ICLR 2017), equation 2. With T steps and M cycles, each cycle
has ceil(T / M) steps and the last one has the steps that are left. The learning rate starts each cycle at its peak.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.methods.base import FinetuneRequest, argument
from hydractl.methods.method import Method
from hydractl.methods.study_rows import MEMBERS, ByTraining, StudyRow
from hydractl.training.checkpointing import Saved
from hydractl.training.course import Course, CourseMaker, LeftModel, ScheduleOptions, rate_share, warmup_steps
from hydractl_more_methods.collecting import CollectingOptions

if TYPE_CHECKING:
    from torch import Tensor

    from hydractl.log import Log
    from hydractl.training.run_log import RunLog


@dataclass(frozen=True)
class SnapshotsOptions(CollectingOptions):
    """``snapshots:M``: members are the weights at the ends of cycles."""

    kind = "snapshots"
    summary = (
        "Split the training into M cosine cycles, and write the weights at the end of each: a.1.st, a.2.st and so on "
        "for a.st"
    )
    example = "3"

    cycles: int = argument("M", int, at_least=2)

    def models(self) -> int:
        """Return the number of models that one training writes: one for each cycle."""
        return self.cycles

    def sets_aside(self, request: FinetuneRequest) -> list[str]:
        """Return the options without effect: those that choose an epoch, and a schedule other than the cosine."""
        unused = super().sets_aside(request)
        if request.schedule != "cosine":
            unused.append("schedule")
        return unused

    def course(self) -> CourseMaker:
        """Return what makes the course of that many cycles."""
        return partial(Cycles, count=self.cycles)


class Cycles(Course):
    """Several cosines with a snapshot at the end of each.

    Attributes:
        count: the number of cycles.
        snapshots: the weights at the end of each finished cycle, on the CPU.

    Raises:
        UsageError: the training has so few steps that none is left for the last cycle.
    """

    keeps_epoch = False

    def __init__(self, total: int, per_epoch: int, schedule: ScheduleOptions, count: int) -> None:
        """Begin without snapshots, and check that there are steps for every cycle."""
        super().__init__(total, per_epoch, schedule)
        self.count = count
        self.snapshots: list[dict[str, Tensor]] = []

        # All cycles but the last have ceil(steps / cycles) steps; with few steps, none may be left for the last one.
        steps_before_last = (count - 1) * self.steps_per_cycle
        if steps_before_last >= total:
            enough = count * self.steps_per_cycle
            raise UsageError(
                f"{total} steps cannot be cut into {count} cycles of equal length",
                hint=f"such as --steps {enough}; each cycle has ceil({total} / {count}) steps",
            )

    @property
    def steps_per_cycle(self) -> int:
        """The number of steps of each cycle except the last."""
        steps = self.total / self.count
        return math.ceil(steps)

    @property
    def ends(self) -> list[int]:
        """The number of steps made at the end of each cycle."""
        ends = []
        for number in range(1, self.count):
            ends.append(number * self.steps_per_cycle)
        ends.append(self.total)
        return ends

    def cycle_of(self, step: int) -> tuple[int, int]:
        """Return the first step and the number of steps of the cycle that a step (counted from 0) belongs to."""
        full_cycles_before = step // self.steps_per_cycle
        start = full_cycles_before * self.steps_per_cycle
        steps_left = self.total - start
        return start, min(self.steps_per_cycle, steps_left)

    def share_of_peak(self, step: int) -> float:
        """Return the learning rate of a step as a share of its peak; only the first cycle has a warm-up."""
        start, steps = self.cycle_of(step)
        warmup = 0
        if start == 0:
            whole_warmup = warmup_steps(self.schedule.warmup, self.total)
            warmup = min(whole_warmup, self.steps_per_cycle)
        step_of_cycle = step - start
        return rate_share(step_of_cycle, steps, warmup, self.schedule.shape, self.schedule.floor)

    def after_step(self, steps: int, weights: Callable[[], Mapping[str, Tensor]], log: Log, run_log: RunLog) -> None:
        """Take a snapshot where a cycle ends: a copy of the weights on the CPU."""
        current_cycle = len(self.snapshots)
        if steps != self.ends[current_cycle]:
            return
        snapshot = {}
        for name, weight in weights().items():
            snapshot[name] = weight.to("cpu", copy=True)
        self.snapshots.append(snapshot)
        number = len(self.snapshots)
        log.info(f"cycle {number} of {self.count} ends at step {steps}")
        run_log.event("cycle", cycle=number, step=steps)

    def finish(self, seed: int, put: Callable[[Mapping[str, Tensor]], None]) -> list[LeftModel]:
        """Return a model for each snapshot."""
        models: list[LeftModel] = []
        for weights, end in zip(self.snapshots, self.ends, strict=True):
            number = len(models) + 1
            models.append(LeftModel(weights, end, {"cycle": number}))
        return models

    def state(self) -> Saved:
        """Return the number of snapshots so far, and their tensors by names such as ``snapshot.0.NAME``."""
        state = Saved({"snapshots": len(self.snapshots)})
        for index, weights in enumerate(self.snapshots):
            state.add(f"snapshot.{index}.", weights)
        return state

    def load(self, saved: Saved) -> None:
        """Restore the snapshots of an unfinished training."""
        self.snapshots = []
        for index in range(saved.progress["snapshots"]):
            snapshot = saved.part(f"snapshot.{index}.")
            self.snapshots.append(snapshot)


METHOD = Method(
    "snapshots",
    SnapshotsOptions,
    rows=(StudyRow("snapshots", ByTraining(SnapshotsOptions(MEMBERS)), place=4),),
)
