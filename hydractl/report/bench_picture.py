"""A picture of a bench, drawn from its answer alone: grouped bars of throughput, and of time beside mult-adds."""

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
_GROUP_WIDTH = 0.84  # the width of all bars of one batch size; batch sizes are 1 apart
_MARK = "ratio of mult-adds"


class _Bar(NamedTuple):
    """A bar: its height, the two ends of its whisker, and the height of a mark across it (None means no mark)."""

    height: float
    low: float
    high: float
    mark: float | None = None


class _PlacedBar(NamedTuple):
    """A bar, and the x coordinate of its middle; the batch sizes are at 0, 1, ..."""

    place: float
    bar: _Bar


def draw_bench(answer: BenchAnswer, handle: IO[bytes], form: str) -> None:
    """Draw a bench: for each dtype one panel of throughputs on the left, and one of relative times on the right.

    Args:
        answer: the answer of a bench that was run.
        handle: the file that the picture is written to.
        form: ``.png`` or ``.svg``.
    """
    rows = answer.results
    labels = _labels_of_models(rows)
    dtypes = list(dict.fromkeys(row.dtype for row in rows))
    width = _panel_width(rows, models=len(labels))
    height = 2.9 + 0.3 / len(dtypes)

    # Two panels for each dtype. A panel draws itself later, when it has its place in the figure.
    panels = []
    for dtype in dtypes:
        rows_of_dtype = [row for row in rows if row.dtype == dtype]
        for draw in (_draw_throughputs, _draw_ratios):
            draw_on = partial(draw, rows=rows_of_dtype, labels=labels)
            panels.append(Panel(draw_on, dtype, width, height))

    # Leave out the metadata that would differ each time the same bench is drawn.
    changing = "Date" if form == ".svg" else "Software"
    with styled():
        figure = compose(panels, 2)
        figure.savefig(handle, format=form.removeprefix("."), metadata={changing: None})


def _labels_of_models(rows: Sequence[BenchRow]) -> dict[str, str]:
    """Return the label of each model in the picture, by its name, in the order of the models' first rows."""
    models = list(dict.fromkeys(row.model for row in rows))
    labels = drawn_names(models, 40)
    return dict(zip(models, labels, strict=True))


def _panel_width(rows: Sequence[BenchRow], models: int) -> float:
    """Return the width, in inches, of a panel that has a bar for each model at each batch size."""
    sizes = {row.batch_size for row in rows}
    bars = models * len(sizes)
    width_for_bars = 1.5 + 0.34 * bars
    width_of_two = min(max(8.0, 2 * width_for_bars), 16.0)
    return width_of_two / 2


def _draw_throughputs(axes: Axes, rows: Sequence[BenchRow], labels: Mapping[str, str]) -> None:
    """Draw the samples per second of each row, with the quartiles over its runs.

    Args:
        axes: the axes to draw on.
        rows: the rows of one dtype.
        labels: the label of each model, by its name.
    """
    _draw_bars(axes, rows, labels, _throughput_bar)

    # The title says how the rows were run.
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
    """Return the bar of the samples per second of a row; its whisker shows the quartiles over the runs."""
    import numpy as np

    timing = row.timing
    fast, slow = np.quantile(timing.latency_ms.runs, (0.25, 0.75))
    # Latencies are in ms. A slow run has a low throughput, so the upper quartile gives the lower end.
    low = row.batch_size / slow * 1e3
    high = row.batch_size / fast * 1e3
    return _Bar(timing.throughput_per_s, low, high)


def _draw_ratios(axes: Axes, rows: Sequence[BenchRow], labels: Mapping[str, str]) -> None:
    """Draw the time of each row relative to the first model's with its interval; mark the ratio of the mult-adds."""
    _draw_bars(axes, rows, labels, _ratio_bar)
    first_label = next(iter(labels.values()))
    axes.set_ylabel(f"time, relative to {first_label}")
    count = len(rows[0].timing.latency_ms.runs)
    axes.set_xlabel(f"samples per call (median of n = {count} ratios, 95 % interval)")
    axes.axhline(1, color="black", linewidth=0.6)


def _ratio_bar(row: BenchRow) -> _Bar:
    """Return the bar of a row's time relative to the first model's; its mark is the ratio of their mult-adds."""
    timing = row.timing
    low, high = timing.ratio_ci
    return _Bar(timing.ratio, low, high, mark=row.cost.mac_ratio)


def _draw_bars(
    axes: Axes, rows: Sequence[BenchRow], labels: Mapping[str, str], bar_of: Callable[[BenchRow], _Bar]
) -> None:
    """Draw a group of bars for each batch size, one bar for each model, with its whisker and its mark.

    Args:
        axes: the axes to draw on.
        rows: the rows of one dtype.
        labels: the label of each model by its name, in the order of the bars.
        bar_of: returns the bar of a row.
    """
    different_sizes = dict.fromkeys(row.batch_size for row in rows)
    sizes = list(different_sizes)

    # Batch size i is at x = i, and the bars of its models lie side by side around it.
    width = _GROUP_WIDTH / len(labels)
    middle = (len(labels) - 1) / 2
    placed_bars: list[_PlacedBar] = []
    for model_index, (model, label) in enumerate(labels.items()):
        # Offset of the model's bars from the middle of their group.
        offset = (model_index - middle) * width
        bars_of_model = []
        for row in rows:
            if row.model != model:
                continue
            place = sizes.index(row.batch_size) + offset
            bar = bar_of(row)
            bars_of_model.append(_PlacedBar(place, bar))
        bar_width = width * 0.92  # leaves a little space between neighbours
        _draw_bars_of_model(axes, bars_of_model, model_index, bar_width, label)
        placed_bars += bars_of_model

    half_bar = width * 0.46
    _draw_marks(axes, placed_bars, half_bar)
    _name_batch_sizes(axes, sizes)


def _name_batch_sizes(axes: Axes, sizes: Sequence[float]) -> None:
    """Write each batch size below its group of bars; the groups are at 0, 1, ..."""
    names = [str(size) for size in sizes]
    places = range(len(sizes))
    axes.set_xticks(places, names)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.tick_params(axis="x", length=0)
    axes.grid(False, axis="x")


def _draw_marks(axes: Axes, placed_bars: Sequence[_PlacedBar], half: float) -> None:
    """Draw a horizontal line across each bar that has a mark, from ``half`` left to ``half`` right of its middle."""
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
    """Draw the bars of one model, each with its whisker.

    Args:
        axes: the axes to draw on.
        placed_bars: the bars, with the x coordinates of their middles.
        number: the index of the model, which gives the colour; if there are more models than colours, bars are hatched.
        width: the width of a bar.
        label: the label of the model.
    """
    places = []
    heights = []
    lows = []
    highs = []
    for place, bar in placed_bars:
        places.append(place)
        heights.append(bar.height)
        lows.append(bar.low)
        highs.append(bar.high)

    # Each time the colours are used up, the next hatch is used with them.
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

    # Whiskers: a vertical line, and a short horizontal one at each end.
    axes.vlines(places, lows, highs, color="black", linewidth=0.9)
    left, right = _line_ends([*places, *places], 0.03)
    axes.hlines([*lows, *highs], left, right, color="black", linewidth=0.9)


def _line_ends(places: Sequence[float], half: float) -> tuple[list[float], list[float]]:
    """Return the left and the right ends of short horizontal lines, each ``half`` to both sides of a place."""
    left = []
    right = []
    for place in places:
        left.append(place - half)
        right.append(place + half)
    return left, right
