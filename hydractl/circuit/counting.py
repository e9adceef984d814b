"""Counts from logits: the counts of one batch, how far rounding may change them, and their sums over batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hydractl.circuit.objective import LOSS_UNIT, Doubt, EvaluationCounts, Share
from hydractl.errors import NonFiniteError
from hydractl.metrics.ood import OOD_SCORES, two_u
from hydractl.metrics.probabilities import Block, Floats

# --- what rounding may change -----------------------------------------------------------------------------------------

LOGIT_TOLERANCE = {torch.float64: 2e-14, torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Two logits are equal but for rounding if they differ by less than this times the largest logit of the sample or 1.

Differences between machines were seen to be a twentieth of it, in half precision one half.
"""


def margins(logits: Floats, labels: np.ndarray) -> Floats:
    """Return the logit (or log p) of the label minus the highest other one, ``[B]``, from ``[B, classes]``."""
    samples = np.arange(len(labels))
    logit_of_label = logits[samples, labels]
    others = logits.copy()
    others[samples, labels] = -np.inf
    highest_other = others.max(axis=1)
    return np.asarray(logit_of_label - highest_other)


def _msp_slope(block: Block) -> Floats:
    """Return p (1 - p) of the highest class, ``[B]``, averaged over members."""
    top_class = block.pooled_log.argmax(axis=1)  # [B]
    index = top_class[None, :, None]
    column_of_top = np.take_along_axis(block.member_log_probs, index, axis=2)  # [members, B, 1]
    log_p_of_top = column_of_top[:, :, 0]
    p = np.exp(log_p_of_top)
    p_minus_1 = np.expm1(log_p_of_top)  # more exact than p - 1 if p is near 1
    slopes = -p * p_minus_1
    return np.asarray(slopes.mean(axis=0))


def _entropy_slope(block: Block) -> Floats:
    """Return the sum over classes of p times the distance of -log p from its mean, ``[B]``, averaged over members."""
    p = block.member_powers  # [members, B, classes]
    log_p = block.pooled_log  # [B, classes]
    cross_entropy = -(p * log_p).sum(axis=2, keepdims=True)  # [members, B, 1]
    distances = np.abs(log_p + cross_entropy)
    slopes = (p * distances).sum(axis=2)  # [members, B]
    return np.asarray(slopes.mean(axis=0))


def _slope_of_one(block: Block) -> Floats:
    """Return 1 for each sample, ``[B]``."""
    samples = block.logits.shape[1]
    return np.ones(samples)


SLOPES: dict[str, Callable[[Block], Floats]] = {
    "msp": _msp_slope,
    "entropy": _entropy_slope,
    "energy": _slope_of_one,
    "maxlogit": _slope_of_one,
}
"""For each OOD score, a function of how much the score of a sample changes at most if a member's logits change by 1."""


# --- one batch --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Values:
    """The results of one batch under one model.

    Attributes:
        labelled: whether the samples are ID samples.
        scores: the OOD score of each sample ``[B]``, higher = more OOD.
        correct: how many ID samples are classified right; 0 for OOD samples.
        nll: the sum of this loss over ID samples, in whole units of :data:`LOSS_UNIT`; 0 for OOD samples.
        doubt: by how much rounding may change these two counts.
        near: by how much rounding may change each OOD score, ``[B]``; a single number holds for all samples.
        tasks: the indices of the tasks that the samples belong to.
    """

    labelled: bool
    scores: Floats
    correct: int = 0
    nll: int = 0
    doubt: Doubt = Doubt()
    near: Floats | float = 0.0
    tasks: Sequence[int] = (0,)


