"""Conditions on figures: ``--require`` of an answer, ``--subject-to`` of a search."""

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
        text: as it was given.
        row: the name of the one row it is about, or None for every row.
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
        return bool(compare(measured, self.value))


def parse_requirement(text: str) -> Requirement:
    """Read ``[NAME:]key>=number``."""
    match = _REQUIREMENT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"must be [NAME:]KEY>=NUMBER (or <=, >, <, ==), not {text!r}")
    value = float(match["value"])
    return Requirement(text.strip(), match["row"], match["key"], match["sign"], value)


class Constraint(NamedTuple):
    """One ``--subject-to`` of a search: a score that no removal may go below.

    Attributes:
        key: an objective.
        number: the lowest score that is allowed, or how far it may be below the base.
        below_base: which of the two.
    """

    key: str
    number: Fraction
    below_base: bool


def parse_constraint(text: str) -> Constraint:
    """Read ``KEY>=NUMBER``, ``KEY>=base`` or ``KEY>=base-NUMBER``."""
    problem = f"must be KEY>=NUMBER or KEY>=base-NUMBER, not {text!r}"
    match = _CONSTRAINT.fullmatch(text.strip())
    if match is None:
        raise ValueError(problem)
    below_base = match["base"] is not None
    number = match["number"]
    if below_base:
        number = match["below"] or "0"
    try:
        return Constraint(match["key"], Fraction(number), below_base)
    except ValueError:  # of dots alone, or several of them
        raise ValueError(problem) from None
