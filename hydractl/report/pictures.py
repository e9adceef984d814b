"""What all pictures share: their style, their layout, and their conversion to PNG, SVG, or SVG inside a page.

The same document gives the same bytes with the same version of matplotlib.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypedDict
from xml.etree import ElementTree

from hydractl.report.texts import drawn_names

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with any kind of colour vision can tell apart. Yellow is last, because it is
# faint on white; black is kept for what is drawn on bars. Series also differ in their markers and dashes, so that a
# picture can be read without colours.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1.3, 1.3)), (0, (5.3, 2, 1.3, 2)))
SOFT = "#59636e"


class PointLook(TypedDict):
    """The style of points, as arguments of matplotlib's ``plot``."""

    color: str
    marker: str
    linestyle: str
    zorder: int


class LineLook(TypedDict):
    """The style of a line with markers, as arguments of ``plot``; ``markevery`` lists the points that have a marker."""

    color: str
    marker: str
    linestyle: Any
    zorder: int
    markevery: list[int]
    clip_on: bool
    in_layout: bool


class GuideLook(TypedDict):
    """The style of a thin line, as arguments of ``plot`` and ``axvline``."""

    color: str
    linestyle: Any
    linewidth: float


class Unclipped(TypedDict):
    """Arguments with which ``plot`` draws beyond the edge of the axes."""

    clip_on: bool
    in_layout: bool


GUIDE = GuideLook(color=SOFT, linestyle=(0, (4, 3)), linewidth=0.9)
"""The style of a thin line that shows no measurement, e.g. a diagonal."""

UNCLIPPED = Unclipped(clip_on=False, in_layout=False)
"""The arguments for markers on the edge of the axes, so that they are drawn whole."""

WIDTH = 4.4  # of a panel, in inches
_ACROSS = 3  # the most panels side by side
INCHES_A_LETTER = 0.075
_STYLE = Path(__file__).with_name("hydractl.mplstyle")
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        draw: draws everything on the axes that it is given.
        words: what the panel shows, for people who hear a page.
        width, height: the size in inches, with everything around the axes except the legend.
    """

    draw: Callable[[Axes], None]
    words: str
    width: float = WIDTH
    height: float = 3.3


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        kind: what it shows, as in file names: ``roc``, ``heads``, ...
        title: its heading.
        panels: its panels, side by side if there is room.
        stacked: whether the panels stand below each other, because they share their x axis.
    """

    kind: str
    title: str
    panels: tuple[Panel, ...]
    stacked: bool = False


def colour(index: int) -> str:
    """Return the colour of the series of this index; after the last colour they start again."""
    turn = index % len(COLOURS)
    return COLOURS[turn]


def line_look(index: int, count: int) -> LineLook:
    """Return the style of a line: colour, dashes and markers.

    Every point of a short line has a marker; of a long line only five points have one.

    Args:
        index: the index of the series.
        count: the number of points of the line.
    """
    marked = list(range(count))
    if count > 12:
        marked = _five_points(index, count)
    return LineLook(
        color=colour(index),
        marker=_MARKERS[index % len(_MARKERS)],
        linestyle=_DASHES[index % len(_DASHES)],
        zorder=3,
        markevery=marked,
        **UNCLIPPED,
    )


def _five_points(index: int, count: int) -> list[int]:
    """Return the indices of five of ``count`` points, evenly spread.

    Each series gets others, so that markers differ.
    """
    last = count - 1
    # Move the first point by up to 0.18 of the line; 7 and 18 have no common factor, so neighbouring series differ.
    first_share = (index * 7 % 18) / 100 + 0.02
    points = []
    for step in range(5):
        share = first_share + 0.2 * step
        points.append(round(share * last))
    return points


def point_look(index: int) -> PointLook:
    """Return the style of points that no line joins: the colour and the marker of the series of this index.

    Lines differ by dashes, too. Of points no two of the first 49 series have colour and marker in common: once all
    colours were used, each gets the marker of the next.
    """
    round_of_colours = index // len(COLOURS)
    turn = (index + round_of_colours) % len(_MARKERS)
    return PointLook(color=colour(index), marker=_MARKERS[turn], linestyle="", zorder=3)


