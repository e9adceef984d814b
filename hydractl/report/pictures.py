"""What all pictures share: their looks, their layout, and how they become PNG, SVG, or SVG inside a page.

The same document gives the same bytes, with the same version of matplotlib.
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

# Okabe and Ito's colours, which people with any kind of colour vision tell apart; yellow for last, because it is faint
# on white, and black left for what is drawn on bars. Every series differs by its marker and its dashes too, so a
# picture can be read without any colour.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1.3, 1.3)), (0, (5.3, 2, 1.3, 2)))
SOFT = "#59636e"


class PointLook(TypedDict):
    """The looks of points, as matplotlib's ``plot`` takes them."""

    color: str
    marker: str
    linestyle: str
    zorder: int


class LineLook(TypedDict):
    """The looks of a line with markers, as ``plot`` takes them: ``markevery`` has the points that bear one."""

    color: str
    marker: str
    linestyle: Any
    zorder: int
    markevery: list[int]
    clip_on: bool
    in_layout: bool


class GuideLook(TypedDict):
    """The looks of a thin line, as ``plot`` and ``axvline`` take them."""

    color: str
    linestyle: Any
    linewidth: float


class Unclipped(TypedDict):
    """What has ``plot`` draw over the edge of the axes."""

    clip_on: bool
    in_layout: bool


GUIDE = GuideLook(color=SOFT, linestyle=(0, (4, 3)), linewidth=0.9)
"""The looks of a thin line that is no measurement."""

UNCLIPPED = Unclipped(clip_on=False, in_layout=False)
"""For markers on the edge of the axes, which are drawn whole."""

WIDTH = 4.4  # inches of a panel
_ACROSS = 3  # panels side by side
INCHES_A_LETTER = 0.075
_STYLE = Path(__file__).with_name("hydractl.mplstyle")
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        draw: draws everything on them.
        words: what they show, for those who hear a page.
        width, height: in inches, with everything around them but the legend.
    """

    draw: Callable[[Axes], None]
    words: str
    width: float = WIDTH
    height: float = 3.3


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        kind: what it shows, as in the names of files: ``roc``, ``heads``, ...
        title: its heading.
        panels: side by side where there is room.
        stacked: whether panels stand one above the other, because they share their x axis.
    """

    kind: str
    title: str
    panels: tuple[Panel, ...]
    stacked: bool = False


def colour(index: int) -> str:
    """Return the colour of the series of this number; after the last one they start again."""
    turn = index % len(COLOURS)
    return COLOURS[turn]


def line_look(index: int, count: int) -> LineLook:
    """Return colour, dashes and markers of the line of this number, which has ``count`` points.

    Every point of a short line bears a marker, and five points of a long one.
    """
    marked = list(range(count))
    if count > 12:
        marked = _five_points(index, count)
    points = point_look(index)
    turn = index % len(_DASHES)
    return LineLook(
        color=points["color"],
        marker=points["marker"],
        linestyle=_DASHES[turn],
        zorder=points["zorder"],
        markevery=marked,
        **UNCLIPPED,
    )


def _five_points(index: int, count: int) -> list[int]:
    """Return five of ``count`` points, evenly spread, and others for the next line so that its markers stand apart."""
    last = count - 1
    first_share = (index * 7 % 18) / 100 + 0.02
    points = []
    for step in range(5):
        share = first_share + 0.2 * step
        points.append(round(share * last))
    return points


def point_look(index: int) -> PointLook:
    """Return colour and marker of the points of the series of this number, which no line joins."""
    turn = index % len(_MARKERS)
    return PointLook(color=colour(index), marker=_MARKERS[turn], linestyle="", zorder=3)


