"""Selective classification: how fast the error falls when the least confident samples are left out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydractl.metrics.probabilities import check_finite

SHARES = (80, 90, 95)
"""Percent of the samples of which ``accuracy_at`` is taken."""

POINTS = 201
"""How many points a curve in the JSON has at most."""

CONVENTIONS = {
    "aurc": "Area under the risk-coverage curve: mean over i = 1..N of the error rate among the i most confident"
    " samples; samples of equal confidence stay in data order.",
    "accuracy_at": "Accuracy of the most confident share of the samples, 0.80, 0.90 and 0.95 of them, rounded up to a"
    " whole sample; samples of equal confidence stay in data order.",
    "risk_coverage": "Error rate (risk) among the i most confident samples against i/N (coverage), at no more than 201"
    " evenly spaced i, the first and the last among them; samples of equal confidence stay in data order.",
}


def errors_by_confidence(confidence: np.ndarray, correct: np.ndarray) -> NDArray[np.bool_]:
    """Whether each prediction is wrong, [N], the most confident first; ties stay in data order (a stable sort).

    Args:
        confidence: [N], the highest p of each sample.
        correct: [N], whether that class is the label.

    Raises:
        NonFiniteError: a confidence is not finite.
    """
    conf, right = check_finite(confidence, "confidence"), np.asarray(correct, dtype=bool)
    if conf.shape != right.shape:
        raise ValueError(f"confidence and correct differ in shape: {conf.shape} and {right.shape}")
    return np.asarray(~right[np.argsort(-conf, kind="stable")], dtype=np.bool_)


def aurc(confidence: np.ndarray, correct: np.ndarray) -> float | None:
    """Mean over the coverages i/N, i = 1..N, of the error rate among the i most confident samples, 0..1.

    Ties in confidence are broken by data order (a stable sort), so that the number is reproducible and is the plain
    definition; it can therefore change, within the ties, when the data are reordered. None without samples.

    Args:
        confidence: [N], the highest p of each sample.
        correct: [N], whether that class is the label.

    Raises:
        NonFiniteError: a confidence is not finite.

    Source: Geifman, Uziel and El-Yaniv 2019. Libraries that integrate the points by trapezoids differ by about 1/N.
    """
    return aurc_of_errors(np.cumsum(errors_by_confidence(confidence, correct), dtype=np.int64))


def aurc_of_errors(errors: NDArray[np.int64]) -> float | None:
    """The same from the number of errors among the i most confident samples, [N]."""
    return float((errors / np.arange(1, errors.size + 1)).mean()) if errors.size else None


def accuracy_at(confidence: np.ndarray, correct: np.ndarray) -> dict[str, float | None]:
    """Accuracy of the most confident share of the samples, by share: ``0.80``, ``0.90``, ``0.95``.

    Of N samples these are the first ceil(share * N), ties in data order; None without samples.

    Raises:
        NonFiniteError: a confidence is not finite.
    """
    return accuracy_at_of_errors(np.cumsum(errors_by_confidence(confidence, correct), dtype=np.int64))


def accuracy_at_of_errors(errors: NDArray[np.int64]) -> dict[str, float | None]:
    """The same from the number of errors among the i most confident samples, [N]."""
    found: dict[str, float | None] = {}
    for percent in SHARES:
        kept = -(-percent * errors.size // 100)
        found[share_name(percent)] = (kept - int(errors[kept - 1])) / kept if kept else None
    return found


def share_name(percent: int) -> str:
    """``0.80`` for 80: the key of a share in the JSON."""
    return f"{percent / 100:.2f}"


def risk_coverage(confidence: np.ndarray, correct: np.ndarray) -> dict[str, Any] | None:
    """The risk-coverage curve (``CONVENTIONS["risk_coverage"]``): ``coverage`` and ``risk``; None without samples.

    Raises:
        NonFiniteError: a confidence is not finite.
    """
    errors = np.cumsum(errors_by_confidence(confidence, correct), dtype=np.int64)
    n = errors.size
    if not n:
        return None
    kept = np.unique(np.linspace(1, n, min(n, POINTS)).round().astype(np.int64))
    return {"coverage": (kept / n).tolist(), "risk": (errors[kept - 1] / kept).tolist()}
