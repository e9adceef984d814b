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
_GROUP_WIDTH = 0.84  # of all bars of a batch size, which are 1 apart
_MARK = "ratio of mult-adds"


class _Bar(NamedTuple):
    """A bar: its height, the ends of its whisker, and a mark across it; None for no mark."""

    height: float
    low: float
    high: float
    mark: float | None = None


class _PlacedBar(NamedTuple):
    """A bar, and the place of its middle on the x axis, where the batch sizes are at 0, 1, ..."""

    place: float
    bar: _Bar


def draw_bench(answer: BenchAnswer, handle: IO[bytes], form: str) -> None:
    """Draw a bench: for each dtype the throughput of the models on the left, and the ratio of their times on the right.

    Args:
        answer: of a bench that was run.
        handle: where the picture goes.
        form: ``.png`` or ``.svg``.
    """
    rows = answer.results
    labels = _labels_of_models(rows)
    dtypes = list(dict.fromkeys(row.dtype for row in rows))
    width = _panel_width(rows, models=len(labels))
    height = 2.9 + 0.3 / len(dtypes)
    panels = []
    for dtype in dtypes:
        rows_of_dtype = [row for row in rows if row.dtype == dtype]
        for draw in (_draw_throughputs, _draw_ratios):
            draw_on = partial(draw, rows=rows_of_dtype, labels=labels)
            panels.append(Panel(draw_on, dtype, width, height))
    # What would differ from one drawing of the same bench to the next.
    changing = "Software"
    if form == ".svg":
        changing = "Date"
    with styled():
        figure = compose(panels, 2)
        figure.savefig(handle, format=form.removeprefix("."), metadata={changing: None})


def _labels_of_models(rows: Sequence[BenchRow]) -> dict[str, str]:
    """Return the name of each model as it is drawn, in the order of their first rows."""
    models = list(dict.fromkeys(row.model for row in rows))
    drawn = drawn_names(models, 40)
    return dict(zip(models, drawn, strict=True))


def _panel_width(rows: Sequence[BenchRow], models: int) -> float:
    """Return the inches of a panel that has a bar for each model at each batch size."""
    sizes = {row.batch_size for row in rows}
    bars = models * len(sizes)
    width_for_bars = 1.5 + 0.34 * bars
    width_of_two = min(max(8.0, 2 * width_for_bars), 16.0)
    return width_of_two / 2


def _draw_throughputs(axes: Axes, rows: Sequence[BenchRow], labels: Mapping[str, str]) -> None:
    """Draw the samples a second of each row, with the quartiles over its runs."""
    _draw_bars(axes, rows, labels, _throughput_bar)
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


def _throughput_bar(row: BenchRow) -> _Bar:
    """Return the samples a second of a row; the slowest quarter of its runs, in ms, gives the lower end."""
    import numpy as np

    timing = row.timing
    fast, slow = np.quantile(timing.latency_ms.runs, (0.25, 0.75))
    low = row.batch_size / slow * 1e3
    high = row.batch_size / fast * 1e3
    return _Bar(timing.throughput_per_s, low, high)


def _draw_ratios(axes: Axes, rows: Sequence[BenchRow], labels: Mapping[str, str]) -> None:
    """Draw the time of each row over the first model's with its interval, and mark the ratio of their mult-adds."""
    _draw_bars(axes, rows, labels, _ratio_bar)
    first_label = next(iter(labels.values()))
    axes.set_ylabel(f"time, relative to {first_label}")
    count = len(rows[0].timing.latency_ms.runs)
    axes.set_xlabel(f"samples per call (median of n = {count} ratios, 95 % interval)")
    axes.axhline(1, color="black", linewidth=0.6)


def _ratio_bar(row: BenchRow) -> _Bar:
    timing = row.timing
    low, high = timing.ratio_ci
    return _Bar(timing.ratio, low, high, mark=row.cost.mac_ratio)


def _draw_bars(
    axes: Axes, rows: Sequence[BenchRow], labels: Mapping[str, str], bar_of: Callable[[BenchRow], _Bar]
) -> None:
    """Draw a group of bars for each batch size, one bar for each model, with its interval and its mark.

    Args:
        axes: where to.
        rows: of one dtype.
        labels: of the models in their order, by name.
        bar_of: returns the bar of a row.
    """
    different_sizes = dict.fromkeys(row.batch_size for row in rows)
    sizes = list(different_sizes)
    width = _GROUP_WIDTH / len(labels)
    middle = (len(labels) - 1) / 2
    placed_bars: list[_PlacedBar] = []
    for number, (model, label) in enumerate(labels.items()):
        offset = (number - middle) * width
        bars_of_model = []
        for row in rows:
            if row.model != model:
                continue
            place = sizes.index(row.batch_size) + offset
            bar = bar_of(row)
            bars_of_model.append(_PlacedBar(place, bar))
        _draw_bars_of_model(axes, bars_of_model, number, width * 0.92, label)
        placed_bars += bars_of_model
    _draw_marks(axes, placed_bars, width * 0.46)
    _name_batch_sizes(axes, sizes)


def _name_batch_sizes(axes: Axes, sizes: Sequence[float]) -> None:
    """Write each batch size below its group of bars, which are 1 apart."""
    names = [str(size) for size in sizes]
    places = range(len(sizes))
    axes.set_xticks(places, names)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.tick_params(axis="x", length=0)
    axes.grid(False, axis="x")


def _draw_marks(axes: Axes, placed_bars: Sequence[_PlacedBar], half: float) -> None:
    """Draw the marks of the bars that have one, each ``half`` to both sides of the middle of its bar."""
    places = []
    marks = []
    for place, bar in placed_bars:
        if bar.mark is not None:
            places.append(place)
            marks.append(bar.mark)
    if not marks:
        return
    left, right = _line_ends(places, half)
    axes.hlines(marks, left, right, label=_MARK, colors="black", linestyles=(0, (2, 1)), linewidth=1.3)


def _draw_bars_of_model(axes: Axes, placed_bars: Sequence[_PlacedBar], number: int, width: float, label: str) -> None:
    """Draw the bars of the model of this number, each with its interval; after all colours, bars are hatched."""
    places = []
    heights = []
    lows = []
    highs = []
    for place, bar in placed_bars:
        places.append(place)
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
    left, right = _line_ends([*places, *places], 0.03)
    axes.hlines([*lows, *highs], left, right, color="black", linewidth=0.9)


def _line_ends(places: Sequence[float], half: float) -> tuple[list[float], list[float]]:
    """Return the left and the right ends of a short line across each place, ``half`` to both sides of it."""
    left = []
    right = []
    for place in places:
        left.append(place - half)
        right.append(place + half)
    return left, right
