"""The pictures of an eval, one function each; those of a row first, then those that compare all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from hydractl.files.eval_answer import (
    IN_DISTRIBUTION,
    EvalAnswer,
    EvalRow,
    ReliabilityCurve,
    RocCurve,
    ScoreHistograms,
    diversity_place,
    ood_set_place,
    severity_place,
)
from hydractl.files.model_records import EpochRecord, SiteHeadsRecord, TrainingRecord
from hydractl.metrics.declaration import Metric
from hydractl.report.eval_tables import (
    ACCURACY,
    AUROC,
    CORRUPTION_METRICS,
    DIVERSITY_METRICS,
    OOD_AVERAGE,
    Column,
    corrupted_samples,
    cost_ratio,
    each_once,
    known_interval,
    ood_names,
    samples,
    score_name,
    single_number,
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
_AUROC = OOD_AVERAGE[0]


@dataclass(frozen=True)
class _Line:
    """A line of a picture: the number of its series, its label, and its points, over whole numbers."""

    series: int
    label: str
    points: Sequence[tuple[int, float]]


def possible_files(names: Sequence[str]) -> list[str]:
    """Return every file name that pictures of these rows can have; which of them are made, the numbers decide."""
    files = []
    for part in file_names(names):
        for kind in OF_MODEL:
            files.append(f"{kind}.{part}.png")
    for kind in OF_ALL:
        files.append(f"{kind}.png")
    return files


def picture_files(answer: EvalAnswer) -> Iterator[tuple[str, Picture]]:
    """Yield file name and picture for all that this answer has numbers for, those about all rows first."""
    for picture in comparison_pictures(answer):
        yield f"{picture.kind}.png", picture
    rows = answer.models
    parts = file_names([row.name for row in rows])
    for row, part in zip(rows, parts, strict=True):
        for picture in model_pictures(answer, row):
            name = f"{picture.kind}.{part}.png"
            yield name, picture


def model_pictures(answer: EvalAnswer, row: EvalRow) -> Iterator[Picture]:
    """Yield every picture that a row has numbers for, in the order of a report."""
    curves = row.curves
    if curves.reliability is not None and any(curves.reliability.n):
        yield reliability(curves.reliability, row)
    if curves.scores is not None and curves.scores.ood:
        yield ood_scores(curves.scores, row, score_name(answer, row))
    if curves.roc:
        yield roc(curves.roc, row)
    if row.heads:
        yield head_maps(row.heads, row)
    trained = training(row.training, row)
    if trained.panels:
        yield trained


def comparison_pictures(answer: EvalAnswer) -> list[Picture]:
    """Return every picture about all rows that the answer has numbers for, in the order of a report."""
    rows = answer.models
    names = drawn_names([row.name for row in rows])
    pictures = (
        risk_coverage(rows, names),
        cost(rows, names, _AUROC, "cost-auroc", "AUROC, mean over OOD sets"),
        cost(rows, names, ACCURACY, "cost-accuracy", "accuracy"),
        diversity(rows, names),
        corruptions(rows, names),
    )
    return [picture for picture in pictures if picture is not None]


# --- reliability ------------------------------------------------------------------------------------------------------


class _Bin(NamedTuple):
    """A bin of confidence that holds samples."""

    confidence: float
    accuracy: float
    ends: tuple[float, float] | None


def _filled_bins(curve: ReliabilityCurve) -> list[_Bin]:
    filled = []
    for index, n in enumerate(curve.n):
        confidence = curve.confidence[index]
        accuracy = curve.accuracy[index]
        if not n or confidence is None or accuracy is None:
            continue
        interval = (curve.low[index], curve.high[index])
        ends = known_interval(interval)
        filled.append(_Bin(confidence, accuracy, ends))
    return filled


def reliability(curve: ReliabilityCurve, row: EvalRow) -> Picture:
    """Draw a reliability diagram: accuracy over confidence by bin with its interval, and the bins' sample counts."""
    filled = _filled_bins(curve)
    n = sum(curve.n)

    def diagram(axes: Axes) -> None:
        confidences = []
        accuracies = []
        intervals = []
        for filled_bin in filled:
            confidences.append(filled_bin.confidence)
            accuracies.append(filled_bin.accuracy)
            intervals.append(filled_bin.ends)
        axes.plot([0, 1], [0, 1], **GUIDE)
        whiskers(axes, confidences, intervals, 0)
        axes.plot(confidences, accuracies, **point_look(0), **UNCLIPPED)
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.set_xlabel(f"confidence: mean highest p of a bin (n = {n})")
        axes.set_ylabel("accuracy of the bin\nwith 95 % Wilson interval")

    def counts(axes: Axes) -> None:
        left_edges = curve.edges[:-1]
        widths = [high - low for low, high in pairwise(curve.edges)]
        labels = [_bin_label(count) for count in curve.n]
        top = 1.16 * max(curve.n)  # with room for the labels
        bars = axes.bar(left_edges, curve.n, widths, align="edge", color=colour(0), alpha=0.45)
        axes.bar_label(bars, labels, fontsize=7, padding=1)
        axes.set(xlim=(0, 1), ylim=(0, top))
        axes.set_xlabel(f"confidence: highest p (n = {n})")
        axes.set_ylabel("samples\nin the bin")
        count_axis(axes.yaxis)

    ece = single_number(row.id.metrics.get("ece"))
    title = f"{shown_name(row.name)}: ECE {number(ece)}"
    above = Panel(diagram, "accuracy over confidence")
    below = Panel(counts, "samples in each bin over confidence", height=1.7)
    return Picture("reliability", title, (above, below), stacked=True)


