"""The pictures of an eval, one function each: first those of a single row, then those that compare all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from hydractl.files.eval_answer import (
    IN_DISTRIBUTION,
    EvalAnswer,
    EvalCurves,
    EvalRow,
    ReliabilityCurve,
    RiskCoverageCurve,
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
    corrupted_sizes,
    cost_ratio,
    distinct_entries,
    known_interval,
    ood_names,
    score_name,
    single_number,
    sizes_of_sets,
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

KINDS_OF_A_ROW = ("reliability", "scores", "roc", "heads", "training")
KINDS_OF_ALL_ROWS = ("risk-coverage", "cost-auroc", "cost-accuracy", "diversity", "corruptions")
_SITE_LETTERS = 14
_CELL = 0.18  # inches of one head
_SEVERITIES = ("1", "2", "3", "4", "5")
_AUROC = OOD_AVERAGE[0]


@dataclass(frozen=True)
class _Line:
    """A line of a picture: the index of its series, its label, and its points (x, y), where x is a whole number."""

    series: int
    label: str
    points: Sequence[tuple[int, float]]


def possible_files(names: Sequence[str]) -> list[str]:
    """Return every file name that pictures of rows with these names can have.

    The numbers of a row decide which of them are written.
    """
    files = []
    for part in file_names(names):
        for kind in KINDS_OF_A_ROW:
            files.append(f"{kind}.{part}.png")
    for kind in KINDS_OF_ALL_ROWS:
        files.append(f"{kind}.png")
    return files


def picture_files(answer: EvalAnswer) -> Iterator[tuple[str, Picture]]:
    """Yield the file name and the picture of all that the answer has numbers for; pictures of all rows come first."""
    for picture in comparison_pictures(answer):
        yield f"{picture.kind}.png", picture
    rows = answer.models
    parts_of_names = file_names([row.name for row in rows])
    for row, part in zip(rows, parts_of_names, strict=True):
        for picture in model_pictures(answer, row):
            name = f"{picture.kind}.{part}.png"
            yield name, picture


def model_pictures(answer: EvalAnswer, row: EvalRow) -> Iterator[Picture]:
    """Yield every picture of a row that it has numbers for, in the order of a report."""
    curves = row.curves or EvalCurves()
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
    """Return every picture that compares all rows and for which the answer has numbers, in the order of a report."""
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
    """A bin of confidence that holds samples: its mean confidence, its accuracy, and the interval of the accuracy."""

    confidence: float
    accuracy: float
    ends: tuple[float, float] | None


def _filled_bins(curve: ReliabilityCurve) -> list[_Bin]:
    """Return the bins that hold samples, in order of rising confidence."""
    filled = []
    for index, n in enumerate(curve.n):
        confidence = curve.confidence[index]
        accuracy = curve.accuracy[index]
        if not n or confidence is None or accuracy is None:
            continue
        interval = (curve.low[index], curve.high[index])
        filled.append(_Bin(confidence, accuracy, known_interval(interval)))
    return filled


def reliability(curve: ReliabilityCurve, row: EvalRow) -> Picture:
    """Return the reliability diagram of a row: accuracy over confidence by bin, and below it the number of samples.

    Args:
        curve: the bins of confidence, with their samples and accuracies.
        row: the row of the model, which gives the title.
    """
    n = sum(curve.n)
    bins = _filled_bins(curve)
    draw_accuracies = partial(_draw_accuracies, bins=bins, n=n)
    above = Panel(draw_accuracies, "accuracy over confidence")

    draw_counts = partial(_draw_bin_counts, curve=curve, n=n)
    below = Panel(draw_counts, "samples in each bin over confidence", height=1.7)

    ece = single_number(row.id.metrics.get("ece"))
    title = f"{shown_name(row.name)}: ECE {number(ece)}"
    return Picture("reliability", title, (above, below), stacked=True)


def _draw_accuracies(axes: Axes, bins: Sequence[_Bin], n: int) -> None:
    """Draw the accuracy of each bin with its interval, and the diagonal of perfect calibration.

    Args:
        axes: the axes to draw on.
        bins: the bins that hold samples.
        n: the number of all samples.
    """
    confidences = []
    accuracies = []
    intervals = []
    for filled_bin in bins:
        confidences.append(filled_bin.confidence)
        accuracies.append(filled_bin.accuracy)
        intervals.append(filled_bin.ends)

    axes.plot([0, 1], [0, 1], **GUIDE)
    whiskers(axes, confidences, intervals, 0)
    axes.plot(confidences, accuracies, **point_look(0), **UNCLIPPED)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_xlabel(f"confidence: mean highest p of a bin (n = {n})")
    axes.set_ylabel("accuracy of the bin\nwith 95 % Wilson interval")


def _draw_bin_counts(axes: Axes, curve: ReliabilityCurve, n: int) -> None:
    """Draw the number of samples of each bin as bars; empty bins get no label.

    Args:
        axes: the axes to draw on.
        curve: the bins, with their edges and numbers of samples.
        n: the number of all samples.
    """
    left_edges = curve.edges[:-1]
    widths = [high - low for low, high in pairwise(curve.edges)]
    bars = axes.bar(
        left_edges,
        curve.n,
        widths,
        align="edge",
        color=colour(0),
        alpha=0.45,
    )

    labels = [_bin_label(count) for count in curve.n]
    axes.bar_label(bars, labels, fontsize=7, padding=1)
    with_room_for_labels = 1.16 * max(curve.n)
    axes.set(xlim=(0, 1), ylim=(0, with_room_for_labels))
    axes.set_xlabel(f"confidence: highest p (n = {n})")
    axes.set_ylabel("samples\nin the bin")
    count_axis(axes.yaxis)


def _bin_label(count: int) -> str:
    """Return the label of a bar: the count in short; empty for 0."""
    if count:
        return short_count(count)
    return ""


def count_axis(axis: Any) -> None:
    """Make an axis show only whole numbers, and large ones in short form."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins="auto"))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))


