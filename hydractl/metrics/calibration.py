"""Expected calibration error of the top label, l1, with equal-width and with equal-mass bins.

Source: Naeini et al. 2015 and Guo et al. 2017 (ECE); Nguyen and O'Connor 2015 (equal-mass bins).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hydractl.metrics.probabilities import Floats, check_finite

BINS = 15

CONVENTIONS = {
    "ece": "Top-label l1 calibration error, 15 equal-width bins [k/15, (k+1)/15), the last one closed:"
    " sum over bins of n_b/N * |accuracy_b - mean confidence_b|.",
    "aece": "The same sum over 15 equal-mass bins: samples stably sorted by confidence, ascending, and split into 15"
    " runs whose sizes differ by at most one, the larger ones first (numpy.array_split).",
}


def bin_edges(bins: int = BINS) -> Floats:
    """The edges k/bins, k = 0..bins, each the float64 nearest to the quotient, so that ``0.2`` is the edge 3/15.

    The same numbers as ``numpy.linspace(0, 1, 16)`` for 15 bins.
    """
    return np.arange(bins + 1) / bins


def bin_of(confidence: np.ndarray, bins: int = BINS) -> np.ndarray:
    """Index 0..bins-1 of the bin [edge_k, edge_k+1) of each confidence [N]; a confidence of 1 is in the last bin.

    Found by comparison with :func:`bin_edges`: ``floor(confidence * bins)`` rounds, and puts some values just below
    an edge into the bin above it.
    """
    return np.searchsorted(bin_edges(bins)[1:-1], confidence, side="right")


def ece(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> float | None:
    """Top-label l1 calibration error with equal-width bins (``CONVENTIONS["ece"]``), 0..1; None without samples.

    Args:
        confidence: [N], the highest p of each sample.
        correct: [N], whether that class is the label.

    Raises:
        NonFiniteError: a confidence is not finite.
    """
    conf, right = _checked(confidence, correct)
    index = bin_of(conf, bins)
    # A stable sort by bin keeps each bin's samples in data order and makes them one run.
    order = np.argsort(index, kind="stable")
    return ece_of_binned(conf[order], right[order], np.bincount(index, minlength=bins))


def ece_of_binned(confidence: Floats, correct: NDArray[np.bool_], sizes: NDArray[np.int64]) -> float | None:
    """The same from samples that lie bin by bin, in data order within each, and the number in each bin."""
    ends = np.cumsum(sizes)[:-1]
    return _weighted_gap(np.split(confidence, ends), np.split(correct, ends), len(confidence))


def aece(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> float | None:
    """Top-label l1 calibration error with equal-mass bins (``CONVENTIONS["aece"]``), 0..1; None without samples.

    With fewer samples than bins every sample is a bin of its own. Samples of equal confidence can fall into two bins,
    in data order.

    Args:
        confidence: [N], the highest p of each sample.
        correct: [N], whether that class is the label.

    Raises:
        NonFiniteError: a confidence is not finite.
    """
    conf, right = _checked(confidence, correct)
    order = np.argsort(conf, kind="stable")
    return aece_of_sorted(conf[order], right[order], bins)


def aece_of_sorted(confidence: Floats, correct: NDArray[np.bool_], bins: int = BINS) -> float | None:
    """The same from samples stably sorted by confidence, ascending."""
    return _weighted_gap(np.array_split(confidence, bins), np.array_split(correct, bins), len(confidence))


def _checked(confidence: np.ndarray, correct: np.ndarray) -> tuple[Floats, NDArray[np.bool_]]:
    conf, right = check_finite(confidence, "confidence"), np.asarray(correct, dtype=bool)
    if conf.shape != right.shape:
        raise ValueError(f"confidence and correct differ in shape: {conf.shape} and {right.shape}")
    return conf, right


def _weighted_gap(confidences: Iterable[Floats], corrects: Iterable[np.ndarray], samples: int) -> float | None:
    """Sum over bins of n_b/N * |acc_b - conf_b|, that is |correct - sum of confidences| / N; empty bins add 0."""
    if not samples:
        return None
    gaps = [abs(np.count_nonzero(right) - float(conf.sum())) for conf, right in zip(confidences, corrects, strict=True)]
    return float(sum(gaps) / samples)
