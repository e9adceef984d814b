"""The few numbers of each sample that metrics need, computed from a model's logits on one data set in one pass.

:class:`Samples` holds them, and :class:`Resample` holds samples that are drawn from them with replacement. Metrics are
functions of either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.ood_scores import SCORES, says_nothing
from hydractl.metrics.probabilities import Block, Floats, blocks, check_finite, check_labels, check_shape

BINS = 15
"""Bins of ``ece``, ``aece`` and the reliability curve."""


class ByConfidence(NamedTuple):
    """The confidence [N] of samples and whether each prediction is right [N], in an order by confidence."""

    confidence: Floats
    correct: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Samples:
    """The predictions of M members on N samples, reduced to the numbers that metrics need.

    Attributes:
        predicted: [N], the class of highest p, the lowest index on a tie.
        confidence: [N], the highest p.
        entropy: [N], the entropy of p in nats.
        mi: [N], the mutual information of the members in nats.
        score: [N], the leading OOD score, higher = more OOD; None if it is constant for a model of one member.
        votes: int32 [M, N], the class that each member votes for.
        pair_mi: [M(M-1)/2], the mean mutual information of each two members, in the order of
            ``itertools.combinations``; empty if pairs were not asked for.
        labels: [N]; None for data without labels, and then the next two are None as well.
        label_log_probs: [N], log p of the label, in nats.
        brier_terms: [N], the sum over classes of (p_k - 1[y = k])^2.
        scores: each OOD score that is reported beside the leading one, by name; each has the form of ``score``.
        leading: the name of the leading score.
    """

    predicted: NDArray[np.int64]
    confidence: Floats
    entropy: Floats
    mi: Floats
    score: Floats | None
    votes: NDArray[np.int32]
    pair_mi: Floats
    labels: NDArray[np.int64] | None = None
    label_log_probs: Floats | None = None
    brier_terms: Floats | None = None
    scores: Mapping[str, Floats | None] = field(default_factory=dict)
    leading: str = "msp"

    def __len__(self) -> int:
        return len(self.predicted)

    @property
    def member_pairs(self) -> int:
        """The number of pairs of members."""
        members = len(self.votes)
        return math.comb(members, 2)

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the predicted class is the label, [N].

        Raises:
            ValueError: the data have no labels.
        """
        if self.labels is None:
            raise ValueError("these samples have no labels")
        return self.predicted == self.labels

    @cached_property
    def differing_pairs(self) -> NDArray[np.int64]:
        """The number of pairs of members that vote for different classes, [N]."""
        # The share of differing pairs is 1 - sum_k C(n_k, 2) / C(M, 2). Counting the pairs in integers is exact.
        differing = np.zeros(len(self), dtype=np.int64)
        for votes, other_votes in combinations(self.votes, 2):
            differing += votes != other_votes
        return differing

    def mean(self, name: str) -> float:
        """Return the mean over samples of the attribute ``name``, which holds values [N]."""
        values = getattr(self, name)
        return float(values.mean())

    def total(self, name: str) -> int:
        """Return the sum over samples of the attribute ``name``, which holds counts or truth values [N]."""
        values = getattr(self, name)
        return int(values.sum())

    def sorted_by(self, name: Literal["rising", "falling", "bins"]) -> ByConfidence:
        """Return the samples sorted by rising or falling confidence or by bin; ties keep data order."""
        if name in self._sorted:
            return self._sorted[name]
        order = self.order(name)
        confidence = self.confidence[order]
        correct = self.correct[order]
        self._sorted[name] = ByConfidence(confidence, correct)
        return self._sorted[name]

    @cached_property
    def errors(self) -> NDArray[np.int64]:
        """The number of wrong predictions among the i = 1..N most confident samples, [N]; ties keep data order."""
        most_confident_first = self.sorted_by("falling")
        wrong = ~most_confident_first.correct
        return np.cumsum(wrong, dtype=np.int64)

    @cached_property
    def bin_sizes(self) -> NDArray[np.int64]:
        """The number of samples in each bin of equal width, [BINS]."""
        return np.bincount(self.bins, minlength=BINS)

    @cached_property
    def bins(self) -> NDArray[np.int64]:
        """The index of each sample's bin of equal width, [N]."""
        return bin_of(self.confidence)

    def order(self, name: Literal["rising", "falling", "bins"]) -> NDArray[np.int64]:
        """Return the indices [N] that sort the samples by rising or falling confidence or by bin; stable."""
        if name in self._orders:
            return self._orders[name]
        keys_by_name = {"rising": self.confidence, "falling": -self.confidence, "bins": self.bins}
        order = np.argsort(keys_by_name[name], kind="stable")
        self._orders[name] = order
        return order

    @cached_property
    def _orders(self) -> dict[str, NDArray[np.int64]]:
        """The cache of :meth:`order`, which other methods fill."""
        return {}

    @cached_property
    def _sorted(self) -> dict[str, ByConfidence]:
        """The cache of :meth:`sorted_by`."""
        return {}


