"""Maps of the heads of a model, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from hydractl.files.circuit_answer import KeptSite
from hydractl.report.texts import GONE, KEPT, head_marks, number, short_names

# Ten evenly spaced colours of the map viridis (Smith and van der Walt, 2015). Lightness grows from end to end, so that
# the order shows without hue, too.
_VIRIDIS = (
    (0x44, 0x01, 0x54), (0x48, 0x28, 0x78), (0x3E, 0x4A, 0x89), (0x31, 0x68, 0x8E), (0x26, 0x82, 0x8E),
    (0x1F, 0x9E, 0x89), (0x35, 0xB7, 0x79), (0x6E, 0xCE, 0x58), (0xB5, 0xDE, 0x2B), (0xFD, 0xE7, 0x25),
)  # fmt: skip
_DIGITS = "0123456789"
_ASCII = str.maketrans({KEPT: "#", GONE: ".", "…": "~"})
_GAP = 2
_LEAST_NAME = 12
_LEGEND_CELLS = 20

_LONGEST_SITE = 100
"""The most characters to which the names of sites are padded; one longer name does not widen the others."""


class _MapLayout(NamedTuple):
    """The layout of a map of heads; widths are in characters.

    Attributes:
        label: the width of the names of sites.
        cell: the width of one head.
        heads_of_part: the number of heads side by side; further heads stand in another part below.
    """

    label: int
    cell: int
    heads_of_part: int


@dataclass(frozen=True)
class HeatMap:
    """A map for the terminal: one shaded cell per head, the site on the left, the index of the head on top.

    A site is an attention module of the model. Shades follow the rank of a value among all values, because a few heads
    often outdo the rest by far. With 256 colours or more a cell is a patch of colour. With fewer it is a digit, the
    tenth of all ranks to which the value belongs.

    Attributes:
        title: the first line.
        rows: for each site its name and one value per head, by the original indices of the heads. A finite number is
            shaded, infinity is a head that stays for good (``■``), and None is a head that is not there (``·``).
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
        """Yield the lines of the map for a console, in colour if it has 256 colours or more."""
        colored = console.color_system in ("256", "truecolor") and not console.no_color
        yield from _cropped(self._lines(options.max_width, colored), options)

    def _lines(self, width: int, colored: bool) -> Iterator[Text]:
        """Yield the title, the legend and the map.

        If the heads do not fit a line, the map has several parts below each other.
        """
        values = self._values_to_shade()
        yield Text(self.title)
        yield self._legend(values, colored)

        heads = max((len(row) for _, row in self.rows), default=0)
        # Split the heads into parts that fit a line.
        layout = self._layout(width, heads)
        ranks = _rank_of_values(values)
        step = layout.heads_of_part
        for start in range(0, max(heads, 1), step):  # a map without heads has one part, too
            stop = min(start + step, heads)
            yield from self._map_part(start, stop, layout, ranks, colored)

    def _layout(self, width: int, heads: int) -> _MapLayout:
        """Return the layout of a map of this many heads in lines of this width.

        Args:
            width: the width of a line in characters.
            heads: the largest number of heads of a site.
        """
        longest_name = max((len(name) for name, _ in self.rows), default=0)

        # A head takes two characters if all heads then fit beside names of a few letters, else one.
        shortest_label = min(longest_name, _LEAST_NAME)
        cell = 2 if 2 * heads + _GAP + shortest_label <= width else 1

        # Names get the rest of the line, but at least a few letters. Then as many heads as fit beside them.
        label = min(longest_name, max(width - _GAP - cell * heads, _LEAST_NAME))
        return _MapLayout(label, cell, max((width - _GAP - label) // cell, 1))

    def _map_part(
        self, start: int, stop: int, layout: _MapLayout, ranks: Mapping[float, float], colored: bool
    ) -> Iterator[Text]:
        """Yield the lines of a part of the map: the indices of its heads, then each site with its name and these heads.

        Args:
            start, stop: the part shows the heads from ``start`` up to, but not including, ``stop``.
            layout: the layout of the map.
            ranks: the rank of each value, from 0 to 1.
            colored: whether shades are colours; else they are digits.
        """
        # The indices of the heads stand above their cells, behind the width of the names.
        cell = layout.cell
        letters_before_heads = layout.label + _GAP
        for digits in _column_numbers(start, stop):
            yield Text(" " * letters_before_heads + "".join(digit.ljust(cell) for digit in digits))

        labels = short_names([name for name, _ in self.rows], layout.label)
        for label, (_, values) in zip(labels, self.rows, strict=True):
            line = Text(label.ljust(letters_before_heads))
            for value in values[start:stop]:
                _append_cell(line, value, ranks, cell, colored)
            yield line

    def _values_to_shade(self) -> list[float]:
        """Return the distinct finite values in rising order."""
        values = {value for _, row in self.rows for value in row if value is not None}
        return sorted(filter(math.isfinite, values))

    def _legend(self, values: Sequence[float], colored: bool) -> Text:
        """Return the scale between its two ends, if values are shaded, and the meaning of the marks in the map.

        Args:
            values: the distinct shaded values, in rising order.
            colored: whether shades are colours; else they are digits.
        """
        line = Text()
        if values:
            line.append(f"{self.low} {self.form(values[0])} ")
            _append_scale(line, colored)
            line.append(f" {self.high} {self.form(values[-1])}   ")

        # Explain a mark only if the map has it.
        marks = []
        rows = [row for _, row in self.rows]
        if any(math.inf in row for row in rows):
            marks.append(f"{KEPT} kept")
        if any(None in row for row in rows):
            marks.append(f"{GONE} {self.gone}")
        line.append("   ".join(marks))
        return line


def _rank_of_values(values: Sequence[float]) -> dict[float, float]:
    """Return the rank of each value, from 0 for the lowest to 1 for the highest.

    Args:
        values: distinct values in rising order.
    """
    if len(values) == 1:
        return {values[0]: 0.5}
    return {value: index / (len(values) - 1) for index, value in enumerate(values)}


def _append_cell(line: Text, value: float | None, ranks: Mapping[float, float], cell: int, colored: bool) -> None:
    """Append one head to a line: a mark if it is gone or stays for good, else a shade by the rank of its value.

    Args:
        line: the line that is appended to.
        value: the value of the head; None if it is gone, infinity if it stays for good.
        ranks: the rank of each value, from 0 to 1.
        cell: the number of characters of a head.
        colored: whether a shade is a colour; else it is a digit.
    """
    if value is None:
        line.append(GONE.ljust(cell))
    elif math.isinf(value):
        line.append(KEPT.ljust(cell))
    elif colored:
        line.append(" " * cell, _background(ranks[value]))
    else:
        line.append(_DIGITS[min(int(10 * ranks[value]), 9)].ljust(cell))


def _append_scale(line: Text, colored: bool) -> None:
    """Append all shades, from the lowest to the highest, to a line."""
    if not colored:
        line.append(_DIGITS)
        return
    for index in range(_LEGEND_CELLS):
        line.append(" ", _background(index / (_LEGEND_CELLS - 1)))


def _background(place: float) -> Style:
    """Return the background colour for a position on the scale, 0 to 1.

    It is mixed from the two nearest of the ten colours.
    """
    # The position lies between two colours of the list; the fraction is the weight of the next one.
    last = len(_VIRIDIS) - 1
    steps, weight_of_next = divmod(place * last, 1)
    below, above = _VIRIDIS[int(steps)], _VIRIDIS[min(int(steps) + 1, last)]
    mixed = [round(low + (high - low) * weight_of_next) for low, high in zip(below, above, strict=True)]
    return Style(bgcolor=Color.from_rgb(*mixed))


def _column_numbers(start: int, stop: int) -> list[list[str]]:
    """Return the column numbers from ``start`` to ``stop``, each written downwards: a list of digits per line."""
    numbers = list(map(str, range(start, stop)))
    most_digits = max(map(len, numbers), default=0)
    return [[number.rjust(most_digits)[level] for number in numbers] for level in range(most_digits)]


def _cropped(lines: Iterable[Text], options: ConsoleOptions) -> RenderResult:
    """Yield lines that are cut at the width and never wrapped; in ASCII if the terminal can show nothing else."""
    for line in lines:
        if options.ascii_only:
            line.plain = line.plain.translate(_ASCII)
        line.no_wrap = True
        line.overflow = "crop"
        yield line


@dataclass(frozen=True)
class KeptMap:
    """A map for the terminal: a line per site (attention module), a mark per kept or removed head, and their counts."""

    sites: Sequence[KeptSite]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _cropped(self._lines(), options)

    def _lines(self) -> Iterator[Text]:
        """Yield the line of each site: its name, the marks of its heads, and the numbers of kept and of all heads."""
        letters = min(_LONGEST_SITE, max((len(site.site) for site in self.sites), default=0))
        for site in self.sites:
            marks = "" if site.heads is None else head_marks(site.heads, site.kept)
            heads = "?" if site.heads is None else site.heads
            yield Text(f"{site.site.ljust(letters)}  {marks}  {len(site.kept)}/{heads}")
