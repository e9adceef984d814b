"""Numbers after the name of a criterion or of an ensemble method, as in ``cahp:degree=2`` or ``packed:3,2``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from hydractl.errors import range_problem

Number: TypeAlias = int | float | Fraction

_KINDS: Mapping[type, tuple[str, tuple[type[Any], ...]]] = {
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    Fraction: ("a number or a fraction such as 9/4", (int, float, Fraction)),
}
"""What numbers of each type are called, and the types that may stand for it: a whole number for any of them."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A number that a criterion or a method takes, declared as a field of its options.

    Attributes:
        type: ``int``, ``float``, or ``Fraction`` for a number that may also be written as ``9/4``.
        metavar: how help texts and messages call it, if not by the name of the field.
        help: one sentence that describes it, without its default; empty if the options describe it themselves.
        at_least, at_most, above, below: the bounds of its range; None for no bound.
    """

    type: type[int] | type[float] | type[Fraction]
    metavar: str = ""
    help: str = ""
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None

    def read(self, name: str, text: str) -> Number:
        """Return the number that a text stands for, e.g. 3 for ``3`` or Fraction(9, 4) for ``9/4``.

        Raises:
            ValueError: it stands for no number of the type.
        """
        try:
            # A fraction of a short text such as 1e99999999 would have a hundred million digits.
            if self.type is Fraction and "e" in text.lower():
                raise ValueError
            return self.type(text)
        except (ValueError, ZeroDivisionError):
            raise self._wrong_type(name, text) from None

    def check(self, name: str, value: Any) -> None:
        """Check that a value, from a text or from Python, is a finite number of the declared type and in its range.

        Args:
            name: the name of the argument, for the message.
            value: the value.

        Raises:
            ValueError: it is not.
        """
        # True and False are no numbers here, though Python counts them as integers. NaN is refused like infinity, since
        # a comparison with NaN is never true.
        _, types = _KINDS[self.type]
        if isinstance(value, bool) or not isinstance(value, types) or not abs(value) < math.inf:
            raise self._wrong_type(name, value)
        problem = range_problem(value, self.at_least, self.at_most, self.above, self.below)
        if problem is not None:
            raise ValueError(f"{name} {problem}")

    def _wrong_type(self, name: str, value: object) -> ValueError:
        """Return the error for a value that is not a number of the type."""
        words, _ = _KINDS[self.type]
        return ValueError(f"{name} must be {words}, not {value!r}")
