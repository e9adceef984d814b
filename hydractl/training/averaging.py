"""The weights at the end of a training as one Gaussian: SWA is its mean, members drawn from it are SWAG's.

Izmailov et al., Averaging Weights Leads to Wider Optima (UAI 2018); Maddox et al., A Simple Baseline for Bayesian
Uncertainty in Deep Learning (NeurIPS 2019).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hydractl.errors import UsageError
from hydractl.training.options import AverageOptions, ScheduleOptions, factor, warmup_steps

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Averaging:
    """The steps of a training after which its weights are collected, and the learning rate on the way there.

    Attributes:
        total, per_epoch: steps of the training, and of an epoch.
        options: when it starts, and how often it collects.

    Raises:
        UsageError: too few steps are left, or too few weights are collected for an average or for the rank.
    """

    total: int
    per_epoch: int
    options: AverageOptions

    def __post_init__(self) -> None:
        rest, drawn = self.total - self.start, self.options.members > 0
        if self.count > rest:
            hint = "train longer, or give a smaller START or N"
            raise UsageError(f"--swa is to collect weights {self.count} times in {rest} steps", hint=hint)
        if self.count < (least := self.options.rank if drawn else 2):
            why = f"--swag of rank {least}" if drawn else "an average"
            hint = f"--swa START,{least} collects them {least} times; or train longer{', or a smaller RANK' * drawn}"
            raise UsageError(f"--swa is to collect weights {self.count} times: too few for {why}", hint=hint)

    @property
    def start(self) -> int:
        """Steps before the average."""
        return round(self.options.start * self.total)

    @property
    def count(self) -> int:
        """How many times weights are collected: as it is asked for, or once for every epoch that is left."""
        return self.options.count or (self.total - self.start) // self.per_epoch

    def due(self, steps: int) -> bool:
        """Whether the weights after so many steps are collected: evenly, the last time at the end."""
        made, rest = steps - self.start, self.total - self.start
        return made > 0 and made * self.count // rest > (made - 1) * self.count // rest

    def share_of_peak(self, step: int, schedule: ScheduleOptions) -> float:
        """The learning rate of a step (from 0): a cosine reaches its floor where the average starts, and stays there.

        Source: Izmailov et al., section 3.1, with a constant rate.
        """
        if step >= self.start:
            return 1.0 if schedule.shape == "constant" else schedule.floor
        warmup = min(warmup_steps(schedule.warmup, self.total), self.start)
        return factor(step, self.start, warmup, schedule.shape, schedule.floor)


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
        self.rank, self.count = rank, 0
        self.mean: Weights = {}
        self.squares: Weights = {}
        self.deviations: list[Weights] = []

    def add(self, weights: Mapping[str, Tensor]) -> None:
        """Collect weights. Source: Maddox et al., algorithm 1."""
        self.count += 1
        column: Weights = {}
        for name, weight in weights.items():
            value = weight.to("cpu", torch.float64)
            mean = self.mean.setdefault(name, torch.zeros_like(value))
            before = value - mean
            mean += before / self.count
            if self.rank:
                self.squares.setdefault(name, torch.zeros_like(value)).addcmul_(before, value - mean)
                column[name] = (value - mean).to(weight.dtype)
        self.deviations = [*self.deviations, column][-self.rank :] if self.rank else []

    def draws(self, members: int, seed: int) -> Iterator[Weights]:
        """So many samples of N(mean, (diag + D Dᵀ / (K - 1)) / 2), D the K deviations. Source: Maddox et al., eq. 1."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(members):
            along = torch.randn(self.rank, generator=generator, dtype=torch.float64) / math.sqrt(2 * (self.rank - 1))
            drawn = {}
            for name, mean in sorted(self.mean.items()):  # of a run that was resumed the order is that of a file
                noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64)
                value = mean + (self.squares[name] / (2 * self.count)).sqrt() * noise
                for share, column in zip(along.tolist(), self.deviations, strict=True):
                    value += share * column[name]
                drawn[name] = value.to(self.deviations[0][name].dtype)
            yield drawn

    # --- saving and going on ------------------------------------------------------------------------------------------

    def tensors(self) -> Weights:
        """All that was collected, by names of its own."""
        columns = {f"deviation.{i}": column for i, column in enumerate(self.deviations)}
        parts = {"mean": self.mean, "squares": self.squares, **columns}
        return {f"{part}.{name}": tensor for part, weights in parts.items() for name, tensor in weights.items()}

    def load(self, count: int, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of :meth:`tensors`."""

        def part(start: str) -> Weights:
            return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}

        self.count, self.mean, self.squares = count, part("mean."), part("squares.")
        self.deviations = [part(f"deviation.{i}.") for i in range(min(count, self.rank))]
