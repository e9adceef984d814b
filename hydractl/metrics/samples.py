"""The few numbers a sample that metrics need of a model's predictions on one data set, from one pass over logits.

:class:`Samples` holds them, and :class:`Resample` the same drawn with replacement. Metrics are functions of either.
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
    """Confidence [N] and whether the prediction is right [N], in some order."""

    confidence: Floats
    correct: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Samples:
    """The predictions of M members on N samples, reduced to the numbers that metrics need.

    Attributes:
        predicted: [N], the class of highest p, the lowest index on a tie.
        confidence: [N], the highest p.
        entropy: [N], of p, in nats.
        mi: [N], mutual information of the members, in nats.
        score: [N], the leading OOD score, higher = more OOD; None where it says nothing of a single member.
        votes: int32 [M, N], the class each member votes for.
        pair_mi: [M(M-1)/2], mean mutual information of each two members, in the order of ``itertools.combinations``;
            empty where nobody asked for pairs.
        labels: [N], or None for data without labels; then the next two are None as well.
        label_log_probs: [N], log p of the label, in nats.
        brier_terms: [N], the sum over classes of (p_k - 1[y = k])^2.
        scores: every OOD score that is reported beside the leading one, by name; each is like ``score``.
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
        """[N], whether the predicted class is the label.

        Raises:
            ValueError: the data have no labels.
        """
        if self.labels is None:
            raise ValueError("these samples have no labels")
        return self.predicted == self.labels

    @cached_property
    def differing_pairs(self) -> NDArray[np.int64]:
        """The number of pairs of members that vote for different classes, [N]."""
        # 1 - sum_k C(n_k, 2) / C(M, 2) is the share of differing pairs; counted in integers, it is exact.
        differing = np.zeros(len(self), dtype=np.int64)
        for votes, other_votes in combinations(self.votes, 2):
            differing += votes != other_votes
        return differing

    def mean(self, name: str) -> float:
        """Return the mean of the attribute of this name, values [N]."""
        values = getattr(self, name)
        return float(values.mean())

    def total(self, name: str) -> int:
        """Return the sum of the attribute of this name, counts or truth values [N]."""
        values = getattr(self, name)
        return int(values.sum())

    def sorted_by(self, name: Literal["rising", "falling", "bins"]) -> ByConfidence:
        """Return the samples by rising or falling confidence or by bin, ties in data order."""
        if name in self._sorted:
            return self._sorted[name]
        order = self.order(name)
        confidence = self.confidence[order]
        correct = self.correct[order]
        self._sorted[name] = ByConfidence(confidence, correct)
        return self._sorted[name]

    @cached_property
    def errors(self) -> NDArray[np.int64]:
        """Wrong predictions among the i = 1..N most confident samples, [N]; ties stay in data order."""
        most_confident_first = self.sorted_by("falling")
        wrong = ~most_confident_first.correct
        return np.cumsum(wrong, dtype=np.int64)

    @cached_property
    def bin_sizes(self) -> NDArray[np.int64]:
        """The number of samples in each bin of equal width, [BINS]."""
        return np.bincount(self.bins, minlength=BINS)

    @cached_property
    def bins(self) -> NDArray[np.int64]:
        """The bin of equal width of each confidence, [N]."""
        return bin_of(self.confidence)

    def order(self, name: Literal["rising", "falling", "bins"]) -> NDArray[np.int64]:
        """Return the places of the samples by rising or falling confidence or by bin; stable: ties keep data order."""
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
    """Samples drawn with replacement, with the attributes of :class:`Samples` that metrics need.

    What needs an order is sorted once, in the samples themselves, and repeated here.

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
        """Return an attribute [..., N] of the drawn samples, the repetitions of one sample side by side.

        None where the attribute is None.
        """
        values = getattr(self.samples, name)
        if values is None:
            return None
        return np.repeat(values, self.counts, axis=-1)

    def mean(self, name: str) -> float:
        """Return the mean over the drawn samples of the attribute of this name, values [N]."""
        values = getattr(self.samples, name)
        total = float(self.counts @ values)
        return total / len(self)

    def total(self, name: str) -> int:
        """Return the sum over the drawn samples of the attribute of this name, counts or truth values [N]."""
        values = getattr(self.samples, name)
        return int(self.counts @ values)

    def sorted_by(self, name: Literal["rising", "falling", "bins"]) -> ByConfidence:
        """Return the drawn samples by rising or falling confidence or by bin, ties in data order."""
        order = self.samples.order(name)
        counts_in_order = self.counts[order]
        confidence, correct = self.samples.sorted_by(name)
        drawn_confidence = np.repeat(confidence, counts_in_order)
        drawn_correct = np.repeat(correct, counts_in_order)
        return ByConfidence(drawn_confidence, drawn_correct)

    @cached_property
    def errors(self) -> NDArray[np.int64]:
        """Wrong predictions among the i = 1..N most confident samples, [N]."""
        most_confident_first = self.samples.sorted_by("falling")
        wrong = ~most_confident_first.correct
        order = self.samples.order("falling")
        drawn_wrong = np.repeat(wrong, self.counts[order])
        return np.cumsum(drawn_wrong, dtype=np.int64)

    @property
    def bin_sizes(self) -> NDArray[np.int64]:
        """The number of drawn samples in each bin of equal width, [BINS]."""
        bins = self.samples.bins
        sizes = np.bincount(bins, weights=self.counts, minlength=BINS)  # whole numbers, in float64
        return sizes.astype(np.int64)


def bin_edges(bins: int = BINS) -> Floats:
    """Return the edges k/bins, k = 0..bins, each the float64 nearest to the quotient, so that ``0.2`` is the edge 3/15.

    The same numbers as ``numpy.linspace(0, 1, 16)`` for 15 bins.
    """
    numerators = np.arange(bins + 1)
    return numerators / bins


def bin_of(confidence: np.ndarray, bins: int = BINS) -> NDArray[np.int64]:
    """Return the index 0..bins-1 of the bin [edge_k, edge_k+1) of each confidence, [N]; 1 is in the last bin.

    The confidences are compared with :func:`bin_edges`, because ``floor(confidence * bins)`` rounds and puts some
    values just below an edge into the bin above it.
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
    """Reduce member logits to :class:`Samples`, in one pass over blocks of samples, in float64.

    Args:
        logits: [M, N, C], any float type; as large as you like if it is a memory map. The result takes 40 + 4M bytes
            a sample, 24 more with labels.
        labels: [N] integers in 0..C-1.
        score: a name of :data:`hydractl.metrics.ood_scores.SCORES`.
        beside: names of further scores.
        fitted_scores: scores [N] by name that are no functions of logits, but of features.
        calibration: what to apply to log p; ``energy``, ``maxlogit``, ``mi``, ``variance`` and votes stay as they are.
        pairs: whether each two members are compared, which takes time quadratic in their number.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
        InputError: a label is outside 0..C-1, or the calibration is for another number of classes.
    """
    shape = check_shape(logits).shape
    _, n, classes = shape

    # The arrays are made first, and every block of samples fills its part of them. Fitted scores are there already.
    scores: dict[str, Floats | None] = {}
    for name in (score, *beside):
        if name in fitted_scores:
            scores[name] = fitted_scores[name]
        else:
            scores[name] = _empty_score(name, shape)
    scores_beside = {name: scores[name] for name in beside}
    checked_labels = None
    if labels is not None:
        checked_labels = check_labels(labels, n, classes)
    leading = {score: scores[score]}
    samples = _unfilled_samples(shape, checked_labels, pairs, leading, scores_beside)
    pair_sums = np.zeros(len(samples.pair_mi))  # over samples; empty where no pairs are compared

    for rows, block in blocks(logits, calibration):
        samples.predicted[rows] = block.predicted
        samples.confidence[rows] = block.probs.max(axis=1)
        samples.votes[:, rows] = block.votes
        samples.entropy[rows] = block.entropy
        samples.mi[rows] = block.mi
        for name, values in scores.items():
            if values is not None and name not in fitted_scores:
                values[rows] = SCORES[name](block)
        if len(pair_sums):
            pair_sums += pair_mi(block).sum(axis=1)
        _fill_label_columns(samples, rows, block)
    samples.pair_mi[:] = pair_sums / max(1, len(samples))
    return samples


