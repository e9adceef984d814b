"""How well a score separates OOD samples (positive, higher scores) from ID samples (negative).

Every function takes the scores of the ID samples [N] and of the OOD samples [K], and gives None when either side is
empty. A score that is not finite raises NonFiniteError. Counts are integers until the last division.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydractl.metrics.ood_scores import OOD_SCORES
from hydractl.metrics.probabilities import Floats, check_finite

__all__ = [
    "CONVENTIONS",
    "CURVE_METRICS",
    "OOD_SCORES",
    "Curve",
    "aupr",
    "aupr_trapezoid",
    "auroc",
    "curve_of",
    "fpr95",
    "fpr95_nearest",
    "two_u",
]

CONVENTIONS = {
    "auroc": "Probability that an OOD sample scores higher than an ID sample, ties counted half (rank-based).",
    "fpr95": "Share of ID samples at or above the highest threshold that flags at least 95 % of the OOD samples;"
    " samples of equal score are flagged together.",
    "fpr95_nearest": "Share of ID samples at or above the threshold whose OOD recall is nearest to 0.95: the higher"
    " recall on a tie; the lowest threshold of that recall, the highest for recall 1 (torch-uncertainty 0.12).",
    "aupr": "Area under the precision-recall curve with OOD positive: average precision, step-wise.",
    "aupr_trapezoid": "The same curve integrated by trapezoids, starting at precision 1 and recall 0 (OpenOOD).",
}


def two_u(id_scores: np.ndarray, ood_scores: np.ndarray) -> int:
    """Twice the Mann-Whitney U of the OOD side, an exact integer in 0..2NK (0 when a side is empty).

    The sum over all pairs of 2 where the OOD score is higher and 1 where the two are equal, in O((N + K) log(N + K)).
    """
    id_sorted, ood_sorted = _sorted(id_scores, ood_scores)
    lower = np.searchsorted(id_sorted, ood_sorted, side="left")
    lower_or_equal = np.searchsorted(id_sorted, ood_sorted, side="right")
    return int(lower.sum(dtype=np.int64)) + int(lower_or_equal.sum(dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Curve:
    """How many samples of each side are flagged at each threshold, from the highest to the lowest.

    A threshold that flags no more samples than the one above it changes no metric, so the thresholds of a whole data
    set serve every resample of it.

    Attributes:
        found: OOD samples at or above each threshold, [T]; the last one flags all of them.
        flagged: ID samples at or above each threshold, [T]; the last one flags all of them.
    """

    found: NDArray[np.int64]
    flagged: NDArray[np.int64]

    @property
    def outside(self) -> int:
        """K, the OOD samples; at least 1."""
        return int(self.found[-1])

    @property
    def inside(self) -> int:
        """N, the ID samples; at least 1."""
        return int(self.flagged[-1])

    @property
    def precision(self) -> Floats:
        """Share of OOD among the flagged samples, [T]; 1 where none is flagged."""
        flagged = self.found + self.flagged
        return np.divide(self.found, flagged, out=np.ones(len(flagged)), where=flagged > 0)


def curve_of(id_scores: np.ndarray, ood_scores: np.ndarray) -> Curve | None:
    """The curve over the distinct scores; None when a side is empty."""
    id_sorted, ood_sorted = _sorted(id_scores, ood_scores)
    if not id_sorted.size or not ood_sorted.size:
        return None
    thresholds = np.unique(np.concatenate([id_sorted, ood_sorted]))[::-1]
    found = ood_sorted.size - np.searchsorted(ood_sorted, thresholds, side="left")
    flagged = id_sorted.size - np.searchsorted(id_sorted, thresholds, side="left")
    return Curve(found.astype(np.int64), flagged.astype(np.int64))


def curve_auroc(curve: Curve) -> float:
    """Area under the ROC curve, ties counted half: an exact integer, divided once."""
    gained = np.diff(curve.found, prepend=0)
    higher = np.concatenate([[0], curve.flagged[:-1]])
    twice = int((gained * (2 * curve.inside - higher - curve.flagged)).sum())
    return twice / (2 * curve.inside * curve.outside)


def curve_aupr(curve: Curve) -> float:
    """Average precision with OOD positive: sum over thresholds of (recall_i - recall_i-1) * precision_i."""
    return float((np.diff(curve.found, prepend=0) * curve.precision).sum() / curve.outside)


def curve_aupr_trapezoid(curve: Curve) -> float:
    """The precision-recall curve integrated by trapezoids, from (recall 0, precision 1).

    Source: OpenOOD (Yang et al. 2022; Zhang et al. 2023): scikit-learn's ``precision_recall_curve``, then ``auc``.
    """
    precision = np.concatenate([[1.0], curve.precision])
    return float((np.diff(curve.found, prepend=0) * (precision[1:] + precision[:-1]) / 2).sum() / curve.outside)


def curve_fpr95(curve: Curve) -> float:
    """Share of ID samples flagged at the first (highest) threshold with a recall of at least 0.95, ties included."""
    # recall >= 0.95 in integers: 20 found >= 19 K.
    first = int(np.argmax(20 * curve.found >= 19 * curve.outside))
    return int(curve.flagged[first]) / curve.inside


def curve_fpr95_nearest(curve: Curve) -> float:
    """Share of ID samples flagged at the threshold whose recall is nearest to 0.95, ties included.

    The rule of ``FPR95`` in torch-uncertainty 0.12, itself from Hendrycks' anomaly-seg. Thresholds are the distinct
    scores from the lowest that is needed (the first, from above, with recall 1) upwards; the first of them with the
    smallest distance of its recall from 0.95 counts. So of two recalls equally near the higher one wins, and of several
    thresholds with one recall below 1 the lowest does, which flags the most ID samples: the value can lie above or
    below ``fpr95``.
    The library compares in float32; here the distance is an integer, 20 found - 19 K, so the two can differ where two
    recalls are equally near (37/40 and 39/40) and rounding decides for the library.
    """
    complete = int(np.argmax(curve.found == curve.outside))
    distance = np.abs(20 * curve.found - 19 * curve.outside)[complete::-1]
    return int(curve.flagged[complete - int(np.argmin(distance))]) / curve.inside


CURVE_METRICS: dict[str, Callable[[Curve], float]] = {
    "auroc": curve_auroc,
    "fpr95": curve_fpr95,
    "fpr95_nearest": curve_fpr95_nearest,
    "aupr": curve_aupr,
    "aupr_trapezoid": curve_aupr_trapezoid,
}
"""What is measured of a curve, by its name in the JSON."""


def _of_scores(name: str, id_scores: np.ndarray, ood_scores: np.ndarray) -> float | None:
    curve = curve_of(id_scores, ood_scores)
    return None if curve is None else CURVE_METRICS[name](curve)


def auroc(id_scores: np.ndarray, ood_scores: np.ndarray) -> float | None:
    """:func:`curve_auroc` of scores, which is 2U / (2 N K); 0.5 when all scores are equal."""
    return _of_scores("auroc", id_scores, ood_scores)


def aupr(id_scores: np.ndarray, ood_scores: np.ndarray) -> float | None:
    """:func:`curve_aupr` of scores."""
    return _of_scores("aupr", id_scores, ood_scores)


def aupr_trapezoid(id_scores: np.ndarray, ood_scores: np.ndarray) -> float | None:
    """:func:`curve_aupr_trapezoid` of scores."""
    return _of_scores("aupr_trapezoid", id_scores, ood_scores)


def fpr95(id_scores: np.ndarray, ood_scores: np.ndarray) -> float | None:
    """:func:`curve_fpr95` of scores."""
    return _of_scores("fpr95", id_scores, ood_scores)


def fpr95_nearest(id_scores: np.ndarray, ood_scores: np.ndarray) -> float | None:
    """:func:`curve_fpr95_nearest` of scores."""
    return _of_scores("fpr95_nearest", id_scores, ood_scores)


def _sorted(id_scores: np.ndarray, ood_scores: np.ndarray) -> tuple[Floats, Floats]:
    return np.sort(check_finite(id_scores, "ID scores")), np.sort(check_finite(ood_scores, "OOD scores"))
