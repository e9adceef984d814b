"""A threshold on the OOD score, chosen on validation data; a sample is flagged when its score is at or above it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np

from hydractl.errors import InputError, UsageError
from hydractl.jsonio import shown
from hydractl.metrics.ood_scores import ON_FEATURES, SCORES
from hydractl.metrics.probabilities import check_finite

CONVENTIONS = {
    "threshold": "A sample is flagged as OOD when its score is at or above the value. ood:S is the highest value that"
    " flags at least the share S of the OOD validation samples, ties included; id:S the lowest that flags at most the"
    " share S of the ID validation samples.",
}

_LARGEST_VALUE = 1e300


class ThresholdRule(NamedTuple):
    """A rule ``ood:0.95`` or ``id:0.01``: the data whose samples are counted, and their share, exactly as written."""

    side: Literal["id", "ood"]
    share: Fraction

    def __str__(self) -> str:
        share = float(self.share)
        return f"{self.side}:{share}"


class ThresholdEntry(TypedDict):
    """A threshold as files and rows hold it: the name of the OOD score, the value, and the rule it was chosen by."""

    score: str
    value: float
    rule: str


class ThresholdBlock(ThresholdEntry):
    """A threshold with the share of each test set that it flags; None where a set has no samples."""

    id_flagged: float | None
    ood_flagged: dict[str, float | None]


def parse_rule(text: str) -> ThresholdRule:
    """Read a rule ``ood:SHARE`` (0 < SHARE <= 1) or ``id:SHARE`` (0 <= SHARE < 1).

    Raises:
        UsageError: the text is no such rule.
    """
    side, _, number = text.partition(":")
    try:
        share = Fraction(number)
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)  # no number: in neither range, so refused below
    if side == "ood" and 0 < share <= 1:
        return ThresholdRule("ood", share)
    if side == "id" and 0 <= share < 1:
        return ThresholdRule("id", share)
    raise UsageError(f"{text!r} says no threshold", hint="write ood:0.95 or id:0.01")


def stored_threshold(entry: Any) -> ThresholdEntry | None:
    """Check the threshold that a checkpoint or a predictions file holds, and return it; None for none.

    Raises:
        InputError: it is not such a document.
    """
    if entry is None:
        return None
    if not _is_threshold(entry):
        raise InputError("a threshold is the name of a score, a finite value and the rule it was chosen by")
    return {"score": entry["score"], "value": entry["value"], "rule": entry["rule"]}


def _is_threshold(entry: Any) -> bool:
    """Return whether a value read from a file has the fields of a :class:`ThresholdEntry`."""
    if not isinstance(entry, Mapping):
        return False
    if not isinstance(entry.get("score"), str):
        return False
    if not isinstance(entry.get("rule"), str):
        return False
    return _is_finite_number(entry.get("value"))


def _is_finite_number(value: Any) -> bool:
    """Return whether a value read from a file is a number of a magnitude below 1e300."""
    is_truth_value = isinstance(value, bool)  # Python's True is an int
    if is_truth_value or not isinstance(value, (int, float)):
        return False
    return abs(value) < _LARGEST_VALUE


def stored_score(document: Mapping[str, Any]) -> str | None:
    """Return the OOD score that a checkpoint or a predictions file names, for itself or its threshold; None for none.

    Raises:
        InputError: there is no such score.
    """
    entry = document.get("ood_score") or document.get("threshold")
    if not entry:
        return None
    name: str | None
    if isinstance(entry, Mapping):
        name = entry.get("score")
    else:
        name = shown(entry)  # not of the form that is written: the name of no score
    if name is None or name in SCORES or name in ON_FEATURES:
        return name
    raise InputError(f"there is no OOD score {shown(name)}", hint="name another: --ood-score msp")


def choose_threshold(rule: ThresholdRule, scores: np.ndarray) -> float:
    """Return the threshold that a rule gives on the validation scores of its side, [N].

    For ``ood:S``: the highest score that at least the share S of the samples reach. For ``id:S``: the lowest threshold
    that at most the share S of the samples reach, the number next above the highest score that must not be flagged.

    Raises:
        InputError: no sample.
        NonFiniteError: a score is NaN or infinite.
    """
    checked = check_finite(scores, "scores")
    falling = np.sort(checked)[::-1]
    n = len(falling)
    if not n:
        raise InputError(f"a threshold {rule} needs validation samples")
    share_of_samples = rule.share * n  # an exact fraction: rounding must not decide about a sample
    if rule.side == "ood":  # at least so many are flagged
        must_be_flagged = math.ceil(share_of_samples)
        return float(falling[must_be_flagged - 1])

    # At most so many ID samples are flagged: the threshold lies just above the next one, and above all its ties.
    may_be_flagged = math.floor(share_of_samples)
    highest_not_flagged = falling[may_be_flagged]
    return float(np.nextafter(highest_not_flagged, np.inf))


def flagged(scores: np.ndarray, value: float) -> float | None:
    """Return the share of samples [N] with a score at or above the threshold; None without samples.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    checked = check_finite(scores, "scores")
    n = len(checked)
    if not n:
        return None
    is_flagged = checked >= value
    return int(np.count_nonzero(is_flagged)) / n


def threshold_block(
    threshold: ThresholdEntry, id_scores: np.ndarray, ood_scores: Mapping[str, np.ndarray]
) -> ThresholdBlock:
    """Return the row's entry for its threshold, from the OOD scores ``[N]`` of each data set."""
    value = threshold["value"]
    ood_flagged = {}
    for name, scores in ood_scores.items():
        ood_flagged[name] = flagged(scores, value)
    return {
        "score": threshold["score"],
        "value": value,
        "rule": threshold["rule"],
        "id_flagged": flagged(id_scores, value),
        "ood_flagged": ood_flagged,
    }
