"""The numbers of an eval as columns and tables, described once: terminal, page, card and pictures only show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hydractl.files.eval_answer import (
    IN_DISTRIBUTION,
    EvalAnswer,
    EvalRow,
    OodAverage,
    Place,
    average_of,
    average_place,
    corruption_place,
    diversity_place,
    errors_of,
    ood_set_place,
    parts_place,
    score_average_place,
    score_errors_place,
    severity_place,
)
from hydractl.files.model_records import CostRecord, DataSetRecord
from hydractl.files.records import Interval, Metrics, MetricValue
from hydractl.metrics.declaration import Metric, table_metrics
from hydractl.report.texts import count_text, number, params_text, shown_name

BEST = "best"
SECOND = "second"
SIGNIFICANT = "*"
"""The mark behind a difference whose interval excludes 0."""

ID_METRICS = table_metrics("id")
OOD_METRICS = table_metrics("ood")
DIVERSITY_METRICS = table_metrics("diversity")
CORRUPTION_METRICS = tuple(metric for metric in ID_METRICS if metric.by_severity)


def single_number(value: MetricValue) -> float | None:
    """Return the value of a metric of one number; None for one of several parts, and where there is none."""
    if isinstance(value, Mapping):
        return None
    return value


# --- columns ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A metric at one place of a row.

    Attributes:
        place: where it stands.
        metric: which.
        words: what a person calls it there.
    """

    place: Place
    metric: Metric
    words: str = ""

    @property
    def key(self) -> str:
        """The name among the intervals and differences of a row: ``id.accuracy``."""
        place = self.place.key
        return f"{place}.{self.metric.key}"

    def value(self, row: EvalRow) -> float | None:
        """Return the number in this row; None where there is none."""
        values = self.place.metrics(row)
        value = values.get(self.metric.key)
        return single_number(value)

    def std(self, row: EvalRow) -> float | None:
        """Return the sample standard deviation over the runs that the number is a mean of; None for a single run."""
        return row.std.get(self.key)

    def interval(self, row: EvalRow) -> tuple[float, float] | None:
        """Return the confidence interval in this row; None where none was made."""
        interval = row.ci.get(self.key)
        return known_interval(interval)

    def difference(self, row: EvalRow) -> tuple[float, tuple[float, float] | None] | None:
        """Return this row minus the first one, measured on the same samples, and the interval of that."""
        paired = row.difference.get(self.key)
        if paired is None or paired.value is None:
            return None
        ends = known_interval(paired.ci)
        return paired.value, ends


def known_interval(interval: Interval | None) -> tuple[float, float] | None:
    """Return both ends of an interval; None where one of them is not known."""
    if not interval:
        return None
    low, high = interval
    if low is None or high is None:
        return None
    return low, high


def columns(metrics: Sequence[Metric], place: Place, words: str = "") -> tuple[Column, ...]:
    """Return the columns of these metrics at one place; ``words`` go behind the name of each."""
    of_metrics = []
    for metric in metrics:
        column_words = metric.words + words
        of_metrics.append(Column(place, metric, column_words))
    return tuple(of_metrics)


def _metric(metrics: Sequence[Metric], key: str) -> Metric:
    by_key = {metric.key: metric for metric in metrics}
    return by_key[key]


def _id_column(key: str) -> Column:
    metric = _metric(ID_METRICS, key)
    return Column(IN_DISTRIBUTION, metric, metric.words)


ID_COLUMNS = columns(ID_METRICS, IN_DISTRIBUTION)
ACCURACY = _id_column("accuracy")
AURC = _id_column("aurc")
AUROC = _metric(OOD_METRICS, "auroc")
ERROR_AUROC = _metric(table_metrics("errors"), "auroc")
OOD_AVERAGE = columns(OOD_METRICS, average_place("ood_avg"), words=", mean over the OOD sets")
DIVERSITY = columns(DIVERSITY_METRICS, diversity_place("id"))


def main_columns(rows: Sequence[EvalRow]) -> list[Column]:
    """Return the columns of the main table; the averages over OOD sets only where there are such sets."""
    if not ood_names(rows):
        return [*ID_COLUMNS, *DIVERSITY]
    return [*ID_COLUMNS, *OOD_AVERAGE, *DIVERSITY]


