"""How heads are scored, and how those that stay are chosen: what ``score`` and ``prune`` are told."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.criteria import Criterion
from hydractl.criteria.weights import WeightCriterion
from hydractl.expressions.data_sets import DataSpec
from hydractl.jsonio import Document


@dataclass(frozen=True)
class Measuring:
    """The labelled samples that a command measures on, and how the model runs on them.

    Attributes:
        verb: the command, for the record of the samples that a file depends on.
        data: the data set; None if nothing is measured.
        samples: how many are drawn, without repetition; all if the data have fewer, or for None.
        limit: how many of the data are used, before any draw; None for all.
        seed: draws them; criteria that are random themselves use it, too.
        device, dtype, batch_size, workers: how the model runs, and how many processes read.
        tower: the tower whose heads or weights are meant; None or ``both`` for all.
    """

    verb: str
    data: DataSpec | None
    samples: int | None
    limit: int | None
    seed: int
    device: str
    dtype: str
    batch_size: int
    workers: int | None
    tower: str | None


@dataclass(frozen=True)
class Scoring(Measuring):
    """How heads are scored, and on which samples.

    Attributes:
        criterion: the criterion; None if ``prune`` reads what decides from a file.
        order: ``sequential`` (site by site, on the model as pruned so far) or ``one-shot``; None if the scope decides.
        keep, remove: how many heads stay or go: at each site, or in all with the scope ``global``. In sequential order
            one of them is given.
    """

    criterion: Criterion | None
    order: str | None
    keep: int | None
    remove: int | None


@dataclass(frozen=True)
class Selection(Scoring):
    """How the heads that stay are chosen: by the criterion, or by one of the first three files.

    Attributes:
        scores, circuit, mask: the file of scores, of a removal order, or of the heads to keep.
        max_drop: the accuracy that may be lost, as a share of the samples.
        val: the samples for ``max_drop``; None for those that the heads are chosen with.
        scope: ``site`` or ``global``; None if the model decides (:func:`settled`).
        sample_from: heads are drawn from so many at the beginning of the circuit; None to take them in order.
        share_sites, with_mask: in so many first sites of each tower, the file of a mask decides.
        allow_other_base: whether files may be of a checkpoint with other weights.
        max_length: the largest number of tokens of the texts that heads are scored on.
        reads_weights: whether files are compared with the weights; a dry run does not.
    """

    scores: Document | None
    circuit: Document | None
    mask: Document | None
    max_drop: float | None
    val: DataSpec | None
    scope: str | None
    sample_from: int | None
    share_sites: int | None
    with_mask: Document | None
    allow_other_base: bool
    max_length: int | None
    reads_weights: bool


@dataclass(frozen=True)
class WeightSelection(Measuring):
    """How single weights are chosen to become zero.

    Attributes:
        criterion: scores them.
        weights: the share of all parameters that stay, e.g. 0.3.
        steps: in how many steps weights are removed.
        max_length: the largest number of tokens of the texts that weights are scored on.
    """

    criterion: WeightCriterion
    weights: float
    steps: int
    max_length: int | None
