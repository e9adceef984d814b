"""What all pictures share: their style, their layout, and their conversion to SVG inside a page.

The same document gives the same bytes with the same version of matplotlib.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.report.tables import Ends

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Of Okabe and Ito's colours, which people with any kind of colour vision can tell apart.
BLUE, ORANGE, VERMILION = "#0072B2", "#E69F00", "#D55E00"
SOFT = "#59636e"
GUIDE: dict[str, Any] = {"color": SOFT, "linestyle": (0, (4, 3)), "linewidth": 0.9}
"""The style of a thin line that shows no measurement, e.g. a diagonal, as arguments of matplotlib."""

_SIZE = (4.6, 3.0)
"""The width and the height of a panel with everything around its axes, in inches."""

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
        kind: what it shows, which names its section.
        title: its heading.
        panels: its panels, side by side if there is room.
    """

    kind: str
    title: str
    panels: Sequence[Panel]


def dot(axes: Axes, x: float, y: float, ends: Ends, colour: str = BLUE) -> None:
    """Draw a point, and its interval as a vertical line."""
    if ends is not None:
        low, high = ends
        axes.vlines(x, low, high, color=colour, linewidth=1.5, alpha=0.5)
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


def figure_of(panel: Panel) -> Figure:
    """Return a figure of one panel, drawn in the style that is in force."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    panel.draw(figure.subplots())
    return figure


def page_images(picture: Picture) -> list[tuple[str, str]]:
    """Return each panel of a picture as an image of a page: its address, and words for people who hear the page.

    The address holds the image itself, an SVG file. In it nothing can run, and its identifiers and styles are its own.
    """
    images = []
    for panel in picture.panels:
        handle = io.BytesIO()
        with styled():
            figure_of(panel).savefig(handle, format="svg", metadata=_NO_METADATA)
        content = base64.b64encode(handle.getvalue()).decode()
        label = f"{picture.title}: {panel.words}".replace("\n", " ")
        images.append((f"data:image/svg+xml;base64,{content}", label))
    return images
