"""Options of a training, in small records that a verb fills, and the learning rate that they make of each step.

Nothing here knows where the values come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hydractl.errors import UsageError
from hydractl.training.adapters import Adapter
from hydractl.training.members import MemberMaker


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Samples that are read, and how they are put into steps.

    Attributes:
        train, val: SPECs of labelled samples or pairs, and of validation data or None.
        limit: so many samples of each; None: all.
        seed: draws them of a set sorted by class.
        batch_size: samples computed together, by all processes.
        accumulate: batches of a step.
        workers: processes that prepare samples.
        augment: items of :class:`hydractl.training.data.Augmentation`.
    """

    train: str
    val: str | None = None
    limit: int | None = None
    seed: int = 0
    batch_size: int = 64
    accumulate: int = 1
    workers: int = 0
    augment: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WeightOptions:
    """Weights that a training starts from, and which of them it changes.

    Attributes:
        init: ``given``, ``head`` (a classifier drawn by the seed) or ``random`` (all weights).
        reset_head: start from a classifier for other classes.
        classes: how many; None: as many as the data have.
        labels: their names; None: those of the data.
        train_last: number of blocks of each tower; None: all.
        tower: the one tower to train; None or ``both``: all.
        freeze: parts that stay as they are, of ``settings.finetuning.FREEZABLE``.
        lenient: pass over parts that the model does not have: a recipe is for many models.
        adapter: trained in the place of the weights, or None.
    """

    init: str = "given"
    reset_head: bool = False
    classes: int | None = None
    labels: tuple[str, ...] | None = None
    train_last: int | None = None
    tower: str | None = None
    freeze: tuple[str, ...] = ()
    lenient: bool = False
    adapter: Adapter | None = None


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """AdamW (``betas``, ``eps``) or SGD (``momentum``); ``clip`` is the largest gradient norm, 0 for no limit."""

    name: str = "adamw"
    weight_decay: float = 0.01
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """The learning rate over the steps, as a share of its peak.

    Attributes:
        shape: ``cosine``, ``linear`` or ``constant``, after the warm-up.
        warmup: steps, or a share of all steps where it is below 1.
        floor: where the cosine ends (paper D.2).
        cycles: cosines one after another, with a snapshot of the weights at the end of each; 1: no snapshots.
    """

    shape: str = "cosine"
    warmup: float = 0.05
    floor: float = 1e-5
    cycles: int = 1


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


@dataclass(frozen=True, kw_only=True)
class LossOptions:
    """``cross-entropy`` or ``contrastive``; ``autocast`` is the dtype that activations are computed in, or None."""

    name: str = "cross-entropy"
    label_smoothing: float = 0.0
    autocast: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """All that decides the result of a training, beside its model.

    Attributes:
        seed: of the order of samples, augmentation, dropout, and what is drawn at the start.
        lr: peaks of the learning rate; of several each is trained.
        epochs, steps: the length; ``steps`` weigh more.
        patience: epochs without a better validation accuracy before it stops; None: never.
        min_delta: how much better is better.
        average: of the weights at the end; None: those of one epoch.
        together: how one training makes several members; None: it makes one model.
    """

    data: DataOptions
    seed: int = 0
    lr: tuple[float, ...] = (1e-4,)
    epochs: int = 3
    steps: int | None = None
    patience: int | None = None
    min_delta: float = 0.0
    weights: WeightOptions = field(default_factory=WeightOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    average: AverageOptions | None = None
    loss: LossOptions = field(default_factory=LossOptions)
    together: MemberMaker | None = None

    @property
    def per_step(self) -> int:
        """Samples of a step."""
        return self.data.batch_size * self.data.accumulate

    def steps_per_epoch(self, samples: int) -> int:
        """Steps of one pass over the data.

        A cross-entropy is a mean over samples, so the last step may have fewer of them. What a contrastive loss is
        depends on how many pairs are compared: those that do not fill a step are left out, as open_clip leaves them
        out. They are others in each epoch.
        """
        return samples // self.per_step if self.loss.name == "contrastive" else -(-samples // self.per_step)

    def total_steps(self, samples: int) -> int:
        """Steps of the whole training."""
        return self.steps if self.steps is not None else self.epochs * self.steps_per_epoch(samples)


# --- learning rate ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cycles:
    """The cycles of a training: one, or several cosines with a snapshot at the end of each.

    Huang et al., Snapshot Ensembles: Train 1, Get M for Free (ICLR 2017), equation 2: with T steps in all and M cycles,
    each has ceil(T / M) steps, the last one those that are left, and the learning rate starts each at its peak.

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


def factor(step: int, total: int, warmup: int, shape: str, floor: float = 1e-5) -> float:
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