# --- OOD scores and ROC curves ----------------------------------------------------------------------------------------


def ood_scores(curve: ScoreHistograms, row: EvalRow, score: str | None) -> Picture:
    """Return histograms of the OOD score: a panel for each OOD set, which also shows the ID samples.

    Args:
        curve: the numbers of samples by bin of the OOD score, of the ID data and of each OOD set.
        row: the row that has these scores.
        score: the name of the score; None if it is not known.
    """
    inside_size = sizes_of_sets([row])
    inside = _Histogram("ID", inside_size, _shares_of_sum(curve.id), series=0)
    names = list(curve.ood)
    labels = drawn_names(names, 18)

    panels = []
    for index, name in enumerate(names):
        size = sizes_of_sets([row], [name])
        shares = _shares_of_sum(curve.ood[name])
        outside = _Histogram(labels[index], size, shares, series=index + 1)
        draw = partial(
            _draw_histograms,
            inside=inside,
            outside=outside,
            edges=curve.edges,
            score=score,
            threshold=_threshold_on_score(row, score),
        )
        words = f"OOD scores of ID samples and of {outside.label}, {inside_size} and {size}"
        panels.append(Panel(draw, words, height=2.6))
    return Picture("scores", shown_name(row.name), tuple(panels))


class _Histogram(NamedTuple):
    """The histogram of the OOD scores of one data set.

    Attributes:
        label: the name of the set in the picture.
        size: its number of samples as text, such as ``n = 497``.
        shares: the share of its samples in each bin.
        series: the index of its colour.
    """

    label: str
    size: str
    shares: Sequence[float]
    series: int