def whiskers(axes: Axes, x: Sequence[float], ends: Sequence[tuple[float, float] | None], index: int) -> None:
    """Draw intervals as vertical lines with a bar at each end, in the colour of a series.

    Args:
        axes: the axes to draw on.
        x: the x coordinate of each interval.
        ends: the two ends of each interval; None is left out.
        index: the index of the series.
    """
    xs = []
    lows = []
    highs = []
    for x_of_interval, interval in zip(x, ends, strict=True):
        if interval is None:
            continue
        low, high = interval
        xs.append(x_of_interval)
        lows.append(low)
        highs.append(high)
    if not xs:
        return
    color = colour(index)
    axes.vlines(xs, lows, highs, color=color, linewidth=1.1)
    axes.plot(
        [*xs, *xs],
        [*lows, *highs],
        marker="_",
        markersize=6,
        color=color,
        markeredgecolor=color,
        linestyle="",
    )


# --- output -----------------------------------------------------------------------------------------------------------


@contextmanager
def styled(salt: str = "hydractl") -> Iterator[None]:
    """Draw and save in the house style, within a ``with`` block.

    Args:
        salt: makes the identifiers inside an SVG reproducible, together with what they name.
    """
    import matplotlib

    # Start from matplotlib's own defaults. A matplotlibrc file, which may lie in the working folder, could run another
    # program (TeX) for texts, and the same document would not give the same bytes. Keep the backend as it is.
    defaults = dict(matplotlib.rcParamsDefault)
    for key in matplotlib.rcParamsDefault:
        if key.startswith("backend"):
            del defaults[key]
    with matplotlib.rc_context(defaults), warnings.catch_warnings():
        matplotlib.rcParams.update(matplotlib.rc_params_from_file(_STYLE, use_default_template=False))
        matplotlib.rcParams["svg.hashsalt"] = salt
        # Warnings are about names that the font cannot draw and numbers that leave no room; nothing can be done.
        warnings.simplefilter("ignore")
        yield


def add_legend(figure: Figure, wide: float) -> None:
    """Add a legend below all axes, with one entry for each label, and make the figure taller by its height.

    The entries stand in columns that are filled as evenly as possible. A figure without labels stays as it is.

    Args:
        figure: the figure, with everything drawn.
        wide: the width, in inches, for the columns.
    """
    artist_of_label = _labelled_artists(figure)
    if not artist_of_label:
        return

    # As many columns as the width allows give the number of lines.
    count = len(artist_of_label)
    letters_of_line_before_label = 7
    letters_of_entry = max(map(len, artist_of_label)) + letters_of_line_before_label
    letters_across = wide / INCHES_A_LETTER
    most_columns = max(1, int(letters_across / letters_of_entry))
    fewest_lines = math.ceil(count / most_columns)
    # Take the fewest columns that need no more lines, so that the last line is not nearly empty.
    columns = math.ceil(count / fewest_lines)
    lines = math.ceil(count / columns)
    labels = list(artist_of_label)
    figure.legend(artist_of_label.values(), labels, loc="outside lower center", ncols=columns)

    width, height = figure.get_size_inches()
    height_of_legend = 0.19 * lines
    with_legend = height + height_of_legend + 0.1
    figure.set_size_inches(width, with_legend)


def _labelled_artists(figure: Figure) -> dict[str, Artist]:
    """Return the artist of each label; if several artists have the same label, the first."""
    artist_of_label: dict[str, Artist] = {}
    for axes in figure.axes:
        artists, labels = axes.get_legend_handles_labels()
        for artist, label in zip(artists, labels, strict=True):
            artist_of_label.setdefault(label, artist)
    return artist_of_label


def lay_out(figure: Figure) -> None:
    """Compute the layout of the figure now, and keep it each time the figure is drawn."""
    engine = figure.get_layout_engine()
    assert engine is not None  # constrained
    engine.execute(figure)
    figure.set_layout_engine(None)


def compose(panels: Sequence[Panel], across: int, title: str = "") -> Figure:
    """Return a figure with these panels drawn in rows of ``across`` panels, and one legend below.

    Args:
        panels: the panels.
        across: the number of panels side by side.
        title: the title of the figure; empty means none.
    """
    from matplotlib.figure import Figure

    row_heights = _heights_of_rows(panels, across)
    widest = max(panel.width for panel in panels)
    figure_width = across * widest
    figure_height = sum(row_heights)
    if title:
        figure_height += 0.3
    figure = Figure(figsize=(figure_width, figure_height), layout="constrained")
    grid = figure.subplots(len(row_heights), across, squeeze=False, gridspec_kw={"height_ratios": row_heights})

    # Draw each panel on its axes, and hide the axes left over in the last row.
    all_axes = list(grid.flat)
    for axes, panel in zip(all_axes, panels, strict=False):
        panel.draw(axes)
    unused_axes = all_axes[len(panels) :]
    for axes in unused_axes:
        axes.set_axis_off()

    if title:
        (drawn_title,) = drawn_names([title], 70)
        figure.suptitle(drawn_title)
    add_legend(figure, figure_width)
    lay_out(figure)
    return figure


