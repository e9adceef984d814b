"""A picture of a bench, from its document alone: throughput, and time beside mult-adds, as grouped bars."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from hydractl.errors import UsageError
from hydractl.report.chart import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HATCHES = ("", "///", "...", "xxx")
_BARS = 0.84  # of the width of a group
_MARK = "ratio of mult-adds"
_INCHES_A_LETTER = 0.085


def check_matplotlib(flag: str = "--plot") -> None:
    """Refuse before any measuring what could not be drawn afterwards.

    Args:
        flag: the option that asks for a picture.

    Raises:
        UsageError: where matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"{flag} needs matplotlib, which is not installed", hint="pip install 'hydractl[plot]'")


def draw(document: Mapping[str, Any], handle: IO[bytes], form: str) -> None:
    """Draw a bench.

    Args:
        document: ``hydractl.bench/1`` with measured rows.
        handle: where the picture goes.
        form: ``.png`` or ``.svg``.
    """
    import matplotlib
    from matplotlib.figure import Figure

    rows = document["results"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    style = {
        "font.family": "DejaVu Sans",  # comes with matplotlib, so the picture is the same everywhere
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "hatch.linewidth": 0.6,
        "svg.hashsalt": "hydractl",  # else its identifiers are drawn anew each time
    }
    with matplotlib.rc_context(style):
        sizes = dict.fromkeys(row["batch_size"] for row in rows)
        wide = min(max(8.0, 2 * (1.5 + 0.34 * len(models) * len(sizes))), 16.0)
        columns = _legend_columns([*models, _MARK], wide)
        lines = -(-(len(models) + 1) // columns)
        figure = Figure(figsize=(wide, 0.5 + 0.2 * lines + 2.9 * len(dtypes)), layout="constrained")
        axes = figure.subplots(len(dtypes), 2, squeeze=False)
        for (left, right), dtype in zip(axes, dtypes, strict=True):
            chosen = [row for row in rows if row["dtype"] == dtype]
            _bars(left, chosen, models, _throughput)
            _bars(right, chosen, models, _ratio)
            _name_axes(left, right, chosen, models[0])
        handles, labels = axes[0][1].get_legend_handles_labels()
        figure.legend(
            handles[1:] + handles[:1],  # matplotlib lists lines before bars
            labels[1:] + labels[:1],
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            handlelength=1.4,
        )
        metadata: dict[str, Any] = {"Date": None} if form == ".svg" else {"Software": None}
        figure.savefig(handle, format=form.removeprefix("."), dpi=160, metadata=metadata)


def _legend_columns(labels: Sequence[str], inches: float) -> int:
    """As many as fit beside each other, and as evenly filled as that allows."""
    most = max(1, int(inches / _INCHES_A_LETTER / (max(map(len, labels)) + 6)))
    lines = -(-len(labels) // most)
    return -(-len(labels) // lines)


def _throughput(row: Mapping[str, Any]) -> tuple[float, float, float, float | None]:
    """Samples a second, at the quartiles of the runs."""
    runs = sorted(row["latency_ms"]["runs"])
    low, high = _quantile(runs, 0.25), _quantile(runs, 0.75)
    return row["throughput_per_s"], row["batch_size"] / high * 1e3, row["batch_size"] / low * 1e3, None


def _ratio(row: Mapping[str, Any]) -> tuple[float, float, float, float | None]:
    """Time over the first model's, its interval, and the same of the mult-adds."""
    low, high = row["ratio_ci"]
    return row["ratio"], low, high, row["mac_ratio"]


def _quantile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def _bars(axes: Axes, rows: Sequence[Mapping[str, Any]], models: Sequence[str], figures: Any) -> None:
    """One group of bars for each batch size, one bar for each model, with its interval and its mark."""
    sizes = list(dict.fromkeys(row["batch_size"] for row in rows))
    width = _BARS / len(models)
    marks = []
    for number, model in enumerate(models):
        offset = (number - (len(models) - 1) / 2) * width
        found = [(sizes.index(row["batch_size"]) + offset, *figures(row)) for row in rows if row["model"] == model]
        places, heights, lows, highs, expected = zip(*found, strict=True)
        axes.bar(
            places,
            heights,
            width * 0.92,
            label=model,
            color=COLOURS[number % len(COLOURS)],
            hatch=_HATCHES[number // len(COLOURS) % len(_HATCHES)],
            edgecolor="white",
            linewidth=0,
        )
        # A median may lie outside an interval of a few runs by rounding only.
        reach = [[max(h - low, 0) for h, low in zip(heights, lows, strict=True)],
                 [max(high - h, 0) for h, high in zip(heights, highs, strict=True)]]  # fmt: skip
        axes.errorbar(places, heights, reach, fmt="none", ecolor="black", elinewidth=0.9, capsize=2.5, capthick=0.9)
        marks += [(place, height) for place, height in zip(places, expected, strict=True) if height is not None]
    if marks:
        x, y = zip(*marks, strict=True)
        axes.hlines(
            y,
            [place - width * 0.46 for place in x],
            [place + width * 0.46 for place in x],
            colors="black",
            linestyles=(0, (2, 1)),
            linewidth=1.3,
            label=_MARK,
        )
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.tick_params(axis="x", length=0)
    axes.yaxis.grid(True, color="#DDDDDD", linewidth=0.6)


def _name_axes(left: Axes, right: Axes, rows: Sequence[Mapping[str, Any]], first: str) -> None:
    """Units, and how many runs a bar is made of."""
    count = len(rows[0]["latency_ms"]["runs"])
    where = ", ".join(
        filter(None, (rows[0]["dtype"], rows[0].get("device"), "compiled" * bool(rows[0].get("compile"))))
    )
    left.set_title(where, loc="left", fontsize=9)
    left.set_ylabel("samples per second")
    right.set_ylabel(f"time, relative to {first}")
    left.set_xlabel(f"samples per call (median of n = {count} runs, quartiles)")
    right.set_xlabel(f"samples per call (median of n = {count} ratios, 95 % interval)")
    right.axhline(1, color="black", linewidth=0.6)