def _draw_histograms(
    axes: Axes,
    inside: _Histogram,
    outside: _Histogram,
    edges: Sequence[float],
    score: str | None,
    threshold: float | None,
) -> None:
    """Draw the scores of ID samples as a filled histogram and those of an OOD set as an outline, and the threshold.

    Args:
        axes: the axes to draw on.
        inside: the histogram of the ID samples.
        outside: the histogram of the OOD set.
        edges: the edges of the bins.
        score: the name of the score; None if it is not known.
        threshold: the threshold on the score, drawn if it lies between the edges; None if there is none.
    """
    inside_label = f"{inside.label} ({inside.size})"
    axes.stairs(
        inside.shares,
        edges,
        fill=True,
        color=colour(inside.series),
        alpha=0.45,
        label=inside_label,
    )
    outside_label = f"{outside.label} ({outside.size})"
    axes.stairs(
        outside.shares,
        edges,
        color=colour(outside.series),
        linewidth=1.5,
        label=outside_label,
    )

    # The threshold, and the axes from the first edge to the last.
    first_edge = edges[0]
    last_edge = edges[-1]
    if threshold is not None and first_edge <= threshold <= last_edge:
        axes.axvline(threshold, **GUIDE)
    highest = max(*inside.shares, *outside.shares)
    if not highest:
        highest = 1  # no sample: an axis from 0 to 0 cannot be drawn
    axes.set(xlim=(first_edge, last_edge), ylim=(0, 1.08 * highest), title=outside.label)

    score_words = ""
    if score is not None:
        score_words = f" {visible(score)}"
    axes.set_xlabel(f"OOD score{score_words}, higher is more OOD")
    axes.set_ylabel("share of the set's\nsamples per bin")


def _threshold_on_score(row: EvalRow, score: str | None) -> float | None:
    """Return the threshold of a row on this score; None if it has no threshold, or one on another score."""
    if row.threshold is None or row.threshold.score != score:
        return None
    return row.threshold.value


def _shares_of_sum(counts: Sequence[int]) -> list[float]:
    """Return counts as shares of their sum, so that sets of different sizes can be compared."""
    total = sum(counts)
    if not total:
        return [0.0] * len(counts)
    return [count / total for count in counts]


def roc(curves: Mapping[str, RocCurve], row: EvalRow) -> Picture:
    """Return the ROC curves of a row: the TPR over the FPR for each OOD set."""
    draw = partial(_draw_roc_curves, curves=curves, row=row)
    panel = Panel(draw, "TPR over FPR of each OOD set", height=3.6)
    return Picture("roc", shown_name(row.name), (panel,))


def _draw_roc_curves(axes: Axes, curves: Mapping[str, RocCurve], row: EvalRow) -> None:
    """Draw the ROC curve of each OOD set, and the diagonal of guessing.

    Args:
        axes: the axes to draw on.
        curves: the curve of each OOD set, by its name.
        row: the row of the model, which has the sizes and the AUROCs.
    """
    axes.plot([0, 1], [0, 1], **GUIDE)
    names = list(curves)
    shown_names = drawn_names(names, 20)
    for index, name in enumerate(names):
        curve = curves[name]
        series = index + 1  # 0 is the colour of ID data
        look = line_look(series, len(curve.fpr))
        label = _roc_label(name, shown_names[index], row)
        axes.plot(curve.fpr, curve.tpr, label=label, **look)

    axes.set(xlim=(0, 1), ylim=(0, 1))
    inside_size = sizes_of_sets([row])
    axes.set_xlabel(f"FPR: share of ID samples flagged ({inside_size})")
    axes.set_ylabel("TPR: share of OOD samples flagged\n(n in the legend)")


def _roc_label(name: str, shown: str, row: EvalRow) -> str:
    """Return the label of an OOD set: its name as shown, its size and its AUROC."""
    column = Column(ood_set_place(name), AUROC)
    auroc = number(column.value(row), 3)
    size = sizes_of_sets([row], [name])
    return f"{shown} ({size}), AUROC {auroc}"


# --- heads ------------------------------------------------------------------------------------------------------------


def head_maps(sites: Sequence[SiteHeadsRecord], row: EvalRow) -> Picture:
    """Return a map of the heads of each member, a line for each site: a filled square is kept, an empty one removed.

    A site is an attention module of the model.

    Args:
        sites: the sites, each with its number of heads and the heads that each member keeps.
        row: the row of the model, which gives the title.
    """
    names = _site_names(sites)
    members = max(len(site.kept) for site in sites)
    all_heads = sum(site.heads for site in sites)
    panels = []
    for member in range(members):
        lines = _head_lines(sites, names, member)
        kept_in_all = sum(len(line.kept) for line in lines)
        title = f"{kept_in_all} of {all_heads} heads kept"
        if members > 1:
            title = f"member {member}: {title}"
        panels.append(_head_map(title, lines))
    return Picture("heads", shown_name(row.name), tuple(panels))


