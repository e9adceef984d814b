"""What ``--temperature``, ``--threshold`` and ``--ood-score`` ask for. Nothing here imports numpy: help reads it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Self

from hydractl.errors import did_you_mean
from hydractl.metrics.ood_scores import ON_FEATURES, SCORES

_RULE = re.compile(r"(?P<side>ood|id):(?P<share>0?\.[0-9]+|[01](\.0*)?)")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)

ALL_SCORES = "all"
"""The word that stands for every score in ``--ood-score``."""

PASSES = 10
"""How often a model runs with MC dropout, where ``--passes`` does not say it."""


@dataclass(frozen=True)
class Temperature:
    """A value of ``--temperature``.

    Attributes:
        text: ``fit`` (one temperature), ``vector`` (a scale and a bias per class), ``none``, or the number as written.
        value: the number; None for the words.
    """

    text: str
    value: float | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the temperature of a text.

        Raises:
            ValueError: the text is no word, and no number from 1e-9 to 1e9; the message is the rest of a sentence that
                starts with the option's name.
        """
        if text in ("fit", "vector", "none"):
            return cls(text)
        value = float(text) if _NUMBER.fullmatch(text) else 0.0
        if not 1e-9 <= value <= 1e9:
            raise ValueError(f"must be fit, vector, none or a number above 0 (1e-9 to 1e9), not {text!r}")
        return cls(text, value)

    @property
    def is_fitted(self) -> bool:
        """Whether it is fitted to validation data."""
        return self.text in ("fit", "vector")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Threshold:
    """A value of ``--threshold``: which samples are flagged as OOD.

    Attributes:
        text: as it was written, e.g. ``ood:0.95``.
        side: whose samples are counted, ``ood`` or ``id``; or ``score``, where the threshold itself is given.
        number: the share of these samples that is flagged, or the threshold, exactly as written.
    """

    text: str
    side: Literal["id", "ood", "score"]
    number: Fraction

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the threshold of ``ood:SHARE``, ``id:SHARE``, or ``score:X`` with a finite number.

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
            return cls(text, "score", Fraction(value))
        rule = _RULE.fullmatch(text)
        if rule is None:
            raise ValueError(f"must be ood:SHARE, id:SHARE or score:X, with a SHARE such as 0.05, not {text!r}")

        share = Fraction(rule["share"])
        if rule["side"] == "ood":
            if not 0 < share <= 1:
                raise ValueError(f"ood:SHARE must be above 0 and at most 1, not {text!r}")
            return cls(text, "ood", share)
        if not 0 <= share < 1:
            raise ValueError(f"id:SHARE must be at least 0 and below 1, not {text!r}")
        return cls(text, "id", share)

    def __str__(self) -> str:
        return self.text

    @property
    def rule(self) -> str:
        """How the threshold is chosen, as files say it, e.g. ``ood:0.95``; ``given`` for a score."""
        return "given" if self.side == "score" else f"{self.side}:{float(self.number)}"


def _is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    return _NUMBER.fullmatch(text) is not None and math.isfinite(float(text))


def check_ood_score(name: str) -> None:
    """Check the name of one OOD score; ``all`` is one, too. Names of other packages are looked for now.

    Raises:
        ValueError: there is no such score; the message is the rest of a sentence that starts with the option's name.
    """
    known = [*SCORES, *ON_FEATURES, ALL_SCORES]
    if name not in known:
        choices = ", ".join(known)
        suggestion = did_you_mean(name, known)
        raise ValueError(f"must be one of {choices}, not {name!r}{suggestion}")
