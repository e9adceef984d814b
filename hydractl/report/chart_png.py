"""Charts as PNG files, drawn by matplotlib without a display; the same chart gives the same bytes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

from hydractl.report.chart import COLOURS, DASHES, MARKERS, Axis, Figure, HeadGrid, Panel, Series
from hydractl.report.eval_names import drawn_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so the picture is the same everywhere
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "grid.color": "#d5dae0",
    "grid.linewidth": 0.6,
    "text.parse_math": False,  # a name may hold a dollar sign
}
_WIDE = 4.4  # inches of one panel
_ACROSS = 3  # panels side by side
_CELL = 0.18  # inches of one head
_INCHES_A_LETTER = 0.075
_LEGEND_ROW = 0.19
_SOFT = "#59636e"
_DPI = 160


def draw(drawn: Figure, handle: IO[bytes], heading: str = "") -> None:
    """Draw one picture with all its panels and its legend as a PNG.

    Args:
        heading: what stands on top; the picture's own title if empty.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    panels = drawn.panels
    across = 1 if drawn.stacked else min(len(panels), _ACROSS)
    down = -(-len(panels) // across)
    heights = [max(_height(panel) for panel in panels[row * across : (row + 1) * across]) for row in range(down)]
    legend = drawn.legend()
    wide = max(_width(panel) for panel in panels) * across
    columns = _legend_columns(legend, wide)
    tall = sum(heights) + 0.4 + (_LEGEND_ROW * -(-len(legend) // columns) + 0.1 if legend else 0)
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; the page has it in full.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        canvas = Canvas(figsize=(wide, tall), layout="constrained")
        grid = canvas.subplots(down, across, squeeze=False, gridspec_kw={"height_ratios": heights})
        places = list(grid.flat)
        for place, panel in zip(places, panels, strict=False):
            _heads(place, panel) if isinstance(panel, HeadGrid) else _plot(place, panel)
        for place in places[len(panels) :]:
            place.set_axis_off()
        canvas.suptitle(drawn_names([heading or drawn.title], 70)[0], fontsize=10, fontweight="bold")
        if legend:
            handles = [_key(series) for series in legend]
            labels = [series.label for series in legend]
            canvas.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=2.6)
        canvas.savefig(handle, format="png", dpi=_DPI, metadata={"Software": None})


def _height(panel: Panel | HeadGrid) -> float:
    """Inches, with what stands above and below."""
    if isinstance(panel, HeadGrid):
        return 1.05 + _CELL * len(panel.rows)
    return 0.75 + panel.tall * (_WIDE - 0.9)


def _width(panel: Panel | HeadGrid) -> float:
    if not isinstance(panel, HeadGrid):
        return _WIDE
    letters = max((len(name) for name, _, _ in panel.rows), default=0)
    return max(
        0.9 + _CELL * panel.widest() + _INCHES_A_LETTER * letters, 0.4 + _INCHES_A_LETTER * len(panel.title), 2.4
    )


def _legend_columns(legend: Sequence[Series], inches: float) -> int:
    """As many as fit beside each other, and as evenly filled as that allows."""
    if not legend:
        return 1
    most = max(1, int(inches / _INCHES_A_LETTER / (max(len(series.label) for series in legend) + 7)))
    lines = -(-len(legend) // most)
    return -(-len(legend) // lines)


def _colour(series: Series) -> str:
    return COLOURS[series.style % len(COLOURS)]


def _line_style(series: Series) -> Any:
    dashes = DASHES[series.style % len(DASHES)]
    # matplotlib multiplies dashes by the width of the line, SVG does not.
    return (0, tuple(length / 1.5 for length in dashes)) if dashes else "-"


def _marker(series: Series) -> str:
    return MARKERS[series.style % len(MARKERS)]


def _key(series: Series) -> Any:
    """What stands for a series in the legend."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if series.kind == "bars":
        return Patch(color=_colour(series), alpha=0.45)
    if series.kind == "steps":
        return Line2D([], [], color=_colour(series), linewidth=1.5)
    line = {"linestyle": _line_style(series), "linewidth": 1.5} if series.kind == "line" else {"linestyle": ""}
    return Line2D([], [], color=_colour(series), marker=_marker(series), markersize=5, **line)


def _plot(place: Axes, panel: Panel) -> None:
    place.set_title(panel.title)
    place.grid(True, axis="y" if panel.x.names else "both")
    for axis, set_ticks, limits, label in (
        (panel.x, place.set_xticks, place.set_xlim, place.set_xlabel),
        (panel.y, place.set_yticks, place.set_ylim, place.set_ylabel),
    ):
        limits(axis.low, axis.high)
        label(axis.title)
        texts = [axis.text(tick) for tick in axis.ticks()]
        slant: dict[str, Any] = {"rotation": 45, "ha": "right"} if _crowded(axis) else {}
        set_ticks(axis.ticks(), texts, **slant)
    for series in panel.series:
        _series(place, series)


def _crowded(axis: Axis) -> bool:
    """Whether the names under an axis would run into each other."""
    return bool(axis.names) and max(map(len, axis.names)) * _INCHES_A_LETTER > (_WIDE - 0.9) / len(axis.names)


def _series(place: Axes, series: Series) -> None:
    colour = _colour(series)
    marks: dict[str, Any]
    if series.kind == "guide":
        place.plot(series.x, series.y, color=_SOFT, linestyle=(0, (4, 3)), linewidth=0.9)
    elif series.kind == "line":
        marks = {"marker": _marker(series), "markersize": 5, "markevery": series.marked(), "markeredgecolor": "white"}
        place.plot(
            series.x, series.y, color=colour, clip_on=False, linestyle=_line_style(series), linewidth=1.5, **marks
        )
    elif series.kind == "points":
        for x, low, high in series.whiskers():
            place.plot([x, x], [low, high], color=colour, linewidth=1.1, marker="_", markersize=6)
        marks = {"marker": _marker(series), "markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.6}
        place.plot(series.x, series.y, color=colour, linestyle="", clip_on=False, zorder=3, **marks)
    elif series.kind == "bars":
        place.stairs(series.y, series.x, fill=True, color=colour, alpha=0.45)
        for index, text in enumerate(series.texts):
            middle = (series.x[index] + series.x[index + 1]) / 2
            place.annotate(text, (middle, series.y[index]), (0, 2), textcoords="offset points", ha="center", fontsize=7)
    else:
        place.stairs(series.y, series.x, color=colour, linewidth=1.5)


def _heads(place: Axes, grid: HeadGrid) -> None:
    """A filled square for a head that is kept, an empty one for a head that is gone."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    kept: list[Rectangle] = []
    gone: list[Rectangle] = []
    for row, (_, heads, keeps) in enumerate(grid.rows):
        for head in range(heads):
            (kept if head in keeps else gone).append(Rectangle((head - 0.4, row - 0.4), 0.8, 0.8))
        place.text(heads - 0.3, row, f"{len(keeps)}/{heads}", va="center", fontsize=7, color=_SOFT)
    place.add_collection(PatchCollection(kept, facecolor=COLOURS[0], edgecolor="none"))
    place.add_collection(PatchCollection(gone, facecolor="none", edgecolor=_SOFT, linewidth=0.6))
    widest = max(grid.widest(), 1)
    place.set_xlim(-0.6, widest + 1.6)
    place.set_ylim(len(grid.rows) - 0.4, -0.6)
    place.set_aspect("equal", anchor="NW")
    place.set_title(grid.title, loc="left")
    place.set_xlabel("head")
    place.set_xticks(range(0, widest, 1 if widest <= 12 else 4))
    place.set_yticks(range(len(grid.rows)), [name for name, _, _ in grid.rows], fontsize=7)
    place.tick_params(length=0)
    for spine in place.spines.values():
        spine.set_visible(False)