def _head_lines(sites: Sequence[SiteHeadsRecord], names: Sequence[str], member: int) -> list[_HeadLine]:
    """Return the lines of the map of one member, one for each site; ``names`` are the names of the sites."""
    lines = []
    for site, name in zip(sites, names, strict=True):
        kept = set(site.kept_by(member))
        lines.append(_HeadLine(name, site.heads, kept))
    return lines


class _HeadLine(NamedTuple):
    """A line of a map of heads: the label of a site, its number of heads, and the indices of the kept heads."""

    name: str
    heads: int
    kept: set[int]


def _head_map(title: str, lines: Sequence[_HeadLine]) -> Panel:
    """Return the panel of one member, wide enough for the names of its sites, its heads and its title.

    Args:
        title: the title of the map.
        lines: the name and the heads of each site.
    """
    longest_name = max(len(line.name) for line in lines)
    width_of_names = INCHES_A_LETTER * longest_name
    width_of_heads = _CELL * _most_heads(lines)
    width_of_map = 0.9 + width_of_heads + width_of_names

    width_of_title = 0.4 + INCHES_A_LETTER * len(title)
    width = max(width_of_map, width_of_title, 2.4)

    height_of_heads = _CELL * len(lines)
    height = 1.05 + height_of_heads
    draw = partial(_draw_head_map, title=title, lines=lines)
    return Panel(draw, title, width, height)


def _most_heads(lines: Sequence[_HeadLine]) -> int:
    """Return the largest number of heads of a site; at least 1, so that there is an axis."""
    return max(1, *(line.heads for line in lines))


def _draw_head_map(axes: Axes, title: str, lines: Sequence[_HeadLine]) -> None:
    """Draw a line for each site, from top to bottom: a square for each head, and behind them how many are kept.

    Args:
        axes: the axes to draw on.
        title: the title of the map.
        lines: the name and the heads of each site.
    """
    # Head h of line i is a square of side 0.8 around x = h, y = i.
    _draw_heads(axes, lines)
    for line_index, line in enumerate(lines):
        behind_heads = line.heads - 0.3
        kept_of_all = f"{len(line.kept)}/{line.heads}"
        axes.text(behind_heads, line_index, kept_of_all, va="center", fontsize=7, color=SOFT)

    # The limits of the axes: the y axis points down, and there is room for the counts on the right.
    widest = _most_heads(lines)
    right = widest + 1.6
    bottom = len(lines) - 0.4
    axes.set(xlim=(-0.6, right), ylim=(bottom, -0.6), xlabel="head")
    axes.set_aspect("equal", anchor="NW")
    axes.set_title(title, loc="left")

    heads_between_ticks = 4
    if widest <= 12:
        heads_between_ticks = 1
    axes.set_xticks(range(0, widest, heads_between_ticks))
    names = [line.name for line in lines]
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.grid(False)


def _draw_heads(axes: Axes, lines: Sequence[_HeadLine]) -> None:
    """Draw the kept heads of all lines as filled squares, and the removed heads as empty squares."""
    kept_cells: list[tuple[int, int]] = []
    removed_cells: list[tuple[int, int]] = []
    for line_index, line in enumerate(lines):
        for head in range(line.heads):
            cell = (line_index, head)
            if head in line.kept:
                kept_cells.append(cell)
            else:
                removed_cells.append(cell)
    filled = _squares(kept_cells, facecolor=colour(0), linewidth=0)
    empty = _squares(removed_cells, facecolor="none", edgecolor=SOFT, linewidth=0.6)
    axes.add_patch(filled)
    axes.add_patch(empty)