def set_columns(name: str) -> list[Column]:
    """Return the numbers of one OOD set."""
    of_detection = columns(OOD_METRICS, ood_set_place(name))
    place = diversity_place(name)
    mutual_information = Column(place, DIVERSITY_METRICS[0])
    return [*of_detection, mutual_information]


# --- facts of rows ----------------------------------------------------------------------------------------------------


def ood_names(rows: Sequence[EvalRow]) -> list[str]:
    """Return the OOD sets of all rows, in order."""
    sets_of_rows = [row.detection.ood for row in rows]
    return each_once(sets_of_rows)


def each_once(lists: Iterable[Iterable[str]]) -> list[str]:
    """Return the entries of several lists, each at its first place."""
    entries: dict[str, None] = {}
    for names in lists:
        entries.update(dict.fromkeys(names))
    return list(entries)


def ood_group(rows: Sequence[EvalRow], name: str) -> str | None:
    """Return ``near``, ``far`` or None, as the first row says that has the set."""
    for row in rows:
        measured = row.detection.ood.get(name)
        if measured is not None:
            return measured.group
    return None


def samples(rows: Sequence[EvalRow], names: Sequence[str] = ("id",)) -> str:
    """Return ``n = 497``, or ``n = 100 to 120`` where data sets or rows do not have equally many."""
    sizes = []
    for row in rows:
        sizes += [sample_count_of(row, name) for name in names]
    return sizes_text(sizes)


def sample_count_of(row: EvalRow, name: str) -> int | None:
    """Return the number of samples of a data set in a row; None where it is not known."""
    if name == "id":
        return row.id.n
    measured = row.detection.ood.get(name)
    if measured is not None:
        return measured.n
    return None


def sizes_text(sizes: Iterable[int | None]) -> str:
    """Return the same for any sizes, some of which may not be known."""
    known = {size for size in sizes if size is not None}
    if not known:
        return "n unknown"
    if len(known) == 1:
        return f"n = {min(known)}"
    return f"n = {min(known)} to {max(known)}"


def score_name(answer: EvalAnswer, row: EvalRow) -> str | None:
    """Return the OOD score of a row; in documents of earlier versions that of all of them."""
    if row.ood_score:
        return row.ood_score
    return answer.conventions.get("ood_score")


def set_title(name: str) -> str:
    """Return the name of a data set as people read it: ``ID``, or that of an OOD set."""
    if name == "id":
        return "ID"
    return shown_name(name)


def seen_text(row: EvalRow) -> str:
    """Say how many samples of each data set the row had seen before; empty where it had seen none."""
    seen = []
    for name, count in row.seen.items():
        if count:
            seen.append(f"{count} of {set_title(name)}")
    return ", ".join(seen)


def level_text(answer: EvalAnswer) -> str:
    """Return ``95 %``, or what else the intervals of this answer cover; empty where it does not say."""
    bootstrap = answer.bootstrap
    if bootstrap is None or bootstrap.level is None:
        return ""
    percent = 100 * bootstrap.level
    return f"{percent:g} %"


_RUNS_OVER = {"seed": "seeds", "data": "data sets"}


def runs_text(answer: EvalAnswer) -> str:
    """Say what figures are means of, and how many runs each row has; empty where they are no means."""
    if answer.over is None:
        return ""
    counts = []
    for row in answer.models:
        runs = "-"
        if row.runs is not None:
            runs = str(row.runs)
        counts.append(f"{shown_name(row.name)} {runs}")
    return f"means over {_RUNS_OVER[answer.over]} ± sample standard deviation; runs: {', '.join(counts)}"


