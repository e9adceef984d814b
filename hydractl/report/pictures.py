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
from typing import IO, TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

from hydractl.report.tables import Ends
from hydractl.report.texts import drawn_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Of Okabe and Ito's colours, which people with any kind of colour vision can tell apart.
BLUE, ORANGE, VERMILION = "#0072B2", "#E69F00", "#D55E00"
SOFT = "#59636e"
GUIDE: dict[str, Any] = {"color": SOFT, "linestyle": (0, (4, 3)), "linewidth": 0.9}
"""The style of a thin line that shows no measurement, e.g. a diagonal, as arguments of matplotlib."""

_WIDTH, _HEIGHT, _TITLE = 4.6, 3.0, 0.3
"""The size of a panel with everything around its axes, and the height of a title, in inches."""

_ACROSS = 3  # the most panels side by side
_STYLE = Path(__file__).with_name("hydractl.mplstyle")
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        draw: draws everything on the axes that it is given.
        words: what the panel shows, for people who hear a page.
    """

    draw: Callable[[Axes], None]
    words: str


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        kind: what it shows, as in file names.
        title: its heading.
        panels: its panels, side by side if there is room.
    """

    kind: str
    title: str
    panels: Sequence[Panel]


def dot(axes: Axes, x: float, y: float, ends: Ends, colour: str = BLUE) -> None:
    """Draw a point, and its interval as a vertical line with a bar at each end."""
    if ends is not None:
        low, high = ends
        axes.vlines(x, low, high, color=colour, linewidth=1, alpha=0.5)
        axes.plot([x, x], [low, high], linestyle="", marker="_", markersize=5, markeredgecolor=colour, alpha=0.5)
    axes.plot(x, y, linestyle="", marker="o", color=colour, zorder=3, clip_on=False, in_layout=False)


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


def compose(panels: Sequence[Panel], across: int, title: str = "") -> Figure:
    """Return a figure with these panels drawn in rows of ``across`` panels.

    Args:
        panels: the panels.
        across: the number of panels side by side.
        title: the title of the figure; empty means none.
    """
    from matplotlib.figure import Figure

    rows = math.ceil(len(panels) / across)
    height = rows * _HEIGHT + (_TITLE if title else 0)
    figure = Figure(figsize=(across * _WIDTH, height), layout="constrained")
    grid = figure.subplots(rows, across, squeeze=False)

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
    # Compute the layout now, and keep it each time the figure is drawn.
    engine = figure.get_layout_engine()
    assert engine is not None  # constrained
    engine.execute(figure)
    figure.set_layout_engine(None)
    return figure


def save_png(picture: Picture, handle: IO[bytes]) -> None:
    """Write a picture with all its panels as a PNG file."""
    across = min(len(picture.panels), _ACROSS)
    with styled():
        figure = compose(picture.panels, across, picture.title)
        figure.savefig(handle, format="png", metadata={"Software": None})


def inline_svgs(picture: Picture, salt: str) -> list[str]:
    """Return each panel of a picture as an SVG element for a page.

    Args:
        picture: the picture to draw.
        salt: a text that differs for each picture of a page, so that no two elements of the page have the same
            identifier.
    """
    elements = []
    for index, panel in enumerate(picture.panels):
        handle = io.BytesIO()
        with styled(f"{salt}.{index}"):
            figure = compose([panel], 1)
            figure.savefig(handle, format="svg", metadata=_NO_METADATA)
        label = f"{picture.title}: {panel.words}".replace("\n", " ")
        elements.append(_svg_element(handle.getvalue(), label))
    return elements


_STYLE_SHEET = re.compile(r"<style.*?</style>", re.DOTALL)
_TAG = re.compile(r"\s*<[^>]*>\s*")
_NEEDLESS = re.compile(r' xmlns(:xlink)?="[^"]*"|(?<=<g) id="[^"]*"|font-family: [^;"]*;? ?|xlink:')
"""Of a tag: namespaces, the names of groups, which other pictures of a page have, too, and fonts."""
_LONG_FRACTION = re.compile(r"\d+\.\d{3,}")


def _svg_element(svg_file: bytes, label: str) -> str:
    """Return an SVG file as an element for a page, without what a page has itself, and without needless digits.

    Style sheets are removed, as they would apply to the whole page, which has the same rules.

    Args:
        svg_file: the file as matplotlib writes it.
        label: a description for people who hear the page.
    """
    _, start, rest = svg_file.decode().partition("<svg")
    element = _TAG.sub(_short_tag, _STYLE_SHEET.sub("", start + rest))
    return element.replace(start, f'{start} role="img" aria-label={quoteattr(label)}', 1)


def _short_tag(match: re.Match[str]) -> str:
    """Return the matched tag on one line, with coordinates rounded to a hundredth, and without what is needless."""
    in_one_line = " ".join(match[0].split())
    return _LONG_FRACTION.sub(_to_a_hundredth, _NEEDLESS.sub("", in_one_line))


def _to_a_hundredth(match: re.Match[str]) -> str:
    """Return the matched fraction rounded to two decimals, without zeros at its end."""
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")
