"""What tables on a terminal are put together of: tables of text in one style, and maps of the heads of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.table import Table
from rich.text import Text

from hydractl.report.texts import number, short_names

_WIDEST_TITLE = 40
UNKNOWN = "-"
"""What stands in the place of a number that was not measured."""


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Table:
    """A table without lines; the first ``left`` columns are aligned to the left, the rest to the right.

    A column of which no row knows anything is left out.
    """
    found = Table(title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    found.min_width = min(len(title), _WIDEST_TITLE)  # a title is wrapped where its table ends
    known = known_columns(rows, len(columns))
    for index in known:
        found.add_column(columns[index], justify="left" if index < left else "right", no_wrap=index >= left)
    for row in rows:
        found.add_row(*[Text(row[index]) for index in known])
    return found


def known_columns(rows: Sequence[Sequence[str]], count: int) -> list[int]:
    """Return which of ``count`` columns to show: all but those that hold nothing but dashes."""
    return [index for index in range(count) if not rows or any(row[index] != UNKNOWN for row in rows)]


def facts(rows: Sequence[tuple[str, str]]) -> Table:
    """Names and values."""
    return table("", ("", ""), rows, left=2)


# The colour map viridis (Smith and van der Walt, 2015) at ten even places: lightness grows from end to end, so the
# order shows without hue as well.
_VIRIDIS = (
    (0x44, 0x01, 0x54), (0x48, 0x28, 0x78), (0x3E, 0x4A, 0x89), (0x31, 0x68, 0x8E), (0x26, 0x82, 0x8E),
    (0x1F, 0x9E, 0x89), (0x35, 0xB7, 0x79), (0x6E, 0xCE, 0x58), (0xB5, 0xDE, 0x2B), (0xFD, 0xE7, 0x25),
)  # fmt: skip
_DIGITS = "0123456789"
_KEPT, _GONE = "■", "·"
_ASCII = str.maketrans({_KEPT: "#", _GONE: ".", "…": "~"})
_GAP = 2
_LEAST_NAME = 12
_LEGEND_CELLS = 20

_LONGEST_SITE = 100
"""Characters that the names of all sites are filled up to, however long one of them is."""


@dataclass(frozen=True)
class HeatMap:
    """A rich renderable: one shaded cell per head, the site on its left, the number of the head on top.

    Shades follow the rank of a value among all values, because a few heads often outdo the rest by far. In 256 colours
    or more a cell is a patch of colour; with fewer or none it is the tenth of the ranks it belongs to, as a digit.

    Attributes:
        title: the first line.
        rows: for each site its name and one value per head of the original numbering: a number is shaded; infinity is
            a head that stays for good (``■``), None one that is not there (``·``).
        low, high: what to call the two ends of the scale, before their values.
        form: writes a value in the legend.
        gone: what ``·`` means.
    """

    title: str
    rows: Sequence[tuple[str, Sequence[float | None]]]
    low: str = "lowest"
    high: str = "highest"
    form: Callable[[float], str] = number
    gone: str = "removed"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        colored = console.color_system in ("256", "truecolor") and not console.no_color
        yield from _as_they_fit(self._lines(options.max_width, colored), options)

    def _lines(self, width: int, colored: bool) -> Iterator[Text]:
        """Title, legend and the map, in as many parts side by side as heads beyond the width ask for."""
        values = sorted({v for _, row in self.rows for v in row if v is not None and math.isfinite(v)})
        ranks = {v: i / (len(values) - 1) if len(values) > 1 else 0.5 for i, v in enumerate(values)}
        yield Text(self.title)
        yield self._legend(values, colored)
        names = [name for name, _ in self.rows]
        longest = max(map(len, names), default=0)
        heads = max((len(row) for _, row in self.rows), default=0)
        cell = 2 if 2 * heads + _GAP + min(longest, _LEAST_NAME) <= width else 1
        label = min(longest, max(width - _GAP - cell * heads, _LEAST_NAME))
        names = short_names(names, label)
        part = max((width - _GAP - label) // cell, 1)
        for start in range(0, max(heads, 1), part):
            stop = min(start + part, heads)
            for digits in _column_numbers(start, stop):
                yield Text(" " * (label + _GAP) + "".join(digit.ljust(cell) for digit in digits))
            for name, (_, row) in zip(names, self.rows, strict=True):
                line = Text(name.ljust(label + _GAP))
                for value in row[start:stop]:
                    _draw(line, value, ranks, cell, colored)
                yield line

    def _legend(self, values: Sequence[float], colored: bool) -> Text:
        line = Text()
        if values:
            line.append(f"{self.low} {self.form(values[0])} ")
            if colored:
                for place in range(_LEGEND_CELLS):
                    line.append(" ", _color(place / (_LEGEND_CELLS - 1)))
            else:
                line.append(_DIGITS)
            line.append(f" {self.high} {self.form(values[-1])}")
        every = [value for _, row in self.rows for value in row]
        marks = [f"{_KEPT} kept"] if math.inf in every else []
        marks += [f"{_GONE} {self.gone}"] if None in every else []
        line.append(("   " if values else "") + "   ".join(marks))
        return line


def _draw(line: Text, value: float | None, ranks: Mapping[float, float], cell: int, colored: bool) -> None:
    if value is None or math.isinf(value):
        line.append((_GONE if value is None else _KEPT).ljust(cell))
    elif colored:
        line.append(" " * cell, _color(ranks[value]))
    else:
        line.append(_DIGITS[min(int(10 * ranks[value]), 9)].ljust(cell))


def _color(place: float) -> Style:
    """The background for a place on the scale, from 0 to 1."""
    at, weight = divmod(place * (len(_VIRIDIS) - 1), 1)
    here, there = _VIRIDIS[int(at)], _VIRIDIS[min(int(at) + 1, len(_VIRIDIS) - 1)]
    red, green, blue = (round(a + (b - a) * weight) for a, b in zip(here, there, strict=True))
    return Style(bgcolor=Color.from_rgb(red, green, blue))


def _column_numbers(start: int, stop: int) -> list[list[str]]:
    """The numbers of the columns, each written from top to bottom: one list per line."""
    numbers = [str(n) for n in range(start, stop)]
    tall = max(map(len, numbers), default=0)
    return [[n.rjust(tall)[level] for n in numbers] for level in range(tall)]


def _as_they_fit(lines: Iterable[Text], options: ConsoleOptions) -> RenderResult:
    """Lines that are never wrapped, in ASCII where the terminal can do no more."""
    for line in lines:
        if options.ascii_only:
            line.plain = line.plain.translate(_ASCII)
        line.no_wrap, line.overflow = True, "crop"
        yield line


@dataclass(frozen=True)
class KeptMap:
    """A rich renderable: one line per site, a mark for each kept and each removed head, and their counts.

    Attributes:
        entries: ``site``, ``heads`` (or None) and ``kept`` (or None) of each site.
    """

    entries: Sequence[Mapping[str, Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _as_they_fit(self._lines(), options)

    def _lines(self) -> Iterator[Text]:
        longest = min(_LONGEST_SITE, max((len(e["site"]) for e in self.entries), default=0))
        for entry in self.entries:
            kept = set(entry["kept"] or [])
            marks = "".join(_KEPT if head in kept else _GONE for head in range(entry["heads"] or 0))
            of = "?" if entry["heads"] is None else entry["heads"]
            yield Text(f"{entry['site']:<{longest}}  {marks}  {len(kept)}/{of}")