# --- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: plain text.
        mark: ``best``, ``second`` or nothing; ``text`` where it is no number, ``long`` where that may be wrapped.
        ends: the interval of the number.
        signed: whether the number is a difference.
    """

    text: str
    mark: str = ""
    ends: tuple[float, float] | None = None
    signed: bool = False


@dataclass(frozen=True)
class Table:
    """A table with a row for each model, or several.

    Attributes:
        caption: what is in it.
        heads: the heading of each column behind the names, and which direction is better there.
        rows: the name of a model, and its cells.
        title: a short heading.
    """

    caption: str
    heads: Sequence[tuple[str, str]]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    title: str = ""


def marks(values: Sequence[float | None], metric: Metric) -> list[str]:
    """Return for each value ``best``, ``second`` or nothing.

    Values that look the same in the table are the same: all of the best ones are best. Nothing is marked where there is
    no better and worse: in a single row, among equal values, and where neither direction is better. ``second`` is the
    next different value, marked among three rows or more.
    """
    shown = [_as_shown(value, metric) for value in values]
    known = [value for value in shown if value is not None]
    ranked = sorted(set(known), reverse=metric.direction == "higher")
    if not metric.direction or len(ranked) < 2:
        return [""] * len(values)
    mark_of: dict[float | None, str] = {}
    mark_of[ranked[0]] = BEST
    if len(known) > 2:
        mark_of[ranked[1]] = SECOND
    return [mark_of.get(value, "") for value in shown]


def _as_shown(value: float | None, metric: Metric) -> float | None:
    """Return the number that a reader of the table sees; None where there is none."""
    if value is None:
        return None
    return float(number(value, metric.digits))


def metric_cells(rows: Sequence[EvalRow], column: Column) -> list[Cell]:
    """Return the column's number in every row, marked, with its interval."""
    values = [column.value(row) for row in rows]
    digits = column.metric.digits
    cells = []
    for row, value, mark in zip(rows, values, marks(values, column.metric), strict=True):
        text = number(value, digits)
        deviation = column.std(row)
        if deviation is not None:
            text += f" ± {number(deviation, digits)}"
        cells.append(Cell(text, mark, column.interval(row)))
    return cells


def metric_table(rows: Sequence[EvalRow], shown: Sequence[Column], caption: str, title: str = "") -> Table:
    """Make a table of one line for each model and one column for each number."""
    cells_of_rows: list[list[Cell]] = [[] for _ in rows]
    for column in shown:
        cells_of_column = metric_cells(rows, column)
        for cells, cell in zip(cells_of_rows, cells_of_column, strict=True):
            cells.append(cell)
    lines = []
    for row, cells in zip(rows, cells_of_rows, strict=True):
        lines.append((row.name, cells))
    headings = _headings(column.metric for column in shown)
    return Table(caption, headings, lines, title)


def _headings(metrics: Iterable[Metric]) -> list[tuple[str, str]]:
    headings: list[tuple[str, str]] = []
    for metric in metrics:
        headings.append((metric.label, metric.direction))
    return headings


def _plain_headings(*labels: str) -> list[tuple[str, str]]:
    headings = []
    for label in labels:
        headings.append((label, ""))
    return headings


def _numbers(values: Metrics, metrics: Sequence[Metric]) -> list[Cell]:
    """Return the numbers of these metrics as cells that bear no mark."""
    cells = []
    for metric in metrics:
        value = single_number(values.get(metric.key))
        cells.append(Cell(number(value, metric.digits)))
    return cells


# --- the main numbers -------------------------------------------------------------------------------------------------


def main_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of every row with its numbers on ID data and its means over OOD sets."""
    groups = ""
    if ood_names(rows):
        groups = " acc to aurc on ID data; auroc, fpr95, aupr: mean over OOD sets;"
    caption = f"ID {samples(rows)}.{groups} mi (nats) and disagr on ID data. ↑ higher is better, ↓ lower is better."
    return metric_table(rows, main_columns(rows), caption)


_AVERAGES: tuple[tuple[OodAverage, str, str], ...] = (
    ("near_avg", "Mean: near", "the near OOD sets"),
    ("far_avg", "Mean: far", "the far OOD sets"),
    ("ood_avg", "Mean: all", "all sets"),
)


def ood_tables(rows: Sequence[EvalRow]) -> Iterator[Table]:
    """Yield one table for each OOD set and each average over a group."""
    for name in ood_names(rows):
        group = ood_group(rows, name)
        size = samples(rows, [name])
        caption = size
        if group:
            caption = f"{group} OOD, {size}"
        yield metric_table(rows, set_columns(name), caption, shown_name(name))
    for average, title, which in _AVERAGES:
        if any(_has_average(row, average) for row in rows):
            yield metric_table(
                rows, columns(OOD_METRICS, average_place(average)), f"unweighted mean over {which}", title
            )


def _has_average(row: EvalRow, average: OodAverage) -> bool:
    means = average_of(row.detection, average)
    return any(value is not None for value in means.values())


def every_set_table(rows: Sequence[EvalRow]) -> Table:
    """Make a table of a line for each OOD set of each row; marks are within a set."""
    names = ood_names(rows)
    tables = {name: metric_table(rows, set_columns(name), "") for name in names}
    lines = []
    for index, row in enumerate(rows):
        for name, measured in row.detection.ood.items():
            size = "-"
            if measured.n is not None:
                size = str(measured.n)
            group = measured.group or "-"
            about = [Cell(name, "text"), Cell(group, "text"), Cell(size)]
            _, cells = tables[name].rows[index]
            lines.append((row.name, [*about, *cells]))
    about_sets = _plain_headings("OOD set", "group", "n")
    numbers = _headings([*OOD_METRICS, DIVERSITY_METRICS[0]])
    return Table("", [*about_sets, *numbers], lines, "OOD sets")


def score_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of mean OOD AUROC of every row by each OOD score that was asked for; marks are within a row."""
    return _by_score(rows, score_average_place, AUROC, "mean auroc by OOD score; bold: best of the row")


