"""How well a score separates OOD samples (positive, higher scores) from ID samples (negative).

Every function takes the scores of the ID samples [N] and of the OOD samples [K], and gives None when either side is
empty. A score that is not finite raises NonFiniteError. Counts are integers until the last division.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hydractl.metrics.ood_scores import OOD_SCORES
from hydractl.metrics.probabilities import Floats, check_finite

__all__ = ["CONVENTIONS", "OOD_SCORES", "aupr", "aupr_trapezoid", "auroc", "fpr95", "fpr95_nearest", "two_u"]

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


def auroc(id_scores: np.ndarray, ood_scores: np.ndarray) -> float | None:
    """Area under the ROC curve, ties counted half: 2U / (2 N K). 0.5 when all scores are equal."""
    twice = two_u(id_scores, ood_scores)
    pairs = len(id_scores) * len(ood_scores)
    return twice / (2 * pairs) if pairs else None


def aupr(id_scores: np.ndarray, ood_scores: np.ndarray) -> float | None:
    """Average precision with OOD positive: sum over thresholds of (recall_i - recall_i-1) * precision_i."""
    curve = _curve(id_scores, ood_scores)
    if curve is None:
        return None
    found, flagged_id = curve
    precision = found / (found + flagged_id)
    return float((np.diff(found, prepend=0) * precision).sum() / len(ood_scores))


def aupr_trapezoid(id_scores: np.ndarray, ood_scores: np.ndarray) -> float | None:
    """The precision-recall curve integrated by trapezoids, from (recall 0, precision 1).

    Source: OpenOOD (Yang et al. 2022; Zhang et al. 2023): scikit-learn's ``precision_recall_curve``, then ``auc``.
    """
    curve = _curve(id_scores, ood_scores)
    if curve is None:
        return None
    found, flagged_id = curve
    precision = np.concatenate([[1.0], found / (found + flagged_id)])
    return float((np.diff(found, prepend=0) * (precision[1:] + precision[:-1]) / 2).sum() / len(ood_scores))


def fpr95(id_scores: np.ndarray, ood_scores: np.ndarray) -> float | None:
    """Share of ID samples flagged at the first (highest) threshold with a recall of at least 0.95, ties included."""
    curve = _curve(id_scores, ood_scores)
    if curve is None:
        return None
    found, flagged_id = curve
    # recall >= 0.95 in integers: 20 found >= 19 K.
    first = int(np.argmax(20 * found >= 19 * len(ood_scores)))
    return int(flagged_id[first]) / len(id_scores)


def fpr95_nearest(id_scores: np.ndarray, ood_scores: np.ndarray) -> float | None:
    """Share of ID samples flagged at the threshold whose recall is nearest to 0.95, ties included.

    The rule of ``FPR95`` in torch-uncertainty 0.12, itself from Hendrycks' anomaly-seg. Thresholds are the distinct
    scores from the lowest that is needed (the first, from above, with recall 1) upwards; the first of them with the
    smallest distance of its recall from 0.95 counts. So of two recalls equally near the higher one wins, and of several
    thresholds with one recall below 1 the lowest does, which flags the most ID samples: the value can lie above or
    below ``fpr95``.
    The library compares in float32; here the distance is an integer, 20 found - 19 K, so the two can differ where two
    recalls are equally near (37/40 and 39/40) and rounding decides for the library.
    """
    curve = _curve(id_scores, ood_scores)
    if curve is None:
        return None
    found, flagged_id = curve
    complete = int(np.argmax(found == len(ood_scores)))
    distance = np.abs(20 * found - 19 * len(ood_scores))[complete::-1]
    return int(flagged_id[complete - int(np.argmin(distance))]) / len(id_scores)


def _sorted(id_scores: np.ndarray, ood_scores: np.ndarray) -> tuple[Floats, Floats]:
    return np.sort(check_finite(id_scores, "ID scores")), np.sort(check_finite(ood_scores, "OOD scores"))


def _curve(id_scores: np.ndarray, ood_scores: np.ndarray) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Numbers of OOD and of ID samples at or above each distinct score, from the highest score to the lowest."""
    id_sorted, ood_sorted = _sorted(id_scores, ood_scores)
    if not id_sorted.size or not ood_sorted.size:
        return None
    thresholds = np.unique(np.concatenate([id_sorted, ood_sorted]))[::-1]
    found = ood_sorted.size - np.searchsorted(ood_sorted, thresholds, side="left")
    flagged_id = id_sorted.size - np.searchsorted(id_sorted, thresholds, side="left")
    return found.astype(np.int64), flagged_id.astype(np.int64)