def _heights_of_rows(panels: Sequence[Panel], across: int) -> list[float]:
    """Return the height, in inches, of each row of panels, which is that of its tallest panel."""
    heights = []
    for start in range(0, len(panels), across):
        side_by_side = panels[start : start + across]
        heights.append(max(panel.height for panel in side_by_side))
    return heights


def save_png(picture: Picture, handle: IO[bytes]) -> None:
    """Write a picture with all its panels as a PNG file."""
    across = 1
    if not picture.stacked:
        across = min(len(picture.panels), _ACROSS)
    with styled():
        figure = compose(picture.panels, across, picture.title)
        figure.savefig(handle, format="png", metadata={"Software": None})


def inline_svgs(picture: Picture, salt: str) -> list[str]:
    """Return the panels of a picture as SVG elements for a page: one element each, or one for all if they are stacked.

    Args:
        picture: the picture to draw.
        salt: a text that differs for each picture of a page, so that no two elements of the page have the same
            identifier.
    """
    groups: list[tuple[Panel, ...]] = [(panel,) for panel in picture.panels]
    if picture.stacked:
        groups = [picture.panels]
    elements = []
    for index, panels in enumerate(groups):
        handle = io.BytesIO()
        with styled(f"{salt}.{index}"):
            figure = compose(panels, 1)
            figure.savefig(handle, format="svg", metadata=_NO_METADATA)
        descriptions = [f"{picture.title}: {panel.words}" for panel in panels]
        label = "; ".join(descriptions).replace("\n", " ")
        elements.append(_svg_element(handle.getvalue(), label))
    return elements


def _svg_element(svg_file: bytes, label: str) -> str:
    """Return an SVG file as an element for a page, without style sheets, group names and needless digits.

    Args:
        svg_file: the file as matplotlib writes it.
        label: a description for people who hear the page.
    """
    root = ElementTree.fromstring(svg_file)
    for element in root.iter():
        _remove_style_sheets(element)
        attributes = _short_attributes(element)
        element.attrib.clear()
        element.attrib.update(attributes)
        element.tag = _without_namespace(element.tag)
        text = (element.text or "").strip()
        element.text = text or None
        element.tail = None
    root.attrib.update({"role": "img", "aria-label": label})
    return ElementTree.tostring(root, encoding="unicode")


def _remove_style_sheets(element: ElementTree.Element) -> None:
    """Remove the style sheets in an element: they would apply to the whole page, which has the same rules itself."""
    sheets = [child for child in element if child.tag.endswith("}style")]
    for sheet in sheets:
        element.remove(sheet)


def _short_attributes(element: ElementTree.Element) -> dict[str, str]:
    """Return the attributes of an element without namespaces and with short values; a group loses its identifier."""
    attributes = {}
    for name, value in element.attrib.items():
        attributes[_without_namespace(name)] = _short_value(value)
    if _without_namespace(element.tag) == "g":
        attributes.pop("id", None)
    return attributes


def _without_namespace(name: str) -> str:
    """Return an XML name without its namespace, e.g. ``href`` for ``{http://...}href``."""
    return name.rpartition("}")[2]


_FONT = re.compile(r"font-family: [^;]*;? ?")
_LONG_FRACTION = re.compile(r"\d+\.\d{3,}")


def _short_value(value: str) -> str:
    """Return the value of an attribute on one line, with coordinates rounded to a hundredth, and without a font."""
    in_one_line = " ".join(value.split())
    without_font = _FONT.sub("", in_one_line)
    return _LONG_FRACTION.sub(_to_a_hundredth, without_font)


def _to_a_hundredth(match: re.Match[str]) -> str:
    """Return the matched fraction rounded to two decimals, without zeros at its end."""
    rounded = f"{float(match[0]):.2f}"
    without_zeros = rounded.rstrip("0")
    return without_zeros.rstrip(".")