def error_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of the AUROC of wrong answers of every row by each OOD score; marks are within a row."""
    labelled = [row for row in rows if errors_of(row.detection)]
    title = "auroc of wrong answers by OOD score; bold: best of the row"
    return _by_score(labelled, score_errors_place, ERROR_AUROC, title)


def _by_score(rows: Sequence[EvalRow], place_of: Callable[[str], Place], metric: Metric, title: str) -> Table:
    """Make a table of one metric of every row by each OOD score that was asked for; marks are within a row."""
    scores = _scores_of(rows)
    if not scores:
        return Table("", [], [], title)
    shown = [Column(place_of(score), metric) for score in scores]
    lines = []
    for row in rows:
        best = marks([column.value(row) for column in shown], metric)
        cells = []
        for column, mark in zip(shown, best, strict=True):
            (cell,) = metric_cells([row], column)
            cells.append(replace(cell, mark=mark))
        lines.append((row.name, cells))
    return Table("", _plain_headings(*scores), lines, title)


def _scores_of(rows: Sequence[EvalRow]) -> list[str]:
    """Return the OOD scores that stand beside those of the rows, in the order of the row that has most of them."""

    def number_of_scores(row: EvalRow) -> int:
        return len(row.scores)

    longest_first = sorted(rows, key=number_of_scores, reverse=True)
    return each_once(row.scores for row in longest_first)


def difference_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of every row minus the first, on the same samples: the numbers of the main table."""
    known = each_once(row.difference for row in rows)
    shown = [column for column in main_columns(rows) if column.key in known]
    lines = []
    for row in rows:
        if not row.difference or not shown:
            continue
        cells = [_difference(column, row) for column in shown]
        lines.append((row.name, cells))
    caption = f"{SIGNIFICANT} significant: the interval of the difference excludes 0. ↑ and ↓: which way is better."
    headings = _headings(column.metric for column in shown)
    return Table(caption, headings, lines)


def _difference(column: Column, row: EvalRow) -> Cell:
    difference = column.difference(row)
    if difference is None:
        return Cell("-")
    value, ends = difference
    text = signed_number(value)
    if excludes_zero(ends):
        text += SIGNIFICANT
    return Cell(text, "", ends, signed=True)


def excludes_zero(ends: tuple[float, float] | None) -> bool:
    """Return whether a difference with this interval is significant."""
    if ends is None:
        return False
    low, high = ends
    return not low <= 0 <= high


def signed_number(value: float) -> str:
    """Return a difference as text, with its sign."""
    sign = ""
    if value > 0:
        sign = "+"
    return sign + number(value)


# --- members, coverage, cost, diversity -------------------------------------------------------------------------------


def members_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of the members alone, below the row they make up."""
    lines = []
    for row in rows:
        if not row.members:
            continue
        measured = [("together", row.id.metrics)]
        for index, member in enumerate(row.members):
            measured.append((f"member {index}", member.metrics))
        for title, metrics in measured:
            numbers = _numbers(metrics, ID_METRICS)
            lines.append((row.name, [Cell(title, "text"), *numbers]))
    heads = [*_plain_headings(""), *_headings(ID_METRICS)]
    return Table(f"ID {samples(rows)}", heads, lines)


def selective_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of accuracy among the most confident samples."""
    place = parts_place("accuracy_at")
    levels = sorted(each_once(place.metrics(row) for row in rows))
    shown = []
    for level in levels:
        metric = replace(ACCURACY.metric, key=level, label=f"acc at {level}")
        shown.append(Column(place, metric))
    caption = f"Accuracy among that share of the samples, the most confident ones; ID {samples(rows)}"
    if not levels:
        return metric_table([], [AURC], caption)
    return metric_table(rows, [*shown, AURC], caption)


