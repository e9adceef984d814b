"""The pictures of an eval and of a study: quality against cost, calibration, and OOD scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

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
from hydractl.report.tables import Ends
from hydractl.report.texts import drawn_names, number, shown_name, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = ("overview", "reliability", "scores")
"""The pictures that an eval may have, as in the names of their files."""

MEASURES = (AUROC, FPR95)
"""What the overview shows, each in a panel."""


def pictures(answer: EvalAnswer, study: StudyAnswer | None = None) -> dict[str, Picture]:
    """Return the pictures that the answer has numbers for, by kind; without cost, say, there is no overview.

    Args:
        answer: the answer of the eval.
        study: the study that it belongs to, which says which row to use.
    """
    drawn = (overview(answer, study), reliability(rows_looked_at(answer, study)), ood_scores(answer, study))
    return {picture.kind: picture for picture in drawn if picture is not None}


def rows_looked_at(answer: EvalAnswer, study: StudyAnswer | None) -> list[EvalRow]:
    """Return the rows that are shown in detail: the first one, and the one that a study says to use, else the last."""
    first, *others = answer.models
    if study is not None:
        others = [row for row in others if row.name == study.use.row]
    return [first, *others[-1:]]


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


def overview(answer: EvalAnswer, study: StudyAnswer | None = None) -> Picture | None:
    """Return the picture of OOD detection (AUROC and FPR95) over mult-adds; None if no row has both.

    With a study, horizontal lines show the single model with MSP and with its own score, and a ring the model to use.
    """
    # The mult-adds of each row over those of a reference, whose name stands at the axis.
    rows = answer.models
    ratios, reference = cost_ratio(rows)
    reached = []
    for row, ratio in zip(rows, ratios, strict=True):
        if study is None:
            reached.append(Reached(row.name, ratio, row, row.ci))
        else:
            reached.append(Reached(_name_in_study(study, row.name), ratio, row, row.ci, row.name == study.use.row))
    levels = {} if study is None else _levels_of_study(study)
    sizes = f"ID {sizes_of_sets(rows)}, OOD {sizes_of_sets(rows, ood_names(rows))}"
    return drawn_overview(reached, levels, reference, sizes)


def overview_of_study(study: StudyAnswer) -> Picture | None:
    """Return the same picture from a study alone, which has no intervals: all rows under the single model's score."""
    reached = []
    for row in study.rows:
        name = _name_in_study(study, row.name)
        reached.append(Reached(name, row.mac_ratio, row.common or row.test, chosen=row.used))
    return drawn_overview(reached, _levels_of_study(study), "the single model", "")


def _name_in_study(study: StudyAnswer, row: str) -> str:
    """Return the name of a row in the picture; that of the single model says its score, as it stands with MSP, too."""
    single = study.rows[0]
    return f"{single.name}, {single.score}" if row == single.name else row


def _levels_of_study(study: StudyAnswer) -> Levels:
    """Return, by label, what the horizontal lines stand for: the single model with MSP, and with its own score."""
    single = study.rows[0]
    return {f"{single.name}, MSP": study.baseline, _name_in_study(study, single.name): single.test}


_MOST_LETTERS = 30


def drawn_overview(reached: Sequence[Reached], levels: Levels, reference: str, sizes: str) -> Picture | None:
    """Return the picture of models as named points over their cost, with the one to use marked; None without points.

    Args:
        reached: the models.
        levels: what horizontal lines stand for.
        reference: what has the mult-adds of 1.
        sizes: the numbers of samples, as text; may be empty.
    """
    # A panel for each measure. A model without it, or without a known cost, has no point.
    (reference_shown,) = drawn_names([reference])
    x_title = f"mult-adds, times those of {reference_shown}"
    panels = []
    for column in MEASURES:
        points = []
        for model in reached:
            value = column.value(model.measured)
            if value is not None and model.ratio is not None:
                ends = known_interval(model.intervals.get(column.key))
                points.append(_Point(model.name, model.ratio, value, ends, model.chosen))
        lines = {label: column.value(measured) for label, measured in levels.items()}
        y_title = f"{column.metric.label}, mean over OOD sets\n{sizes}".rstrip()
        draw = partial(_draw_overview, points=points, levels=lines, x_title=x_title, y_title=y_title)
        if points:
            panels.append(Panel(draw, f"{column.metric.label} over mult-adds"))
    return Picture("overview", "OOD detection against cost", panels) if panels else None


class _Point(NamedTuple):
    """A model in one panel of the overview."""

    name: str
    x: float
    y: float
    ends: Ends
    chosen: bool