def _bin_label(count: int) -> str:
    if count:
        return short_count(count)
    return ""


def count_axis(axis: Any) -> None:
    """Show whole numbers on an axis, large ones in short."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins="auto"))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))


# --- OOD scores and ROC curves ----------------------------------------------------------------------------------------


def ood_scores(curve: ScoreHistograms, row: EvalRow, score: str | None) -> Picture:
    """Draw OOD histograms: where the scores of the ID samples lie, and where those of each OOD set do."""
    names = list(curve.ood)
    labels = drawn_names(names, 18)
    panels = []
    for index, name in enumerate(names):
        label = labels[index]
        panel = _score_panel(curve, name, label, row, score, index + 1)
        panels.append(panel)
    return Picture("scores", shown_name(row.name), tuple(panels))


def _score_panel(curve: ScoreHistograms, name: str, shown: str, row: EvalRow, score: str | None, index: int) -> Panel:
    """Return the panel of one OOD set, whose name is shown as ``shown``, as the series of this number."""
    edges = curve.edges
    first_edge = edges[0]
    last_edge = edges[-1]
    inside = _shares(curve.id)
    outside = _shares(curve.ood[name])
    inside_size = samples([row])
    outside_size = samples([row], [name])
    threshold = _threshold_of(row, score)

    def draw(axes: Axes) -> None:
        axes.stairs(inside, edges, fill=True, color=colour(0), alpha=0.45, label=f"ID ({inside_size})")
        axes.stairs(outside, edges, color=colour(index), linewidth=1.5, label=f"{shown} ({outside_size})")
        if threshold is not None and first_edge <= threshold <= last_edge:
            axes.axvline(threshold, **GUIDE)
        highest = max(*inside, *outside) or 1
        axes.set(xlim=(first_edge, last_edge), ylim=(0, 1.08 * highest), title=shown)
        which = ""
        if score is not None:
            which = f" {visible(score)}"
        axes.set_xlabel(f"OOD score{which}, higher is more OOD")
        axes.set_ylabel("share of the set's\nsamples per bin")

    words = f"OOD scores of ID samples and of {shown}, {inside_size} and {outside_size}"
    return Panel(draw, words, height=2.6)


def _threshold_of(row: EvalRow, score: str | None) -> float | None:
    """Return the threshold of a row on this score; None where it has none, or one on another score."""
    if row.threshold is None or row.threshold.score != score:
        return None
    return row.threshold.value


def _shares(counts: Sequence[int]) -> list[float]:
    """Return counts as shares of their sum, so that sets of different sizes compare."""
    total = sum(counts)
    if not total:
        return [0.0] * len(counts)
    return [count / total for count in counts]


def roc(curves: Mapping[str, RocCurve], row: EvalRow) -> Picture:
    """Draw ROC curves: TPR over FPR of each OOD set."""
    labels = drawn_names(list(curves), 20)
    inside = samples([row])

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], **GUIDE)
        for index, name in enumerate(curves):
            curve = curves[name]
            area = Column(ood_set_place(name), AUROC).value(row)
            size = samples([row], [name])
            label = f"{labels[index]} ({size}), AUROC {number(area, 3)}"
            look = line_look(index + 1, len(curve.fpr))
            axes.plot(curve.fpr, curve.tpr, label=label, **look)
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.set_xlabel(f"FPR: share of ID samples flagged ({inside})")
        axes.set_ylabel("TPR: share of OOD samples flagged\n(n in the legend)")

    panel = Panel(draw, "TPR over FPR of each OOD set", height=3.6)
    return Picture("roc", shown_name(row.name), (panel,))


# --- heads ------------------------------------------------------------------------------------------------------------


def head_maps(sites: Sequence[SiteHeadsRecord], row: EvalRow) -> Picture:
    """Draw the heads that every member keeps, site by site: a filled square is kept, an empty one is removed."""
    names = _site_names(sites)
    heads = [site.heads for site in sites]
    all_heads = sum(heads)
    members = max(len(site.kept) for site in sites)
    panels = []
    for member in range(members):
        kept = []
        for site in sites:
            kept.append(set(site.kept_by(member)))
        kept_in_all = sum(map(len, kept))
        title = f"{kept_in_all} of {all_heads} heads kept"
        if members > 1:
            title = f"member {member}: {title}"
        panels.append(_head_map(title, names, heads, kept))
    return Picture("heads", shown_name(row.name), tuple(panels))


def _head_map(title: str, names: Sequence[str], heads: Sequence[int], kept: Sequence[set[int]]) -> Panel:
    """Return the panel of one member: a line for each site, a square for each head."""
    widest = max(*heads, 1)

    def draw(axes: Axes) -> None:
        kept_cells: list[tuple[int, int]] = []
        removed_cells: list[tuple[int, int]] = []
        for line, count in enumerate(heads):
            for head in range(count):
                cells = removed_cells
                if head in kept[line]:
                    cells = kept_cells
                cells.append((line, head))
        axes.add_patch(_squares(kept_cells, facecolor=colour(0), linewidth=0))
        axes.add_patch(_squares(removed_cells, facecolor="none", edgecolor=SOFT, linewidth=0.6))
        for line, count in enumerate(heads):
            counts = f"{len(kept[line])}/{count}"
            axes.text(count - 0.3, line, counts, va="center", fontsize=7, color=SOFT)
        axes.set(xlim=(-0.6, widest + 1.6), ylim=(len(names) - 0.4, -0.6), xlabel="head")
        axes.set_aspect("equal", anchor="NW")
        axes.set_title(title, loc="left")
        heads_between_ticks = 4
        if widest <= 12:
            heads_between_ticks = 1
        axes.set_xticks(range(0, widest, heads_between_ticks))
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.grid(False)

    width_of_names = INCHES_A_LETTER * max(map(len, names))
    width_of_map = 0.9 + _CELL * widest + width_of_names
    width_of_title = 0.4 + INCHES_A_LETTER * len(title)
    width = max(width_of_map, width_of_title, 2.4)
    return Panel(draw, title, width, 1.05 + _CELL * len(names))


def _squares(cells: Sequence[tuple[int, int]], **looks: Any) -> PathPatch:
    """Draw one path of a square for each line and column: a page with a shape for each would be long."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    around = ((-0.4, -0.4), (0.4, -0.4), (0.4, 0.4), (-0.4, 0.4), (-0.4, -0.4))
    squares = []
    for line, head in cells:
        corners = []
        for x, y in around:
            corners.append((head + x, line + y))
        squares.append(Path(corners, closed=True))
    return PathPatch(Path.make_compound_path(*squares), **looks)


