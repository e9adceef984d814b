"""Metrics of how well a score separates OOD samples (positive, higher scores) from ID samples (negative).

A :class:`Curve` counts the samples that are flagged at each threshold; a sample is flagged if its score is at or above
the threshold. Each metric is a function of a curve. To add one, declare it here (``docs/adding-a-metric.md``). Counts
stay integers until the last division.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hydractl.metrics.declaration import metric
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.probabilities import Floats, check_finite, per_sample

Counts = NDArray[np.int64]
"""How often each sample of a data set is drawn."""


def each_once(samples: int) -> Counts:
    """Return the counts of the data themselves: each sample once."""
    return np.ones(samples, dtype=np.int64)


OOD_SCORES = {name: per_sample(score) for name, score in SCORES.items()}
"""Scores by name: logits [M, N, C] -> float64 [N], higher = more OOD. Non-finite logits raise NonFiniteError."""


def two_u(id_scores: np.ndarray, ood_scores: np.ndarray) -> int:
    """Return twice the Mann-Whitney U of the OOD samples, an exact integer in 0..2NK; 0 if a side has no samples.

    Each pair of an OOD and an ID sample counts 2 if the OOD score is higher, and 1 if the two are equal. For ID scores
    1, 2 and the OOD score 2: 2 + 1 = 3. It takes O((N + K) log(N + K)).

    Args:
        id_scores: [N].
        ood_scores: [K].
    """
    id_sorted = np.sort(check_finite(id_scores, "ID scores"))
    ood_sorted = np.sort(check_finite(ood_scores, "OOD scores"))
    # Count the ID samples below each OOD sample, and those at or below it, [K]. A lower ID sample is counted in both,
    # an equal one only in the second.
    lower = np.searchsorted(id_sorted, ood_sorted, side="left")
    lower_or_equal = np.searchsorted(id_sorted, ood_sorted, side="right")
    pairs_lower = int(lower.sum(dtype=np.int64))
    pairs_lower_or_equal = int(lower_or_equal.sum(dtype=np.int64))
    return pairs_lower + pairs_lower_or_equal


@dataclass(frozen=True, eq=False)
class Curve:
    """The numbers of ID and OOD samples that are flagged at each of T thresholds, from the highest threshold down.

    A threshold that flags no more samples than the next higher one changes no metric, so the thresholds of a whole data
    set can be used for every resample of it.

    Attributes:
        true_positives: the number of OOD samples at or above each threshold, [T]; the last threshold flags all of them.
        false_positives: the number of ID samples at or above each threshold, [T]; the last threshold flags all of them.
    """

    true_positives: NDArray[np.int64]
    false_positives: NDArray[np.int64]

    @property
    def positives(self) -> int:
        """K, the number of OOD samples; at least 1."""
        return int(self.true_positives[-1])

    @property
    def negatives(self) -> int:
        """N, the number of ID samples; at least 1."""
        return int(self.false_positives[-1])

    def of_id(self) -> Curve:
        """Return the curve with ID positive: it counts samples at or below each threshold, from the lowest one up."""
        id_not_above = _not_above(self.false_positives)
        ood_not_above = _not_above(self.true_positives)
        return Curve(true_positives=id_not_above, false_positives=ood_not_above)

    @cached_property
    def gained(self) -> NDArray[np.int64]:
        """The number of OOD samples that each threshold flags and the next higher one does not, [T]."""
        return _steps(self.true_positives)

    @cached_property
    def precision(self) -> Floats:
        """The share of OOD samples among the flagged samples at each threshold, [T]; 1 if none is flagged."""
        flagged = self.true_positives + self.false_positives
        is_defined = flagged > 0
        ones = np.ones(len(flagged))
        return np.divide(self.true_positives, flagged, out=ones, where=is_defined)


class Thresholds:
    """The distinct scores of ID and OOD samples, from which curves of the data and of resamples follow.

    A resample changes only how many samples each threshold flags, so everything is sorted once.

    Args:
        id_scores: the OOD scores of the ID samples, [N].
        ood_scores: the OOD scores of the OOD samples, [K].

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """

    def __init__(self, id_scores: np.ndarray, ood_scores: np.ndarray) -> None:
        """Sort the scores once, for the curves of all draws."""
        sides = (check_finite(id_scores, "ID scores"), check_finite(ood_scores, "OOD scores"))
        thresholds = np.unique(np.concatenate(sides))[::-1]  # falling, [T]
        # For each side the indices that sort its samples by rising score, and the number of them below each threshold.
        self._orders = [np.argsort(scores, kind="stable") for scores in sides]
        self._below = []
        for scores, order in zip(sides, self._orders, strict=True):
            self._below.append(np.searchsorted(scores[order], thresholds, side="left"))

    def curve(self, inside: Counts, outside: Counts) -> Curve | None:
        """Return how many samples of a resample each threshold flags; None if it has no ID or no OOD sample.

        Args:
            inside: how often each ID sample is drawn, [N].
            outside: how often each OOD sample is drawn, [K].
        """
        flagged = []  # the numbers of ID samples, then of OOD samples, at or above each threshold, [T] each
        for drawn, order, below in zip((inside, outside), self._orders, self._below, strict=True):
            if not drawn.any():
                return None
            # Entry i: the drawn samples among the i of lowest score. Counts of 2, 0, 1 by rising score give 0, 2, 2, 3.
            drawn_among_first = np.zeros(len(drawn) + 1, dtype=np.int64)
            np.cumsum(drawn[order], out=drawn_among_first[1:])
            # At or above a threshold are all that are drawn but those below it.
            flagged.append(drawn_among_first[-1] - drawn_among_first[below])
        false_positives, true_positives = flagged
        return Curve(true_positives, false_positives)


def curve_of(id_scores: np.ndarray, ood_scores: np.ndarray) -> Curve | None:
    """Return the curve of ID scores [N] and OOD scores [K]; None if a side is empty.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    return Thresholds(id_scores, ood_scores).curve(each_once(len(id_scores)), each_once(len(ood_scores)))


