"""Inputs over time, from several runs of ``predict``: a table for the terminal, and a picture.

There is no clock in any file: time is the order in which the files are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from hydractl.files.watching_records import TrafficAnswer, TrafficFileRecord, WatchedWindowRecord
from hydractl.report.pictures import GUIDE, Panel, compose, point_look, styled, whiskers
from hydractl.report.rich_parts import UNKNOWN, table
from hydractl.report.texts import drawn_names, shown_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_LINES = 60
"""Lines of a table that has one for each window; with more windows it has one for each file."""
_INCHES_A_WINDOW = 0.12
_WIDEST = 16.0
_CALM, _ALARM = 0, 5  # numbers of colours


# --- the table --------------------------------------------------------------------------------------------------------


def traffic_table(answer: TrafficAnswer, width: int) -> RenderableType:
    """Return a line for each window, or for each file where there are very many, every figure with its interval."""
    windows = sum(len(file.watched.windows) for file in answer.files)
    rows = []
    for file in answer.files:
        shown_windows = list(file.watched.windows)
        if windows > _MOST_LINES or len(shown_windows) > 1:
            shown_windows.append(file.watched.whole)
        if windows > _MOST_LINES:
            shown_windows = [file.watched.whole]
        for place, window in enumerate(shown_windows):
            name = shown_name(file.name) if place == 0 else ""
            rows.append(_cells(name, window))
    columns = ("file", "inputs", "flagged", "less the reference", "AUROC of shift", "classes (TV)", "")
    drawn = table("", columns, rows, left=1)
    return Group(drawn, Text(""), Text("95 % intervals; AUROC of OOD scores and total variation against the reference"))


def _cells(name: str, window: WatchedWindowRecord) -> list[str]:
    """Return the line of one window."""
    flagged = difference = auroc = classes = UNKNOWN
    if window.share is not None:
        flagged = f"{window.share.share:.1%}"
        difference = _with_interval(window.share.difference, window.share.ci, lambda value: f"{100 * value:+.1f}")
    if window.auroc is not None:
        auroc = _with_interval(window.auroc.auroc, window.auroc.ci, lambda value: f"{value:.3f}")
    if window.classes is not None:
        classes = _with_interval(window.classes.total_variation, window.classes.ci, lambda value: f"{value:.3f}")
    inputs = f"{window.first + 1:,}-{window.first + window.n:,}"
    verdict = window.verdict
    if window.needed_inputs is not None:
        return [name, inputs, flagged, difference, auroc, classes, f"{verdict}: {window.needed_inputs:,} would"]
    return [name, inputs, flagged, difference, auroc, classes, verdict]


def _with_interval(value: float, ends: Sequence[float | None], text_of: Callable[[float], str]) -> str:
    """Return a figure and the ends of its interval as text."""
    low, high = ends
    assert low is not None and high is not None  # of an interval that was computed
    return f"{text_of(value)} ({text_of(low)} to {text_of(high)})"


# --- the picture ------------------------------------------------------------------------------------------------------


class _Figure(NamedTuple):
    """A figure of a window as it is drawn, and the ends of its interval."""

    value: float
    low: float
    high: float


def draw_traffic(answer: TrafficAnswer, handle: IO[bytes], form: str) -> None:
    """Draw the share flagged, the AUROC of the shift and the classes by window, with their intervals.

    Args:
        answer: the runs.
        handle: where the picture goes.
        form: ``.png`` or ``.svg``.
    """
    windows = sum(len(file.watched.windows) for file in answer.files)
    width = min(max(6.0, 2.0 + _INCHES_A_WINDOW * windows), _WIDEST)
    panels = []
    drawings = (
        ("flagged", _share, "share of inputs that are flagged"),
        ("AUROC of shift", _auroc, "AUROC of OOD scores against the reference"),
        ("classes (total variation)", _variation, "total variation of predicted classes"),
    )
    for title, figure_of, words in drawings:
        draw_on = partial(_draw_figure, answer=answer, title=title, figure_of=figure_of)
        panels.append(Panel(draw_on, words, width, 2.2))
    without = "Date" if form == ".svg" else "Software"
    with styled():
        figure = compose(panels, 1)
        figure.savefig(handle, format=form.removeprefix("."), metadata={without: None})


def _draw_figure(
    axes: Axes, answer: TrafficAnswer, title: str, figure_of: Callable[[WatchedWindowRecord], _Figure | None]
) -> None:
    """Draw one figure of every window, those with an alarm in another colour and marker."""
    numbered = list(_numbered(answer.files))
    for number, label, is_alarm in ((_CALM, "no alarm", False), (_ALARM, "alarm", True)):
        places = []
        values = []
        ends: list[tuple[float, float] | None] = []
        for place, window in numbered:
            figure = figure_of(window)
            if figure is None or (window.verdict == "alarm") != is_alarm:
                continue
            places.append(place)
            values.append(figure.value)
            ends.append((figure.low, figure.high))
        if places:
            whiskers(axes, places, ends, number)
            axes.plot(places, values, label=label, **point_look(number))
    _draw_guides(axes, answer.files, figure_of)
    axes.set_ylabel(title)
    axes.set_xlim(0.4, len(numbered) + 0.6)


def _numbered(files: Sequence[TrafficFileRecord]) -> Iterator[tuple[int, WatchedWindowRecord]]:
    """Yield all windows, one after another, each with its number from 1."""
    number = 0
    for file in files:
        for window in file.watched.windows:
            number += 1
            yield number, window


def _draw_guides(
    axes: Axes, files: Sequence[TrafficFileRecord], figure_of: Callable[[WatchedWindowRecord], _Figure | None]
) -> None:
    """Draw where nothing has shifted, and write below which windows are of which file."""
    middles = []
    start = 0.5
    for file in files:
        stop = start + len(file.watched.windows)
        middles.append((start + stop) / 2)
        reference = file.watched.reference
        calm = 0.0
        if figure_of is _auroc:
            calm = 0.5
        elif figure_of is _share and reference.flagged is not None:
            calm = reference.flagged / reference.n
        axes.hlines(calm, start, stop, colors=GUIDE["color"], linestyles=GUIDE["linestyle"], linewidth=0.9)
        if start > 0.5:
            axes.axvline(start, color=GUIDE["color"], linewidth=0.4)
        start = stop
    axes.set_xticks(middles, drawn_names([file.name for file in files], 14))
    axes.tick_params(axis="x", length=0)
    axes.grid(False, axis="x")


def _share(window: WatchedWindowRecord) -> _Figure | None:
    """Return the share flagged: its interval is that of the difference, moved up by the share of the reference."""
    share = window.share
    if share is None:
        return None
    low, high = share.ci
    assert low is not None and high is not None
    return _Figure(share.share, share.reference + low, share.reference + high)


def _auroc(window: WatchedWindowRecord) -> _Figure | None:
    if window.auroc is None:
        return None
    low, high = window.auroc.ci
    assert low is not None and high is not None
    return _Figure(window.auroc.auroc, low, high)


def _variation(window: WatchedWindowRecord) -> _Figure | None:
    if window.classes is None:
        return None
    low, high = window.classes.ci
    assert low is not None and high is not None
    return _Figure(window.classes.total_variation, low, high)