def _squares(cells: Sequence[tuple[int, int]], **looks: Any) -> PathPatch:
    """Return a square for each cell as a single path, because a page with a shape for each would be long.

    Args:
        cells: the line and the column of each square.
        looks: colours and widths, as :class:`matplotlib.patches.PathPatch` takes them.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    corners_from_middle = ((-0.4, -0.4), (0.4, -0.4), (0.4, 0.4), (-0.4, 0.4), (-0.4, -0.4))
    squares = []
    for line, column in cells:
        corners = []
        for x, y in corners_from_middle:
            corners.append((column + x, line + y))
        squares.append(Path(corners, closed=True))
    one_path = Path.make_compound_path(*squares)
    return PathPatch(one_path, **looks)


def _site_names(sites: Sequence[SiteHeadsRecord]) -> list[str]:
    """Return a short, unique name for each site (attention module) of a model.

    If the model has several towers (e.g. an image and a text encoder), each name begins with its tower. Names are then
    shortened within each tower, because sites of different towers may have the same names.
    """
    tower_of_site = [visible(site.tower or "main") for site in sites]
    paths = [visible(site.site) for site in sites]
    distinct_towers = set(tower_of_site)
    if len(distinct_towers) == 1:
        return short_names(paths, _SITE_LETTERS)

    # Collect the paths of each tower, in order.
    paths_of_tower: dict[str, list[str]] = {}
    for tower, path in zip(tower_of_site, paths, strict=True):
        its_paths = paths_of_tower.setdefault(tower, [])
        its_paths.append(path)

    # Shorten the names of each tower. They are in the order of its sites, so each site can take its tower's next one.
    names_to_take: dict[str, Iterator[str]] = {}
    for tower, its_paths in paths_of_tower.items():
        letters = max(_SITE_LETTERS - len(tower) - 1, 4)
        its_names = short_names(its_paths, letters)
        names_to_take[tower] = iter(its_names)

    names = []
    for tower in tower_of_site:
        shown_tower = tower[:_SITE_LETTERS]
        name = next(names_to_take[tower])
        names.append(f"{shown_tower} {name}")
    return names


# --- trainings --------------------------------------------------------------------------------------------------------


def training(trainings: Sequence[TrainingRecord], row: EvalRow) -> Picture:
    """Return training curves: loss and validation accuracy over the epochs, a line for each trained member.

    A panel without numbers is left out, so that the picture may have no panel.

    Args:
        trainings: the records of the trainings, e.g. one for each member.
        row: the row of the model, which gives the title.
    """
    steps = sizes_text(trained.steps for trained in trainings)
    x_title = f"epoch ({steps} steps)"
    panels = []

    losses = _epoch_lines(trainings, lambda epoch: epoch.loss)
    if losses:
        sizes = sizes_text(trained.n for trained in trainings)
        y_title = f"training loss, nats\n({sizes})"
        panels.append(_epoch_panel(losses, x_title, y_title, "training loss, nats over epochs"))

    accuracies = _epoch_lines(trainings, lambda epoch: epoch.val_accuracy)
    if accuracies:
        sizes = sizes_text(trained.n_val for trained in trainings)
        y_title = f"validation accuracy\n({sizes})"
        panels.append(_epoch_panel(accuracies, x_title, y_title, "validation accuracy over epochs"))
    return Picture("training", shown_name(row.name), tuple(panels), stacked=True)


def _epoch_panel(lines: Sequence[_Line], x_title: str, y_title: str, words: str) -> Panel:
    """Return a low panel of lines over the epochs; ``words`` describe it."""
    draw = partial(_draw_lines, lines=lines, x_title=x_title, y_title=y_title)
    return Panel(draw, words, height=2.2)


def _epoch_lines(trainings: Sequence[TrainingRecord], value_of: Callable[[EpochRecord], float | None]) -> list[_Line]:
    """Return a line for each training, of a number of its epochs; trainings without such a number have no line.

    Args:
        trainings: the records of the trainings.
        value_of: returns the number of an epoch, e.g. its loss; None if it has none.
    """
    lines = []
    for index, trained in enumerate(trainings):
        points = []
        for epoch in trained.epochs or ():
            value = value_of(epoch)
            if epoch.epoch is not None and value is not None:
                points.append((epoch.epoch, value))
        if not points:
            continue

        label = _weights_words(trained)
        if len(trainings) > 1:
            label = f"{_member_words(trained)}: {label}"
        lines.append(_Line(index, label, points))
    return lines


def _member_words(trained: TrainingRecord) -> str:
    """Return the name of the member that a training made."""
    if trained.member is None:
        return "member ?"
    return f"member {trained.member}"


def _weights_words(trained: TrainingRecord) -> str:
    """Return words on which epoch's weights were kept, e.g. ``epoch 3 of 5 kept``."""
    if trained.kept_epoch is None:
        return "no epoch chosen"
    last = 0
    for epoch in trained.epochs or ():
        if epoch.epoch is not None:
            last = epoch.epoch
    return f"epoch {trained.kept_epoch} of {last} kept"


