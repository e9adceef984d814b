"""The curves of one model as ``eval.json`` holds them: reliability, risk-coverage, ROC and score histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np

from hydractl.metrics.confidence import share_interval
from hydractl.metrics.ood import curve_of
from hydractl.metrics.probabilities import Floats, check_finite
from hydractl.metrics.samples import BINS, Samples, bin_edges

SCORE_BINS = 40

POINTS = 201
"""The largest number of points of a curve."""

RISK_COVERAGE = (
    "Error rate (risk) among the i most confident samples against i/N (coverage), at no more than 201"
    " evenly spaced i, the first and the last among them; samples of equal confidence stay in data order."
)

CONVENTIONS = {
    "reliability": "The bins of ece: edges, samples, mean confidence and accuracy of each, and the Wilson 95 % interval"
    " of the accuracy (low, high); null where a bin is empty.",
    "roc": "Share of OOD samples flagged (tpr) against share of ID samples flagged (fpr), from (0, 0) to (1, 1); of"
    " more than 201 points those are kept that are evenly spaced along fpr + tpr.",
    "scores": "In curves, histograms of the OOD score: 40 bins of equal width from the lowest to the highest score of"
    " all data sets, [edge_k, edge_k+1), the last one closed. Beside them, OOD metrics by each OOD score asked for;"
    " null where a score is constant for a single model.",
}


class ReliabilityBins(TypedDict):
    """Accuracy against confidence: ``edges`` [16], ``n`` [15], and the others [15], None in empty bins."""

    edges: list[float]
    n: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]
    low: list[float | None]
    high: list[float | None]


class RiskCoveragePoints(TypedDict):
    """The risk at each coverage, at most 201 points."""

    coverage: list[float]
    risk: list[float]


class RocPoints(TypedDict):
    """The shares of ID and of OOD samples that are flagged, at most 201 points."""

    fpr: list[float]
    tpr: list[float]


Histograms = dict[str, list[float] | list[int]]
"""The counts of each data set in common bins [40], by name, and the ``edges`` of the bins [41]."""


class CurvesBlock(TypedDict):
    """All curves of a model; None where there is nothing to draw."""

    reliability: ReliabilityBins | None
    risk_coverage: RiskCoveragePoints | None
    roc: dict[str, RocPoints] | None  # by OOD data set, without those that have no samples
    scores: Histograms | None


def curves(inside: Samples, outside: Mapping[str, Samples]) -> CurvesBlock:
    """Return all curves of a model; ``roc`` and ``scores`` are None where the model has no OOD score.

    Args:
        inside: the ID samples; without labels, or without any sample, ``reliability`` and ``risk_coverage`` are None.
        outside: the samples of each OOD data set, by its name.
    """
    block: CurvesBlock = {"reliability": None, "risk_coverage": None, "roc": None, "scores": None}
    if inside.labels is not None and len(inside) > 0:
        block["reliability"] = reliability_bins(inside)
        block["risk_coverage"] = risk_coverage_points(inside)
    if inside.score is None:  # then no set has one
        return block
    ood_scores = {}
    for name, samples in outside.items():
        assert samples.score is not None
        ood_scores[name] = samples.score
    block["roc"] = _roc_of_sets(inside.score, ood_scores)
    block["scores"] = histograms({"id": inside.score, **ood_scores})
    return block


def _roc_of_sets(id_scores: np.ndarray, ood_scores: Mapping[str, np.ndarray]) -> dict[str, RocPoints]:
    """Return the ROC curve of each OOD set by name, without the sets that have no samples."""
    curve_of_set = {}
    for name, scores in ood_scores.items():
        points = roc_points(id_scores, scores)
        if points is not None:
            curve_of_set[name] = points
    return curve_of_set


def reliability_bins(samples: Samples) -> ReliabilityBins:
    """Return accuracy against confidence in the bins of ``ece``, of labelled samples; None in bins without samples."""
    # Of each bin, [BINS]: its samples, those that are right, and the sum of the confidences.
    sizes = samples.bin_sizes
    bins_of_correct = samples.bins[samples.correct]
    correct_counts = np.bincount(bins_of_correct, minlength=BINS)
    summed_confidences = np.bincount(samples.bins, weights=samples.confidence, minlength=BINS)

    bins: ReliabilityBins = {
        "edges": bin_edges().tolist(),
        "n": sizes.tolist(),
        "confidence": [None] * BINS,
        "accuracy": [None] * BINS,
        "low": [None] * BINS,
        "high": [None] * BINS,
    }
    for index in np.flatnonzero(sizes).tolist():
        size = int(sizes[index])
        correct = int(correct_counts[index])
        interval = share_interval(correct, size)
        bins["confidence"][index] = float(summed_confidences[index] / size)
        bins["accuracy"][index] = correct / size
        bins["low"][index] = interval.low
        bins["high"][index] = interval.high
    return bins


def risk_coverage_points(samples: Samples) -> RiskCoveragePoints:
    """Return the risk-coverage curve (:data:`RISK_COVERAGE`) of labelled samples."""
    n = len(samples)
    evenly_spaced = np.linspace(1, n, min(n, POINTS))
    whole_numbers = evenly_spaced.round().astype(np.int64)
    most_confident = np.unique(whole_numbers)  # i, numbers of samples: [points]
    errors = samples.errors[most_confident - 1]  # the first entry is for one sample
    risk = errors / most_confident
    coverage = most_confident / n
    return {"coverage": coverage.tolist(), "risk": risk.tolist()}


def roc_points(id_scores: np.ndarray, ood_scores: np.ndarray) -> RocPoints | None:
    """Return the ROC curve with OOD positive; None when a side is empty.

    The points are a subset of the curve's own, so a convex curve stays convex. Between two of them fpr and tpr together
    grow by 0.01 at most where the curve has points that close, so the area changes by at most 0.0025 whatever the
    curve, and by less than 0.001 unless its steps fall in with the spacing.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    curve = curve_of(id_scores, ood_scores)
    if curve is None:
        return None
    id_flagged = curve.false_positives / curve.negatives
    ood_flagged = curve.true_positives / curve.positives
    # The curve begins where no sample is flagged.
    fpr = np.concatenate([[0.0], id_flagged])
    tpr = np.concatenate([[0.0], ood_flagged])
    kept_points = _places_evenly_spaced(fpr + tpr)
    return {
        "fpr": fpr[kept_points].tolist(),
        "tpr": tpr[kept_points].tolist(),
    }


