"""What a picture shows, apart from how it is drawn: the same charts become SVG in a page and PNG files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; yellow for last, because it is faint
# on white, and black left for what is drawn on bars. Every series differs by its marker and its dashes too, so a
# picture can be read without any colour.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Circle, square, triangle, diamond, triangle on its tip, plus and cross, as matplotlib names them."""
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 3), (2, 2), (8, 3, 2, 3))
"""Lengths of dashes and gaps, in units of a line one unit wide."""

_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        title: what it counts, with unit and number of samples; a line break is kept.
        low, high: the ends.
        names: texts at 0, 1, 2 ... in the place of numbers.
        counts: whether only whole numbers make sense.
    """

    title: str
    low: float
    high: float
    names: tuple[str, ...] = ()
    counts: bool = False

    def ticks(self) -> list[float]:
        """Where numbers stand: 1, 2, 2.5 or 5 times a power of ten apart, about six of them."""
        if self.names:
            return [float(index) for index in range(len(self.names))]
        rough = (self.high - self.low) / 6
        power = 10 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in _STEPS if factor * power >= rough * 0.999)
        if self.counts:
            step = max(1.0, float(math.ceil(step)))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{index * step:.10g}") for index in range(first, last + 1)]

    def text(self, tick: float) -> str:
        """What stands at a tick."""
        if self.names:
            return self.names[round(tick)]
        return short_count(tick) if self.counts else f"{tick:g}"

    def share(self, value: float) -> float:
        """Where a value lies between the ends: 0 at the low one, 1 at the high one, never outside."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


@dataclass(frozen=True)
class Series:
    """Values that belong together.

    Attributes:
        kind: ``line``; ``points``; ``steps`` (a histogram's outline: one more x than y); ``bars`` (filled, likewise);
            ``guide`` (a thin grey line that is no measurement).
        x, y: places; equally many but for ``steps`` and ``bars``.
        style: the number of its colour, marker and dashes.
        label: its name in the legend; empty for none.
        low, high: the ends of the whisker at each point, None where there is none.
        texts: what is written above each bar or beside each point.
    """

    kind: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    style: int = 0
    label: str = ""
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    texts: tuple[str, ...] = ()

    def whiskers(self) -> Iterator[tuple[float, float, float]]:
        """x, low end and high end of every whisker."""
        for x, low, high in zip(self.x, self.low, self.high, strict=False):
            if low is not None and high is not None:
                yield x, low, high

    def marked(self) -> list[int]:
        """Which points of a line carry its marker: all of a few, else five, placed apart from other lines' ones."""
        count = len(self.x)
        if count <= 12:
            return list(range(count))
        first = (self.style * 7 % 18) / 100 + 0.02
        return [round((first + 0.2 * step) * (count - 1)) for step in range(5)]


@dataclass(frozen=True)
class Panel:
    """Series between two axes.

    Attributes:
        tall: height over width of the part between the axes.
    """

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    tall: float = 0.75


@dataclass(frozen=True)
class HeadGrid:
    """The heads of one member: a line for each site, a cell for each head.

    Attributes:
        rows: name of the site, number of heads, and those that are kept.
    """

    title: str
    rows: tuple[tuple[str, int, frozenset[int]], ...]

    def widest(self) -> int:
        """The most heads of any site."""
        return max((heads for _, heads, _ in self.rows), default=0)


@dataclass(frozen=True)
class Figure:
    """One picture.

    Attributes:
        kind: what it shows, as in the names of files: ``roc``, ``heads``, ...
        title: its heading.
        panels: side by side where there is room.
        model: the row it is about; None where it is about all of them.
        stacked: panels one above the other: they share their x axis.
    """

    kind: str
    title: str
    panels: tuple[Panel | HeadGrid, ...]
    model: int | None = None
    stacked: bool = False

    def legend(self) -> list[Series]:
        """One series for each label, in order."""
        found: dict[str, Series] = {}
        for panel in self.panels:
            for series in panel.series if isinstance(panel, Panel) else ():
                if series.label:
                    found.setdefault(series.label, series)
        return list(found.values())


def span(values: Sequence[float], pad: float = 0.06) -> tuple[float, float]:
    """Ends of an axis with all values inside and some room, also where there is one value or none."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    room = (high - low) * pad or max(abs(high), abs(low)) * pad or pad
    return low - room, high + room


def short_count(value: float) -> str:
    """A count in four characters or less: 950, 1.2k, 48k, 1.3M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.1f}".removesuffix(".0") + unit if scaled < 9.95 else f"{scaled:.0f}{unit}"
    return f"{value:g}"
