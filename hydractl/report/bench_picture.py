"""A picture of a bench, from its answer alone: throughput, and time beside mult-adds, as grouped bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, NamedTuple

from hydractl.files.bench_answer import BenchAnswer, BenchRow
from hydractl.report.pictures import COLOURS, Panel, colour, compose, styled
from hydractl.report.texts import drawn_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HATCHES = ("", "///", "...", "xxx")
_BARS = 0.84  # of the width of a group
_MARK = "ratio of mult-adds"


class _Bar(NamedTuple):
    """A bar: its height, the ends of its whisker, and a mark across it; None for no mark."""

    height: float
    low: float
    high: float
    mark: float | None = None


def draw_bench(answer: BenchAnswer, handle: IO[bytes], form: str) -> None:
    """Draw a bench.

    Args:
        answer: of a bench that was run.
        handle: where the picture goes.
        form: ``.png`` or ``.svg``.
    """
    rows = answer.results
    models = list(dict.fromkeys(row.model for row in rows))
    labels = dict(zip(models, drawn_names(models, 40), strict=True))
    dtypes = list(dict.fromkeys(row.dtype for row in rows))
    sizes = {row.batch_size for row in rows}

    bars_of_panel = len(models) * len(sizes)
    panel_width = 1.5 + 0.34 * bars_of_panel
    wide = min(max(8.0, 2 * panel_width), 16.0)
    height = 2.9 + 0.3 / len(dtypes)
    panels = []
    for dtype in dtypes:
        chosen = [row for row in rows if row.dtype == dtype]
        for side in (_throughputs, _ratios):
            draw_on = partial(side, rows=chosen, labels=labels)
            panels.append(Panel(draw_on, dtype, wide / 2, height))
    changing = "Software"
    if form == ".svg":
        changing = "Date"
    with styled():
        figure = compose(panels, 2)
        figure.savefig(handle, format=form.removeprefix("."), metadata={changing: None})


def _throughputs(axes: Axes, rows: Sequence[BenchRow], labels: Mapping[str, str]) -> None:
    """Draw samples a second, at the quartiles of the runs."""
    import numpy as np

    def bar(row: BenchRow) -> _Bar:
        timing = row.timing
        fast, slow = np.quantile(timing.latency_ms.runs, (0.25, 0.75))
        low = row.batch_size / slow * 1e3
        high = row.batch_size / fast * 1e3
        return _Bar(timing.throughput_per_s, low, high)

    _bars(axes, rows, labels, bar)
    first = rows[0]
    where = [first.dtype]
    if first.device:
        where.append(first.device)
    if first.compile:
        where.append("compiled")
    axes.set_title(", ".join(where), loc="left")
    axes.set_ylabel("samples per second")
    count = len(first.timing.latency_ms.runs)
    axes.set_xlabel(f"samples per call (median of n = {count} runs, quartiles)")


def _ratios(axes: Axes, rows: Sequence[BenchRow], labels: Mapping[str, str]) -> None:
    """Draw time over the first model's, its interval, and the same of the mult-adds."""

    def bar(row: BenchRow) -> _Bar:
        timing = row.timing
        low, high = timing.ratio_ci
        mult_adds = row.cost.mac_ratio
        return _Bar(timing.ratio, low, high, mult_adds)

    _bars(axes, rows, labels, bar)
    first_label = next(iter(labels.values()))
    axes.set_ylabel(f"time, relative to {first_label}")
    count = len(rows[0].timing.latency_ms.runs)
    axes.set_xlabel(f"samples per call (median of n = {count} ratios, 95 % interval)")
    axes.axhline(1, color="black", linewidth=0.6)


def _bars(axes: Axes, rows: Sequence[BenchRow], labels: Mapping[str, str], bar_of: Callable[[BenchRow], _Bar]) -> None:
    """Draw one group of bars for each batch size, one bar for each model, with its interval and its mark."""
    sizes = list(dict.fromkeys(row.batch_size for row in rows))
    width = _BARS / len(labels)
    middle = (len(labels) - 1) / 2
    marked_places: list[float] = []
    marks: list[float] = []
    for number, (model, label) in enumerate(labels.items()):
        offset = (number - middle) * width
        places = []
        bars = []
        for row in rows:
            if row.model != model:
                continue
            place = sizes.index(row.batch_size) + offset
            bar = bar_of(row)
            places.append(place)
            bars.append(bar)
            if bar.mark is not None:
                marked_places.append(place)
                marks.append(bar.mark)
        _bars_of_model(axes, places, bars, number, width * 0.92, label)
    if marks:
        left, right = _reach(marked_places, width * 0.46)
        axes.hlines(marks, left, right, label=_MARK, colors="black", linestyles=(0, (2, 1)), linewidth=1.3)
    names = [str(size) for size in sizes]
    axes.set_xticks(range(len(sizes)), names)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.tick_params(axis="x", length=0)
    axes.grid(False, axis="x")


def _bars_of_model(
    axes: Axes, places: Sequence[float], bars: Sequence[_Bar], number: int, width: float, label: str
) -> None:
    """Draw the bars of the model of this number, each with its interval."""
    heights = []
    lows = []
    highs = []
    for bar in bars:
        heights.append(bar.height)
        lows.append(bar.low)
        highs.append(bar.high)
    turn = number // len(COLOURS)
    hatch = _HATCHES[turn % len(_HATCHES)]
    axes.bar(
        places,
        heights,
        width,
        label=label,
        color=colour(number),
        hatch=hatch,
        edgecolor="white",
        linewidth=0,
    )
    axes.vlines(places, lows, highs, color="black", linewidth=0.9)
    left, right = _reach([*places, *places], 0.03)
    axes.hlines([*lows, *highs], left, right, color="black", linewidth=0.9)


def _reach(places: Sequence[float], half: float) -> tuple[list[float], list[float]]:
    """Return both ends of a short line across each place."""
    left = []
    right = []
    for place in places:
        left.append(place - half)
        right.append(place + half)
    return left, right
