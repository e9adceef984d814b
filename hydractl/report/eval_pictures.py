"""The pictures of an eval and of a study: quality against cost, calibration, and OOD scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hydractl.files.eval_answer import (
    EvalAnswer,
    EvalCurves,
    EvalRow,
    OodDetection,
    ReliabilityCurve,
    ScoreHistograms,
)
from hydractl.files.results import Interval
from hydractl.files.study_answer import StudyAnswer
from hydractl.jsonio import clean
from hydractl.report.eval_tables import (
    AUROC,
    FPR95,
    Column,
    cost_ratio,
    known_interval,
    ood_names,
    single_number,
    sizes_of_sets,
)
from hydractl.report.pictures import (
    BLUE,
    GUIDE,
    ORANGE,
    SOFT,
    VERMILION,
    Panel,
    Picture,
    dot,
)
from hydractl.report.texts import drawn_names, number, shown_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURES = (AUROC, FPR95)
"""What the overview shows, each in a panel."""


def pictures(answer: EvalAnswer, study: StudyAnswer | None = None) -> dict[str, Picture]:
    """Return the pictures that the answer has numbers for, by kind; without mult-adds, say, there is no overview.

    Args:
        answer: the answer of the eval.
        study: the study that it belongs to, which says which row to use.
    """
    drawn = (overview(answer, study), reliability(rows_looked_at(answer, study)), ood_scores(answer, study))
    return {picture.kind: picture for picture in drawn if picture is not None}


def rows_looked_at(answer: EvalAnswer, study: StudyAnswer | None) -> list[EvalRow]:
    """Return the rows (models) that pictures show in detail, one or two of them.

    The first row always. With a study also the one that it says to use, without a study the last; that is left out if
    it is the first one.
    """
    first, *others = answer.models
    if study is not None:
        others = [row for row in others if row.name == study.use.row]
    second_if_any = others[-1:]
    return [first, *second_if_any]


# --- quality against cost ---------------------------------------------------------------------------------------------


class Reached(NamedTuple):
    """A model in the overview.

    Attributes:
        name: its name.
        ratio: its mult-adds over those of the single model; None if not known.
        measured: what it reaches, among it :data:`MEASURES`.
        intervals: the interval of each number, by dotted key, as far as it is known.
        chosen: whether it is the one to use.
    """

    name: str
    ratio: float | None
    measured: OodDetection
    intervals: Mapping[str, Interval | None] = {}
    chosen: bool = False


Levels = Mapping[str, OodDetection]
"""What horizontal lines of the overview stand for, by label."""


def overview(answer: EvalAnswer, study: StudyAnswer | None) -> Picture | None:
    """Return the picture of OOD detection (AUROC and FPR95) over mult-adds; None if no row has a figure and a cost.

    Each row is a model, and a point. With a study, horizontal lines show the single model with MSP and with its own OOD
    score, and a ring the model to use.
    """
    rows = answer.models
    reached = []
    for row in rows:
        name = row.name
        is_used = False
        if study is not None:
            name = _name_in_study(study, row.name)
            is_used = row.name == study.use.row
        reached.append(Reached(name, cost_ratio(row), row, row.ci, is_used))
    levels = {} if study is None else _levels_of_study(study)
    sizes = f"ID {sizes_of_sets(rows)}, OOD {sizes_of_sets(rows, ood_names(rows))}"
    return drawn_overview(reached, levels, sizes)


def _name_in_study(study: StudyAnswer, row: str) -> str:
    """Return the name of a row in the picture; that of the single model says its score, as it stands with MSP, too."""
    single = study.rows[0]
    return f"{single.name}, {single.score}" if row == single.name else row


def _levels_of_study(study: StudyAnswer) -> Levels:
    """Return, by label, what the horizontal lines stand for: the single model with MSP, and with its own score."""
    single = study.rows[0]
    return {f"{single.name}, MSP": study.baseline, _name_in_study(study, single.name): single.test}


_MOST_LETTERS = 30


def drawn_overview(reached: Sequence[Reached], levels: Levels, sizes: str) -> Picture | None:
    """Return the picture of models as named points over their cost, with the one to use marked; None without points.

    It has a panel for AUROC and one for FPR95, as far as any model with a known cost has them.

    Args:
        reached: the models, with what they reach.
        levels: what horizontal lines stand for.
        sizes: the numbers of samples, as text; may be empty.
    """
    # A panel for each measure that a model with a known cost has.
    panels = []
    for column in MEASURES:
        y_title = f"{column.metric.label}, mean over OOD sets\n{sizes}".rstrip()
        has_points = any(column.value(model.measured) is not None and model.ratio is not None for model in reached)
        if has_points:
            draw = partial(_draw_overview, column=column, reached=reached, levels=levels, y_title=y_title)
            panels.append(Panel(draw, f"{column.metric.label} over mult-adds"))
    return Picture("overview", "OOD detection against cost", panels) if panels else None


class _Label(NamedTuple):
    """A name beside a panel, and the point that it is of."""

    name: str
    x: float
    y: float
    bold: bool = False


def _draw_overview(axes: Axes, column: Column, reached: Sequence[Reached], levels: Levels, y_title: str) -> None:
    """Draw one measure of every model over its cost, with names, intervals, and a ring around the one to use.

    Args:
        axes: the panel.
        column: the measure. A model without it, or without a known cost, has no point.
        reached: the models.
        levels: by label, what horizontal lines stand for.
        y_title: the title of the vertical axis.
    """
    # The points.
    labels = []
    shown_names = drawn_names([model.name for model in reached], _MOST_LETTERS)
    for model, name in zip(reached, shown_names, strict=True):
        value = column.value(model.measured)
        if value is None or model.ratio is None:
            continue
        colour = VERMILION if model.chosen else BLUE
        dot(axes, model.ratio, value, known_interval(model.intervals.get(column.key)), colour)
        if model.chosen:
            axes.plot(model.ratio, value, marker="o", markersize=13, markerfacecolor="none", markeredgecolor=colour)
        labels.append(_Label(name, model.ratio, value, model.chosen))
    axes.margins(0.12)
    axes.set(xlabel="mult-adds, times those of the model with all heads", ylabel=y_title)

    # The lines, each with its label at the right end, unless a point has that name.
    right = axes.get_xlim()[1]
    named = {model.name for model in reached}
    for label, measured in levels.items():
        level = column.value(measured)
        if level is not None:
            axes.axhline(level, **GUIDE)
            if label not in named:
                labels.append(_Label(label, right, level))
    _write_labels(axes, labels)


_NAMES_AT = 1.04
"""Where names begin, in widths of the panel."""

_FEWEST_PLACES = 21
"""How many names fit above each other beside a panel; with more they are closer together."""


def _write_labels(axes: Axes, labels: Sequence[_Label]) -> None:
    """Write names to the right of the axes, each as near to the height of its point as there is room.

    A thin line leads from the point to its name. Names never cover each other, points or lines, and no two lines
    cross: of all ways to give each name a height, the one with the least length of lines has no crossing.
    """
    from scipy.optimize import linear_sum_assignment  # imported here because it is slow

    # Points and heights in shares of the panel: 0 is its lower or left end, 1 the upper or right one.
    axes.autoscale_view()  # sets the limits of the axes, to which the lines belong
    heights = np.linspace(0, 1, max(_FEWEST_PLACES, len(labels)))  # where names may stand
    points = axes.transLimits.transform([(label.x, label.y) for label in labels])  # [labels, 2]

    # Give each name a height of its own, so that all lines together are as short as possible.
    lengths = np.hypot(_NAMES_AT - points[:, :1], heights - points[:, 1:])  # [labels, heights]
    _, index_of_height = linear_sum_assignment(lengths)  # [labels]
    style = {"arrowstyle": "-", "color": SOFT, "linewidth": 0.5, "shrinkB": 3, "relpos": (0, 0.5)}
    for label, index in zip(labels, index_of_height, strict=True):
        axes.annotate(
            label.name, (label.x, label.y), (_NAMES_AT, heights[index]), xycoords="data", textcoords="axes fraction",
            va="center", fontsize=8, fontweight="bold" if label.bold else "normal", arrowprops=style,
        )  # fmt: skip


# --- calibration ------------------------------------------------------------------------------------------------------


def reliability(rows: Sequence[EvalRow]) -> Picture | None:
    """Return the picture of accuracy over confidence, a panel for each row (model); None if no row has such a curve.

    A curve has bins of samples by confidence. The title of a panel has the ECE, the mean distance of accuracy from
    confidence.
    """
    panels = []
    for row in rows:
        curve = (row.curves or EvalCurves()).reliability
        if curve is not None and any(curve.n):
            ece = number(single_number(row.id.metrics.get("ece")), 3)
            name = drawn_names([row.name])[0]
            draw = partial(_draw_reliability, curve=curve, title=f"{name}: ECE {ece}")
            panels.append(Panel(draw, f"accuracy over confidence of {name}"))
    if not panels:
        return None
    return Picture("reliability", "Calibration", panels)


def _draw_reliability(axes: Axes, curve: ReliabilityCurve, title: str) -> None:
    """Draw the accuracy of each bin with its interval, and the diagonal of perfect calibration."""
    # The curve has the bins as lists: their numbers of samples, confidences, accuracies and ends of intervals.
    axes.plot([0, 1], [0, 1], **GUIDE)
    for index, n in enumerate(curve.n):
        confidence = curve.confidence[index]
        accuracy = curve.accuracy[index]
        if n and confidence is not None and accuracy is not None:
            dot(axes, confidence, accuracy, known_interval((curve.low[index], curve.high[index])))
    axes.set(xlim=(0, 1), ylim=(0, 1), title=title)
    axes.set_xlabel(f"confidence: mean highest p of a bin (n = {sum(curve.n)})")
    axes.set_ylabel("accuracy of the bin\nwith 95 % Wilson interval")


# --- OOD scores -------------------------------------------------------------------------------------------------------


def ood_scores(answer: EvalAnswer, study: StudyAnswer | None = None) -> Picture | None:
    """Return histograms of the OOD score, of ID samples and of each OOD set in a panel; None without any.

    They are of one row (model), the last of those that are shown in detail. Its threshold is drawn if it is one of this
    OOD score.
    """
    row = rows_looked_at(answer, study)[-1]
    histograms = (row.curves or EvalCurves()).scores
    if histograms is None or not histograms.ood:
        return None
    score = row.ood_score
    threshold = None
    if row.threshold is not None and row.threshold.score == score:
        threshold = row.threshold.value

    # A panel for each OOD set, with its AUROC in the title.
    panels = []
    shown_sets = drawn_names(list(histograms.ood), 18)
    for name, shown in zip(histograms.ood, shown_sets, strict=True):
        size = sizes_of_sets([row], [name])
        title = f"{shown} ({size})"
        auroc = Column(("ood", name), AUROC.metric).value(row)
        if auroc is not None:
            title += f": AUROC {number(auroc, 3)}"
        draw = partial(
            _draw_histograms, histograms=histograms, name=name, title=title, score=score, threshold=threshold
        )
        words = f"OOD scores of ID samples and of {shown}, {sizes_of_sets([row])} and {size}"
        panels.append(Panel(draw, words))
    return Picture("scores", f"OOD scores of {shown_name(row.name)}", panels)


def _draw_histograms(
    axes: Axes, histograms: ScoreHistograms, name: str, title: str, score: str | None, threshold: float | None
) -> None:
    """Draw the scores of ID samples as a filled histogram, those of an OOD set as an outline, and the threshold."""
    # The share of samples in each bin, [bins]; the bins lie between the edges, [bins + 1]. A set may have no samples.
    inside = np.asarray(histograms.id) / max(1, sum(histograms.id))
    outside = np.asarray(histograms.ood[name]) / max(1, sum(histograms.ood[name]))
    edges = histograms.edges
    axes.stairs(inside, edges, fill=True, color=BLUE, alpha=0.45)
    axes.stairs(outside, edges, color=ORANGE, linewidth=1.5)
    if threshold is not None and edges[0] <= threshold <= edges[-1]:
        axes.axvline(threshold, **GUIDE)
    highest = max(*inside, *outside) or 1  # without samples: an axis from 0 to 0 cannot be drawn
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.08 * highest), title=title)
    name_of_score = f" {clean(score)}" if score else ""
    axes.set_xlabel(f"OOD score{name_of_score}\nhigher is more OOD (ID n = {sum(histograms.id)})")
    axes.set_ylabel("share of the set's\nsamples per bin")
