"""Inputs over time, from several runs of ``predict``: a table for the terminal, and a picture.

Files hold no times; the order in which the files are given counts as time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from hydractl.files.watching_records import (
    ReferenceRecord,
    TrafficAnswer,
    TrafficFileRecord,
    WatchedRecord,
    WatchedWindowRecord,
)
from hydractl.report.pictures import GUIDE, Panel, compose, point_look, styled, whiskers
from hydractl.report.rich_parts import UNKNOWN, table
from hydractl.report.texts import drawn_names, shown_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_LINES = 60
"""The most lines of a table with a line for each window; with more windows it has one line for each file."""
_INCHES_A_WINDOW = 0.12
_WIDEST = 16.0
_CALM, _ALARM = 0, 5  # indices of colours


# --- the table --------------------------------------------------------------------------------------------------------


def traffic_table(answer: TrafficAnswer, width: int) -> RenderableType:
    """Return a table with a line for each window of inputs, every figure with its interval.

    A file of several windows has one more line for all of its inputs. If all files together have more than
    ``_MOST_LINES`` windows, each file has only this line.
    """
    one_line_a_file = _window_count(answer.files) > _MOST_LINES
    rows = []
    for file in answer.files:
        name = shown_name(file.name)
        for window in _windows_to_show(file.watched, one_line_a_file):
            rows.append([name, *_window_cells(window)])
            name = ""  # only the first line of a file bears its name
    columns = ("file", "inputs", "flagged", "less the reference", "AUROC of shift", "classes (TV)", "")
    drawn = table("", columns, rows, left=1)
    footnote = Text("95 % intervals; AUROC of OOD scores and total variation against the reference")
    return Group(drawn, Text(""), footnote)


def _windows_to_show(watched: WatchedRecord, one_line_a_file: bool) -> list[WatchedWindowRecord]:
    """Return the windows of a file that have a line: each window and, if there are several, all inputs as one window.

    Args:
        watched: the windows of the file.
        one_line_a_file: whether only all inputs as one window are shown.
    """
    if one_line_a_file:
        return [watched.whole]
    if len(watched.windows) > 1:
        return [*watched.windows, watched.whole]
    return list(watched.windows)


def _window_count(files: Sequence[TrafficFileRecord]) -> int:
    """Return the number of windows of all files."""
    return sum(len(file.watched.windows) for file in files)


def _window_cells(window: WatchedWindowRecord) -> list[str]:
    """Return the cells of one window after the name of its file; a dash for a figure that was not computed."""
    first = window.first + 1  # people count inputs from 1
    last = window.first + window.n
    inputs = f"{first:,}-{last:,}"

    # Each figure with its 95 % interval.
    flagged = difference = UNKNOWN
    share = window.share
    if share is not None:
        flagged = f"{share.share:.1%}"
        difference = _with_interval(share.difference, share.ci, _percentage_points)

    auroc = UNKNOWN
    if window.auroc is not None:
        auroc = _with_interval(window.auroc.auroc, window.auroc.ci, _three_decimals)

    classes = UNKNOWN
    if window.classes is not None:
        classes = _with_interval(window.classes.total_variation, window.classes.ci, _three_decimals)

    verdict: str = window.verdict
    if window.needed_inputs is not None:
        verdict = f"{verdict}: {window.needed_inputs:,} would"
    return [inputs, flagged, difference, auroc, classes, verdict]


def _percentage_points(share: float) -> str:
    points = 100 * share
    return f"{points:+.1f}"


def _three_decimals(value: float) -> str:
    return f"{value:.3f}"


def _with_interval(value: float, ends: Sequence[float | None], text_of: Callable[[float], str]) -> str:
    """Return a figure and the ends of its interval as text; ``text_of`` writes each number."""
    low, high = ends
    assert low is not None and high is not None  # known if the figure was computed
    interval = f"{text_of(low)} to {text_of(high)}"
    return f"{text_of(value)} ({interval})"


# --- the picture ------------------------------------------------------------------------------------------------------


class _Figure(NamedTuple):
    """The value of a quantity in one window, and the ends of its interval."""

    value: float
    low: float
    high: float


class _Quantity(NamedTuple):
    """A quantity that is drawn over the windows.

    Attributes:
        title: the title of its axis.
        words: what the panel shows, for people who hear a page.
        figure_of: returns its value in a window; None if it was not computed.
        value_without_shift: returns its value if the inputs are like the reference.
    """

    title: str
    words: str
    figure_of: Callable[[WatchedWindowRecord], _Figure | None]
    value_without_shift: Callable[[ReferenceRecord], float]


def draw_traffic(answer: TrafficAnswer, handle: IO[bytes], form: str) -> None:
    """Draw, over the windows, the share of flagged inputs, the AUROC of the shift and the shift of classes.

    Args:
        answer: the answers of several runs of ``predict``.
        handle: the file that the picture is written to.
        form: ``.png`` or ``.svg``.
    """
    width_for_windows = 2.0 + _INCHES_A_WINDOW * _window_count(answer.files)
    width = min(max(6.0, width_for_windows), _WIDEST)

    # One panel for each quantity. A panel draws itself later, when it has its place in the figure.
    panels = []
    for quantity in _quantities():
        draw_on = partial(_draw_quantity, files=answer.files, quantity=quantity)
        panels.append(Panel(draw_on, quantity.words, width, 2.2))

    # Leave out the metadata that would differ each time the same runs are drawn.
    changing = "Date" if form == ".svg" else "Software"
    with styled():
        figure = compose(panels, 1)
        figure.savefig(handle, format=form.removeprefix("."), metadata={changing: None})


def _quantities() -> list[_Quantity]:
    """Return the quantities that are drawn, from top to bottom."""
    return [
        _Quantity("flagged", "share of inputs that are flagged", _share_figure, _flagged_share_of_reference),
        _Quantity("AUROC of shift", "AUROC of OOD scores against the reference", _auroc_figure, _auroc_of_guessing),
        _Quantity(
            "classes (total variation)",
            "total variation of predicted classes",
            _variation_figure,
            _variation_without_shift,
        ),
    ]


def _draw_quantity(axes: Axes, files: Sequence[TrafficFileRecord], quantity: _Quantity) -> None:
    """Draw one quantity of every window; windows with an alarm have another colour and marker.

    Args:
        axes: the axes to draw on.
        files: the files, each with its windows of inputs.
        quantity: the quantity, e.g. the share of flagged inputs.
    """
    calm = []
    alarmed = []
    for number, window in _numbered(files):
        figure = quantity.figure_of(window)
        if figure is None:
            continue
        if window.verdict == "alarm":
            alarmed.append((number, figure))
        else:
            calm.append((number, figure))

    _draw_figures(axes, calm, _CALM, "no alarm")
    _draw_figures(axes, alarmed, _ALARM, "alarm")
    _draw_values_without_shift(axes, files, quantity)
    _name_files(axes, files)
    axes.set_ylabel(quantity.title)
    axes.set_xlim(0.4, _window_count(files) + 0.6)


def _draw_figures(axes: Axes, placed_figures: Sequence[tuple[int, _Figure]], colour_number: int, label: str) -> None:
    """Draw figures with their intervals; if there are none, draw nothing, so that the legend has no entry either.

    Args:
        axes: the axes to draw on.
        placed_figures: the x coordinates and the figures.
        colour_number: the index of the colour.
        label: the label of the figures.
    """
    if not placed_figures:
        return
    places = []
    values = []
    intervals = []
    for place, figure in placed_figures:
        places.append(place)
        values.append(figure.value)
        intervals.append((figure.low, figure.high))
    whiskers(axes, places, intervals, colour_number)
    axes.plot(places, values, label=label, **point_look(colour_number))


def _numbered(files: Sequence[TrafficFileRecord]) -> Iterator[tuple[int, WatchedWindowRecord]]:
    """Yield the windows of all files in order, each with its number from 1, which is its x coordinate."""
    number = 0
    for file in files:
        for window in file.watched.windows:
            number += 1
            yield number, window


class _Span(NamedTuple):
    """The part of the x axis that holds the windows of one file."""

    start: float
    stop: float


def _spans(files: Sequence[TrafficFileRecord]) -> list[_Span]:
    """Return the span of each file. Window i is at x = i, so a span begins and ends half way between two windows."""
    spans = []
    start = 0.5
    for file in files:
        stop = start + len(file.watched.windows)
        spans.append(_Span(start, stop))
        start = stop
    return spans


def _draw_values_without_shift(axes: Axes, files: Sequence[TrafficFileRecord], quantity: _Quantity) -> None:
    """Draw the value that a quantity has without a shift, for each file, and a vertical line between two files."""
    for file, span in zip(files, _spans(files), strict=True):
        value = quantity.value_without_shift(file.watched.reference)
        axes.hlines(
            value,
            span.start,
            span.stop,
            colors=GUIDE["color"],
            linestyles=GUIDE["linestyle"],
            linewidth=0.9,
        )
        is_first = span.start == 0.5
        if not is_first:
            axes.axvline(span.start, color=GUIDE["color"], linewidth=0.4)


def _name_files(axes: Axes, files: Sequence[TrafficFileRecord]) -> None:
    """Write the name of each file below the middle of its windows."""
    middles = []
    for span in _spans(files):
        middles.append((span.start + span.stop) / 2)
    names = [file.name for file in files]
    axes.set_xticks(middles, drawn_names(names, 14))
    axes.tick_params(axis="x", length=0)
    axes.grid(False, axis="x")


def _share_figure(window: WatchedWindowRecord) -> _Figure | None:
    """Return the share of flagged inputs in a window; None if it was not compared.

    Its interval is that of the difference to the reference, moved up by the share of the reference.
    """
    share = window.share
    if share is None:
        return None
    low, high = share.ci
    assert low is not None and high is not None
    return _Figure(share.share, share.reference + low, share.reference + high)


def _auroc_figure(window: WatchedWindowRecord) -> _Figure | None:
    """Return the AUROC of the OOD scores of a window against those of the reference; None if it was not compared."""
    if window.auroc is None:
        return None
    low, high = window.auroc.ci
    assert low is not None and high is not None
    return _Figure(window.auroc.auroc, low, high)


def _variation_figure(window: WatchedWindowRecord) -> _Figure | None:
    """Return the total variation of the predicted classes of a window from the reference; None if not compared."""
    if window.classes is None:
        return None
    low, high = window.classes.ci
    assert low is not None and high is not None
    return _Figure(window.classes.total_variation, low, high)


def _flagged_share_of_reference(reference: ReferenceRecord) -> float:
    """Return the share of the reference that is flagged; 0 if there is no threshold."""
    if reference.flagged is None:
        return 0.0
    return reference.flagged / reference.n


def _auroc_of_guessing(reference: ReferenceRecord) -> float:
    return 0.5


def _variation_without_shift(reference: ReferenceRecord) -> float:
    return 0.0
