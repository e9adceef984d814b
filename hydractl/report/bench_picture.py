"""A picture of a bench, from its document alone: throughput, and time beside mult-adds, as grouped bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from hydractl.report.pictures import COLOURS, Panel, colour, compose, styled
from hydractl.report.texts import drawn_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
_Bar = tuple[float, float, float, float | None]  # height, ends of its whisker, mark
_HATCHES = ("", "///", "...", "xxx")
_BARS = 0.84  # of the width of a group
_MARK = "ratio of mult-adds"


def draw(document: Mapping[str, Any], handle: IO[bytes], form: str) -> None:
    """Draw a bench.

    Args:
        document: ``hydractl.bench/1`` with measured rows.
        handle: where the picture goes.
        form: ``.png`` or ``.svg``.
    """
    rows = document["results"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    labels = dict(zip(models, drawn_names(models, 40), strict=True))
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    sizes = dict.fromkeys(row["batch_size"] for row in rows)
    wide = min(max(8.0, 2 * (1.5 + 0.34 * len(models) * len(sizes))), 16.0)
    panels = []
    for dtype in dtypes:
        chosen = [row for row in rows if row["dtype"] == dtype]
        for side in (_throughputs, _ratios):
            draw_on = partial(side, rows=chosen, labels=labels)
            panels.append(Panel(draw_on, dtype, wide / 2, 2.9 + 0.3 / len(dtypes)))
    with styled():
        metadata: dict[str, Any] = {"Date": None} if form == ".svg" else {"Software": None}
        compose(panels, 2).savefig(handle, format=form.removeprefix("."), metadata=metadata)


def _throughputs(axes: Axes, rows: Sequence[Row], labels: Mapping[str, str]) -> None:
    """Samples a second, at the quartiles of the runs."""
    import numpy as np

    def bar(row: Row) -> _Bar:
        low, high = np.quantile(row["latency_ms"]["runs"], (0.25, 0.75))
        return row["throughput_per_s"], row["batch_size"] / high * 1e3, row["batch_size"] / low * 1e3, None

    _bars(axes, rows, labels, bar)
    where = (rows[0]["dtype"], rows[0].get("device"), "compiled" * bool(rows[0].get("compile")))
    axes.set_title(", ".join(filter(None, where)), loc="left")
    axes.set_ylabel("samples per second")
    axes.set_xlabel(f"samples per call (median of n = {len(rows[0]['latency_ms']['runs'])} runs, quartiles)")


def _ratios(axes: Axes, rows: Sequence[Row], labels: Mapping[str, str]) -> None:
    """Time over the first model's, its interval, and the same of the mult-adds."""
    _bars(axes, rows, labels, lambda row: (row["ratio"], *row["ratio_ci"], row["mac_ratio"]))
    axes.set_ylabel(f"time, relative to {next(iter(labels.values()))}")
    count = len(rows[0]["latency_ms"]["runs"])
    axes.set_xlabel(f"samples per call (median of n = {count} ratios, 95 % interval)")
    axes.axhline(1, color="black", linewidth=0.6)


def _bars(axes: Axes, rows: Sequence[Row], labels: Mapping[str, str], bar: Callable[[Row], _Bar]) -> None:
    """One group of bars for each batch size, one bar for each model, with its interval and its mark."""
    sizes = list(dict.fromkeys(row["batch_size"] for row in rows))
    width = _BARS / len(labels)
    black: dict[str, Any] = {"color": "black", "linewidth": 0.9}
    marks = []
    for number, (model, label) in enumerate(labels.items()):
        offset = (number - (len(labels) - 1) / 2) * width
        bars = [(sizes.index(row["batch_size"]) + offset, *bar(row)) for row in rows if row["model"] == model]
        places, heights, lows, highs, expected = zip(*bars, strict=True)
        look: dict[str, Any] = {"color": colour(number), "hatch": _HATCHES[number // len(COLOURS) % len(_HATCHES)]}
        axes.bar(places, heights, width * 0.92, label=label, edgecolor="white", linewidth=0, **look)
        axes.vlines(places, lows, highs, **black)
        axes.hlines([*lows, *highs], *_reach([*places, *places], 0.03), **black)
        marks += [(place, height) for place, height in zip(places, expected, strict=True) if height is not None]
    if marks:
        x, y = zip(*marks, strict=True)
        dashed: dict[str, Any] = {"colors": "black", "linestyles": (0, (2, 1)), "linewidth": 1.3}
        axes.hlines(y, *_reach(x, width * 0.46), label=_MARK, **dashed)
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.tick_params(axis="x", length=0)
    axes.grid(False, axis="x")


def _reach(places: Sequence[float], half: float) -> tuple[list[float], list[float]]:
    """Both ends of a short line across each place."""
    return [place - half for place in places], [place + half for place in places]
