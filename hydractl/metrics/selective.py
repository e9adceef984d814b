"""Selective classification: how fast the error falls when the least confident samples are left out."""

from __future__ import annotations

import numpy as np

from hydractl.metrics.probabilities import check_finite

CONVENTIONS = {
    "aurc": "Area under the risk-coverage curve: mean over i = 1..N of the error rate among the i most confident"
    " samples; samples of equal confidence stay in data order.",
}


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
    conf, right = check_finite(confidence, "confidence"), np.asarray(correct, dtype=bool)
    if conf.shape != right.shape:
        raise ValueError(f"confidence and correct differ in shape: {conf.shape} and {right.shape}")
    if not conf.size:
        return None
    wrong = ~right[np.argsort(-conf, kind="stable")]
    return float((np.cumsum(wrong) / np.arange(1, wrong.size + 1)).mean())