def _places_evenly_spaced(values: Floats) -> np.ndarray:
    """Return the places of at most 201 of the increasing values, evenly spaced in value, first and last included."""
    n = len(values)
    if n <= POINTS:
        return np.arange(n)
    marks = np.linspace(values[0], values[-1], POINTS)

    # Of the values on either side of each mark the nearer one is kept.
    first_not_below = np.searchsorted(values, marks)
    after = np.clip(first_not_below, 1, n - 1)
    before = after - 1
    distance_before = marks - values[before]
    distance_after = values[after] - marks
    nearest = np.where(distance_before <= distance_after, before, after)
    return np.unique(nearest)


def histograms(scores: Mapping[str, np.ndarray]) -> Histograms:
    """Return the histograms of the scores of each data set, by name.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    checked = {name: check_finite(values, f"scores of {name}") for name, values in scores.items()}

    # Bins of equal width that hold the scores of all sets.
    not_empty = [values for values in checked.values() if values.size]
    low, high = _range_of(not_empty)
    edges = np.linspace(low, high, SCORE_BINS + 1)

    table: Histograms = {"edges": edges.tolist()}
    inner_edges = edges[1:-1]
    for name, values in checked.items():
        bins = np.searchsorted(inner_edges, values, side="right")
        counts = np.bincount(bins, minlength=SCORE_BINS)
        table[name] = counts.tolist()
    return table


def _range_of(arrays: Sequence[Floats]) -> tuple[float, float]:
    """Return the lowest and the highest value, moved apart where they are equal, as numpy.histogram does."""
    if not arrays:
        return 0.0, 1.0
    lows = [float(values.min()) for values in arrays]
    highs = [float(values.max()) for values in arrays]
    low = min(lows)
    high = max(highs)
    if low == high:
        return low - 0.5, high + 0.5
    return low, high
