"""The few numbers of each sample that metrics need, computed from a model's logits on one data set in one pass.

:class:`Samples` holds them, and :class:`Resample` holds samples that are drawn from them with replacement. Metrics are
functions of either.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydractl.files.calibrate_answer import Conformal
from hydractl.files.model_records import Calibration
from hydractl.metrics.conformal import prediction_sets
from hydractl.metrics.ood_scores import SCORES, says_nothing
from hydractl.metrics.probabilities import Block, Floats, blocks, check_finite

BINS = 15
"""Bins of ``ece``, ``aece`` and the reliability curve."""


Order = Literal["rising", "falling", "bins"]
"""By rising or falling confidence, or by bin of equal width; ties keep data order."""


class ByConfidence(NamedTuple):
    """The confidence [N] of samples and whether each prediction is right [N], in an order by confidence."""

    confidence: Floats
    correct: NDArray[np.bool_]


class _Sorted(ABC):
    """Samples that can be sorted by confidence, and what follows from their order."""

    @abstractmethod
    def sorted_by(self, order: Order) -> ByConfidence:
        """Return the samples in an order."""

    @cached_property
    def errors(self) -> NDArray[np.int64]:
        """The number of wrong predictions among the i = 1..N most confident samples, [N]; ties keep data order."""
        most_confident_first = self.sorted_by("falling")
        wrong = ~most_confident_first.correct
        return np.cumsum(wrong, dtype=np.int64)

    @cached_property
    def bin_sizes(self) -> NDArray[np.int64]:
        """The number of samples in each bin of equal width, [BINS]."""
        bins = bin_of(self.sorted_by("bins").confidence)
        return np.bincount(bins, minlength=BINS)


@dataclass(frozen=True, eq=False)
class Samples(_Sorted):
    """The predictions of M members on N samples, reduced to the numbers that metrics need.

    Attributes:
        predicted: [N], the class of highest p, the lowest index on a tie.
        confidence: [N], the highest p.
        entropy: [N], the entropy of p in nats.
        mi: [N], the mutual information of the members in nats.
        votes: int32 [M, N], the class that each member votes for.
        labels: [N]; None for data without labels, and then the next two are None as well.
        label_log_probs: [N], log p of the label, in nats.
        brier_terms: [N], the sum over classes of (p_k - 1[y = k])^2.
        scores: each OOD score, [N], by its name, the leading one first; higher = more OOD. None if it is constant for a
            model of one member.
        set_sizes: [N], the number of classes in the conformal prediction set; None if there are no sets.
        covered: [N], whether the prediction set holds the label; None if there are no sets.
    """

    predicted: NDArray[np.int64]
    confidence: Floats
    entropy: Floats
    mi: Floats
    votes: NDArray[np.int32]
    labels: NDArray[np.int64] | None = None
    label_log_probs: Floats | None = None
    brier_terms: Floats | None = None
    scores: Mapping[str, Floats | None] = field(default_factory=dict)
    set_sizes: NDArray[np.int64] | None = None
    covered: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.predicted)

    @property
    def leading(self) -> str:
        """The name of the leading OOD score."""
        return next(iter(self.scores))

    @property
    def score(self) -> Floats | None:
        """The leading OOD score, [N]."""
        return self.scores[self.leading]

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

    def sorted_by(self, order: Order) -> ByConfidence:
        """Return the samples in an order."""
        _, in_order = self.orders[order]
        return in_order

    @cached_property
    def bins(self) -> NDArray[np.int64]:
        """The index of each sample's bin of equal width, [N]."""
        return bin_of(self.confidence)

    @cached_property
    def orders(self) -> dict[Order, tuple[NDArray[np.int64], ByConfidence]]:
        """For each order, the indices [N] that sort the samples, and the samples in that order.

        They are kept, as every resample needs them again.
        """
        keys: dict[Order, NDArray[Any]] = {"rising": self.confidence, "falling": -self.confidence, "bins": self.bins}
        orders = {}
        for order, key in keys.items():
            places = np.argsort(key, kind="stable")
            orders[order] = places, ByConfidence(self.confidence[places], self.correct[places])
        return orders


class Resample(_Sorted):
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

    def sorted_by(self, order: Order) -> ByConfidence:
        """Return the drawn samples in an order."""
        # Nothing is sorted here: repeat each sample of the sorted data as often as it is drawn. Confidences 0.2, 0.5,
        # 0.9 that are drawn 2, 0 and 1 times become 0.2, 0.2, 0.9.
        places, (confidence, correct) = self.samples.orders[order]
        counts_in_order = self.counts[places]
        drawn_confidence = np.repeat(confidence, counts_in_order)
        drawn_correct = np.repeat(correct, counts_in_order)
        return ByConfidence(drawn_confidence, drawn_correct)