def _site_names(sites: Sequence[SiteHeadsRecord]) -> list[str]:
    """Return short names of sites, different from each other; with the tower in front where there are several."""
    towers = [visible(site.tower or "main") for site in sites]
    paths = [visible(site.site) for site in sites]
    if len(set(towers)) == 1:
        return short_names(paths, _SITE_LETTERS)
    names = [""] * len(sites)
    for tower in dict.fromkeys(towers):
        places = []
        paths_of_tower = []
        for index, site_tower in enumerate(towers):
            if site_tower == tower:
                places.append(index)
                paths_of_tower.append(paths[index])
        letters = max(_SITE_LETTERS - len(tower) - 1, 4)
        short = short_names(paths_of_tower, letters)
        for index, name in zip(places, short, strict=True):
            names[index] = f"{tower[:_SITE_LETTERS]} {name}"
    return names


# --- trainings --------------------------------------------------------------------------------------------------------


def training(trainings: Sequence[TrainingRecord], row: EvalRow) -> Picture:
    """Draw training curves: loss and validation accuracy over the epochs, a line for each member that was trained."""
    steps = sizes_text(trained.steps for trained in trainings)
    x_title = f"epoch ({steps} steps)"
    losses = _epoch_lines(trainings, lambda epoch: epoch.loss)
    accuracies = _epoch_lines(trainings, lambda epoch: epoch.val_accuracy)
    panels = []
    if losses:
        sizes = sizes_text(trained.n for trained in trainings)
        draw = _lines(losses, x_title, f"training loss, nats\n({sizes})")
        panels.append(Panel(draw, "training loss, nats over epochs", height=2.2))
    if accuracies:
        sizes = sizes_text(trained.n_val for trained in trainings)
        draw = _lines(accuracies, x_title, f"validation accuracy\n({sizes})")
        panels.append(Panel(draw, "validation accuracy over epochs", height=2.2))
    return Picture("training", shown_name(row.name), tuple(panels), stacked=True)


