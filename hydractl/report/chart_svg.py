"""Charts as SVG inside a page: small, the same bytes each time, coloured by the page's style sheet.

A picture is 360 units wide and grows with its place on the page, so its letters can be read on a telephone. Colours are
classes (``s0`` ...), which lets the page turn dark and the printer black.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from hydractl.report.chart import COLOURS, DASHES, MARKERS, Axis, HeadGrid, Panel, Series

WIDTH = 360
_LETTER, _DIGIT, _LINE = 6.0, 7.0, 13  # widths of a letter and a digit and height of a line, in the style sheet's size
_TOP, _RIGHT = 8, 10
_MARK = 3.6
_CELL = 16  # the largest cell of a map of heads


def svg(panel: Panel | HeadGrid, name: str, left: float | None = None) -> str:
    """One panel.

    Args:
        name: what the picture is, for those who hear the page.
        left: room for what stands left of the y axis; as much as it needs if not given.
    """
    body, height = _grid(panel) if isinstance(panel, HeadGrid) else _plot(panel, left or left_room(panel))
    head = f'<svg viewBox="0 0 {WIDTH} {_short(height)}" role="img" aria-label="{escape(name)}">'
    return f"{head}{''.join(body)}</svg>"


def swatch(series: Series) -> str:
    """What stands for a series in a legend."""
    body = f'<path class="line" d="M0 6H28"{_dashes(series)}/>' if series.kind == "line" else ""
    body = '<path class="line" d="M2 10V2H14V6H26V10"/>' if series.kind == "steps" else body
    body = '<path class="bar" d="M3 2H25V10H3Z"/>' if series.kind == "bars" else body
    marker = _marker(series.style, 14, 6) if series.kind in ("line", "points") else ""
    return f'<svg class="key {_colour(series)}" viewBox="0 0 28 12" aria-hidden="true">{body}{marker}</svg>'


# --- plots ------------------------------------------------------------------------------------------------------------


def left_room(panel: Panel | HeadGrid) -> float:
    """How much room the title and the numbers of the y axis need."""
    if isinstance(panel, HeadGrid):
        return 0
    digits = max((len(panel.y.text(tick)) for tick in panel.y.ticks()), default=1)
    return 10 + _LINE * (1 + panel.y.title.count("\n")) + _DIGIT * digits


def _plot(panel: Panel, left: float) -> tuple[list[str], float]:
    """The elements of a plot, and its height."""
    y_ticks = panel.y.ticks()
    y_lines, x_lines = panel.y.title.split("\n"), panel.x.title.split("\n")
    turned = _turned(panel.x, WIDTH - left - _RIGHT)
    below = 6 + (_LETTER * 0.75 * max(map(len, panel.x.names)) + 4 if turned else _LINE)
    top = _TOP + (_LINE + 4 if panel.title else 0)
    right, bottom = WIDTH - _RIGHT, top + panel.tall * (WIDTH - left - _RIGHT)
    height = bottom + below + _LINE * len(x_lines) + 4
    place = _Place(panel, left, top, right, bottom)
    body = [_words(panel.title, (left + right) / 2, _TOP + 8, "head")] if panel.title else []
    body += _axes(panel, place, turned, y_ticks)
    body += [_words(line, (left + right) / 2, bottom + below + _LINE * (i + 1) - 3) for i, line in enumerate(x_lines)]
    middle = (top + bottom) / 2
    for index, line in enumerate(y_lines):
        at = f"{_short(11 + _LINE * index)},{_short(middle)}"
        body.append(f'<text class="name" transform="translate({at}) rotate(-90)">{escape(line)}</text>')
    for series in panel.series:
        body += _series(series, place)
    return body, height


class _Place:
    """From values to units of the picture."""

    def __init__(self, panel: Panel, left: float, top: float, right: float, bottom: float) -> None:
        self.x_axis, self.y_axis = panel.x, panel.y
        self.left, self.top, self.right, self.bottom = left, top, right, bottom

    def x(self, value: float) -> float:
        return self.left + self.x_axis.share(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - self.y_axis.share(value) * (self.bottom - self.top)

    def point(self, x: float, y: float) -> str:
        return f"{_short(self.x(x))} {_short(self.y(y))}"


def _turned(axis: Axis, wide: float) -> bool:
    """Whether the names under an axis stand at a slant because they would run into each other."""
    return bool(axis.names) and max(map(len, axis.names)) * _LETTER > wide / len(axis.names) - 4


def _axes(panel: Panel, place: _Place, turned: bool, y_ticks: Sequence[float]) -> Iterator[str]:
    """Lines of the grid, and what stands at them."""
    lines = [f"M{_short(place.left)} {_short(place.y(t))}H{_short(place.right)}" for t in y_ticks]
    if not panel.x.names:
        lines += [f"M{_short(place.x(t))} {_short(place.top)}V{_short(place.bottom)}" for t in panel.x.ticks()]
    yield f'<path class="mesh" d="{"".join(lines)}"/>'
    corner = f"M{_short(place.left)} {_short(place.top)}V{_short(place.bottom)}H{_short(place.right)}"
    yield f'<path class="axis" d="{corner}"/>'
    for tick in y_ticks:
        at = f'x="{_short(place.left - 4)}" y="{_short(place.y(tick) + 4)}"'
        yield f'<text class="left" {at}>{panel.y.text(tick)}</text>'
    for tick in panel.x.ticks():
        text, x, y = escape(panel.x.text(tick)), place.x(tick), place.bottom + _LINE
        if turned:
            at = f"{_short(x + 3)},{_short(y - 3)}"
            yield f'<text class="left" transform="translate({at}) rotate(-48)">{text}</text>'
        else:
            yield f'<text class="tick" x="{_short(x)}" y="{_short(y)}">{text}</text>'


def _words(line: str, x: float, y: float, kind: str = "name") -> str:
    return f'<text class="{kind}" x="{_short(x)}" y="{_short(y)}">{escape(line)}</text>'


def _series(series: Series, place: _Place) -> Iterator[str]:
    yield f'<g class="{_colour(series)}">'
    if series.kind in ("line", "guide"):
        points = "L".join(place.point(x, y) for x, y in zip(series.x, series.y, strict=True))
        name = "guide" if series.kind == "guide" else "line"
        yield f'<path class="{name}" d="M{points}"{_dashes(series) if name == "line" else ""}/>'
    if series.kind == "line":
        yield "".join(_marker(series.style, place.x(series.x[i]), place.y(series.y[i])) for i in series.marked())
    if series.kind == "points":
        yield from _points(series, place)
    if series.kind in ("bars", "steps"):
        yield from _histogram(series, place)
    yield "</g>"


def _points(series: Series, place: _Place) -> Iterator[str]:
    whiskers = ""
    for x, low, high in series.whiskers():
        at, top, bottom = place.x(x), place.y(high), place.y(low)
        ends = "".join(f"M{_short(at - 3)} {_short(end)}h6" for end in (top, bottom))
        whiskers += f"M{_short(at)} {_short(bottom)}V{_short(top)}{ends}"
    if whiskers:
        yield f'<path class="whisker" d="{whiskers}"/>'
    for x, y in zip(series.x, series.y, strict=True):
        yield _marker(series.style, place.x(x), place.y(y))


def _histogram(series: Series, place: _Place) -> Iterator[str]:
    """Bars as one filled shape, steps as one line; both start and end on the ground."""
    shape = f"M{_short(place.x(series.x[0]))} {_short(place.bottom)}"
    for index, value in enumerate(series.y):
        shape += f"V{_short(place.y(value))}H{_short(place.x(series.x[index + 1]))}"
    name = "bar" if series.kind == "bars" else "line"
    yield f'<path class="{name}" d="{shape}V{_short(place.bottom)}"/>'
    for index, text in enumerate(series.texts):
        if text:
            middle = (place.x(series.x[index]) + place.x(series.x[index + 1])) / 2
            at = f'x="{_short(middle)}" y="{_short(place.y(series.y[index]) - 3)}"'
            yield f'<text class="count" {at}>{escape(text)}</text>'


def _marker(style: int, x: float, y: float) -> str:
    """One of the seven markers, as one path."""
    r, kind = _MARK, MARKERS[style % len(MARKERS)]
    at = f"M{_short(x)} {_short(y)}"
    shapes = {
        "o": f"m-{r} 0a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 -{2 * r} 0z",
        "s": f"m-{r * 0.9:g} -{r * 0.9:g}h{r * 1.8:g}v{r * 1.8:g}h-{r * 1.8:g}z",
        "^": f"m0 -{r * 1.2:g}l{r * 1.1:g} {r * 2:g}h-{r * 2.2:g}z",
        "D": f"m0 -{r * 1.25:g}l{r * 1.25:g} {r * 1.25:g}l-{r * 1.25:g} {r * 1.25:g}l-{r * 1.25:g} -{r * 1.25:g}z",
        "v": f"m0 {r * 1.2:g}l{r * 1.1:g} -{r * 2:g}h-{r * 2.2:g}z",
    }
    if kind in shapes:
        return f'<path class="mark" d="{at}{shapes[kind]}"/>'
    turn = f' transform="rotate(45 {_short(x)} {_short(y)})"' if kind == "X" else ""
    arms = f"M{_short(x)} {_short(y - r * 1.2)}v{r * 2.4:g}M{_short(x - r * 1.2)} {_short(y)}h{r * 2.4:g}"
    return f'<path class="cross" d="{arms}"{turn}/>'


def _colour(series: Series) -> str:
    return f"s{series.style % len(COLOURS)}"


def _dashes(series: Series) -> str:
    dashes = DASHES[series.style % len(DASHES)]
    return f' stroke-dasharray="{" ".join(f"{d:g}" for d in dashes)}"' if dashes else ""


# --- maps of heads ----------------------------------------------------------------------------------------------------


def _grid(grid: HeadGrid) -> tuple[list[str], float]:
    """A filled square for a head that is kept, an empty one for a head that is gone."""
    label = _LETTER * max((len(name) for name, _, _ in grid.rows), default=0) + 8
    counts = _LETTER * 6
    widest = max(grid.widest(), 1)
    cell = min((WIDTH - label - counts) / widest, _CELL)
    line = max(cell, _LINE)
    size, gap = cell * 0.8, (line - cell * 0.8) / 2
    top = _TOP + 2 * _LINE
    body = [f'<text class="head start" x="0" y="{_TOP + 8}">{escape(grid.title)}</text>']
    for head in range(0, widest, 1 if cell >= 12 else 4):
        body.append(f'<text class="tick" x="{_short(label + cell * (head + 0.5))}" y="{top - 3}">{head}</text>')
    kept_path, gone_path = "", ""
    for index, (name, heads, kept) in enumerate(grid.rows):
        y = top + line * index
        body.append(f'<text class="left" x="{_short(label - 6)}" y="{_short(y + line / 2 + 4)}">{escape(name)}</text>')
        end = _short(label + cell * heads + 5)
        body.append(f'<text class="tally" x="{end}" y="{_short(y + line / 2 + 4)}">{len(kept)}/{heads}</text>')
        for head in range(heads):
            square = f"M{_short(label + cell * head + cell * 0.1)} {_short(y + gap)}h{size:.1f}v{size:.1f}h-{size:.1f}z"
            kept_path, gone_path = (kept_path + square, gone_path) if head in kept else (kept_path, gone_path + square)
    body.append(f'<path class="kept" d="{kept_path}"/>' if kept_path else "")
    body.append(f'<path class="gone" d="{gone_path}"/>' if gone_path else "")
    height = top + line * len(grid.rows) + _LINE * 2
    body.append(f'<text class="name" x="{_short(label + cell * widest / 2)}" y="{_short(height - 8)}">head</text>')
    return body, height


def _short(value: float) -> str:
    """A coordinate to a tenth, without needless zeros."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