@metric("ood", label="AUROC", words="chance that OOD scores above ID", direction="higher")
def auroc(curve: Curve) -> float:
    """Probability that an OOD sample scores higher than an ID sample, ties counted half (rank-based).

    The area under the ROC curve: an exact integer, divided once.
    """
    higher = curve.false_positives - _steps(curve.false_positives)  # ID samples above each threshold, [T]
    # An OOD sample wins a pair with each ID sample below it, and half a pair with each of equal score. Twice the pairs
    # won are the ID samples below it (N - false positives) plus those at or below it (N - higher).
    twice_below = 2 * curve.negatives - higher - curve.false_positives
    # `gained`, [T]: the OOD samples whose score is the threshold itself.
    pairs_won = curve.gained * twice_below
    twice_u = int(pairs_won.sum())
    return twice_u / (2 * curve.negatives * curve.positives)


@metric("ood", label="FPR95", words="share of ID flagged where 95 % of OOD are", direction="lower")
def fpr95(curve: Curve) -> float:
    """Share of ID samples at or above the highest threshold that flags at least 95 % of the OOD samples; samples of
    equal score are flagged together.
    """
    # The recall is at least 0.95 if 20 true positives >= 19 K, which is exact in integers.
    flags_enough = 20 * curve.true_positives >= 19 * curve.positives
    # argmax gives the first True; the first thresholds are the highest.
    highest_threshold = np.argmax(flags_enough)
    id_flagged = int(curve.false_positives[highest_threshold])
    return id_flagged / curve.negatives


@metric("ood", direction="lower")
def fpr95_nearest(curve: Curve) -> float:
    """Share of ID samples at or above the threshold whose OOD recall is nearest to 0.95: the higher recall on a tie;
    the lowest threshold of that recall, the highest for recall 1 (torch-uncertainty 0.12).

    This is the rule of torch-uncertainty's ``FPR95``, which comes from Hendrycks' anomaly-seg. The thresholds are the
    distinct scores. They are searched upwards from the highest one that has recall 1, and the first one with the
    smallest distance of its recall from 0.95 counts, so that the value can lie above or below ``fpr95``. The library
    compares distances in float32, and here they are integers, 20 true positives - 19 K. The two can differ if two
    recalls are equally near (37/40 and 39/40), because rounding then decides for the library.
    """
    flags_all = curve.true_positives == curve.positives
    lowest_needed = int(np.argmax(flags_all))
    # The distance of each threshold's recall from 0.95, times 20 K so that it is an integer, [T].
    difference = 20 * curve.true_positives - 19 * curve.positives
    distance = np.abs(difference)

    # Thresholds fall along the array, so go backwards. Of equal distances argmin takes the first: the lowest threshold.
    upwards = distance[lowest_needed::-1]
    steps_up = int(np.argmin(upwards))
    nearest = lowest_needed - steps_up
    id_flagged = int(curve.false_positives[nearest])
    return id_flagged / curve.negatives


@metric("ood", label="AUPR", words="AUPR", direction="higher")
def aupr(curve: Curve) -> float:
    """Area under the precision-recall curve with OOD positive: average precision, step-wise.

    The sum over thresholds of (recall_i - recall_i-1) * precision_i.
    """
    steps = curve.gained * curve.precision
    area = steps.sum() / curve.positives
    return float(area)


@metric("ood", direction="higher")
def aupr_trapezoid(curve: Curve) -> float:
    """The same curve integrated by trapezoids, starting at precision 1 and recall 0 (OpenOOD).

    Source: Yang et al. 2022; Zhang et al. 2023: scikit-learn's ``precision_recall_curve``, then ``auc``.
    """
    precision = np.concatenate([[1.0], curve.precision])  # [1 + T]
    left = precision[:-1]
    right = precision[1:]
    trapezoids = curve.gained * (right + left) / 2
    area = trapezoids.sum() / curve.positives
    return float(area)


@metric("ood", direction="higher")
def aupr_in(curve: Curve) -> float:
    """The area under the precision-recall curve with ID positive, lower scores first, by trapezoids (OpenOOD).

    OpenOOD calls it AUPR_IN, and it calls ``aupr_trapezoid`` AUPR_OUT.
    """
    id_positive = curve.of_id()
    return float(aupr_trapezoid(id_positive))


def _not_above(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Turn the number of samples at or above each threshold into the number at or below each threshold.

    Args:
        counts: samples at or above each threshold, from the highest threshold to the lowest, [T]; the last counts all.

    Returns:
        Samples at or below each threshold, from the lowest threshold to the highest, [T].
    """
    above = np.concatenate([[0], counts[:-1]])
    every_sample = counts[-1]
    not_above = every_sample - above
    return not_above[::-1]


def _steps(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each count [T] minus the one before it, the first minus 0; this is faster than ``numpy.diff``."""
    steps = counts.copy()
    steps[1:] -= counts[:-1]
    return steps