def _epoch_lines(trainings: Sequence[TrainingRecord], value_of: Callable[[EpochRecord], float | None]) -> list[_Line]:
    """Return a number of every epoch that has it, for each training that has any."""
    lines = []
    for index, trained in enumerate(trainings):
        points = []
        for epoch in trained.epochs or ():
            value = value_of(epoch)
            if epoch.epoch is not None and value is not None:
                points.append((epoch.epoch, value))
        if points:
            label = _weights_words(trained)
            if len(trainings) > 1:
                member = "?"
                if trained.member is not None:
                    member = str(trained.member)
                label = f"member {member}: {label}"
            lines.append(_Line(index, label, points))
    return lines


def _weights_words(trained: TrainingRecord) -> str:
    """Say the weights of which epoch were kept."""
    if trained.kept_epoch is None:
        return "weights of several steps"
    numbers = []
    for epoch in trained.epochs or ():
        if epoch.epoch is not None:
            numbers.append(epoch.epoch)
    last = 0
    if numbers:
        last = numbers[-1]
    return f"epoch {trained.kept_epoch} of {last} kept"


def _lines(lines: Sequence[_Line], x_title: str, y_title: str) -> Callable[[Axes], None]:
    """Return a function that draws a few lines over whole numbers."""

    def draw(axes: Axes) -> None:
        places: list[int] = []
        for line in lines:
            x, y = zip(*line.points, strict=True)
            look = line_look(line.series, len(x))
            axes.plot(x, y, label=line.label, **look)
            places += x
        axes.set(xlabel=x_title, ylabel=y_title)
        first = min(places)
        last = max(places)
        if first == last:
            axes.set_xlim(first - 0.5, last + 0.5)
        lowest = axes.get_ylim()[0]
        axes.set_ylim(bottom=max(lowest, 0))
        count_axis(axes.xaxis)

    return draw


# --- of all rows ------------------------------------------------------------------------------------------------------


def risk_coverage(rows: Sequence[EvalRow], names: Sequence[str]) -> Picture | None:
    """Draw risk-coverage curves: the error rate among the most confident samples, over how many of them there are."""
    curves = [row.curves.risk_coverage for row in rows]
    highest_of_curves = []
    for curve in curves:
        if curve is not None and curve.coverage:
            highest_of_curves.append(max(curve.risk))
    if not highest_of_curves:
        return None
    highest = min(max(highest_of_curves), 1)
    top = 1.06 * max(highest, 0) or 1

    def draw(axes: Axes) -> None:
        for index, curve in enumerate(curves):
            if curve is None or not curve.coverage:
                continue
            look = line_look(index, len(curve.coverage))
            axes.plot(curve.coverage, curve.risk, label=names[index], **look)
        axes.set(xlim=(0, 1), ylim=(0, top))
        axes.set_ylabel("error rate among\nthe samples kept")
        axes.set_xlabel(f"coverage: share of samples kept,\nmost confident first ({samples(rows)})")

    panel = Panel(draw, "error rate over coverage", height=3.6)
    return Picture("risk-coverage", "Risk and coverage", (panel,))


class _CostPoint(NamedTuple):
    """A row in the picture of costs: its series, its mult-adds over the reference's, and what it reaches."""

    series: int
    ratio: float
    value: float
    ends: tuple[float, float] | None


def cost(rows: Sequence[EvalRow], names: Sequence[str], column: Column, kind: str, words: str) -> Picture | None:
    """Draw a dot plot: what each row costs, and what it reaches, with its interval."""
    ratios, reference = cost_ratio(rows)
    points = []
    for index, row in enumerate(rows):
        ratio = ratios[index]
        value = column.value(row)
        if ratio is not None and value is not None:
            ends = column.interval(row)
            points.append(_CostPoint(index, ratio, value, ends))
    if not points:
        return None
    sizes = f"ID {samples(rows)}"
    if column.place == _AUROC.place:
        outside = samples(rows, ood_names(rows))
        sizes += f", OOD {outside}"
    (reference_label,) = drawn_names([reference])

    def draw(axes: Axes) -> None:
        for point in points:
            series = point.series
            whiskers(axes, [point.ratio], [point.ends], series)
            axes.plot(point.ratio, point.value, label=names[series], **point_look(series))
        axes.margins(0.1)
        axes.set_xlabel(f"mult-adds, times those of\n{reference_label}")
        axes.set_ylabel(f"{words}\n({sizes})")

    panel = Panel(draw, f"{words} over mult-adds", height=3.6)
    return Picture(kind, f"Cost and {words}", (panel,))


