"""Reading ``--require`` expressions and the named data sets of ``--ood``."""

from __future__ import annotations

import operator
import re
from typing import NamedTuple

_COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq}
_REQUIREMENT = re.compile(
    r"(?:(?P<row>.+):)?(?P<key>[^\s:<>=!]+)\s*(?P<sign>>=|<=|==|>|<)\s*(?P<value>[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)",
    re.IGNORECASE,
)
_SET_NAME = re.compile(r"[\w.+-]+")


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

    def holds(self, found: float) -> bool:
        """Whether the value found meets the requirement."""
        return bool(_COMPARE[self.sign](found, self.value))


def parse_requirement(text: str) -> Requirement:
    """Read ``[NAME:]key>=number``.

    Raises:
        ValueError: with the rest of a sentence that starts with ``--require``.
    """
    match = _REQUIREMENT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"must be [NAME:]KEY>=NUMBER (or <=, >, <, ==), not {text!r}")
    return Requirement(text.strip(), match["row"], match["key"], match["sign"], float(match["value"]))


class OodSet(NamedTuple):
    """One data set of ``--ood``.

    Attributes:
        name: its name in the answer.
        group: ``near``, ``far`` or None.
        spec: where the data are.
    """

    name: str
    group: str | None
    spec: str


def parse_ood_set(text: str) -> OodSet:
    """Read ``NAME[:near|far]=SPEC``.

    Raises:
        ValueError: with the rest of a sentence that starts with ``--ood``.
    """
    left, equals, spec = text.partition("=")
    name, colon, group = left.partition(":")
    named = _SET_NAME.fullmatch(name) and (not colon or group in ("near", "far"))
    if not equals or not spec.strip() or not named:
        raise ValueError(f"must be NAME[:near|far]=SPEC, not {text!r}")
    return OodSet(name, group or None, spec.strip())