def _fill_label_columns(samples: Samples, rows: slice, block: Block) -> None:
    """Fill in log p of the label and the terms of the Brier score for the samples of one block, if they are labelled.

    Raises:
        NonFiniteError: log p of a label is not finite.
    """
    if samples.labels is None or samples.label_log_probs is None or samples.brier_terms is None:
        return  # without labels all three are None
    labels = samples.labels[rows]  # [n]
    at_label = (np.arange(len(labels)), labels)  # picks of each sample the entry of its label

    label_log_probs = block.log_probs[at_label]
    samples.label_log_probs[rows] = check_finite(label_log_probs, "log p of the label")

    error = block.probs.copy()
    error[at_label] -= 1.0  # p_k - 1[y = k], [n, C]
    squared_error = np.square(error, out=error)
    samples.brier_terms[rows] = squared_error.sum(axis=1)


def pair_mi(block: Block) -> Floats:
    """Return the mutual information of each two members a < b, in nats, [P, n] in ``itertools.combinations``' order.

    It is the mean divergence of the two members from their mean p, (KL(p_a || p) + KL(p_b || p)) / 2.
    """
    probs = block.member_powers  # [M, n, C], as the next
    log_probs = block.member_log_probs
    members, n, _ = log_probs.shape
    if members == 2:
        return block.mi[None]

    pairs = list(combinations(range(members), 2))
    mi_of_pairs = np.empty((len(pairs), n))
    for index, (a, b) in enumerate(pairs):
        # With d = |log p_a - log p_b|, the larger of log p_a and log p_b is log 2 - log(1 + exp(-d)) above log p, and
        # the smaller one d less: one exponential and one logarithm.
        distance = np.abs(log_probs[a] - log_probs[b])  # d, [n, C]
        log_sum = np.log(1.0 + np.exp(-distance))
        larger_above_mean = np.log(2.0) - log_sum
        summed_probs = probs[a] + probs[b]
        smaller_prob = np.minimum(probs[a], probs[b])
        both_divergences = summed_probs * larger_above_mean - smaller_prob * distance  # of each class, [n, C]
        mean_divergence = both_divergences.sum(axis=1) / 2
        mi_of_pairs[index] = np.maximum(mean_divergence, 0.0)  # a negative one is rounding
    return mi_of_pairs


def _empty_score(name: str, shape: tuple[int, ...]) -> Floats | None:
    """Return an empty array [N] for a score of logits [M, N, C]; None where it says nothing of a single member."""
    members, n, _ = shape
    if says_nothing(name, members):
        return None
    return np.empty(n)


def _unfilled_samples(
    shape: tuple[int, ...],
    labels: NDArray[np.int64] | None,
    pairs: bool,
    leading: Mapping[str, Floats | None],
    beside: Mapping[str, Floats | None],
) -> Samples:
    """Return the samples of logits [M, N, C] with empty arrays that are still to be filled."""
    members, n, _ = shape
    ((name, score),) = leading.items()
    compared_pairs = 0
    if pairs:
        compared_pairs = math.comb(members, 2)
    label_log_probs = None
    brier_terms = None
    if labels is not None:
        label_log_probs = np.empty(n)
        brier_terms = np.empty(n)
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