def _draw_lines(axes: Axes, lines: Sequence[_Line], x_title: str, y_title: str) -> None:
    """Draw lines over whole numbers; the y axis does not go below 0.

    Args:
        axes: the axes to draw on.
        lines: the lines; their x coordinates are whole numbers, e.g. epochs.
        x_title, y_title: the titles of the axes.
    """
    all_x: list[int] = []
    for line in lines:
        x, y = zip(*line.points, strict=True)
        look = line_look(line.series, len(x))
        axes.plot(x, y, label=line.label, **look)
        all_x += x

    axes.set(xlabel=x_title, ylabel=y_title)
    first_x = min(all_x)
    last_x = max(all_x)
    if first_x == last_x:
        axes.set_xlim(first_x - 0.5, last_x + 0.5)
    lowest = axes.get_ylim()[0]
    axes.set_ylim(bottom=max(lowest, 0))
    count_axis(axes.xaxis)


# --- of all rows ------------------------------------------------------------------------------------------------------


def risk_coverage(rows: Sequence[EvalRow], names: Sequence[str]) -> Picture | None:
    """Return the risk-coverage curve of each row: the error rate among the most confident samples, over their share.

    None if no row has a curve.

    Args:
        rows: all rows of an eval, one for each model.
        names: their labels.
    """
    curves = []
    for series, row in enumerate(rows):
        curve = (row.curves or EvalCurves()).risk_coverage
        if curve is not None and curve.coverage:
            curves.append(_RiskCurve(series, names[series], curve))
    if not curves:
        return None
    draw = partial(_draw_risk_curves, curves=curves, sizes=sizes_of_sets(rows))
    panel = Panel(draw, "error rate over coverage", height=3.6)
    return Picture("risk-coverage", "Risk and coverage", (panel,))


class _RiskCurve(NamedTuple):
    """The risk-coverage curve of a row, with the index of its series and its label."""

    series: int
    label: str
    curve: RiskCoverageCurve


def _draw_risk_curves(axes: Axes, curves: Sequence[_RiskCurve], sizes: str) -> None:
    """Draw the risk over the coverage, on an axis from 0 to a little above the highest risk.

    Args:
        axes: the axes to draw on.
        curves: the curve of each row.
        sizes: the number of samples, as text.
    """
    risks = [0.0]
    for series, label, curve in curves:
        look = line_look(series, len(curve.coverage))
        axes.plot(curve.coverage, curve.risk, label=label, **look)
        risks += curve.risk

    highest = min(max(risks), 1)
    top = 1.06 * highest
    if not top:
        top = 1  # no errors: an axis from 0 to 0 cannot be drawn
    axes.set(xlim=(0, 1), ylim=(0, top))
    axes.set_ylabel("error rate among\nthe samples kept")
    axes.set_xlabel(f"coverage: share of samples kept,\nmost confident first ({sizes})")


class _CostPoint(NamedTuple):
    """A row in the picture of costs: its series and label, its mult-adds over the reference's, and its number."""

    series: int
    label: str
    ratio: float
    value: float
    ends: tuple[float, float] | None


