"""Options of a training, in small records that a verb fills.

Nothing here knows where the values come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hydractl.expressions.data_sets import DataSpec
from hydractl.training.adapters import Adapter
from hydractl.training.course import Course, CourseMaker, ScheduleOptions
from hydractl.training.members import MemberMaker


@dataclass(frozen=True, kw_only=True)
class WeightOptions:
    """The weights that a training starts from, and which of them it changes.

    Attributes:
        init: ``given``, ``head`` (a classifier drawn by the seed) or ``random`` (all weights).
        reset_head: start from a classifier for other classes.
        labels: the class names of a new classifier; None: those of the data.
        train_last: how many blocks of each tower are trained, from the last; None: all.
        tower: the one tower to train; None or ``both``: all.
        freeze: parts that are not changed, of ``api.finetune.Part``.
        lenient: ignore parts that the model does not have, since a recipe is for many models.
        adapter: the adapter that is trained instead of the weights, or None.
    """

    init: str = "given"
    reset_head: bool = False
    labels: tuple[str, ...] | None = None
    train_last: int | None = None
    tower: str | None = None
    freeze: Sequence[str] = ()
    lenient: bool = False
    adapter: Adapter | None = None


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """AdamW (``betas``, ``eps``) or SGD (``momentum``); ``clip`` is the largest gradient norm, 0 for no limit."""

    optimizer: str = "adamw"
    weight_decay: float = 0.01
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float = 1.0


@dataclass(frozen=True, kw_only=True)
class LossOptions:
    """The loss of a training.

    Attributes:
        loss: ``cross-entropy`` or ``contrastive``.
        label_smoothing: of the cross-entropy.
        autocast: the dtype that activations are computed in, or None.
        class_weights: returns the weights ``[C]`` of C classes in the cross-entropy; None for equal weights.
    """

    loss: str = "cross-entropy"
    label_smoothing: float = 0.0
    autocast: str | None = None
    class_weights: Callable[[int], Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class TrainOptions(WeightOptions, OptimizerOptions, LossOptions):
    """All options that decide the result of a training, besides its model.

    Attributes:
        train, val: labelled samples or pairs, and validation data or None.
        limit: how many samples of each set are used; None: all.
        seed: draws these samples if the set is sorted by class, their order, augmentation, dropout, and what is new at
            the start.
        batch_size: how many samples are computed together, by all processes.
        accumulate: how many batches a step has.
        workers: how many processes prepare samples; None leaves it to the device and the data.
        augment: items of :class:`hydractl.training.data.Augmentation`.
        lr: the peaks of the learning rate; if there are several, each is trained.
        epochs, steps: the length; ``steps`` wins if it is given.
        patience: how many epochs without a better validation accuracy end the training; None: it never ends early.
        min_delta: by how much an accuracy must exceed the best one to be better.
        schedule: the learning rate over the steps.
        course: makes the course that a method prescribes; None: that of an ordinary training.
        together: makes the several members that one training trains; None: the training has one model.
    """

    train: DataSpec
    val: DataSpec | None = None
    limit: int | None = None
    seed: int = 0
    batch_size: int = 64
    accumulate: int = 1
    workers: int | None = None
    augment: Sequence[str] = ()
    lr: tuple[float, ...] = (1e-4,)
    epochs: int = 3
    steps: int | None = None
    patience: int | None = None
    min_delta: float = 0.0
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    course: CourseMaker | None = None
    together: MemberMaker | None = None

    @property
    def per_step(self) -> int:
        """The number of samples of a step."""
        return self.batch_size * self.accumulate

    def steps_per_epoch(self, samples: int) -> int:
        """Return the number of steps of one pass over the data.

        A cross-entropy is a mean over samples, so the last step may have fewer of them. A contrastive loss depends on
        how many pairs are compared: pairs that do not fill a step are left out, as in open_clip. They are different
        pairs in each epoch.
        """
        full_steps, left_over = divmod(samples, self.per_step)
        if self.loss == "contrastive" or not left_over:
            return full_steps
        return full_steps + 1

    def total_steps(self, samples: int) -> int:
        """Return the number of steps of the whole training."""
        if self.steps is not None:
            return self.steps
        return self.epochs * self.steps_per_epoch(samples)

    def begin_course(self, samples: int) -> Course:
        """Return the course of a training on so many samples.

        Raises:
            UsageError: the training has too few steps.
        """
        begin = self.course or Course
        return begin(self.total_steps(samples), self.steps_per_epoch(samples), self.schedule)