def bin_edges() -> Floats:
    """Return the edges k/15, k = 0..15, each the float64 nearest to the quotient (e.g. 3/15 is exactly ``0.2``).

    They are the numbers of ``numpy.linspace(0, 1, 16)``.
    """
    numerators = np.arange(BINS + 1)
    return numerators / BINS


def bin_of(confidence: np.ndarray) -> NDArray[np.int64]:
    """Return the index 0..14 of the bin [edge_k, edge_k+1) that holds each confidence, [N]; 1 is in the last bin.

    Confidences are compared with :func:`bin_edges`. ``floor(confidence * 15)`` would round, and put some values just
    below an edge into the bin above it.
    """
    inner_edges = bin_edges()[1:-1]
    return np.searchsorted(inner_edges, confidence, side="right")


def samples_of(
    logits: np.ndarray,
    labels: np.ndarray | None = None,
    *,
    scores: Sequence[str] = ("msp",),
    fitted_scores: Mapping[str, Floats] = {},
    calibration: Calibration | None = None,
    conformal: Conformal | None = None,
) -> Samples:
    """Return :class:`Samples`, the few numbers of each sample that metrics need, from the logits of all members.

    The logits are read once, a block of samples at a time, and reduced in float64.

    Args:
        logits: [M, N, C], any float type; a memory map may be larger than memory. The result takes 40 + 4M bytes a
            sample, 24 more with labels.
        labels: [N] integers in 0..C-1; None for data without labels.
        scores: the names of OOD scores, the leading one first: of :data:`hydractl.metrics.ood_scores.SCORES`, or of
            ``fitted_scores``.
        fitted_scores: scores [N] by name that are computed from features, not from logits, and are ready-made.
        calibration: the calibration of p; ``energy``, ``maxlogit``, ``mi``, ``variance`` and votes stay without it.
        conformal: the threshold of prediction sets for samples with labels; None makes no sets.

    Raises:
        NonFiniteError: a logit is NaN or infinite, or log p of a label is not finite.
        InputError: the calibration is for another number of classes.
    """
    parts: list[Samples] = []  # one for each block of samples
    for rows, block in blocks(logits, calibration):  # the slice of the block's samples, and their logits [M, n, C]
        # The OOD scores, [n]: ready-made ones, or from the logits.
        values: dict[str, Floats | None] = {}  # None for a score that is constant for a single member
        for name in scores:
            values[name] = None
            if name in fitted_scores:
                values[name] = fitted_scores[name][rows]
            elif not says_nothing(name, len(logits)):
                values[name] = np.asarray(SCORES[name](block), dtype=np.float64)
        part = Samples(
            predicted=block.predicted,
            confidence=block.confidence,
            entropy=block.entropy,
            mi=block.mi,
            votes=block.votes.astype(np.int32),
            scores=values,
        )
        parts.append(part if labels is None else _with_labels(part, block, labels[rows], conformal))
    return joined_samples(parts)


def _with_labels(part: Samples, block: Block, labels: NDArray[np.int64], conformal: Conformal | None) -> Samples:
    """Return the samples of one block with what follows from their labels [n]; ``conformal`` makes prediction sets."""
    # The Brier score of a sample with the label y is sum_k (p_k - 1[y = k])^2, [n].
    each = np.arange(len(labels))
    error = block.probs.copy()
    error[each, labels] -= 1.0  # p_k - 1[y = k], [n, C]
    part = replace(
        part,
        labels=labels,
        label_log_probs=check_finite(block.log_probs_of(labels), "log p of the label"),  # [n]
        brier_terms=np.square(error, out=error).sum(axis=1),
    )
    if conformal is None:
        return part
    in_set = prediction_sets(block.probs, conformal)  # bool [n, C]
    return replace(part, set_sizes=in_set.sum(axis=1), covered=in_set[each, labels])


def joined_samples(parts: Sequence[Samples], order: NDArray[np.int64] | None = None) -> Samples:
    """Return the samples of all parts as one, in an order.

    Args:
        parts: samples of one model, at least one part, e.g. of each batch.
        order: for each sample of the result, its index among the samples of all parts one after another; None keeps
            them as they are.
    """
    first = parts[0]
    if order is None and len(parts) == 1:
        return first

    def joined(values: Sequence[Any]) -> Any:
        """Join arrays along the last dimension (samples), and sort them; None stays None."""
        if values[0] is None:
            return None
        all_values = np.concatenate(values, axis=-1)
        return all_values if order is None else all_values[..., order]

    # All attributes are arrays with samples in the last dimension; the scores are a dict of such arrays.
    arrays: dict[str, Any] = {}
    for attribute in fields(Samples):
        if attribute.name != "scores":
            arrays[attribute.name] = joined([getattr(part, attribute.name) for part in parts])
    scores = {name: joined([part.scores[name] for part in parts]) for name in first.scores}

    return Samples(**arrays, scores=scores)