class Resample:
    """Samples drawn with replacement; it has the attributes of :class:`Samples` that metrics need.

    Sorting is done once, on the original samples, and the sorted values are repeated here.

    Args:
        samples: the samples to draw from.
        counts: how often each sample is drawn, int64 [N]; they add up to N.
    """

    def __init__(self, samples: Samples, counts: NDArray[np.int64]) -> None:
        self.samples = samples
        self.counts = counts
        self.member_pairs = samples.member_pairs

    def __len__(self) -> int:
        return len(self.counts)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute [..., N] of the drawn samples; a sample drawn k times stands there k times in a row.

        None if the attribute is None.
        """
        values = getattr(self.samples, name)
        if values is None:
            return None
        return np.repeat(values, self.counts, axis=-1)

    def mean(self, name: str) -> float:
        """Return the mean over the drawn samples of the attribute ``name``, which holds values [N]."""
        values = getattr(self.samples, name)
        total = float(self.counts @ values)
        return total / len(self)

    def total(self, name: str) -> int:
        """Return the sum over the drawn samples of the attribute ``name``, which holds counts or truth values [N]."""
        values = getattr(self.samples, name)
        return int(self.counts @ values)

    def sorted_by(self, name: Literal["rising", "falling", "bins"]) -> ByConfidence:
        """Return the drawn samples sorted by rising or falling confidence or by bin; ties keep data order."""
        order = self.samples.order(name)
        counts_in_order = self.counts[order]
        confidence, correct = self.samples.sorted_by(name)
        drawn_confidence = np.repeat(confidence, counts_in_order)
        drawn_correct = np.repeat(correct, counts_in_order)
        return ByConfidence(drawn_confidence, drawn_correct)

    @cached_property
    def errors(self) -> NDArray[np.int64]:
        """The number of wrong predictions among the i = 1..N most confident drawn samples, [N]."""
        most_confident_first = self.samples.sorted_by("falling")
        wrong = ~most_confident_first.correct
        order = self.samples.order("falling")
        drawn_wrong = np.repeat(wrong, self.counts[order])
        return np.cumsum(drawn_wrong, dtype=np.int64)

    @property
    def bin_sizes(self) -> NDArray[np.int64]:
        """The number of drawn samples in each bin of equal width, [BINS]."""
        bins = self.samples.bins
        sizes = np.bincount(bins, weights=self.counts, minlength=BINS)  # float64, but whole numbers
        return sizes.astype(np.int64)


def bin_edges(bins: int = BINS) -> Floats:
    """Return the edges k/bins, k = 0..bins, each the float64 nearest to the quotient (e.g. 3/15 is exactly ``0.2``).

    For 15 bins they are the numbers of ``numpy.linspace(0, 1, 16)``.
    """
    numerators = np.arange(bins + 1)
    return numerators / bins


def bin_of(confidence: np.ndarray, bins: int = BINS) -> NDArray[np.int64]:
    """Return the index 0..bins-1 of the bin [edge_k, edge_k+1) that holds each confidence, [N]; 1 is in the last bin.

    Confidences are compared with :func:`bin_edges`. ``floor(confidence * bins)`` would round, and put some values just
    below an edge into the bin above it.
    """
    inner_edges = bin_edges(bins)[1:-1]
    return np.searchsorted(inner_edges, confidence, side="right")


def samples_of(
    logits: np.ndarray,
    labels: np.ndarray | None = None,
    *,
    score: str = "msp",
    beside: Sequence[str] = (),
    fitted_scores: Mapping[str, Floats] = {},
    calibration: Calibration | None = None,
    pairs: bool = True,
) -> Samples:
    """Reduce member logits to :class:`Samples`, in float64, in one pass over blocks of samples.

    Args:
        logits: [M, N, C], any float type; a memory map may be larger than memory. The result takes 40 + 4M bytes a
            sample, 24 more with labels.
        labels: [N] integers in 0..C-1; None for data without labels.
        score: the leading OOD score: a name of :data:`hydractl.metrics.ood_scores.SCORES`, or of ``fitted_scores``.
        beside: the names of further scores that are reported beside it.
        fitted_scores: scores [N] by name that are computed from features, not from logits, and are ready-made.
        calibration: the calibration of p; ``energy``, ``maxlogit``, ``mi``, ``variance`` and votes stay without it.
        pairs: whether to compare each two members, which takes time quadratic in their number.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
        InputError: a label is outside 0..C-1, or the calibration is for another number of classes.
    """
    samples, _ = samples_and_members(
        logits,
        labels,
        score=score,
        beside=beside,
        fitted_scores=fitted_scores,
        calibration=calibration,
        pairs=pairs,
        alone=False,
    )
    return samples


def samples_and_members(
    logits: np.ndarray,
    labels: np.ndarray | None = None,
    *,
    score: str = "msp",
    beside: Sequence[str] = (),
    fitted_scores: Mapping[str, Floats] = {},
    calibration: Calibration | None = None,
    pairs: bool = True,
    alone: bool = True,
) -> tuple[Samples, list[Samples]]:
    """Reduce member logits as :func:`samples_of` does, and those of each member alone in the same pass.

    Args:
        logits, labels, score, beside, fitted_scores, calibration, pairs: see :func:`samples_of`.
        alone: whether to reduce the logits of each member alone.

    Returns:
        The samples of the ensemble; and for each member what :func:`samples_of` returns for its logits and the labels
        without further arguments, or an empty list. The members' exponentials are computed only once.

    Raises:
        NonFiniteError, InputError: as :func:`samples_of`.
    """
    shape = check_shape(logits).shape
    members, n, classes = shape

    # Make an empty array for each score, None for one that is constant for a single member. Fitted scores have their
    # values already.
    values_by_score: dict[str, Floats | None] = {}
    for name in (score, *beside):
        if name in fitted_scores:
            values_by_score[name] = fitted_scores[name]
        else:
            values_by_score[name] = None if says_nothing(name, members) else np.empty(n)

    # Make the result with empty arrays. The arrays of scores in it are the same objects as in `values_by_score`.
    scores_beside = {name: values_by_score[name] for name in beside}
    checked_labels = None if labels is None else check_labels(labels, n, classes)
    leading = {score: values_by_score[score]}
    samples = _unfilled_samples(shape, checked_labels, pairs, leading, scores_beside)
    pair_sums = np.zeros(len(samples.pair_mi))  # sums over samples; empty if no pairs are compared

    # The same for each member alone, an ensemble of one.
    samples_by_member = []
    if alone:
        for _ in range(members):
            shape_of_one = (1, n, classes)
            score_of_one = {"msp": np.empty(n)}
            samples_by_member.append(_unfilled_samples(shape_of_one, checked_labels, False, score_of_one, {}))

    # Every block of samples fills its part of the arrays.
    for rows, block in blocks(logits, calibration):
        _fill_columns(samples, rows, block)
        for name, values in values_by_score.items():
            if values is not None and name not in fitted_scores:
                values[rows] = SCORES[name](block)
        if len(pair_sums):
            pair_sums += pair_mi(block).sum(axis=1)
        for member, samples_of_member in enumerate(samples_by_member):
            block_of_member = block.of_members(slice(member, member + 1))
            _fill_columns(samples_of_member, rows, block_of_member)
            assert samples_of_member.score is not None
            samples_of_member.score[rows] = SCORES["msp"](block_of_member)
    samples.pair_mi[:] = pair_sums / max(1, len(samples))
    return samples, samples_by_member


def _fill_columns(samples: Samples, rows: slice, block: Block) -> None:
    """Write what does not depend on a score into ``samples``, for the samples of one block.

    Args:
        samples: the result, whose arrays are filled.
        rows: the slice of the block's samples.
        block: their logits.

    Raises:
        NonFiniteError: log p of a label is not finite.
    """
    samples.predicted[rows] = block.predicted
    samples.confidence[rows] = block.confidence
    samples.votes[:, rows] = block.votes
    samples.entropy[rows] = block.entropy
    samples.mi[rows] = block.mi
    _fill_label_columns(samples, rows, block)


def _fill_label_columns(samples: Samples, rows: slice, block: Block) -> None:
    """Write log p of the label and the term of the Brier score into ``samples``, for the labelled samples of one block.

    Args:
        samples: the result, whose ``label_log_probs`` and ``brier_terms`` are filled; nothing happens without labels.
        rows: the slice of the block's samples.
        block: their logits.

    Raises:
        NonFiniteError: log p of a label is not finite.
    """
    if samples.labels is None or samples.label_log_probs is None or samples.brier_terms is None:
        return  # without labels all three are None
    labels = samples.labels[rows]  # [n]
    samples.label_log_probs[rows] = check_finite(block.log_probs_of(labels), "log p of the label")

    label_entries = (np.arange(len(labels)), labels)  # an index that picks the label's entry of each row
    error = block.probs.copy()
    error[label_entries] -= 1.0  # p_k - 1[y = k], [n, C]
    squared_error = np.square(error, out=error)
    samples.brier_terms[rows] = squared_error.sum(axis=1)


def pair_mi(block: Block) -> Floats:
    """Return the mutual information of each two members a < b on n samples, in nats, [P, n].

    The P pairs are in the order of ``itertools.combinations``.
    """
    members, n, _ = block.logits.shape
    pairs = list(combinations(range(members), 2))
    if members == 2:  # the mutual information of all members is that of the only pair
        return block.mi[None]
    mi_of_pairs = np.empty((len(pairs), n))
    for index, (a, b) in enumerate(pairs):
        only_these_two = slice(a, b + 1, b - a)
        mi_of_pairs[index] = block.of_members(only_these_two).mi
    return mi_of_pairs


def _unfilled_samples(
    shape: tuple[int, ...],
    labels: NDArray[np.int64] | None,
    pairs: bool,
    leading: Mapping[str, Floats | None],
    beside: Mapping[str, Floats | None],
) -> Samples:
    """Return the :class:`Samples` of logits [M, N, C] with arrays of the right shapes that are still to be filled.

    Args:
        shape: (M, N, C).
        labels: the labels [N]; None for data without labels, which get no label columns.
        pairs: whether each two members will be compared.
        leading: the array of the leading score by its name, a single entry.
        beside: the arrays of the other scores, by name.
    """
    members, n, _ = shape
    ((name, score),) = leading.items()
    compared_pairs = math.comb(members, 2) if pairs else 0
    label_log_probs = None if labels is None else np.empty(n)
    brier_terms = None if labels is None else np.empty(n)
    return Samples(
        predicted=np.empty(n, dtype=np.int64),
        confidence=np.empty(n),
        entropy=np.empty(n),
        mi=np.empty(n),
        score=score,
        votes=np.empty((members, n), dtype=np.int32),
        pair_mi=np.zeros(compared_pairs),
        labels=labels,
        label_log_probs=label_log_probs,
        brier_terms=brier_terms,
        scores=beside,
        leading=name,
    )
