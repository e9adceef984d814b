"""The pictures of an eval, one function each; those of a row first, then those that compare all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hydractl.report.eval_tables import (
    ACCURACY,
    CORRUPTION_METRICS,
    DIVERSITY_METRICS,
    OOD_AVERAGE,
    Column,
    Metric,
    Row,
    corrupted_samples,
    cost_ratio,
    ood_names,
    samples,
    score_name,
    sizes_text,
)
from hydractl.report.pictures import (
    GUIDE,
    INCHES_A_LETTER,
    SOFT,
    UNCLIPPED,
    WIDTH,
    Panel,
    Picture,
    colour,
    line_look,
    point_look,
    whiskers,
)
from hydractl.report.texts import drawn_names, file_names, number, short_count, short_names, shown_name, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import PathPatch

OF_MODEL = ("reliability", "scores", "roc", "heads", "training")
OF_ALL = ("risk-coverage", "cost-auroc", "cost-accuracy", "diversity", "corruptions")
_SITE_LETTERS = 14
_CELL = 0.18  # inches of one head
_SEVERITIES = ("1", "2", "3", "4", "5")
_ACCURACY, _AUROC = ACCURACY, OOD_AVERAGE[0]
_Line = tuple[int, str, Sequence[tuple[float, float]]]  # number of the series, label, points


def possible_files(names: Sequence[str]) -> list[str]:
    """Return every file name that pictures of these rows can have; which of them are made, the numbers decide."""
    own = [f"{kind}.{name}.png" for name in file_names(names) for kind in OF_MODEL]
    return own + [f"{kind}.png" for kind in OF_ALL]


def picture_files(document: Mapping[str, Any]) -> Iterator[tuple[str, Picture]]:
    """Yield file name and picture for all that this document has numbers for, those about all rows first."""
    rows = document["models"]
    for picture in comparison_pictures(document):
        yield f"{picture.kind}.png", picture
    for row, part in zip(rows, file_names([row["name"] for row in rows]), strict=True):
        for picture in model_pictures(document, row):
            yield f"{picture.kind}.{part}.png", picture


def model_pictures(document: Mapping[str, Any], row: Row) -> Iterator[Picture]:
    """Yield every picture that a row has numbers for, in the order of a report."""
    curves = row.get("curves") or {}
    if any((curves.get("reliability") or {}).get("n") or ()):
        yield reliability(curves["reliability"], row)
    if len(curves.get("scores") or {}) > 2:  # edges, id, and one set at least
        yield ood_scores(curves["scores"], row, score_name(document, row))
    if curves.get("roc"):
        yield roc(curves["roc"], row)
    if row.get("heads"):
        yield head_maps(row["heads"], row)
    trained = training(row.get("training") or (), row)
    if trained.panels:
        yield trained


def comparison_pictures(document: Mapping[str, Any]) -> Iterator[Picture]:
    """Yield every picture about all rows that the document has numbers for, in the order of a report."""
    rows = document["models"]
    names = drawn_names([row["name"] for row in rows])
    every = (
        risk_coverage(rows, names),
        cost(rows, names, _AUROC, "cost-auroc", "AUROC, mean over OOD sets"),
        cost(rows, names, _ACCURACY, "cost-accuracy", "accuracy"),
        diversity(rows, names),
        corruptions(rows, names),
    )
    yield from (picture for picture in every if picture is not None)


# --- of one row -------------------------------------------------------------------------------------------------------


def reliability(curve: Mapping[str, Any], row: Row) -> Picture:
    """Draw a reliability diagram: accuracy over confidence by bin with its interval, and the bins' sample counts."""
    bins = zip(*(curve[key] for key in ("confidence", "accuracy", "low", "high")), strict=True)
    filled = [one for one, n in zip(bins, curve["n"], strict=True) if n and None not in one[:2]]
    n, edges = sum(curve["n"]), curve["edges"]

    def diagram(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], **GUIDE)
        x = [point[0] for point in filled]
        whiskers(axes, x, [None if None in point else point[2:] for point in filled], 0)
        axes.plot(x, [point[1] for point in filled], **point_look(0), **UNCLIPPED)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=f"confidence: mean highest p of a bin (n = {n})")
        axes.set_ylabel("accuracy of the bin\nwith 95 % Wilson interval")

    def counts(axes: Axes) -> None:
        widths = [high - low for low, high in pairwise(edges)]
        bars = axes.bar(edges[:-1], curve["n"], widths, align="edge", color=colour(0), alpha=0.45)
        axes.bar_label(bars, [short_count(n) if n else "" for n in curve["n"]], fontsize=7, padding=1)
        axes.set(xlim=(0, 1), ylim=(0, 1.16 * max(curve["n"])), xlabel=f"confidence: highest p (n = {n})")
        axes.set_ylabel("samples\nin the bin")
        count_axis(axes.yaxis)

    title = f"{shown_name(row['name'])}: ECE {number((row.get('id') or {}).get('ece'))}"
    below = Panel(counts, "samples in each bin over confidence", height=1.7)
    return Picture("reliability", title, (Panel(diagram, "accuracy over confidence"), below), stacked=True)


