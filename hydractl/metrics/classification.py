"""Accuracy, Brier score and negative log-likelihood."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hydractl.errors import InputError
from hydractl.metrics.probabilities import Floats, check_finite

CONVENTIONS = {
    "accuracy": "Share of samples whose most probable class (the lowest index on a tie) is the label.",
    "brier": "Mean over samples of the sum over classes of (p_k - 1[y = k])^2, from 0 to 2.",
    "nll": "Mean of -log p_y in nats, computed from the logits by log-sum-exp over members.",
}


def check_labels(labels: np.ndarray, samples: int, classes: int) -> NDArray[np.int64]:
    """Return the labels [N] as int64.

    Raises:
        ValueError: not one integer a sample.
        InputError: labels outside 0..C-1, every such label listed.
    """
    array = np.asarray(labels)
    if array.shape != (samples,) or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise ValueError(f"labels must be {samples} integers, got shape {array.shape} of {array.dtype}")
    wrong = np.flatnonzero((array < 0) | (array >= classes))
    if wrong.size:
        values, first, counts = np.unique(array[wrong], return_index=True, return_counts=True)
        raise InputError(
            f"{wrong.size} of {samples} labels are outside the model's classes 0..{classes - 1}",
            hint="the data must use the label order of the model (--label-map)",
            problems=[
                f"label {value}: {count} samples, first sample {wrong[where]}"
                for value, where, count in zip(values, first, counts, strict=True)
            ],
        )
    return array.astype(np.int64)


def accuracy(probs: np.ndarray, labels: np.ndarray) -> float | None:
    """Share of samples whose class of highest p (lowest index on a tie) is the label; None without samples.

    Args:
        probs: [N, C].
        labels: [N] integers in 0..C-1.
    """
    if not len(probs):
        return None
    checked = check_labels(labels, *probs.shape)
    return int(np.count_nonzero(probs.argmax(axis=1) == checked)) / len(checked)


def brier_terms(probs: Floats, labels: NDArray[np.int64]) -> Floats:
    """Brier score of each sample [N]: the sum over classes of (p_k - 1[y = k])^2, 0..2."""
    error = probs.copy()
    error[np.arange(len(labels)), labels] -= 1.0
    return np.asarray(np.square(error, out=error).sum(axis=1), dtype=np.float64)


def brier(probs: np.ndarray, labels: np.ndarray) -> float | None:
    """Mean over samples of the SUM over classes of squared errors (0..2); None without samples.

    Args:
        probs: [N, C].
        labels: [N] integers in 0..C-1.

    Source: Brier 1950, the original form; the mean over classes that some libraries give is this divided by C.
    """
    if not len(probs):
        return None
    checked = check_labels(labels, *probs.shape)
    return float(brier_terms(np.asarray(probs, dtype=np.float64), checked).mean())


def label_log_probs(log_probs: Floats, labels: NDArray[np.int64]) -> Floats:
    """Log p of the label of each sample, [N], from log p [N, C]."""
    return np.asarray(log_probs[np.arange(len(labels)), labels], dtype=np.float64)


def nll(log_probs: np.ndarray, labels: np.ndarray) -> float | None:
    """Negative log-likelihood -mean log p_y in nats; None without samples.

    Args:
        log_probs: log p [N, C], from ``pooled_log_probs`` and not the logarithm of p, which underflows.
        labels: [N] integers in 0..C-1.

    Raises:
        NonFiniteError: log p of a label is not finite.
    """
    if not len(log_probs):
        return None
    checked = check_labels(labels, *log_probs.shape)
    return mean_nll(label_log_probs(np.asarray(log_probs, dtype=np.float64), checked))


def mean_nll(log_probs_of_labels: np.ndarray) -> float | None:
    """The same from log p of the labels alone, [N]."""
    terms = check_finite(log_probs_of_labels, "log p of the label")
    # 0.0 - x, because -x of a perfect prediction would be a negative zero in the JSON.
    return 0.0 - float(terms.mean()) if terms.size else None
