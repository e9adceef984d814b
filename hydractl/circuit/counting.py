"""Counts from logits: the counts of one batch, and their sums over batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hydractl.circuit.objective import LOSS_UNIT, EvaluationCounts, Share
from hydractl.errors import NonFiniteError
from hydractl.metrics.ood import OOD_SCORES, two_u
from hydractl.metrics.probabilities import Floats, pooled_log_probs


@dataclass(frozen=True)
class Values:
    """The results of one batch under one model.

    Attributes:
        labelled: whether the samples are ID samples.
        scores: the OOD score of each sample ``[B]``, higher = more OOD.
        correct: how many ID samples are classified right; 0 for OOD samples.
        nll: the sum of this loss over ID samples, in whole units of :data:`LOSS_UNIT`; 0 for OOD samples.
        tasks: the indices of the tasks that the samples belong to.
    """

    labelled: bool
    scores: Floats
    correct: int = 0
    nll: int = 0
    tasks: Sequence[int] = (0,)


def values_of(logits: Tensor, labels: np.ndarray | None, ood_score: str, tasks: Sequence[int]) -> Values:
    """Return the OOD scores, the number of correct samples and the NLL of one batch, computed in float64.

    The NLL (-log p of the label) is counted in whole units, so that sums do not depend on the order of addition. OOD
    samples, which have no labels, have only OOD scores.

    Args:
        logits: ``[B, classes]``.
        labels: ``[B]``, or None for OOD samples.
        ood_score: a name of :data:`hydractl.metrics.ood.OOD_SCORES`.
        tasks: the indices of the tasks that the samples belong to.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
    """
    members = as_one_member(logits)
    if not np.isfinite(members).all():
        raise NonFiniteError("a logit is NaN or infinite during the search", hint="try a wider --dtype")

    # The OOD score of each sample.
    scores = OOD_SCORES[ood_score](members)
    if labels is None:
        return Values(False, scores, tasks=tasks)

    # How many ID samples are right, and their loss in whole units.
    samples = np.arange(len(labels))
    predicted = members[0].argmax(axis=1)  # [B]
    log_p_of_label = pooled_log_probs(members)[samples, labels]
    nll_in_units = np.rint(-log_p_of_label / LOSS_UNIT)
    return Values(
        labelled=True,
        scores=scores,
        correct=int((predicted == labels).sum()),
        nll=int(nll_in_units.astype(np.int64).sum()),
        tasks=tasks,
    )


def as_one_member(logits: Tensor) -> Floats:
    """Return logits ``[B, classes]`` as float64 ``[1, B, classes]``, the shape that the scores of ensembles take."""
    array = logits.double().cpu().numpy()
    return array[None]


# --- batch after batch ------------------------------------------------------------------------------------------------


class PairCount:
    """Twice the Mann-Whitney U of OOD scores above ID scores, over the batches so far.

    Attributes:
        two_u: twice U: 2 for each pair in the right order, 1 for each tie.
        inside, outside: the scores of the ID and of the OOD samples so far, in ascending order.
    """

    def __init__(self) -> None:
        self.two_u = 0

        # Kept sorted, so that a new batch is compared with all earlier scores quickly.
        self.inside = np.empty(0)
        self.outside = np.empty(0)

    def add(self, labelled: bool, scores: Floats) -> None:
        """Add one batch: compare its scores with all scores of the other side so far, and remember them.

        Args:
            labelled: whether it is a batch of ID samples.
            scores: their OOD scores, ``[B]``.
        """
        if labelled:
            self.two_u += two_u(scores, self.outside)
            joined = np.concatenate([self.inside, scores])
            self.inside = np.sort(joined)
        else:
            self.two_u += two_u(self.inside, scores)
            joined = np.concatenate([self.outside, scores])
            self.outside = np.sort(joined)


class Tally:
    """The counts of one model over the batches it has seen so far.

    Args:
        shares: for each task, how often each of its samples and pairs is counted.

    Attributes:
        seen: the indices of the batches that have been counted.
    """

    def __init__(self, shares: Sequence[Share] = (Share(),)) -> None:
        """Begin with no batch counted."""
        self.seen: set[int] = set()
        self._shares = shares
        self._correct = 0
        self._nll = 0
        self._pairs = [PairCount() for _ in shares]

    def add(self, batch: int, values: Values) -> None:
        """Add the results of one batch, which must be new, to the counts of each task that its samples belong to.

        A task is an ID set with the OOD set it is measured against; two tasks may share a set.

        Args:
            batch: the index of the batch.
            values: its results.
        """
        assert batch not in self.seen
        self.seen.add(batch)
        for task in values.tasks:
            # With several tasks, repeat the samples of each task so that the task has its weight in the sums.
            times = self._shares[task].inside
            self._correct += times * values.correct
            self._nll += times * values.nll
            # The pairs are multiplied in `counts`.
            self._pairs[task].add(values.labelled, values.scores)

    def counts(self) -> EvaluationCounts:
        """Return the counts over the batches seen so far, summed over all tasks (pairs of an ID and an OOD set).

        ``two_u`` is twice the number of pairs of an ID and an OOD sample in the right order (a tie is half a pair), so
        the AUROC is ``two_u / (2 * n_id * n_ood)``. It is None if no OOD sample has been seen.
        """
        # "inside" are ID samples, "outside" OOD samples. The samples and pairs of a task are counted as often as its
        # share says, so that all tasks weigh the same. ``correct`` and ``nll`` were multiplied when they were added.
        n_id = 0
        n_ood = 0
        twice_u = 0
        for share, pairs in zip(self._shares, self._pairs, strict=True):
            n_id += share.inside * len(pairs.inside)
            n_ood += share.outside * len(pairs.outside)
            twice_u += share.pairs * pairs.two_u
        return EvaluationCounts(
            correct=self._correct,
            n_id=n_id,
            two_u=twice_u if n_ood else None,
            n_ood=n_ood,
            nll=self._nll,
        )

    @property
    def seen_pairs(self) -> int:
        """The number of pairs of an ID and an OOD sample seen so far, each counted as often as its share."""
        total = 0
        for share, pairs in zip(self._shares, self._pairs, strict=True):
            total += share.pairs * len(pairs.inside) * len(pairs.outside)
        return total
