"""The metrics of a row, from plain arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from hydractl.metrics.probabilities import per_sample
from hydractl.metrics.rows import diversity_values, id_block, ood_metrics
from hydractl.metrics.samples import Samples, samples_of


def predictions(confidence: np.ndarray, correct: np.ndarray) -> Samples:
    """Samples of a given confidence [N] whose label is predicted where ``correct`` [N]; all else of them is 0."""
    n = len(confidence)
    assert len(correct) == n
    return Samples(
        predicted=np.where(correct, 0, 1),
        confidence=np.asarray(confidence, dtype=np.float64),
        entropy=np.zeros(n),
        mi=np.zeros(n),
        votes=np.zeros((1, n), dtype=np.int32),
        labels=np.zeros(n, dtype=np.int64),
        label_log_probs=np.zeros(n),
        brier_terms=np.zeros(n),
        scores={"msp": np.zeros(n)},
    )


def class_distances(fit: np.ndarray, labels: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """The squared Mahalanobis distance of each sample to the nearest class, of features [N, D] with labels."""
    means = {label: fit[labels == label].mean(axis=0) for label in set(labels)}
    centred = np.stack([vector - means[label] for vector, label in zip(fit, labels, strict=True)])
    precision = np.linalg.pinv(centred.T @ centred / len(fit), rcond=1e-12, hermitian=True)
    return np.array([min((v - mean) @ precision @ (v - mean) for mean in means.values()) for v in samples])


class ById:
    """One metric of ``id_block``: of confidence [N] and correct [N], or of p [N, C] and labels [N]."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __call__(self, values: np.ndarray, other: np.ndarray) -> Any:
        if values.ndim == 1:
            return id_block(predictions(values, other)).metrics[self.key]
        with np.errstate(divide="ignore"):
            logits = np.maximum(np.log(values), -1e4)[None]
        return id_block(samples_of(logits, other)).metrics[self.key]


accuracy, brier, nll, ece, aece, aurc, accuracy_at = map(
    ById, ("accuracy", "brier", "nll", "ece", "aece", "aurc", "accuracy_at")
)


class ByScores:
    """One metric of ``ood_metrics``, of the scores of ID samples [N] and OOD samples [K]."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __call__(self, id_scores: np.ndarray, ood_scores: np.ndarray) -> Any:
        return ood_metrics(id_scores, ood_scores).metrics[self.key]


auroc, fpr95, fpr95_nearest, aupr, aupr_trapezoid, aupr_in = map(
    ByScores, ("auroc", "fpr95", "fpr95_nearest", "aupr", "aupr_trapezoid", "aupr_in")
)


def mi(member_logits: np.ndarray) -> Any:
    return diversity_values(samples_of(member_logits))["mi"]


def disagreement(member_logits: np.ndarray) -> Any:
    return diversity_values(samples_of(member_logits))["disagreement"]


def sample_mi(member_logits: np.ndarray) -> np.ndarray:
    return samples_of(member_logits).mi


pooled_probabilities = per_sample(lambda block: block.probs)
