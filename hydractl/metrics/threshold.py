"""A threshold on the OOD score, chosen on validation data; a sample is flagged when its score is at or above it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal, NamedTuple

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


class Rule(NamedTuple):
    """``ood:0.95`` or ``id:0.01``: which side the share is of, and the share, exactly as written."""

    side: Literal["id", "ood"]
    share: Fraction

    def __str__(self) -> str:
        return f"{self.side}:{float(self.share)}"


def parse_rule(text: str) -> Rule:
    """Read the rule that ``ood:SHARE`` (0 < SHARE <= 1) or ``id:SHARE`` (0 <= SHARE < 1) says.

    Raises:
        UsageError: the text says none.
    """
    side, _, number = text.partition(":")
    try:
        share = Fraction(number)
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if side == "ood" and 0 < share <= 1:
        return Rule("ood", share)
    if side == "id" and 0 <= share < 1:
        return Rule("id", share)
    raise UsageError(f"{text!r} says no threshold", hint="write ood:0.95 or id:0.01")


def stored(value: Any) -> dict[str, Any] | None:
    """Check the threshold that a checkpoint or a predictions file holds, and return it; None for none.

    Returns:
        ``score``, ``value`` and ``rule``.

    Raises:
        InputError: it is not such a document.
    """
    if value is None:
        return None
    right = isinstance(value, Mapping) and all(isinstance(value.get(key), str) for key in ("score", "rule"))
    number = value.get("value") if right else None
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not abs(number) < 1e300:
        raise InputError("a threshold is the name of a score, a finite value and the rule it was chosen by")
    return {key: value[key] for key in ("score", "value", "rule")}


def stored_score(document: Mapping[str, Any]) -> str | None:
    """Return the OOD score that a checkpoint or a predictions file names, for itself or its threshold; None for none.

    Raises:
        InputError: there is no such score.
    """
    found = document.get("ood_score") or document.get("threshold") or {}
    name: str | None = found.get("score") if isinstance(found, Mapping) else shown(found)
    if name is not None and name not in (*SCORES, *ON_FEATURES):
        raise InputError(f"there is no OOD score {shown(name)}", hint="name another: --ood-score msp")
    return name


def choose(rule: Rule, scores: np.ndarray) -> float:
    """Return the threshold that a rule gives on the validation scores of its side, [N].

    ``ood:S``: the highest score that at least the share S of the samples reach. ``id:S``: the number next above the
    highest score that must not be flagged, the lowest threshold that at most the share S of the samples reach.

    Raises:
        InputError: no sample.
        NonFiniteError: a score is NaN or infinite.
    """
    falling = np.sort(check_finite(scores, "scores"))[::-1]
    n = len(falling)
    if not n:
        raise InputError(f"a threshold {rule} needs validation samples")
    if rule.side == "ood":
        return float(falling[-(-rule.share.numerator * n // rule.share.denominator) - 1])
    return float(np.nextafter(falling[rule.share.numerator * n // rule.share.denominator], np.inf))


def flagged(scores: np.ndarray, value: float) -> float | None:
    """Return the share of samples with a score at or above the threshold; None without samples."""
    checked = check_finite(scores, "scores")
    return int(np.count_nonzero(checked >= value)) / len(checked) if len(checked) else None


def threshold_block(
    score: str, value: float, rule: str, id_scores: np.ndarray, ood_scores: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Return the row's entry for its threshold, from the OOD scores ``[N]`` of each data set."""
    return {
        "score": score,
        "value": value,
        "rule": rule,
        "id_flagged": flagged(id_scores, value),
        "ood_flagged": {name: flagged(scores, value) for name, scores in ood_scores.items()},
    }