def cost_ratio(rows: Sequence[EvalRow]) -> tuple[list[float | None], str]:
    """Return mult-adds of every row over a reference's, None where not known, and what the reference is.

    The reference is the row's own single model with all heads where every row that has a cost names it, else the first
    row that has one.
    """
    known = [row for row in rows if row.macs]
    if not known:
        return [None] * len(rows), ""
    ratios = []
    if all(row.single_macs for row in known):
        for row in rows:
            ratios.append(_ratio(row.macs, row.single_macs))
        return ratios, "the single model, all heads"
    first = known[0]
    for row in rows:
        ratios.append(_ratio(row.macs, first.macs))
    return ratios, first.name


def _ratio(macs: int | None, reference: int | None) -> float | None:
    if not macs or not reference:
        return None
    return macs / reference


def cost_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of what every row costs for one sample."""
    ratios, reference = cost_ratio(rows)
    lines = []
    for row, ratio in zip(rows, ratios, strict=True):
        cost = row.cost or CostRecord()
        parameters = params_text(cost.params, cost.params_nonzero)
        mult_adds = count_text(cost.macs)
        cells = [Cell(parameters), Cell(mult_adds), Cell(number(ratio, 3))]
        lines.append((row.name, cells))
    if all(row.cost is None for row in rows):
        lines = []
    caption = f"Parameters of all members, mult-adds for one sample, and these over those of {shown_name(reference)}"
    headings = _plain_headings("parameters", "mult-adds", "ratio")
    return Table(caption, headings, lines)


def diversity_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of how much the members differ on each set, all together and pair by pair."""
    lines = []
    for row in rows:
        for name, measured in row.diversity.items():
            measured_of = []
            has_several = measured.metrics.get("disagreement") is not None
            if row.members or has_several:
                measured_of.append(("all", measured.metrics))
            for pair in measured.pairs or ():
                measured_of.append((f"{pair.a} and {pair.b}", pair.metrics))
            set_cell = Cell(set_title(name), "text")
            for members, metrics in measured_of:
                numbers = _numbers(metrics, DIVERSITY_METRICS)
                cells = [set_cell, Cell(members, "text"), *numbers]
                lines.append((row.name, cells))
    heads = [*_plain_headings("data set", "members"), *_headings(DIVERSITY_METRICS)]
    caption = "mi in nats; disagr: share of pairs of members that vote for different classes"
    return Table(caption, heads, lines)


# --- corruptions ------------------------------------------------------------------------------------------------------


def corruption_tables(rows: Sequence[EvalRow]) -> Iterator[Table]:
    """Yield accuracy, Brier score and ECE under every corruption, by severity; the mean over corruptions last."""
    caption = f"by severity; {corrupted_samples(rows)}"
    for kind in each_once(row.corruptions for row in rows):
        severities = each_once(row.corruptions.get(kind, {}) for row in rows)
        places = []
        for severity in sorted(severities):
            places.append((severity, corruption_place(kind, severity)))
        shown = _severity_columns(places)
        if shown:
            yield metric_table(rows, shown, caption, shown_name(kind))
    severities = each_once(row.corruption_avg for row in rows)
    places = []
    for severity in sorted(severities):
        places.append((severity, severity_place(severity)))
    shown = _severity_columns(places)
    if shown:
        yield metric_table(rows, shown, caption, "Mean over the corruptions")


def _severity_columns(places: Sequence[tuple[str, Place]]) -> list[Column]:
    """Return the columns of each metric at each severity."""
    shown = []
    for metric in CORRUPTION_METRICS:
        for severity, place in places:
            labelled = replace(metric, label=f"{metric.label} {severity}")
            shown.append(Column(place, labelled))
    return shown


def corrupted_accuracy(rows: Sequence[EvalRow]) -> Table:
    """Make the table of accuracy of every row under each corruption, by severity: one line each."""
    severities: set[str] = set()
    for row in rows:
        for by_severity in row.corruptions.values():
            severities.update(by_severity)
    in_order = sorted(severities)
    lines = []
    for row in rows:
        for kind in row.corruptions:
            accuracies = [_accuracy_under(row, kind, severity) for severity in in_order]
            if all(accuracy is None for accuracy in accuracies):
                continue
            cells = [Cell(shown_name(kind), "text")]
            for accuracy in accuracies:
                cells.append(Cell(number(accuracy)))
            lines.append((row.name, cells))
    title = f"accuracy under corruptions, by severity ({corrupted_samples(rows)})"
    return Table("", _plain_headings("corruption", *in_order), lines, title)


