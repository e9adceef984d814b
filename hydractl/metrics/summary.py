"""The metrics of one model as ``eval.json`` (schema ``hydractl.eval/1``) holds them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hydractl.metrics import calibration, classification, ood, probabilities, selective
from hydractl.metrics import diversity as diversity_of

ID_METRICS = ("accuracy", "brier", "nll", "ece", "aece", "aurc")
"""What is measured on labelled in-distribution data."""

OOD_METRICS = ("auroc", "fpr95", "fpr95_nearest", "aupr", "aupr_trapezoid")
"""What is averaged over OOD data sets."""

CONVENTIONS: dict[str, str] = {
    "n": "Number of samples; of the OOD samples in a block of OOD metrics.",
    **probabilities.CONVENTIONS,
    **classification.CONVENTIONS,
    **calibration.CONVENTIONS,
    **selective.CONVENTIONS,
    **ood.CONVENTIONS,
    "near_avg": "Unweighted mean over the near-OOD data sets; null when there is none or one of them has no value.",
    "far_avg": "Unweighted mean over the far-OOD data sets; null when there is none or one of them has no value.",
    "ood_avg": "Unweighted mean over all OOD data sets; null when there is none or one of them has no value.",
    **diversity_of.CONVENTIONS,
}
"""One sentence a metric, by its name in the JSON."""


def row_keys(ood_sets: Iterable[str]) -> list[str]:
    """The dotted keys of the numbers that the row of one model may hold, for ``--require``.

    Args:
        ood_sets: names of the OOD data sets.
    """
    sets = list(ood_sets)
    groups = [*(f"ood.{name}" for name in sets), "near_avg", "far_avg", "ood_avg"]
    return [
        "id.n",
        *(f"id.{metric}" for metric in ID_METRICS),
        *(f"{group}.{metric}" for group in groups for metric in OOD_METRICS),
        *(f"ood.{name}.n" for name in sets),
        *(f"diversity.{name}.{metric}" for name in ("id", *sets) for metric in ("mi", "disagreement")),
    ]


def id_metrics(member_logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Metrics on in-distribution data: n, accuracy, brier, nll, ece, aece, aurc (``CONVENTIONS`` says which is what).

    Args:
        member_logits: [M, N, C], any float type. Calibrated log p [N, C] of an ensemble goes in as ``log_p[None]``.
        labels: [N] integers in 0..C-1.

    Returns:
        The values by name; all but n are None when there is no sample.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
        InputError: a label is outside 0..C-1.
    """
    logits = probabilities.check_logits(member_logits)
    checked = classification.check_labels(labels, *logits.shape[1:])
    predicted, confidence, label_log_probs, brier_terms = [], [], [], []
    start = 0
    for block in probabilities.sample_blocks(logits):
        block_labels = checked[start : start + block.shape[1]]
        start += block.shape[1]
        probs = probabilities.pool_probabilities(block)
        log_probs = probabilities.pool_log_probs(probabilities.log_softmax(block))
        predicted.append(probs.argmax(axis=1))
        confidence.append(probs.max(axis=1))
        brier_terms.append(classification.brier_terms(probs, block_labels))
        label_log_probs.append(classification.label_log_probs(log_probs, block_labels))
    conf = np.concatenate(confidence)
    correct = np.concatenate(predicted) == checked
    n = len(checked)
    return {
        "n": n,
        "accuracy": int(np.count_nonzero(correct)) / n if n else None,
        "brier": float(np.concatenate(brier_terms).mean()) if n else None,
        "nll": classification.mean_nll(np.concatenate(label_log_probs)),
        "ece": calibration.ece(conf, correct),
        "aece": calibration.aece(conf, correct),
        "aurc": selective.aurc(conf, correct),
    }


def ood_metrics(id_scores: np.ndarray, ood_scores: np.ndarray) -> dict[str, Any]:
    """Detection metrics of one OOD data set: n (OOD samples), auroc, fpr95, fpr95_nearest, aupr, aupr_trapezoid.

    Args:
        id_scores: [N] OOD scores of the ID samples, higher = more OOD (``ood.OOD_SCORES``).
        ood_scores: [K] OOD scores of the OOD samples.

    Returns:
        The values by name; all but n are None when either side is empty.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    return {
        "n": len(ood_scores),
        "auroc": ood.auroc(id_scores, ood_scores),
        "fpr95": ood.fpr95(id_scores, ood_scores),
        "fpr95_nearest": ood.fpr95_nearest(id_scores, ood_scores),
        "aupr": ood.aupr(id_scores, ood_scores),
        "aupr_trapezoid": ood.aupr_trapezoid(id_scores, ood_scores),
    }


def group_averages(sets: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Unweighted means of the OOD metrics over the near, the far and all data sets.

    Args:
        sets: by data set name, the values of :func:`ood_metrics` and a ``group``: "near", "far" or anything else
            (None), which counts in ``ood_avg`` alone.

    Returns:
        ``near_avg``, ``far_avg`` and ``ood_avg``, each with the names of ``OOD_METRICS``; a mean is None when the group
        has no data set or when one of its data sets has None.
    """
    groups = {
        "near_avg": [one for one in sets.values() if one.get("group") == "near"],
        "far_avg": [one for one in sets.values() if one.get("group") == "far"],
        "ood_avg": list(sets.values()),
    }
    return {
        name: {metric: _mean(one[metric] for one in members) for metric in OOD_METRICS}
        for name, members in groups.items()
    }


def diversity(member_logits: np.ndarray) -> dict[str, float | None]:
    """How much the members differ on one data set: mi (nats) and disagreement, from logits [M, N, C].

    Raises:
        NonFiniteError: a logit is NaN or infinite.
    """
    return {"mi": diversity_of.mi(member_logits), "disagreement": diversity_of.disagreement(member_logits)}


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean, exactly rounded whatever the order of the data sets; None without values or when one is None."""
    numbers = list(values)
    known = [value for value in numbers if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(numbers) else None