def _draw_overview(
    axes: Axes, points: Sequence[_Point], levels: Mapping[str, float | None], x_title: str, y_title: str
) -> None:
    """Draw one measure of every model over its cost, with names, intervals, and a ring around the one to use.

    Args:
        axes: the panel.
        points: the models.
        levels: by label, the heights of horizontal lines; None for one that is not known.
        x_title, y_title: the titles of the axes.
    """
    # The points.
    for point in points:
        colour = VERMILION if point.chosen else BLUE
        dot(axes, point.x, point.y, point.ends, colour)
        if point.chosen:
            axes.plot(point.x, point.y, marker="o", markersize=13, markerfacecolor="none", markeredgecolor=colour)
    axes.margins(0.12)
    axes.set(xlabel=x_title, ylabel=y_title)

    # The lines, each with its label at the right end, unless a point has that name.
    right = axes.get_xlim()[1]
    labels = []
    named = {point.name for point in points}
    for label, level in levels.items():
        if level is not None:
            axes.axhline(level, **GUIDE)
        if level is not None and label not in named:
            labels.append(_Point(label, right, level, None, chosen=False))

    # The names of points and lines.
    names = drawn_names([point.name for point in points], _MOST_LETTERS)
    labels += [point._replace(name=name) for point, name in zip(points, names, strict=True)]
    _write_labels(axes, labels)


_LETTERS_UP = 20
"""How many names fit above each other beside a panel."""

_NAMES_AT = 1.04
"""Where names begin, in widths of the panel."""


def _write_labels(axes: Axes, labels: Sequence[_Point]) -> None:
    """Write names to the right of the axes, each at the height of its point or as near as there is room.

    A thin line leads from the point to its name. Names never cover each other, points or lines, and no two lines
    cross: of all ways to share out the places, the one with the least length of lines has no crossing.
    """
    from scipy.optimize import linear_sum_assignment  # imported here because it is slow

    # Heights and distances are in shares of the panel: 0 is its lower or left end, 1 the upper or right one.
    in_order = sorted(labels, key=lambda label: label.y)
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    apart = 1 / max(_LETTERS_UP, len(in_order))
    heights = [(label.y - low) / (high - low) for label in in_order]

    # Places for the names, "apart" from each other: from below each is moved up off the one before it, then from above
    # down off the one behind it, so that the uppermost is at 1 at most. [0.5, 0.5] becomes [0.5, 0.55].
    for index in range(1, len(heights)):
        heights[index] = max(heights[index], heights[index - 1] + apart)
    ceiling = 1.0
    for index in reversed(range(len(heights))):
        heights[index] = min(heights[index], ceiling)
        ceiling = heights[index] - apart

    # The length of the line from each point to each place, [labels, places]; their least sum shares out the places.
    style = {"arrowstyle": "-", "color": SOFT, "linewidth": 0.5, "shrinkB": 3, "relpos": (0, 0.5)}
    starts = [((label.x - left) / (right - left), (label.y - low) / (high - low)) for label in in_order]
    lengths = []
    for x, y in starts:
        lengths.append([math.hypot(_NAMES_AT - x, height - y) for height in heights])
    _, places = linear_sum_assignment(lengths)
    for label, place in zip(in_order, places, strict=True):
        axes.annotate(
            label.name, (label.x, label.y), (_NAMES_AT, heights[place]), xycoords="data", textcoords="axes fraction",
            va="center", fontsize=8, fontweight="bold" if label.chosen else "normal", arrowprops=style,
        )  # fmt: skip


# --- calibration ------------------------------------------------------------------------------------------------------


def reliability(rows: Sequence[EvalRow]) -> Picture | None:
    """Return the picture of accuracy over confidence, by bin, a panel for each row; None if no row has such bins.

    A row with a curve of bins gets its ECE, the mean distance of the two, into the title.
    """
    panels = []
    for row in rows:
        curve = (row.curves or EvalCurves()).reliability
        if curve is not None and any(curve.n):
            ece = number(single_number(row.id.metrics.get("ece")), 3)
            (name,) = drawn_names([row.name])
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

    They are of one row, the last of those that the other pictures show. Its threshold is drawn if it is one of this
    score.
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
    # The share of samples in each bin, [bins]; the bins lie between the edges, [bins + 1].
    inside = _shares_of_sum(histograms.id)
    outside = _shares_of_sum(histograms.ood[name])
    edges = histograms.edges
    axes.stairs(inside, edges, fill=True, color=BLUE, alpha=0.45)
    axes.stairs(outside, edges, color=ORANGE, linewidth=1.5)
    if threshold is not None and edges[0] <= threshold <= edges[-1]:
        axes.axvline(threshold, **GUIDE)
    highest = max(*inside, *outside) or 1  # without samples: an axis from 0 to 0 cannot be drawn
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.08 * highest), title=title)
    name_of_score = f" {visible(score)}" if score else ""
    axes.set_xlabel(f"OOD score{name_of_score}\nhigher is more OOD (ID n = {sum(histograms.id)})")
    axes.set_ylabel("share of the set's\nsamples per bin")


def _shares_of_sum(counts: Sequence[int]) -> list[float]:
    """Return counts as shares of their sum, e.g. [0.25, 0.75] for [1, 3]; zeros if the sum is 0."""
    total = sum(counts)
    return [count / total if total else 0.0 for count in counts]