def _accuracy_under(row: EvalRow, kind: str, severity: str) -> float | None:
    place = corruption_place(kind, severity)
    column = Column(place, ACCURACY.metric)
    return column.value(row)


def corrupted_samples(rows: Sequence[EvalRow]) -> str:
    """Return ``n = 497 each``: how many samples every corruption is measured on at every severity."""
    sizes: list[int | None] = []
    for row in rows:
        for by_severity in row.corruptions.values():
            sizes += [measured.n for measured in by_severity.values()]
        sizes += [means.n for means in row.corruption_avg.values()]
    text = sizes_text(sizes)
    if "to" in text or "unknown" in text:
        return text
    return f"{text} each"


# --- what was fitted or given -----------------------------------------------------------------------------------------


def settings_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of MC dropout, probe, calibration, conformal sets and threshold of rows that have them."""
    lines = []
    for row in rows:
        facts = {
            "MC dropout": _passes(row),
            "probe": probe_words(row),
            "calibration": _calibration(row),
            "conformal sets": _conformal(row),
            "threshold": _threshold(row),
        }
        for what, text in facts.items():
            if text:
                cells = [Cell(what, "text"), Cell(text, "text long")]
                lines.append((row.name, cells))
    headings = _plain_headings("what", "facts")
    return Table("Fitted on other samples, or given", headings, lines)


def _passes(row: EvalRow) -> str:
    dropout = row.mc_dropout
    if dropout is None:
        return ""
    return f"{dropout.passes} passes, dropout rate {dropout.p}, seed {dropout.seed}"


def probe_words(row: EvalRow) -> str:
    """Return the classifier of features that a row was measured by; empty for its own."""
    probe = row.probe
    if probe is None:
        return ""
    name = probe.name
    if probe.c:
        strengths = [f"C = {value:g}" for value in probe.c]
        name = f"{name} ({', '.join(strengths)})"
    parts = [name, *_fitted_on(probe.fitted_on)]
    return "; ".join(parts)


def _fitted_on(data: DataSetRecord | None) -> list[str]:
    """Return the samples that something was fitted to, as a part of a text; nothing where they are not known."""
    if data is None or not data.spec:
        return []
    size = ""
    if data.n is not None:
        size = f" (n = {data.n})"
    return [f"fitted on {data.spec}{size}"]


def _calibration(row: EvalRow) -> str:
    calibration = row.calibration
    if calibration is None:
        return ""
    parts = []
    if calibration.kind:
        parts.append(calibration.kind)
    if calibration.temperature is not None:
        parts.append(f"temperature {number(calibration.temperature)}")
    if calibration.scale:
        parts.append(f"{len(calibration.scale)} numbers of scale")
    if calibration.bias:
        parts.append(f"{len(calibration.bias)} numbers of bias")
    return "; ".join([*parts, *_fitted_on(calibration.fitted_on)])


def _conformal(row: EvalRow) -> str:
    sets = row.conformal
    if sets is None:
        return ""
    wanted = None
    if sets.alpha is not None:
        wanted = 1 - sets.alpha
    size = ""
    if sets.n_val is not None:
        size = f" from n = {sets.n_val} validation samples"
    return (
        f"{sets.method or 'sets'}: {_share(sets.coverage)} of the sets hold the label, "
        f"wanted {_share(wanted)}; mean size "
        f"{number(sets.mean_size, 2)} classes, {_share(sets.empty)} are empty; "
        f"qhat {number(sets.qhat)}{size}"
    )


def _threshold(row: EvalRow) -> str:
    threshold = row.threshold
    if threshold is None:
        return ""
    flagged = [f"{_share(threshold.id_flagged)} of ID"]
    ood_flagged = threshold.ood_flagged or {}
    for name, share in ood_flagged.items():
        flagged.append(f"{_share(share)} of {name}")
    rule = ""
    if threshold.rule:
        rule = f" (rule {threshold.rule})"
    score = threshold.score or "score"
    value = number(threshold.value)
    return f"{score} at least {value}{rule} flags {', '.join(flagged)}"


def _share(value: float | None) -> str:
    if value is None:
        return "-"
    percent = 100 * value
    return f"{percent:.1f} %"