def whiskers(axes: Axes, x: Sequence[float], ends: Sequence[tuple[float, float] | None], index: int) -> None:
    """Draw the interval at each place as a line between two bars, in the colour of a series; None is left out."""
    places = []
    lows = []
    highs = []
    for place, interval in zip(x, ends, strict=True):
        if interval is None:
            continue
        low, high = interval
        places.append(place)
        lows.append(low)
        highs.append(high)
    if not places:
        return
    color = colour(index)
    axes.vlines(places, lows, highs, color=color, linewidth=1.1)
    axes.plot(
        [*places, *places],
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
    """Draw and save in the one style; the identifiers inside an SVG are made of the salt and of what they name."""
    import matplotlib

    # Over matplotlib's own defaults: a matplotlibrc, which it takes from the working folder too, could have another
    # program (TeX) run for the texts, and the same document would not give the same bytes.
    defaults = dict(matplotlib.rcParamsDefault)
    for key in matplotlib.rcParamsDefault:
        if key.startswith("backend"):
            del defaults[key]
    with matplotlib.rc_context(defaults), warnings.catch_warnings():
        matplotlib.rcParams.update(matplotlib.rc_params_from_file(_STYLE, use_default_template=False))
        matplotlib.rcParams["svg.hashsalt"] = salt
        # A name in a script that the font lacks is drawn as boxes, and absurd numbers leave no room: nothing to mend.
        warnings.simplefilter("ignore")
        yield


def add_legend(figure: Figure, wide: float) -> None:
    """Add one entry for each label of all axes, below them, and make the figure taller by as much.

    The entries stand in columns that are as evenly filled as they can be. A figure without labels stays as it is.

    Args:
        figure: with everything drawn.
        wide: inches that the columns have.
    """
    artist_of_label = _labelled_artists(figure)
    if not artist_of_label:
        return
    count = len(artist_of_label)
    letters_of_line_before_label = 7
    letters_of_entry = max(map(len, artist_of_label)) + letters_of_line_before_label
    letters = wide / INCHES_A_LETTER
    most_columns = max(1, int(letters / letters_of_entry))
    fewest_lines = math.ceil(count / most_columns)
    # As few columns as do with so many lines, so that the last line is not nearly empty.
    columns = math.ceil(count / fewest_lines)
    lines = math.ceil(count / columns)
    labels = list(artist_of_label)
    figure.legend(artist_of_label.values(), labels, loc="outside lower center", ncols=columns)
    width, height = figure.get_size_inches()
    height_of_legend = 0.19 * lines
    with_legend = height + height_of_legend + 0.1
    figure.set_size_inches(width, with_legend)


def _labelled_artists(figure: Figure) -> dict[str, Artist]:
    """Return what bears each label: of several that bear the same one, the first."""
    artist_of_label: dict[str, Artist] = {}
    for axes in figure.axes:
        artists, labels = axes.get_legend_handles_labels()
        for artist, label in zip(artists, labels, strict=True):
            artist_of_label.setdefault(label, artist)
    return artist_of_label


def lay_out(figure: Figure) -> None:
    """Compute the place of everything in the figure now, and keep it whenever the figure is drawn."""
    engine = figure.get_layout_engine()
    assert engine is not None  # constrained
    engine.execute(figure)
    figure.set_layout_engine(None)


def compose(panels: Sequence[Panel], across: int, title: str = "") -> Figure:
    """Return a figure with these panels drawn, ``across`` of them side by side in each row, and one legend below."""
    from matplotlib.figure import Figure

    heights = _heights_of_rows(panels, across)
    widest = max(panel.width for panel in panels)
    wide = across * widest
    tall = sum(heights)
    if title:
        tall += 0.3
    figure = Figure(figsize=(wide, tall), layout="constrained")
    grid = figure.subplots(len(heights), across, squeeze=False, gridspec_kw={"height_ratios": heights})
    places = list(grid.flat)
    for axes, panel in zip(places, panels, strict=False):
        panel.draw(axes)
    left_over = places[len(panels) :]
    for axes in left_over:
        axes.set_axis_off()
    if title:
        (drawn_title,) = drawn_names([title], 70)
        figure.suptitle(drawn_title)
    add_legend(figure, wide)
    lay_out(figure)
    return figure


def _heights_of_rows(panels: Sequence[Panel], across: int) -> list[float]:
    """Return the inches of each row of panels: of its tallest panel."""
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
    """Return the panels of a picture as SVG elements for a page, one each; those that are stacked are one together.

    Args:
        picture: what to draw.
        salt: different for each picture of a page, so that no two elements of the page have the same identifier.
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
    """Return an SVG file as an element of a page: without what belongs to a file, names of groups, needless digits.

    Args:
        svg_file: as matplotlib writes it.
        label: what a reader of the page hears of it.
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
    """Remove the style sheets in an element: they would hold for the whole page, whose own says the same."""
    sheets = [child for child in element if child.tag.endswith("}style")]
    for sheet in sheets:
        element.remove(sheet)


def _short_attributes(element: ElementTree.Element) -> dict[str, str]:
    """Return the attributes of an element without namespaces, their values short; a group loses its identifier."""
    attributes = {}
    for name, value in element.attrib.items():
        attributes[_without_namespace(name)] = _short_value(value)
    if _without_namespace(element.tag) == "g":
        attributes.pop("id", None)
    return attributes


def _without_namespace(name: str) -> str:
    """Return a name of XML without its namespace: ``href`` of ``{http://...}href``."""
    return name.rpartition("}")[2]


_FONT = re.compile(r"font-family: [^;]*;? ?")
_LONG_FRACTION = re.compile(r"\d+\.\d{3,}")


def _short_value(value: str) -> str:
    """Return an attribute with coordinates to a hundredth, on one line, and in the page's font."""
    in_one_line = " ".join(value.split())
    without_font = _FONT.sub("", in_one_line)
    return _LONG_FRACTION.sub(_to_a_hundredth, without_font)


def _to_a_hundredth(match: re.Match[str]) -> str:
    """Return the fraction of a match rounded to two decimals, without noughts at its end."""
    rounded = f"{float(match[0]):.2f}"
    without_zeros = rounded.rstrip("0")
    return without_zeros.rstrip(".")
