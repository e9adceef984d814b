"""The course of a training whose last weights are averaged, and the Gaussian of these weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hydractl.errors import UsageError
from hydractl.log import Log
from hydractl.training.checkpointing import Saved
from hydractl.training.course import Course, LeftModel, Length, ScheduleOptions, rate_share, warmup_steps
from hydractl.training.run_log import RunLog

Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class AverageOptions:
    """The average of the weights over the last part of a training.

    Attributes:
        start: share of the steps before it.
        count: how many weights it is of; None: one for each epoch that is left.
        members: drawn around it by SWAG; 0: it is itself the result.
        rank: of the low-rank half of that Gaussian.
    """

    start: float
    count: int | None = None
    members: int = 0
    rank: int = 20

    def begin(self, length: Length, schedule: ScheduleOptions) -> Averaging:
        """Choose the steps, see :class:`hydractl.training.course.CourseOptions`."""
        return Averaging(length, schedule, self)


class Averaging(Course):
    """A training whose weights are collected after some of its last steps.

    Attributes:
        options: when it starts, and how often it collects.
        moments: of the weights collected so far.
        drawn: the members, once the training is finished.

    Raises:
        UsageError: too few steps are left, or too few weights are collected for an average or for the rank.
    """

    keeps_epoch = False

    def __init__(self, length: Length, schedule: ScheduleOptions, options: AverageOptions) -> None:
        super().__init__(length, schedule)
        self.options = options
        self.moments = Moments(options.rank if options.members else 0)
        self.drawn: list[Weights] = []
        self._check_count()

    def _check_count(self) -> None:
        steps_left = self.length.total - self.start
        kind = "swag" if self.options.members else "swa"
        if self.count > steps_left:
            hint = "train longer, or give a smaller START or N"
            message = f"--ensemble {kind} is to collect weights {self.count} times in {steps_left} steps"
            raise UsageError(message, hint=hint)
        if self.options.members:
            least = self.options.rank
            purpose = f"a Gaussian of rank {least}"
            remedies = "train longer, or a smaller RANK"
        else:
            least = 2
            purpose = "an average"
            remedies = "train longer"
        if self.count < least:
            hint = f"with {least} as N it collects them {least} times; or {remedies}"
            message = f"--ensemble {kind} is to collect weights {self.count} times: too few for {purpose}"
            raise UsageError(message, hint=hint)

    @property
    def start(self) -> int:
        """Steps before the average."""
        return round(self.options.start * self.length.total)

    @property
    def count(self) -> int:
        """How many times weights are collected: as it is asked for, or once for every epoch that is left."""
        if self.options.count:
            return self.options.count
        return (self.length.total - self.start) // self.length.per_epoch

    def share_of_peak(self, step: int) -> float:
        """Return the learning rate: a cosine reaches its floor where the average starts, and stays there.

        Source: Izmailov et al., section 3.1, with a constant rate.
        """
        shape = self.schedule.shape
        floor = self.schedule.floor
        if step >= self.start:
            return 1.0 if shape == "constant" else floor
        warmup = min(warmup_steps(self.schedule.warmup, self.length.total), self.start)
        return rate_share(step, self.start, warmup, shape, floor)

    def planned(self) -> list[dict[str, int]]:
        """Return the numbers of the members that are drawn."""
        return [{"draw": number} for number in range(1, self.options.members + 1)]

    def collects(self, steps: int) -> bool:
        """Return whether the weights after so many steps are collected: evenly, the last time at the end."""
        steps_made = steps - self.start
        steps_in_all = self.length.total - self.start
        if steps_made <= 0:
            return False
        times_by_now = steps_made * self.count // steps_in_all
        times_before = (steps_made - 1) * self.count // steps_in_all
        return times_by_now > times_before

    def collect(self, steps: int, weights: Iterable[tuple[str, Tensor]], log: Log, run_log: RunLog) -> None:
        """Take the weights into the average."""
        self.moments.add(weights)

    def finish(self, seed: int) -> Weights:
        """Draw the members and return the average."""
        self.drawn = list(self.moments.draws(self.options.members, seed))
        return self.moments.mean

    def left_models(self) -> list[LeftModel]:
        """Return the members that were drawn."""
        models = []
        for number, weights in enumerate(self.drawn, start=1):
            facts = {**self.facts(), "draw": number}
            models.append(LeftModel(weights, self.length.total, facts))
        return models

    def facts(self) -> dict[str, int]:
        """Return the number of weights in the average."""
        return {"averaged": self.moments.count}

    def progress(self) -> dict[str, int]:
        """Return the number of weights collected so far."""
        return {"averaged": self.moments.count}

    def tensors(self) -> Weights:
        """Return the moments of the weights collected so far."""
        return {f"average.{name}": tensor for name, tensor in self.moments.tensors().items()}

    def load(self, saved: Saved) -> None:
        """Take up the moments of an unfinished training."""
        self.moments.load(saved.progress["averaged"], saved.part("average."))


class Moments:
    """The moments of the weights that were collected, on the CPU, in float64.

    The variance is summed up by Welford's rule: in the paper's difference of two means, of the squares and of the
    weights, rounding leaves nothing of a variance as small as these.

    Attributes:
        rank: how many of the last deviations are kept; 0: the mean alone, as SWA needs it.
        count: weights collected.
        mean: by name.
        squares: sums of squared deviations from the mean; empty without a rank.
        deviations: of the last ``rank`` weights from the mean of those up to each, in the dtype of the weights.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.count = 0
        self.mean: Weights = {}
        self.squares: Weights = {}
        self.deviations: list[Weights] = []

    def add(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Collect weights. Source: Maddox et al., algorithm 1."""
        self.count += 1
        deviation: Weights = {}
        for name, weight in weights:
            value = weight.to("cpu", torch.float64)
            mean = self.mean.setdefault(name, torch.zeros_like(value))
            from_mean_before = value - mean
            mean += from_mean_before / self.count
            if self.rank:
                from_mean = value - mean
                squares = self.squares.setdefault(name, torch.zeros_like(value))
                squares.addcmul_(from_mean_before, from_mean)
                deviation[name] = from_mean.to(weight.dtype)
        if self.rank:
            self.deviations = [*self.deviations, deviation][-self.rank :]

    def draws(self, members: int, seed: int) -> Iterator[Weights]:
        """Yield samples of N(mean, (diag + D Dᵀ / (K - 1)) / 2), D the K deviations. Source: Maddox et al., eq. 1."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(members):
            low_rank_noise = torch.randn(self.rank, generator=generator, dtype=torch.float64)
            factors = low_rank_noise / math.sqrt(2 * (self.rank - 1))  # [K], of the deviations
            drawn = {}
            for name, mean in sorted(self.mean.items()):  # of a run that was resumed the order is that of a file
                diagonal_noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64)
                std = (self.squares[name] / (2 * self.count)).sqrt()  # of half the variance
                value = mean + std * diagonal_noise
                for factor, deviation in zip(factors.tolist(), self.deviations, strict=True):
                    value += factor * deviation[name]
                drawn[name] = value.to(self.deviations[0][name].dtype)
            yield drawn

    # --- saving and going on ------------------------------------------------------------------------------------------

    def tensors(self) -> Weights:
        """Return all that was collected, by names of its own."""
        parts = {"mean": self.mean, "squares": self.squares}
        for index, deviation in enumerate(self.deviations):
            parts[f"deviation.{index}"] = deviation
        tensors = {}
        for part, weights in parts.items():
            for name, tensor in weights.items():
                tensors[f"{part}.{name}"] = tensor
        return tensors

    def load(self, count: int, tensors: Mapping[str, Tensor]) -> None:
        """Take up what :meth:`tensors` has given."""

        def part(prefix: str) -> Weights:
            weights = {}
            for name, tensor in tensors.items():
                if name.startswith(prefix):
                    weights[name.removeprefix(prefix)] = tensor
            return weights

        self.count = count
        self.mean = part("mean.")
        self.squares = part("squares.")
        kept = min(count, self.rank)
        self.deviations = [part(f"deviation.{index}.") for index in range(kept)]
