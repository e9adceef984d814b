"""The course of a training whose last weights are averaged, and the Gaussian around their average (SWAG)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hydractl.errors import UsageError
from hydractl.log import Log
from hydractl.training.checkpointing import Saved
from hydractl.training.course import Course, LeftModel, ScheduleOptions, rate_share, warmup_steps
from hydractl.training.run_log import RunLog

Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class AverageOptions:
    """Options of averaging the weights over the last part of a training.

    Attributes:
        start: the share of the steps before that part, e.g. 0.5.
        count: the number of weights to average; None for one for each epoch that is left.
        members: the number of members that SWAG draws around the average; 0 if the average itself is the result.
        rank: the rank of the low-rank half of the Gaussian of SWAG.
    """

    start: float
    count: int | None = None
    members: int = 0
    rank: int = 20


class Averaging(Course):
    """A training whose weights are collected after some of its last steps.

    Attributes:
        options: when collecting starts, and how often weights are collected.
        moments: the moments of the weights collected so far.

    Raises:
        UsageError: too few steps are left, or too few weights are collected for an average or for the rank.
    """

    keeps_epoch = False

    def __init__(self, total: int, per_epoch: int, schedule: ScheduleOptions, options: AverageOptions) -> None:
        """Begin with no weights collected, and check that there will be enough."""
        super().__init__(total, per_epoch, schedule)
        self.options = options
        rank = 0
        if options.members:
            rank = options.rank
        self.moments = Moments(rank)
        self._check_count()

    def _check_count(self) -> None:
        """Raise UsageError if there are too few steps to collect weights as often as asked for, or too few weights."""
        steps_left = self.total - self.start
        kind = "swag" if self.options.members else "swa"
        if self.count > steps_left:
            hint = "train longer, or give a smaller START or N"
            message = f"--ensemble {kind} is to collect weights {self.count} times in {steps_left} steps"
            raise UsageError(message, hint=hint)

        # An average needs two weights, a Gaussian as many as its rank.
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
        """The number of steps before weights are collected."""
        steps = self.options.start * self.total
        return round(steps)

    @property
    def count(self) -> int:
        """The number of times that weights are collected: as asked for, or once for every epoch that is left."""
        if self.options.count:
            return self.options.count
        steps_left = self.total - self.start
        return steps_left // self.per_epoch

    def share_of_peak(self, step: int) -> float:
        """Return the learning rate of a step as a share of its peak.

        The rate reaches its floor when collecting starts, and stays there. Source: Izmailov et al., section 3.1, with a
        constant rate.
        """
        shape = self.schedule.shape
        floor = self.schedule.floor
        if step >= self.start:
            if shape == "constant":
                return 1.0
            return floor
        whole_warmup = warmup_steps(self.schedule.warmup, self.total)
        warmup = min(whole_warmup, self.start)
        return rate_share(step, self.start, warmup, shape, floor)

    def collects(self, steps: int) -> bool:
        """Return whether the weights after this many steps are collected: evenly spread, the last time at the end."""
        steps_made = steps - self.start
        steps_in_all = self.total - self.start
        if steps_made <= 0:
            return False

        # Collect if the number of collections that are due rises with this step.
        times_by_now = steps_made * self.count // steps_in_all
        times_before = (steps_made - 1) * self.count // steps_in_all
        return times_by_now > times_before

    def after_step(self, steps: int, weights: Callable[[], Mapping[str, Tensor]], log: Log, run_log: RunLog) -> None:
        """Add the weights to the moments, where they are collected."""
        if self.collects(steps):
            self.moments.add(weights().items())

    def finish(self, seed: int, put: Callable[[Mapping[str, Tensor]], None]) -> list[LeftModel]:
        """Put the average into the model, and return it, or a model for each member that is drawn around it."""
        mean = self.moments.mean
        put(mean)
        facts = {"averaged": self.moments.count}
        if not self.options.members:
            return [LeftModel(mean, self.total, facts)]
        models = []
        draws = self.moments.draws(self.options.members, seed)
        for number, weights in enumerate(draws, start=1):
            models.append(LeftModel(weights, self.total, {**facts, "draw": number}))
        return models

    def state(self) -> Saved:
        """Return the number of weights collected so far, and their moments by names that start with ``average.``."""
        state = Saved({"averaged": self.moments.count})
        state.add("average.", self.moments.tensors())
        return state

    def load(self, saved: Saved) -> None:
        """Restore the moments of an unfinished training."""
        count = saved.progress["averaged"]
        moments = saved.part("average.")
        self.moments.load(count, moments)


class Moments:
    """The moments of the collected weights, on the CPU, in float64.

    The variance is accumulated by Welford's algorithm. The paper instead subtracts the squared mean from the mean of
    the squares; variances of weights are so small that rounding would leave nothing of them.

    Attributes:
        rank: the number of deviations that are kept; 0 to keep only the mean, which is enough for SWA.
        count: the number of collected weights.
        mean: the mean of the weights, by name.
        squares: the sums of squared deviations from the mean, by name; empty without a rank.
        deviations: the last ``rank`` collected weights, each minus the mean at its time, in the dtype of the weights.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.count = 0
        self.mean: Weights = {}
        self.squares: Weights = {}
        self.deviations: list[Weights] = []

    def add(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Add the weights of one step, given by name, to the moments. Source: Maddox et al., algorithm 1.

        The moments are the mean of the weights over the steps and, if a Gaussian is wanted (``rank`` is not 0), the sum
        of squared deviations from it and the last ``rank`` deviations. Both are updated without keeping older weights.
        """
        self.count += 1
        deviation: Weights = {}  # from the new mean, by name
        for name, weight in weights:
            # Update the mean in place: old mean + (value - old mean) / count.
            value = weight.to("cpu", torch.float64)
            mean = self.mean.setdefault(name, torch.zeros_like(value))
            from_old_mean = value - mean
            mean += from_old_mean / self.count

            # Welford: the sum of squares grows by (deviation from the old mean) * (deviation from the new mean).
            if self.rank:
                from_new_mean = value - mean
                squares = self.squares.setdefault(name, torch.zeros_like(value))
                squares.addcmul_(from_old_mean, from_new_mean)
                deviation[name] = from_new_mean.to(weight.dtype)

        # Keep only the last `rank` deviations.
        if self.rank:
            self.deviations.append(deviation)
            self.deviations = self.deviations[-self.rank :]

    def draws(self, members: int, seed: int) -> Iterator[Weights]:
        """Yield ``members`` weights drawn from the Gaussian of SWAG.

        The Gaussian is N(mean, (diag + D Dᵀ / (K - 1)) / 2): diag has the variances, and the columns of D are the K
        deviations. Source: Maddox et al., equation 1.
        """
        generator = torch.Generator().manual_seed(seed)
        for _ in range(members):
            yield self._draw(generator)

    def _draw(self, generator: torch.Generator) -> Weights:
        """Draw the weights of one member from the Gaussian of SWAG, in the dtype of the collected weights.

        They are the mean plus two kinds of noise, each with half the variance: independent noise for each weight, and a
        random combination of the K = ``rank`` kept deviations, which is the same for all weights of the member.
        """
        # One factor for each deviation: the sum of factor * deviation has covariance D Dᵀ / (2 (K - 1)).
        low_rank_noise = torch.randn(self.rank, generator=generator, dtype=torch.float64)  # [K]
        factors = low_rank_noise / math.sqrt(2 * (self.rank - 1))

        # Sort the names, since after a resume the dictionary has another order, and draws depend on the order.
        drawn = {}
        for name in sorted(self.mean):
            mean = self.mean[name]
            diagonal_noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64)
            std = (self.squares[name] / (2 * self.count)).sqrt()  # the root of half the variance
            value = mean + std * diagonal_noise
            for factor, deviation in zip(factors.tolist(), self.deviations, strict=True):
                value += factor * deviation[name]
            dtype = self.deviations[0][name].dtype
            drawn[name] = value.to(dtype)
        return drawn

    # --- saving and going on ------------------------------------------------------------------------------------------

    def tensors(self) -> Weights:
        """Return all moments by names such as ``mean.NAME`` and ``deviation.0.NAME``."""
        weights_by_prefix = {"mean": self.mean, "squares": self.squares}
        for index, deviation in enumerate(self.deviations):
            weights_by_prefix[f"deviation.{index}"] = deviation
        tensors = {}
        for prefix, weights in weights_by_prefix.items():
            for name, tensor in weights.items():
                tensors[f"{prefix}.{name}"] = tensor
        return tensors

    def load(self, count: int, tensors: Mapping[str, Tensor]) -> None:
        """Restore the moments of ``count`` weights from what :meth:`tensors` returned."""

        def part(prefix: str) -> Weights:
            """Return the tensors whose names begin with a prefix, by their names without it."""
            weights = {}
            for name, tensor in tensors.items():
                if name.startswith(prefix):
                    weights[name.removeprefix(prefix)] = tensor
            return weights

        self.count = count
        self.mean = part("mean.")
        self.squares = part("squares.")
        self.deviations = []
        for index in range(min(count, self.rank)):
            deviation = part(f"deviation.{index}.")
            self.deviations.append(deviation)
