"""The curves of one model as ``eval.json`` holds them: reliability, risk-coverage, ROC and score histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from hydractl.metrics.ood import curve_of
from hydractl.metrics.probabilities import Floats, check_finite
from hydractl.metrics.samples import BINS, Samples, bin_edges

SCORE_BINS = 40

POINTS = 201
"""How many points a curve has at most."""

# The 0.975 quantile of the normal distribution.
_Z = 1.959963984540054

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


class CurvesBlock(TypedDict):
    """All curves of a model; None where there is nothing to draw."""

    reliability: ReliabilityBins | None
    risk_coverage: RiskCoveragePoints | None
    roc: dict[str, RocPoints | None] | None  # by OOD data set
    scores: dict[str, list[Any]] | None  # counts by data set, and ``edges``


def curves(inside: Samples, outside: Mapping[str, Samples]) -> CurvesBlock:
    """Return all curves of a model; ``roc`` and ``scores`` are None where the OOD score says nothing of it.

    Args:
        inside: the ID samples; without labels, or without any sample, ``reliability`` and ``risk_coverage`` are None.
        outside: the samples of each OOD data set, by its name.
    """
    block: CurvesBlock = {"reliability": None, "risk_coverage": None, "roc": None, "scores": None}
    if inside.labels is not None and len(inside) > 0:
        block["reliability"] = reliability_bins(inside)
        block["risk_coverage"] = risk_coverage_points(inside)
    sets = {"id": inside, **outside}
    scores = {name: samples.score for name, samples in sets.items() if samples.score is not None}
    if scores:
        block["roc"] = {name: roc_points(scores["id"], scores[name]) for name in outside}
        block["scores"] = histograms(scores)
    return block


def reliability_bins(samples: Samples) -> ReliabilityBins:
    """Return accuracy against confidence in the bins of ``ece``, of labelled samples."""
    sizes = samples.bin_sizes
    hits = np.bincount(samples.bins[samples.correct], minlength=BINS)
    confidences = np.bincount(samples.bins, weights=samples.confidence, minlength=BINS)
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
        right = int(hits[index])
        bins["confidence"][index] = float(confidences[index] / size)
        bins["accuracy"][index] = right / size
        bins["low"][index], bins["high"][index] = wilson(right, size)
    return bins


def risk_coverage_points(samples: Samples) -> RiskCoveragePoints:
    """Return the risk-coverage curve (:data:`RISK_COVERAGE`) of labelled samples."""
    n = len(samples)
    evenly = np.linspace(1, n, min(n, POINTS))
    kept = np.unique(evenly.round().astype(np.int64))  # numbers of samples
    risk = samples.errors[kept - 1] / kept
    return {"coverage": (kept / n).tolist(), "risk": risk.tolist()}


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return the 95 % score interval of a share of ``hits`` among ``n`` > 0. Source: Wilson 1927.

    Written out, because importing scipy.stats takes more than a second of every eval; a test holds it to scipy's.
    """
    share = hits / n
    spread = _Z * _Z / n
    middle = share + spread / 2
    half = _Z * float(np.sqrt(share * (1 - share) / n + spread / (4 * n)))
    # At 0 and n hits one end is 0 or 1 but for rounding.
    low = 0.0 if hits == 0 else (middle - half) / (1 + spread)
    high = 1.0 if hits == n else (middle + half) / (1 + spread)
    return low, high


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
    fpr = np.concatenate([[0.0], curve.false_positives / curve.negatives])
    tpr = np.concatenate([[0.0], curve.true_positives / curve.positives])
    kept = _evenly(fpr + tpr)
    return {"fpr": fpr[kept].tolist(), "tpr": tpr[kept].tolist()}


def _evenly(along: Floats) -> np.ndarray:
    """Return the places of at most 201 of the increasing values, evenly spaced in value, first and last included."""
    if len(along) <= POINTS:
        return np.arange(len(along))
    marks = np.linspace(along[0], along[-1], POINTS)
    after = np.clip(np.searchsorted(along, marks), 1, len(along) - 1)
    is_before_nearer = marks - along[after - 1] <= along[after] - marks
    return np.unique(after - is_before_nearer)


def histograms(scores: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    """Return the counts of the scores of each data set in common bins, by name, and their ``edges`` [41].

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    checked = {name: check_finite(values, f"scores of {name}") for name, values in scores.items()}
    low, high = _range_of([values for values in checked.values() if values.size])
    edges = np.linspace(low, high, SCORE_BINS + 1)
    counts = {}
    for name, values in checked.items():
        index = np.searchsorted(edges[1:-1], values, side="right")
        counts[name] = np.bincount(index, minlength=SCORE_BINS).tolist()
    return {"edges": edges.tolist(), **counts}


def _range_of(arrays: Sequence[Floats]) -> tuple[float, float]:
    """Return the lowest and the highest value, apart from each other as numpy.histogram has them."""
    if not arrays:
        return 0.0, 1.0
    low = min(float(values.min()) for values in arrays)
    high = max(float(values.max()) for values in arrays)
    if low == high:
        return low - 0.5, high + 0.5
    return low, high