def cost(rows: Sequence[EvalRow], names: Sequence[str], column: Column, kind: str, words: str) -> Picture | None:
    """Return a dot plot of the mult-adds of each row and the number it reaches; None if no row has both.

    Args:
        rows: all rows of an eval.
        names: their labels.
        column: the number that is reached.
        kind: the name of the picture's kind.
        words: the column in words.
    """
    points = _cost_points(rows, names, column)
    if not points:
        return None

    # The axes' titles: the sizes of the data sets, and the row whose mult-adds are 1.
    sizes = f"ID {sizes_of_sets(rows)}"
    if column.place == _AUROC.place:
        outside = sizes_of_sets(rows, ood_names(rows))
        sizes += f", OOD {outside}"
    _, reference = cost_ratio(rows)
    (reference_label,) = drawn_names([reference])

    draw = partial(
        _draw_cost_points,
        points=points,
        x_title=f"mult-adds, times those of\n{reference_label}",
        y_title=f"{words}\n({sizes})",
    )
    panel = Panel(draw, f"{words} over mult-adds", height=3.6)
    return Picture(kind, f"Cost and {words}", (panel,))


def _cost_points(rows: Sequence[EvalRow], names: Sequence[str], column: Column) -> list[_CostPoint]:
    """Return a point for each row whose mult-adds and number are known.

    Args:
        rows: all rows of an eval.
        names: their labels.
        column: the number.
    """
    ratios, _ = cost_ratio(rows)
    points = []
    for index, row in enumerate(rows):
        ratio = ratios[index]
        value = column.value(row)
        if ratio is not None and value is not None:
            ends = column.interval(row)
            points.append(_CostPoint(index, names[index], ratio, value, ends))
    return points


def _draw_cost_points(axes: Axes, points: Sequence[_CostPoint], x_title: str, y_title: str) -> None:
    """Draw the number that each row reaches over its mult-adds, with the interval of the number."""
    for point in points:
        whiskers(axes, [point.ratio], [point.ends], point.series)
        axes.plot(point.ratio, point.value, label=point.label, **point_look(point.series))
    axes.margins(0.1)
    axes.set_xlabel(x_title)
    axes.set_ylabel(y_title)


_DIVERSITY_UNITS = ("mutual information, nats", "disagreement:\nshare of pairs of votes")


def diversity(rows: Sequence[EvalRow], names: Sequence[str]) -> Picture | None:
    """Return a dot plot for each metric of how much the members of each row differ on each data set.

    None if no row has several members.

    Args:
        rows: all rows of an eval, one for each model.
        names: their labels.
    """
    # The sets, ID first, on which any row measured diversity.
    measured = distinct_entries(row.diversity for row in rows)
    outside = ood_names(rows)
    sets = [name for name in ("id", *outside) if name in measured]

    # Only rows of several members have a disagreement.
    series = []
    for index, row in enumerate(rows):
        if _has_disagreement(row, sets):
            series.append(_DiversitySeries(index, names[index], row))
    if not series:
        return None

    sizes = f"ID {sizes_of_sets(rows)}"
    if len(sets) > 1:
        sizes += f", OOD {sizes_of_sets(rows, outside)}"
    shown_sets = _shown_set_names(sets)
    height = 2.6
    if _are_crowded(shown_sets):
        height = 3.4

    panels = []
    for metric, unit in zip(DIVERSITY_METRICS, _DIVERSITY_UNITS, strict=False):
        draw = partial(
            _draw_diversity,
            series=series,
            metric=metric,
            sets=sets,
            shown_sets=shown_sets,
            x_title=f"data set ({sizes})",
            y_title=unit,
        )
        panels.append(Panel(draw, f"{metric.words} over the data sets", height=height))
    return Picture("diversity", "Diversity of the members", tuple(panels))


class _DiversitySeries(NamedTuple):
    """A row of several members: its index among all rows, its label, and the row."""

    number: int
    label: str
    row: EvalRow


def _has_disagreement(row: EvalRow, sets: Sequence[str]) -> bool:
    """Return whether a row has a disagreement of members on any of the sets; only two members or more have one."""
    disagreement = DIVERSITY_METRICS[1]
    values = [Column(diversity_place(name), disagreement).value(row) for name in sets]
    return any(value is not None for value in values)