_DIVERSITY_UNITS = ("mutual information, nats", "disagreement:\nshare of pairs of votes")


def diversity(rows: Sequence[EvalRow], names: Sequence[str]) -> Picture | None:
    """Draw dot plots: how much the members of each row differ, set by set."""
    measured = each_once(row.diversity for row in rows)
    outside = ood_names(rows)
    sets = [name for name in ("id", *outside) if name in measured]
    disagreements = [Column(diversity_place(name), DIVERSITY_METRICS[1]) for name in sets]
    of_several_members = []
    for index, row in enumerate(rows):
        values = [column.value(row) for column in disagreements]
        if any(value is not None for value in values):
            of_several_members.append(index)
    if not of_several_members:
        return None
    titles = []
    for name in sets:
        titles.append("ID" if name == "id" else name)
    shown = drawn_names(titles, 14)
    inches_of_longest = max(map(len, shown)) * INCHES_A_LETTER
    inches_of_each = (WIDTH - 0.9) / len(shown)
    crowded = inches_of_longest > inches_of_each
    height = 2.6
    rotation = 0
    side = "center"
    if crowded:
        height = 3.4
        rotation = 45
        side = "right"
    sizes = f"ID {samples(rows)}"
    if len(sets) > 1:
        sizes += f", OOD {samples(rows, outside)}"

    def panel(metric: Metric, unit: str) -> Panel:
        def draw(axes: Axes) -> None:
            for turn, index in enumerate(of_several_members):
                # Side by side, not one over the other.
                place = (turn + 0.5) / len(of_several_members)
                shift = 0.6 * (place - 0.5)
                _diversity_points(axes, rows[index], sets, metric, shift, label=names[index], series=index)
            axes.set(xlim=(-0.5, len(sets) - 0.5), xlabel=f"data set ({sizes})", ylabel=unit)
            highest = axes.get_ylim()[1]
            axes.set_ylim(0, max(highest, 1e-9))
            axes.set_xticks(range(len(sets)), shown, rotation=rotation, ha=side)
            axes.grid(False, axis="x")

        return Panel(draw, f"{metric.words} over the data sets", height=height)

    panels = []
    for metric, unit in zip(DIVERSITY_METRICS, _DIVERSITY_UNITS, strict=False):
        panels.append(panel(metric, unit))
    return Picture("diversity", "Diversity of the members", tuple(panels))


def _diversity_points(
    axes: Axes, row: EvalRow, sets: Sequence[str], metric: Metric, shift: float, label: str, series: int
) -> None:
    """Draw a metric of one row on each data set, beside the place of the set."""
    x = []
    y = []
    for place, name in enumerate(sets):
        value = Column(diversity_place(name), metric).value(row)
        if value is not None:
            x.append(place + shift)
            y.append(value)
    if x:
        axes.plot(x, y, label=label, **point_look(series), **UNCLIPPED)


def corruptions(rows: Sequence[EvalRow], names: Sequence[str]) -> Picture | None:
    """Draw what corruption of the images does, from none to the hardest."""
    x_title = f"severity, 0: uncorrupted ({corrupted_samples(rows)})"
    panels = []
    for metric in CORRUPTION_METRICS:
        lines = []
        for index, row in enumerate(rows):
            points = _severity_points(row, metric)
            if row.corruption_avg and len(points) > 1:
                lines.append(_Line(index, names[index], points))
        if not lines:
            continue
        y_title = f"{metric.words}\n({metric.direction} is better)"
        draw = _lines(lines, x_title, y_title)
        panels.append(Panel(draw, f"{metric.words} over severity"))
    if not panels:
        return None
    return Picture("corruptions", "Mean over the corruptions", tuple(panels))


def _severity_points(row: EvalRow, metric: Metric) -> list[tuple[int, float]]:
    """Return a metric over the severity of corruptions, that of uncorrupted data at 0."""
    places = [IN_DISTRIBUTION, *(severity_place(severity) for severity in _SEVERITIES)]
    points = []
    for severity, place in enumerate(places):
        value = Column(place, metric).value(row)
        if value is not None:
            points.append((severity, value))
    return points
