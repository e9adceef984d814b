"""The values of ``--temperature`` and ``--threshold``."""

from __future__ import annotations

import math
import re

_RULE = re.compile(r"(?P<side>ood|id):(?P<share>0?\.[0-9]+|[01](\.0*)?)")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)


def check_temperature(text: str) -> None:
    """Check the text of a temperature: ``fit``, ``vector``, ``none``, or a number above 0.

    Raises:
        ValueError: the text is none of these; the message is the rest of a sentence that starts with the option's name.
    """
    is_number = False
    if _NUMBER.fullmatch(text):
        is_number = 1e-9 <= float(text) <= 1e9
    if text not in ("fit", "vector", "none") and not is_number:
        raise ValueError(f"must be fit, vector, none or a number above 0 (1e-9 to 1e9), not {text!r}")


def check_threshold(text: str) -> None:
    """Check the text of a threshold: ``ood:SHARE``, ``id:SHARE``, or ``score:X`` with a finite number.

    A number alone is refused: whoever writes 0.05 may mean a share of the samples, or a value of the score.

    Raises:
        ValueError: the text has none of these forms, or the share is out of its range.
    """
    if _is_number(text):
        meanings = f"score:{text} is a value of the OOD score"
        if 0 <= float(text) < 1:
            meanings = f"id:{text} flags that share of --val, {meanings}"
        raise ValueError(f"must say what {text} is: {meanings}")
    before, _, value = text.partition(":")
    if before == "score" and _is_number(value):
        return
    rule = _RULE.fullmatch(text)
    if rule is None:
        raise ValueError(f"must be ood:SHARE, id:SHARE or score:X, not {text!r}")

    side = rule["side"]
    share = float(rule["share"])
    if side == "ood" and not 0 < share <= 1:
        raise ValueError(f"ood:SHARE must be above 0 and at most 1, not {text!r}")
    if side == "id" and not 0 <= share < 1:
        raise ValueError(f"id:SHARE must be at least 0 and below 1, not {text!r}")


def _is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    return _NUMBER.fullmatch(text) is not None and math.isfinite(float(text))