def _shown_set_names(sets: Sequence[str]) -> list[str]:
    """Return the labels of data sets below an axis."""
    titles = []
    for name in sets:
        if name == "id":
            titles.append("ID")
        else:
            titles.append(name)
    return drawn_names(titles, 14)


def _are_crowded(labels: Sequence[str]) -> bool:
    """Return whether labels side by side below a panel would overlap."""
    inches_of_longest = max(map(len, labels)) * INCHES_A_LETTER
    inches_of_each = (WIDTH - 0.9) / len(labels)
    return inches_of_longest > inches_of_each


def _draw_diversity(
    axes: Axes,
    series: Sequence[_DiversitySeries],
    metric: Metric,
    sets: Sequence[str],
    shown_sets: Sequence[str],
    x_title: str,
    y_title: str,
) -> None:
    """Draw a metric of each row over the data sets; the points of the rows are side by side, so that none is hidden.

    Args:
        axes: the axes to draw on.
        series: the rows, with their labels.
        metric: the metric.
        sets: the names of the data sets.
        shown_sets: the labels of the data sets on the axis.
        x_title, y_title: the titles of the axes.
    """
    for turn, (series_number, label, row) in enumerate(series):
        # Data set i is at x = i; the rows are spread over 0.6 around it.
        share_of_width = (turn + 0.5) / len(series)
        shift = 0.6 * (share_of_width - 0.5)
        _draw_diversity_points(axes, row, sets, metric, shift, label, series_number)

    right = len(sets) - 0.5
    axes.set(xlim=(-0.5, right), xlabel=x_title, ylabel=y_title)
    highest = axes.get_ylim()[1]
    axes.set_ylim(0, max(highest, 1e-9))

    # Labels that would overlap are rotated.
    rotation = 0
    alignment = "center"
    if _are_crowded(shown_sets):
        rotation = 45
        alignment = "right"
    places = range(len(sets))
    axes.set_xticks(places, shown_sets, rotation=rotation, ha=alignment)
    axes.grid(False, axis="x")


def _draw_diversity_points(
    axes: Axes, row: EvalRow, sets: Sequence[str], metric: Metric, shift: float, label: str, series: int
) -> None:
    """Draw a metric of one row on each data set that has it, ``shift`` to the right of the set's x coordinate."""
    x = []
    y = []
    for set_index, name in enumerate(sets):
        value = Column(diversity_place(name), metric).value(row)
        if value is not None:
            x.append(set_index + shift)
            y.append(value)
    if x:
        axes.plot(x, y, label=label, **point_look(series), **UNCLIPPED)


def corruptions(rows: Sequence[EvalRow], names: Sequence[str]) -> Picture | None:
    """Return lines over the severity of corruptions, with a panel for each metric; severity 0 is uncorrupted.

    None if no row was measured on corrupted images.

    Args:
        rows: all rows of an eval, one for each model.
        names: their labels.
    """
    x_title = f"severity, 0: uncorrupted ({corrupted_sizes(rows)})"
    panels = []
    for metric in CORRUPTION_METRICS:
        # A line for each row with at least two severities, uncorrupted data included.
        lines = []
        for index, row in enumerate(rows):
            points = _severity_points(row, metric)
            if row.corruption_avg and len(points) > 1:
                lines.append(_Line(index, names[index], points))
        if not lines:
            continue
        y_title = f"{metric.words}\n({metric.direction} is better)"
        draw = partial(_draw_lines, lines=lines, x_title=x_title, y_title=y_title)
        panels.append(Panel(draw, f"{metric.words} over severity"))
    if not panels:
        return None
    return Picture("corruptions", "Mean over the corruptions", tuple(panels))


def _severity_points(row: EvalRow, metric: Metric) -> list[tuple[int, float]]:
    """Return each severity of corruptions with the metric's value, if it is known; uncorrupted data are severity 0."""
    places = [IN_DISTRIBUTION]
    for severity_text in _SEVERITIES:
        places.append(severity_place(severity_text))
    points = []
    for severity, place in enumerate(places):
        value = Column(place, metric).value(row)
        if value is not None:
            points.append((severity, value))
    return points
