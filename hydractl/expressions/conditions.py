"""Conditions on figures: the values of ``--require``."""

from __future__ import annotations

import operator
import re
from typing import NamedTuple

_COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq}
_REQUIREMENT = re.compile(
    r"(?:(?P<row>.+):)?(?P<key>[^\s:<>=!]+)\s*(?P<sign>>=|<=|==|>|<)\s*(?P<value>[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)",
    re.IGNORECASE,
)


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

    def __str__(self) -> str:
        return self.text

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
