"""Maps of the heads of a model, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from hydractl.files.circuit_answer import KeptSite
from hydractl.report.texts import GONE, KEPT, head_marks, number, short_names

_DIGITS = "0123456789"
_ASCII = str.maketrans({KEPT: "#", GONE: ".", "…": "~"})
_GAP = 2
_LEAST_NAME = 12

_LONGEST_SITE = 100
"""The most characters to which the names of sites are padded; one longer name does not widen the others."""


@dataclass(frozen=True)
class HeatMap:
    """A map for the terminal: one digit per head, the site on the left, the index of the head on top.

    A site is an attention module of the model. A digit is the tenth of all ranks to which the value of the head
    belongs, from 0 for the lowest, because a few heads often outdo the rest by far.

    Attributes:
        title: the first line.
        rows: for each site its name and one value per head, by the original indices of the heads. A finite number is
            ranked, infinity is a head that stays for good (``■``), and None is a head that is not there (``·``).
        low, high: the words for the two ends of the scale, before their values.
        form: writes a value in the legend.
        gone: the meaning of ``·`` in the legend.
    """

    title: str
    rows: Sequence[tuple[str, Sequence[float | None]]]
    low: str = "lowest"
    high: str = "highest"
    form: Callable[[float], str] = number
    gone: str = "removed"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines of the map for a console."""
        yield from _cropped(self._lines(options.max_width), options)

    def _lines(self, width: int) -> Iterator[str]:
        """Yield the lines of the map: the title, the legend, then a line for each site (attention layer).

        If the heads do not fit a line, the map has several parts below each other. A head that stays for good has the
        value infinity, and one that is not there None; all others are ranked.
        """
        # The distinct values that are ranked, the lowest first.
        values = sorted({value for _, row in self.rows for value in row if value is not None and not math.isinf(value)})
        yield self.title
        yield self._legend(values)

        # A head takes two characters if all heads then fit beside names of a few letters, else one. Names get the rest
        # of the line, but at least a few letters. Then as many heads as fit stand beside them.
        heads = max((len(row) for _, row in self.rows), default=0)
        longest_name = max((len(name) for name, _ in self.rows), default=0)
        cell = 2 if 2 * heads + _GAP + min(longest_name, _LEAST_NAME) <= width else 1
        letters = min(longest_name, max(width - _GAP - cell * heads, _LEAST_NAME))
        step = max((width - _GAP - letters) // cell, 1)

        # The mark of each head: a digit by the rank of its value, or that of a head that stays or is not there.
        names = short_names([name for name, _ in self.rows], letters)
        marks: dict[float | None, str] = {value: _digit(place, len(values)) for place, value in enumerate(values)}
        marks_of_rows = [[marks.get(value, GONE if value is None else KEPT) for value in row] for _, row in self.rows]

        # The parts: column numbers on top, then the heads from "start" to "stop" of every site.
        for start in range(0, max(heads, 1), step):  # a map without heads has one part, too
            stop = min(start + step, heads)
            for digits in _column_numbers(start, stop):
                yield " " * (letters + _GAP) + "".join(digit.ljust(cell) for digit in digits)
            for name, row in zip(names, marks_of_rows, strict=True):
                yield name.ljust(letters + _GAP) + "".join(mark.ljust(cell) for mark in row[start:stop])

    def _legend(self, values: Sequence[float]) -> str:
        """Return the line that explains the digits and marks, e.g. ``lowest 0.1 0123456789 highest 2.5   · removed``.

        A mark is explained only if the map has it.

        Args:
            values: the distinct values that are ranked, the lowest first.
        """
        parts = []
        if values:
            lowest = f"{self.low} {self.form(values[0])}"
            highest = f"{self.high} {self.form(values[-1])}"
            parts.append(f"{lowest} {_DIGITS} {highest}")
        # Infinity stands for a head that stays for good, None for one that is not there.
        rows = [row for _, row in self.rows]
        if any(math.inf in row for row in rows):
            parts.append(f"{KEPT} kept")
        if any(None in row for row in rows):
            parts.append(f"{GONE} {self.gone}")
        return "   ".join(parts)


def _digit(place: int, values: int) -> str:
    """Return the digit of a value: the tenth of all ranks to which it belongs, the lowest first.

    Of 21 values the one in place 10 has the rank 10 / 20 = 0.5, and so the digit 5; a single value has it, too.

    Args:
        place: the number of lower values.
        values: the number of all values.
    """
    rank = 0.5 if values == 1 else place / (values - 1)
    return _DIGITS[min(int(10 * rank), 9)]


def _column_numbers(start: int, stop: int) -> list[list[str]]:
    """Return the column numbers from ``start`` to ``stop``, each written downwards: a list of digits per line.

    From 9 to 12 (excluded) these are [[" ", "1", "1"], ["9", "0", "1"]].
    """
    numbers = list(map(str, range(start, stop)))
    most_digits = max(map(len, numbers), default=0)
    return [[number.rjust(most_digits)[level] for number in numbers] for level in range(most_digits)]


def _cropped(lines: Iterable[str], options: ConsoleOptions) -> RenderResult:
    """Yield lines that are cut at the width and never wrapped; in ASCII if the terminal can show nothing else."""
    for line in lines:
        shown = line.translate(_ASCII) if options.ascii_only else line
        yield Text(shown, no_wrap=True, overflow="crop")


@dataclass(frozen=True)
class KeptMap:
    """A map for the terminal: a line per site (attention module), a mark per kept or removed head, and their counts."""

    sites: Sequence[KeptSite]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _cropped(self._lines(), options)

    def _lines(self) -> Iterator[str]:
        """Yield the line of each site: its name, the marks of its heads, and the numbers of kept and of all heads.

        Without marks, and with ``?``, where it is not known how many heads there were.
        """
        letters = min(_LONGEST_SITE, max((len(site.site) for site in self.sites), default=0))
        for site in self.sites:
            marks = "" if site.heads is None else head_marks(site.heads, site.kept)
            heads = "?" if site.heads is None else site.heads
            yield f"{site.site.ljust(letters)}  {marks}  {len(site.kept)}/{heads}"
