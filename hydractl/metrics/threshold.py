"""A threshold on the OOD score, chosen on validation data: a sample is flagged if its score is at or above it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hydractl.errors import InputError
from hydractl.files.model_records import MeasuredThreshold, StoredThreshold
from hydractl.jsonio import shown
from hydractl.metrics.ood_scores import ON_FEATURES, SCORES
from hydractl.metrics.probabilities import check_finite
from hydractl.metrics.requested import Threshold

CONVENTIONS = {
    "threshold": "A sample is flagged as OOD when its score is at or above the value. ood:S is the highest value that"
    " flags at least the share S of the OOD validation samples, ties included; id:S the lowest that flags at most the"
    " share S of the ID validation samples.",
}


def stored_score(document: Mapping[str, Any]) -> str | None:
    """Return the OOD score that a file names, itself or in its threshold; None if neither.

    A checkpoint and a predictions file have it in an object with the key ``score``, an answer of ``calibrate`` as text.

    Raises:
        InputError: there is no score of that name.
    """
    entry = document.get("ood_score") or document.get("threshold")
    if not entry:
        return None
    name: str | None = entry.get("score") if isinstance(entry, Mapping) else str(entry)
    if name is None or name in SCORES or name in ON_FEATURES:
        return name
    raise InputError(
        f"there is no OOD score {shown(name)}",
        hint="another version of hydractl chose it: calibrate the model that the file was made from anew",
    )


def choose_threshold(rule: Threshold, scores: np.ndarray) -> float:
    """Return the threshold that is asked for by a share of samples, on the validation scores of its side, [N].

    ``ood:S``: the highest score that at least the share S of the samples reach. ``id:S``: the lowest threshold that at
    most the share S of the samples reach, which is the float64 just above the highest score that must not be flagged.

    Args:
        rule: what was asked for, e.g. ``ood:0.95``.
        scores: the OOD scores of the validation samples on the side of the rule (OOD or ID), [N], N > 0.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    checked = check_finite(scores, "scores")
    falling = np.sort(checked)[::-1]
    share_of_samples = rule.number * len(falling)  # an exact fraction: rounding must not decide about a sample

    # ood: at least this many samples must be flagged. The threshold is the score of the last of them.
    if rule.side == "ood":
        must_be_flagged = math.ceil(share_of_samples)
        return float(falling[must_be_flagged - 1])

    # id: at most this many samples may be flagged. The threshold is just above the next lower score, so that neither
    # that sample nor any of equal score is flagged.
    may_be_flagged = math.floor(share_of_samples)
    highest_not_flagged = falling[may_be_flagged]
    return float(np.nextafter(highest_not_flagged, np.inf))


def flagged(scores: np.ndarray, value: float) -> float | None:
    """Return the share of samples [N] whose score is at or above the threshold ``value``; None without samples.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    checked = check_finite(scores, "scores")
    n = len(checked)
    if not n:
        return None
    is_flagged = checked >= value
    return int(np.count_nonzero(is_flagged)) / n


def measured_threshold(
    threshold: StoredThreshold, id_scores: np.ndarray, ood_scores: Mapping[str, np.ndarray]
) -> MeasuredThreshold:
    """Return a threshold with the share of each test set that it flags; None for a set without samples.

    Args:
        threshold: the threshold.
        id_scores: the OOD scores of the ID samples, ``[N]``.
        ood_scores: the OOD scores of the samples of each OOD data set, ``[K]``, by its name.
    """
    value = threshold.value
    return MeasuredThreshold(
        **dict(threshold),
        id_flagged=flagged(id_scores, value),
        ood_flagged={name: flagged(scores, value) for name, scores in ood_scores.items()},
    )
