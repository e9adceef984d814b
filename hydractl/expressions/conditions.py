"""Conditions on figures: the values of ``--require`` for an answer, and of ``--subject-to`` for a search."""

from __future__ import annotations

import operator
import re
from fractions import Fraction
from typing import NamedTuple

_COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq}
_REQUIREMENT = re.compile(
    r"(?:(?P<row>.+):)?(?P<key>[^\s:<>=!]+)\s*(?P<sign>>=|<=|==|>|<)\s*(?P<value>[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)",
    re.IGNORECASE,
)
_CONSTRAINT = re.compile(r"(?P<key>[a-z]+)\s*>=\s*(?:(?P<number>-?[\d.]+)|(?P<base>base)(?:\s*-\s*(?P<below>[\d.]+))?)")


class Requirement(NamedTuple):
    """One ``--require``.

    Attributes:
        text: the requirement as it was written.
        row: the name of the row that it applies to; None for every row.
        key: the dotted path of the value in a row, for example ``ood_avg.auroc``.
        sign: one of ``>= <= > < ==``.
        value: the number to compare with.
    """

    text: str
    row: str | None
    key: str
    sign: str
    value: float

    def holds(self, measured: float) -> bool:
        """Return whether a measured value meets the requirement."""
        compare = _COMPARE[self.sign]
        is_met = compare(measured, self.value)
        return bool(is_met)


def parse_requirement(text: str) -> Requirement:
    """Parse ``[NAME:]KEY>=NUMBER``, with any of the signs.

    Raises:
        ValueError: the text does not have this form.
    """
    stripped = text.strip()
    match = _REQUIREMENT.fullmatch(stripped)
    if match is None:
        raise ValueError(f"must be [NAME:]KEY>=NUMBER (or <=, >, <, ==), not {text!r}")
    return Requirement(
        text=stripped,
        row=match["row"],
        key=match["key"],
        sign=match["sign"],
        value=float(match["value"]),
    )


class Constraint(NamedTuple):
    """One ``--subject-to`` of a search: a score that no removal may go below.

    Attributes:
        key: the name of an objective.
        number: the lowest allowed score; with ``below_base``, how far below the score of the base it may be.
        below_base: whether the limit is relative to the score of the base (the model before any removal).
    """

    key: str
    number: Fraction
    below_base: bool


def parse_constraint(text: str) -> Constraint:
    """Parse ``KEY>=NUMBER``, ``KEY>=base`` or ``KEY>=base-NUMBER``.

    Raises:
        ValueError: the text has none of these forms.
    """
    problem = f"must be KEY>=NUMBER or KEY>=base-NUMBER, not {text!r}"
    match = _CONSTRAINT.fullmatch(text.strip())
    if match is None:
        raise ValueError(problem)
    below_base = match["base"] is not None
    digits = match["number"]
    if below_base:
        digits = match["below"] or "0"
    try:
        number = Fraction(digits)
    except ValueError:  # the regular expression also matches dots alone, or several dots
        raise ValueError(problem) from None
    return Constraint(match["key"], number, below_base)