def count_axis(axis: Any) -> None:
    """Show whole numbers on an axis, large ones in short."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins="auto"))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))


def ood_scores(curve: Mapping[str, Any], row: Row, score: Any) -> Picture:
    """Draw OOD histograms: where the scores of the ID samples lie, and where those of each OOD set do."""
    names = [name for name in curve if name not in ("edges", "id")]
    drawn = zip(names, drawn_names(names, 18), strict=True)
    panels = [_score_panel(curve, name, shown, row, score, index + 1) for index, (name, shown) in enumerate(drawn)]
    return Picture("scores", shown_name(row["name"]), tuple(panels))


def _score_panel(curve: Mapping[str, Any], name: str, shown: str, row: Row, score: Any, index: int) -> Panel:
    edges, inside, outside = curve["edges"], _shares(curve["id"]), _shares(curve[name])
    threshold = row.get("threshold") or {}
    value = threshold.get("value") if threshold.get("score") == score else None

    def draw(axes: Axes) -> None:
        own, other = f"ID ({samples([row])})", f"{shown} ({samples([row], [name])})"
        axes.stairs(inside, edges, fill=True, color=colour(0), alpha=0.45, label=own)
        axes.stairs(outside, edges, color=colour(index), linewidth=1.5, label=other)
        if value is not None and edges[0] <= value <= edges[-1]:
            axes.axvline(value, **GUIDE)
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.08 * (max([*inside, *outside]) or 1)), title=shown)
        axes.set_xlabel(f"OOD score{'' if score is None else f' {visible(score)}'}, higher is more OOD")
        axes.set_ylabel("share of the set's\nsamples per bin")

    words = f"OOD scores of ID samples and of {shown}, {samples([row])} and {samples([row], [name])}"
    return Panel(draw, words, height=2.6)


def _shares(counts: Sequence[int]) -> list[float]:
    """Return counts as shares of their sum, so that sets of different sizes compare."""
    whole = sum(counts)
    return [count / whole if whole else 0.0 for count in counts]


def roc(curves: Mapping[str, Any], row: Row) -> Picture:
    """Draw ROC curves: TPR over FPR of each OOD set."""

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], **GUIDE)
        for index, (name, shown) in enumerate(zip(curves, drawn_names(list(curves), 20), strict=True), start=1):
            area = number(((row.get("ood") or {}).get(name) or {}).get("auroc"), 3)
            fpr, tpr = curves[name]["fpr"], curves[name]["tpr"]
            label = f"{shown} ({samples([row], [name])}), AUROC {area}"
            axes.plot(fpr, tpr, label=label, **line_look(index, len(fpr)))
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel=f"FPR: share of ID samples flagged ({samples([row])})")
        axes.set_ylabel("TPR: share of OOD samples flagged\n(n in the legend)")

    return Picture("roc", shown_name(row["name"]), (Panel(draw, "TPR over FPR of each OOD set", height=3.6),))


def head_maps(sites: Sequence[Mapping[str, Any]], row: Row) -> Picture:
    """Draw the heads that every member keeps, site by site: a filled square is kept, an empty one is removed."""
    names = _site_names(sites)
    members = max(len(site["kept"]) for site in sites)
    panels = []
    for member in range(members):
        kept = [set(site["kept"][member] if member < len(site["kept"]) else ()) for site in sites]
        there = [site["heads"] for site in sites]
        title = f"{sum(map(len, kept))} of {sum(there)} heads kept"
        panels.append(_head_map(f"member {member}: {title}" if members > 1 else title, names, there, kept))
    return Picture("heads", shown_name(row["name"]), tuple(panels))


def _head_map(title: str, names: Sequence[str], heads: Sequence[int], kept: Sequence[set[int]]) -> Panel:
    widest = max(*heads, 1)

    def draw(axes: Axes) -> None:
        cells = [(line, head) for line, count in enumerate(heads) for head in range(count)]
        axes.add_patch(_squares([cell for cell in cells if cell[1] in kept[cell[0]]], facecolor=colour(0), linewidth=0))
        removed = [cell for cell in cells if cell[1] not in kept[cell[0]]]
        axes.add_patch(_squares(removed, facecolor="none", edgecolor=SOFT, linewidth=0.6))
        for line, count in enumerate(heads):
            axes.text(count - 0.3, line, f"{len(kept[line])}/{count}", va="center", fontsize=7, color=SOFT)
        axes.set(xlim=(-0.6, widest + 1.6), ylim=(len(names) - 0.4, -0.6), xlabel="head")
        axes.set_aspect("equal", anchor="NW")
        axes.set_title(title, loc="left")
        axes.set_xticks(range(0, widest, 1 if widest <= 12 else 4))
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.grid(False)

    letters = INCHES_A_LETTER * max(map(len, names))
    wide = max(0.9 + _CELL * widest + letters, 0.4 + INCHES_A_LETTER * len(title), 2.4)
    return Panel(draw, title, wide, 1.05 + _CELL * len(names))


def _squares(cells: Sequence[tuple[int, int]], **looks: Any) -> PathPatch:
    """Draw one path of a square for each line and column: a page with a shape for each would be long."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    corners = ((-0.4, -0.4), (0.4, -0.4), (0.4, 0.4), (-0.4, 0.4), (-0.4, -0.4))
    squares = [Path([(head + x, line + y) for x, y in corners], closed=True) for line, head in cells]
    return PathPatch(Path.make_compound_path(*squares), **looks)