def values_of(logits: Tensor, labels: np.ndarray | None, ood_score: str) -> Values:
    """Return the OOD scores, the number of correct samples and the NLL of one batch, computed in float64.

    Each comes with its doubt: by how much it may differ on another machine, where logits are rounded otherwise.

    Args:
        logits: ``[B, classes]``.
        labels: ``[B]``, or None for OOD samples.
        ood_score: a name of :data:`hydractl.metrics.ood.OOD_SCORES`.

    Returns:
        The results of the batch, with the tasks of a search that has only task 0.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
    """
    members = as_one_member(logits)
    if not np.isfinite(members).all():
        raise NonFiniteError("a logit is NaN or infinite during the search", hint="try a wider --dtype")

    # The OOD scores, and by how much rounding may change each of them.
    block = Block(members)
    scores = OOD_SCORES[ood_score](members)
    tolerance = LOGIT_TOLERANCE[logits.dtype]
    largest_logit = np.abs(members).max(axis=(0, 2))  # [B]

    # If two logits differ by less than this, they may be in the opposite order on another machine.
    logit_tolerance = tolerance * np.maximum(1.0, largest_logit)  # [B]

    # Give each score half of it, so that two scores together differ by as much as two logits do.
    score_tolerance = logit_tolerance / 2 * SLOPES[ood_score](block)  # [B]
    if labels is None:
        return Values(False, scores, near=score_tolerance)

    # A sample is right if its margin, the logit of the label minus the highest other one, is above 0. Count those that
    # are right here, on every machine (surely), and on some machine (perhaps): a tie may be won elsewhere.
    only_member = members[0]  # [B, classes]
    predicted = only_member.argmax(axis=1)
    correct = int((predicted == labels).sum())
    margin = margins(only_member, labels)
    surely_correct = int((margin > logit_tolerance).sum())
    perhaps_correct = int((margin >= -logit_tolerance).sum())

    # The NLL of each sample, in whole units. Rounding may change it by a few units: one in float32, more in half
    # precision.
    log_p_of_label = block.pooled_log[np.arange(len(labels)), labels]
    nll_in_units = np.rint(-log_p_of_label / LOSS_UNIT)
    units_in_doubt = round(tolerance / LOGIT_TOLERANCE[torch.float32])
    doubt = Doubt(
        fewer=correct - surely_correct,
        more=perhaps_correct - correct,
        loss=len(labels) * units_in_doubt,
    )
    return Values(
        labelled=True,
        scores=scores,
        correct=correct,
        nll=int(nll_in_units.astype(np.int64).sum()),
        doubt=doubt,
        near=score_tolerance,
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
        """Compare the scores of one batch, ``[B]``, with all scores of the other side, and remember them."""
        if labelled:
            self.two_u += two_u(scores, self.outside)
            joined = np.concatenate([self.inside, scores])
            self.inside = np.sort(joined)
        else:
            self.two_u += two_u(self.inside, scores)
            joined = np.concatenate([self.outside, scores])
            self.outside = np.sort(joined)


class TaskPairs:
    """The pairs of one task, counted three times: as measured, with rounding against the model, and for it."""

    def __init__(self) -> None:
        self.counted = PairCount()
        self._least = PairCount()
        self._most = PairCount()

    def add(self, values: Values) -> None:
        """Count the scores of one batch."""
        # Shift scores against the model: an ID sample scores higher, an OOD sample lower.
        against_model = values.near if values.labelled else -values.near
        least_scores = values.scores + against_model
        most_scores = values.scores - against_model
        self.counted.add(values.labelled, values.scores)
        self._least.add(values.labelled, least_scores)
        self._most.add(values.labelled, most_scores)

    @property
    def lower(self) -> int:
        """By how much rounding may lower twice U."""
        return self.counted.two_u - self._least.two_u

    @property
    def higher(self) -> int:
        """By how much rounding may raise twice U."""
        return self._most.two_u - self.counted.two_u


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
        self._doubt = Doubt()
        self._pairs = [TaskPairs() for _ in shares]

    def add(self, batch: int, values: Values) -> None:
        """Count one batch, which must be new, for each task that its samples belong to.

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
            self._doubt = self._doubt.plus(times, values.doubt)
            # The pairs are multiplied in `counts`.
            self._pairs[task].add(values)

    def counts(self) -> EvaluationCounts:
        """Return the counts over the batches seen so far, summed over all tasks.

        ``two_u`` is twice the number of pairs of an ID and an OOD sample in the right order (a tie is half a pair), so
        the AUROC is ``two_u / (2 * n_id * n_ood)``. It is None if no OOD sample has been seen.
        """
        # A task is one ID set (inside) with one OOD set (outside). Its samples and pairs are counted as often as its
        # share says. `lower` and `higher` are by how much rounding may change `two_u`.
        n_id = 0
        n_ood = 0
        twice_u = 0
        lower = 0
        higher = 0
        for share, pairs in zip(self._shares, self._pairs, strict=True):
            n_id += share.inside * len(pairs.counted.inside)
            n_ood += share.outside * len(pairs.counted.outside)
            twice_u += share.pairs * pairs.counted.two_u
            lower += share.pairs * pairs.lower
            higher += share.pairs * pairs.higher

        # The counts of single samples were weighted when they were added.
        doubt = self._doubt._replace(lower=lower, higher=higher)
        return EvaluationCounts(
            correct=self._correct,
            n_id=n_id,
            two_u=twice_u if n_ood else None,
            n_ood=n_ood,
            nll=self._nll,
            doubt=doubt,
        )

    @property
    def seen_pairs(self) -> int:
        """The number of pairs of an ID and an OOD sample seen so far, each counted as often as its share."""
        total = 0
        for share, pairs in zip(self._shares, self._pairs, strict=True):
            n_id = len(pairs.counted.inside)
            n_ood = len(pairs.counted.outside)
            total += share.pairs * n_id * n_ood
        return total
