"""The curves of one model as ``eval.json`` holds them: reliability, risk-coverage, ROC and score histograms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def curves(inside: Samples, outside: Mapping[str, Samples]) -> dict[str, Any]:
    """All curves of a model; ``roc`` and ``scores`` are None where the OOD score says nothing of it.

    Args:
        inside: the ID samples; without labels, or without any sample, ``reliability`` and ``risk_coverage`` are None.
        outside: the samples of each OOD data set, by its name.
    """
    labelled = inside.labels is not None and len(inside) > 0
    sets = {"id": inside, **outside}
    scores = {name: samples.score for name, samples in sets.items() if samples.score is not None}
    return {
        "reliability": reliability(inside) if labelled else None,
        "risk_coverage": risk_coverage(inside) if labelled else None,
        "roc": {name: roc(scores["id"], scores[name]) for name in outside} if scores else None,
        "scores": histograms(scores) if scores else None,
    }


def reliability(samples: Samples) -> dict[str, list[Any]]:
    """Accuracy against confidence in the bins of ``ece``, of labelled samples.

    Returns:
        ``edges`` [16], ``n`` [15], and ``confidence``, ``accuracy``, ``low`` and ``high`` [15], None in empty bins.
    """
    n = samples.bin_sizes
    hits = np.bincount(samples.bins[samples.correct], minlength=BINS)
    totals = np.bincount(samples.bins, weights=samples.confidence, minlength=BINS)
    bounds = [wilson(int(k), int(m)) if m else (None, None) for k, m in zip(hits, n, strict=True)]
    return {
        "edges": bin_edges().tolist(),
        "n": n.tolist(),
        "confidence": [float(total / m) if m else None for total, m in zip(totals, n, strict=True)],
        "accuracy": [int(k) / int(m) if m else None for k, m in zip(hits, n, strict=True)],
        "low": [low for low, _ in bounds],
        "high": [high for _, high in bounds],
    }


def risk_coverage(samples: Samples) -> dict[str, Any]:
    """The risk-coverage curve (:data:`RISK_COVERAGE`) of labelled samples: ``coverage`` and ``risk``."""
    n = len(samples)
    kept = np.unique(np.linspace(1, n, min(n, POINTS)).round().astype(np.int64))
    return {"coverage": (kept / n).tolist(), "risk": (samples.errors[kept - 1] / kept).tolist()}


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The 95 % score interval of a share of ``hits`` among ``n`` > 0. Source: Wilson 1927.

    Written out, because importing scipy.stats takes more than a second of every eval; a test holds it to scipy's.
    """
    share, spread = hits / n, _Z * _Z / n
    middle = share + spread / 2
    half = _Z * float(np.sqrt(share * (1 - share) / n + spread / (4 * n)))
    # At 0 and n hits one end is 0 or 1 but for rounding.
    low = 0.0 if hits == 0 else (middle - half) / (1 + spread)
    high = 1.0 if hits == n else (middle + half) / (1 + spread)
    return low, high


def roc(id_scores: np.ndarray, ood_scores: np.ndarray) -> dict[str, list[float]] | None:
    """The ROC curve with OOD positive, ``fpr`` and ``tpr``, at most 201 points; None when a side is empty.

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
    """Indices of at most 201 of the increasing values, the first and the last among them, evenly spaced in value."""
    if len(along) <= POINTS:
        return np.arange(len(along))
    marks = np.linspace(along[0], along[-1], POINTS)
    after = np.clip(np.searchsorted(along, marks), 1, len(along) - 1)
    nearer = after - (marks - along[after - 1] <= along[after] - marks)
    return np.unique(nearer)


def histograms(scores: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    """Counts of the scores of each data set in common bins, by name, and their ``edges`` [41].

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    checked = {name: check_finite(values, f"scores of {name}") for name, values in scores.items()}
    full = [values for values in checked.values() if values.size]
    low = min((float(values.min()) for values in full), default=0.0)
    high = max((float(values.max()) for values in full), default=1.0)
    if low == high:  # as numpy.histogram does
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, SCORE_BINS + 1)
    counts = {}
    for name, values in checked.items():
        index = np.searchsorted(edges[1:-1], values, side="right")
        counts[name] = np.bincount(index, minlength=SCORE_BINS).tolist()
    return {"edges": edges.tolist(), **counts}
