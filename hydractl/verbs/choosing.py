"""How heads are scored, and how those that stay are chosen: what ``score`` and ``prune`` are told."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.criteria import Criterion
from hydractl.expressions.data_sets import DataSpec
from hydractl.jsonio import Document


@dataclass(frozen=True)
class Measuring:
    """The labelled samples that a command measures on, and how the model runs on them.

    Attributes:
        verb: the command, for the record of the samples that a file depends on.
        data: the data set; None if nothing is measured.
        samples: how many are drawn, without repetition; all if the data have fewer.
        limit: how many of the data are used, before any draw; None for all.
        seed: draws them; criteria that are random themselves use it, too.
        device, dtype, batch_size, workers: how the model runs, and how many processes read.
    """

    verb: str
    data: DataSpec | None
    samples: int
    limit: int | None
    seed: int
    device: str
    dtype: str
    batch_size: int
    workers: int | None


@dataclass(frozen=True)
class Scoring:
    """How heads are scored.

    Attributes:
        criterion: the criterion.
        order: ``sequential`` (site by site, on the model as pruned so far) or ``one-shot``.
        keep, remove: in sequential order, how many heads of each site stay or go; one of them is given.
        tower: the tower whose heads are scored; None or ``both`` for all.
        on: the samples.
    """

    criterion: Criterion
    order: str
    keep: int | None
    remove: int | None
    tower: str | None
    on: Measuring


@dataclass(frozen=True)
class Selection:
    """How the heads that stay are chosen. One of the first four decides; the others say how many, and from where.

    Attributes:
        criterion: scores the heads now.
        scores, circuit, mask: the file of scores, of a removal order, or of the heads to keep.
        keep, remove: how many heads stay or go: at each site, or in all with the scope ``global``.
        max_drop: the accuracy that may be lost, as a share of the samples.
        val: the samples for ``max_drop``; None for those that the heads are chosen with.
        scope: ``site`` or ``global``; None if the model decides (:func:`settled`).
        order: ``sequential`` or ``one-shot``; None if the scope decides.
        sample_from: heads are drawn from so many at the beginning of the circuit; None to take them in order.
        share_sites, with_mask: in so many first sites of each tower, the file of a mask decides.
        allow_other_base: whether files may be of a checkpoint with other weights.
        tower: the tower whose heads are meant; None or ``both`` for all.
        max_length: the largest number of tokens of the texts that heads are scored on.
        on: the samples that heads are scored on.
        reads_weights: whether files are compared with the weights; a dry run does not.
    """

    criterion: Criterion | None
    scores: Document | None
    circuit: Document | None
    mask: Document | None
    keep: int | None
    remove: int | None
    max_drop: float | None
    val: DataSpec | None
    scope: str | None
    order: str | None
    sample_from: int | None
    share_sites: int | None
    with_mask: Document | None
    allow_other_base: bool
    tower: str | None
    max_length: int | None
    on: Measuring
    reads_weights: bool

    def scoring(self) -> Scoring:
        """Return how the criterion scores heads."""
        assert self.criterion is not None and self.order is not None
        return Scoring(self.criterion, self.order, self.keep, self.remove, self.tower, self.on)
