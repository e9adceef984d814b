"""What all pictures share: their style, their layout, and their conversion to PNG, or to SVG inside a page.

The same document gives the same bytes with the same version of matplotlib.
"""

from __future__ import annotations

import base64
import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

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
def styled() -> Iterator[None]:
    """Draw and save in the house style, within a ``with`` block."""
    from matplotlib import style

    # Start from matplotlib's own defaults. A matplotlibrc file, which may lie in the working folder, could run another
    # program (TeX) for texts, and the same document would not give the same bytes.
    with style.context(["default", _STYLE]), warnings.catch_warnings():
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


def page_images(picture: Picture) -> list[tuple[str, str]]:
    """Return each panel of a picture as an image of a page: its address, and words for people who hear the page.

    The address holds the image itself, an SVG file. In it nothing can run, and its identifiers and styles are its own.
    """
    images = []
    for panel in picture.panels:
        handle = io.BytesIO()
        with styled():
            figure = compose([panel], 1)
            figure.savefig(handle, format="svg", metadata=_NO_METADATA)
        content = base64.b64encode(handle.getvalue()).decode()
        label = f"{picture.title}: {panel.words}".replace("\n", " ")
        images.append((f"data:image/svg+xml;base64,{content}", label))
    return images
