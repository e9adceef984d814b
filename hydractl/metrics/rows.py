"""The blocks of metrics that the row of one model holds, each from :class:`~hydractl.metrics.samples.Samples`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hydractl.metrics import calibration, classification, diversity, ood, selective
from hydractl.metrics.samples import Samples

ID_METRICS = ("accuracy", "brier", "nll", "ece", "aece", "aurc")
"""What is measured on labelled in-distribution data, one number each."""

OOD_METRICS = tuple(ood.CURVE_METRICS)
"""What is averaged over OOD data sets."""

AVERAGES = ("near_avg", "far_avg", "ood_avg")


def id_block(samples: Samples) -> dict[str, Any]:
    """Metrics on in-distribution data: n, accuracy, brier, nll, ece, aece, aurc, accuracy_at.

    Returns:
        The values by name; all but n are None when there is no sample. Only n for data without labels.

    Raises:
        NonFiniteError: log p of a label is not finite.
    """
    n = len(samples)
    if samples.labels is None:
        return {"n": n}
    assert samples.brier_terms is not None and samples.label_log_probs is not None  # they come with labels
    confidence, correct = samples.confidence, samples.correct
    errors = np.cumsum(selective.errors_by_confidence(confidence, correct), dtype=np.int64)
    return {
        "n": n,
        "accuracy": int(np.count_nonzero(correct)) / n if n else None,
        "brier": float(samples.brier_terms.mean()) if n else None,
        "nll": classification.mean_nll(samples.label_log_probs),
        "ece": calibration.ece(confidence, correct),
        "aece": calibration.aece(confidence, correct),
        "aurc": selective.aurc_of_errors(errors),
        "accuracy_at": selective.accuracy_at_of_errors(errors),
    }


def ood_block(inside: Samples, outside: Samples) -> dict[str, Any]:
    """Detection metrics of one OOD data set by the samples' score, as :func:`ood_metrics`."""
    return ood_metrics(inside.score, outside.score)


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
    return {"n": len(ood_scores), **curve_block(ood.curve_of(id_scores, ood_scores))}


def curve_block(curve: ood.Curve | None) -> dict[str, float | None]:
    """The metrics of :data:`OOD_METRICS` of one curve; all None without one."""
    return {name: None if curve is None else metric(curve) for name, metric in ood.CURVE_METRICS.items()}


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


def diversity_block(samples: Samples) -> dict[str, Any]:
    """How much the members differ on one data set: mi (nats), disagreement, and both for each pair, if asked for."""
    return {
        "mi": float(samples.mi.mean()) if len(samples) else None,
        "disagreement": diversity.vote_disagreement(samples.votes),
        "pairs": diversity.pairs(samples.votes, samples.pair_mi) if len(samples.pair_mi) else [],
    }


def row_blocks(inside: Samples, outside: Mapping[str, Samples], groups: Mapping[str, str | None]) -> dict[str, Any]:
    """``id``, ``ood``, the averages and ``diversity`` of one model.

    Args:
        inside: the ID samples.
        outside: the samples of each OOD data set, by its name.
        groups: "near", "far" or None for each OOD data set.
    """
    sets = {name: {"group": groups[name], **ood_block(inside, samples)} for name, samples in outside.items()}
    return {
        "id": id_block(inside),
        "ood": sets,
        **group_averages(sets),
        "diversity": {name: diversity_block(samples) for name, samples in {"id": inside, **outside}.items()},
    }


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean, exactly rounded whatever the order of the data sets; None without values or when one is None."""
    numbers = list(values)
    known = [value for value in numbers if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(numbers) else None