def _site_names(sites: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return short names of sites, different from each other; with the tower in front where there are several."""
    towers = [visible(site.get("tower") or "main") for site in sites]
    paths = [visible(site["site"]) for site in sites]
    if len(set(towers)) == 1:
        return short_names(paths, _SITE_LETTERS)
    found = [""] * len(sites)
    for tower in dict.fromkeys(towers):
        places = [index for index, other in enumerate(towers) if other == tower]
        own = short_names([paths[index] for index in places], max(_SITE_LETTERS - len(tower) - 1, 4))
        for index, name in zip(places, own, strict=True):
            found[index] = f"{tower[:_SITE_LETTERS]} {name}"
    return found


def training(trainings: Sequence[Mapping[str, Any]], row: Row) -> Picture:
    """Draw training curves: loss and validation accuracy over the epochs, a line for each member that was trained."""
    steps = sizes_text(one.get("steps") for one in trainings)
    panels = []
    for key, words, n in (("loss", "training loss, nats", "n"), ("val_accuracy", "validation accuracy", "n_val")):
        lines = _epochs(trainings, key)
        title = f"{words}\n({sizes_text(one.get(n) for one in trainings)})"
        if lines:
            panels.append(Panel(_lines(lines, f"epoch ({steps} steps)", title), f"{words} over epochs", height=2.2))
    return Picture("training", shown_name(row["name"]), tuple(panels), stacked=True)


def _epochs(trainings: Sequence[Mapping[str, Any]], key: str) -> list[_Line]:
    """Return a number of every epoch that has it, for each training that has any."""
    found: list[_Line] = []
    for index, one in enumerate(trainings):
        epochs = [entry for entry in one.get("epochs") or () if entry.get("epoch") is not None]
        member = f"member {_or_unknown(one.get('member'))}: " if len(trainings) > 1 else ""
        kept, last = one.get("kept_epoch"), epochs[-1]["epoch"] if epochs else 0
        label = f"{member}{'weights of several steps' if kept is None else f'epoch {kept} of {last} kept'}"
        points = [(entry["epoch"], entry[key]) for entry in epochs if entry.get(key) is not None]
        if points:
            found.append((index, label, points))
    return found


def _or_unknown(value: Any) -> str:
    return "?" if value is None else str(value)


def _lines(lines: Sequence[_Line], x_title: str, y_title: str) -> Callable[[Axes], None]:
    """Return a function that draws a few lines over whole numbers."""

    def draw(axes: Axes) -> None:
        for index, label, points in lines:
            axes.plot(*zip(*points, strict=True), label=label, **line_look(index, len(points)))
        axes.set(xlabel=x_title, ylabel=y_title)
        places = [x for _, _, points in lines for x, _ in points]
        if min(places) == max(places):
            axes.set_xlim(min(places) - 0.5, max(places) + 0.5)
        axes.set_ylim(bottom=max(axes.get_ylim()[0], 0))
        count_axis(axes.xaxis)

    return draw


# --- of all rows ------------------------------------------------------------------------------------------------------


def risk_coverage(rows: Sequence[Row], names: Sequence[str]) -> Picture | None:
    """Draw risk-coverage curves: the error rate among the most confident samples, over how many of them there are."""
    curves = [(row.get("curves") or {}).get("risk_coverage") or {} for row in rows]
    if not any(curve.get("coverage") for curve in curves):
        return None

    def draw(axes: Axes) -> None:
        for index, (curve, name) in enumerate(zip(curves, names, strict=True)):
            if curve.get("coverage"):
                look = line_look(index, len(curve["coverage"]))
                axes.plot(curve["coverage"], curve["risk"], label=name, **look)
        highest = min(max(risk for curve in curves for risk in curve.get("risk", ())), 1)
        axes.set(xlim=(0, 1), ylim=(0, 1.06 * max(highest, 0) or 1), ylabel="error rate among\nthe samples kept")
        axes.set_xlabel(f"coverage: share of samples kept,\nmost confident first ({samples(rows)})")

    return Picture("risk-coverage", "Risk and coverage", (Panel(draw, "error rate over coverage", height=3.6),))


def cost(rows: Sequence[Row], names: Sequence[str], column: Column, kind: str, words: str) -> Picture | None:
    """Draw a dot plot: what each row costs, and what it reaches, with its interval."""
    ratios, reference = cost_ratio(rows)
    points: list[tuple[int, float, float, tuple[float, float] | None]] = []
    for index, (row, ratio) in enumerate(zip(rows, ratios, strict=True)):
        value = column.value(row)
        if ratio is not None and value is not None:
            points.append((index, ratio, value, column.interval(row)))
    if not points:
        return None
    outside = f", OOD {samples(rows, ood_names(rows))}" if column.place == OOD_AVERAGE[0].place else ""

    def draw(axes: Axes) -> None:
        for index, ratio, value, ends in points:
            whiskers(axes, [ratio], [ends], index)
            axes.plot(ratio, value, label=names[index], **point_look(index))
        axes.margins(0.1)
        axes.set_xlabel(f"mult-adds, times those of\n{drawn_names([reference])[0]}")
        axes.set_ylabel(f"{words}\n(ID {samples(rows)}{outside})")

    return Picture(kind, f"Cost and {words}", (Panel(draw, f"{words} over mult-adds", height=3.6),))


def diversity(rows: Sequence[Row], names: Sequence[str]) -> Picture | None:
    """Draw dot plots: how much the members of each row differ, set by set."""
    sets = [name for name in ("id", *ood_names(rows)) if any(name in (row.get("diversity") or {}) for row in rows)]
    apart = [Column(("diversity", name), DIVERSITY_METRICS[1]) for name in sets]
    several = [i for i, row in enumerate(rows) if any(column.value(row) is not None for column in apart)]
    if not several:
        return None
    shown = drawn_names(["ID" if name == "id" else name for name in sets], 14)
    outside = f", OOD {samples(rows, ood_names(rows))}" if len(sets) > 1 else ""

    crowded = max(map(len, shown)) * INCHES_A_LETTER > (WIDTH - 0.9) / len(shown)

    def panel(metric: Metric, unit: str) -> Panel:
        def draw(axes: Axes) -> None:
            for turn, index in enumerate(several):
                shift = 0.6 * ((turn + 0.5) / len(several) - 0.5)  # side by side, not one over the other
                values = [Column(("diversity", name), metric).value(rows[index]) for name in sets]
                points = [(at + shift, value) for at, value in enumerate(values) if value is not None]
                if points:
                    axes.plot(*zip(*points, strict=True), label=names[index], **point_look(index), **UNCLIPPED)
            axes.set(xlim=(-0.5, len(sets) - 0.5), xlabel=f"data set (ID {samples(rows)}{outside})", ylabel=unit)
            axes.set_ylim(0, max(axes.get_ylim()[1], 1e-9))
            slant: dict[str, Any] = {"rotation": 45, "ha": "right"} if crowded else {}
            axes.set_xticks(range(len(sets)), shown, **slant)
            axes.grid(False, axis="x")

        return Panel(draw, f"{metric.words} over the data sets", height=3.4 if crowded else 2.6)

    units = ("mutual information, nats", "disagreement:\nshare of pairs of votes")
    panels = [panel(metric, unit) for metric, unit in zip(DIVERSITY_METRICS, units, strict=False)]
    return Picture("diversity", "Diversity of the members", tuple(panels))


def corruptions(rows: Sequence[Row], names: Sequence[str]) -> Picture | None:
    """Draw what corruption of the images does, from none to the hardest."""
    panels = []
    for metric in CORRUPTION_METRICS:
        lines: list[_Line] = []
        for index, row in enumerate(rows):
            levels = row.get("corruption_avg") or {}
            values = [Column(("id",), metric).value(row), *((levels.get(s) or {}).get(metric.key) for s in _SEVERITIES)]
            points = [(severity, value) for severity, value in enumerate(values) if value is not None]
            if levels and len(points) > 1:
                lines.append((index, names[index], points))
        if lines:
            x_title = f"severity, 0: uncorrupted ({corrupted_samples(rows)})"
            draw = _lines(lines, x_title, f"{metric.words}\n({metric.direction} is better)")
            panels.append(Panel(draw, f"{metric.words} over severity"))
    return Picture("corruptions", "Mean over the corruptions", tuple(panels)) if panels else None
