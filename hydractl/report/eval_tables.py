"""The numbers of an eval as columns and tables, described once: terminal, page, card and pictures only show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hydractl.files.eval_answer import (
    IN_DISTRIBUTION,
    EvalAnswer,
    EvalRow,
    MemberDiversity,
    OodAverage,
    OodSetMetrics,
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


def _metric_of_key(metrics: Sequence[Metric], key: str) -> Metric:
    """Return the metric of this key; KeyError where none of them has it."""
    by_key = {metric.key: metric for metric in metrics}
    return by_key[key]


def _id_column(key: str) -> Column:
    metric = _metric_of_key(ID_METRICS, key)
    return Column(IN_DISTRIBUTION, metric, metric.words)


ID_COLUMNS = columns(ID_METRICS, IN_DISTRIBUTION)
ACCURACY = _id_column("accuracy")
AURC = _id_column("aurc")
AUROC = _metric_of_key(OOD_METRICS, "auroc")
ERROR_AUROC = _metric_of_key(table_metrics("errors"), "auroc")
OOD_AVERAGE = columns(OOD_METRICS, average_place("ood_avg"), words=", mean over the OOD sets")
DIVERSITY = columns(DIVERSITY_METRICS, diversity_place("id"))


def main_columns(rows: Sequence[EvalRow]) -> list[Column]:
    """Return the columns of the main table; the averages over OOD sets only where there are such sets."""
    if not ood_names(rows):
        return [*ID_COLUMNS, *DIVERSITY]
    return [*ID_COLUMNS, *OOD_AVERAGE, *DIVERSITY]


def set_columns(name: str) -> list[Column]:
    """Return the columns of one OOD set: the metrics of detection, and the mutual information of the members."""
    of_detection = columns(OOD_METRICS, ood_set_place(name))
    place = diversity_place(name)
    mutual_information = Column(place, DIVERSITY_METRICS[0])
    return [*of_detection, mutual_information]


# --- facts of rows ----------------------------------------------------------------------------------------------------


def ood_names(rows: Sequence[EvalRow]) -> list[str]:
    """Return the names of the OOD sets that any row was measured on, in the order in which they first appear."""
    sets_of_rows = [row.detection.ood for row in rows]
    return distinct_entries(sets_of_rows)


def distinct_entries(lists: Iterable[Iterable[str]]) -> list[str]:
    """Return the entries of several lists without repetition, in the order in which they first appear."""
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


def sizes_of_sets(rows: Sequence[EvalRow], names: Sequence[str] = ("id",)) -> str:
    """Return how many samples the named data sets have in these rows, as text.

    ``n = 497``, or ``n = 100 to 120`` where data sets or rows do not have equally many.
    """
    sizes = []
    for row in rows:
        for name in names:
            sizes.append(sample_count_of(row, name))
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
    """Return ``n = 497`` where all known sizes are equal, ``n = 100 to 120`` where not, ``n unknown`` without any."""
    known = {size for size in sizes if size is not None}
    if not known:
        return "n unknown"
    if len(known) == 1:
        return f"n = {min(known)}"
    return f"n = {min(known)} to {max(known)}"


def score_name(answer: EvalAnswer, row: EvalRow) -> str | None:
    """Return the name of the OOD score of a row.

    Documents of earlier versions name a score for all rows, among their conventions; None where they name none.
    """
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
    unmarked = [""] * len(values)
    if not metric.direction:
        return unmarked
    shown = [_rounded_as_shown(value, metric) for value in values]
    known = [value for value in shown if value is not None]
    higher_is_better = metric.direction == "higher"
    best_first = sorted(set(known), reverse=higher_is_better)
    if len(best_first) < 2:
        return unmarked
    best, second, *_ = best_first
    mark_of: dict[float | None, str] = {best: BEST}
    if len(known) > 2:
        mark_of[second] = SECOND
    return [mark_of.get(value, "") for value in shown]


def _rounded_as_shown(value: float | None, metric: Metric) -> float | None:
    """Return the number that a reader of the table sees; None where there is none."""
    if value is None:
        return None
    return float(number(value, metric.digits))


def metric_cells(rows: Sequence[EvalRow], column: Column) -> list[Cell]:
    """Return the column's number in every row, with its deviation over runs and its interval, the best marked."""
    digits = column.metric.digits
    values = [column.value(row) for row in rows]
    marks_of_rows = marks(values, column.metric)
    cells = []
    for row, value, mark in zip(rows, values, marks_of_rows, strict=True):
        text = number(value, digits)
        deviation = column.std(row)
        if deviation is not None:
            text += f" ± {number(deviation, digits)}"
        ends = column.interval(row)
        cells.append(Cell(text, mark, ends))
    return cells


def metric_table(rows: Sequence[EvalRow], shown: Sequence[Column], caption: str, title: str = "") -> Table:
    """Make a table of one line for each model and one column for each number, the best of each column marked."""
    # Column by column, for the marks compare the rows; then the cells of a row are put together.
    cells_of_columns = [metric_cells(rows, column) for column in shown]
    lines = []
    for index, row in enumerate(rows):
        cells = [cells_of_column[index] for cells_of_column in cells_of_columns]
        lines.append((row.name, cells))
    headings = _headings(column.metric for column in shown)
    return Table(caption, headings, lines, title)


def _headings(metrics: Iterable[Metric]) -> list[tuple[str, str]]:
    """Return the heading of each metric: its label, and which direction is better."""
    headings: list[tuple[str, str]] = []
    for metric in metrics:
        headings.append((metric.label, metric.direction))
    return headings


def _plain_headings(*labels: str) -> list[tuple[str, str]]:
    """Return headings of columns in which no direction is better."""
    headings = []
    for label in labels:
        headings.append((label, ""))
    return headings


def _unmarked_cells(values: Metrics, metrics: Sequence[Metric]) -> list[Cell]:
    """Return the numbers of these metrics as cells that bear no mark; a dash where there is none."""
    cells = []
    for metric in metrics:
        value = single_number(values.get(metric.key))
        text = number(value, metric.digits)
        cells.append(Cell(text))
    return cells


# --- the main numbers -------------------------------------------------------------------------------------------------


def main_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of every row with its numbers on ID data and its means over OOD sets."""
    about_groups = ""
    if ood_names(rows):
        about_groups = " acc to aurc on ID data; auroc, fpr95, aupr: mean over OOD sets;"
    about_members = " mi (nats) and disagr on ID data."
    caption = f"ID {sizes_of_sets(rows)}.{about_groups}{about_members} ↑ higher is better, ↓ lower is better."
    return metric_table(rows, main_columns(rows), caption)


_AVERAGES: tuple[tuple[OodAverage, str, str], ...] = (
    ("near_avg", "Mean: near", "the near OOD sets"),
    ("far_avg", "Mean: far", "the far OOD sets"),
    ("ood_avg", "Mean: all", "all sets"),
)


def ood_tables(rows: Sequence[EvalRow]) -> Iterator[Table]:
    """Yield one table for each OOD set, then one for each average over a group that any row has."""
    for name in ood_names(rows):
        caption = sizes_of_sets(rows, [name])
        group = ood_group(rows, name)
        if group:
            caption = f"{group} OOD, {caption}"
        yield metric_table(rows, set_columns(name), caption, shown_name(name))
    for average, title, which in _AVERAGES:
        if any(_has_average(row, average) for row in rows):
            shown = columns(OOD_METRICS, average_place(average))
            yield metric_table(rows, shown, f"unweighted mean over {which}", title)


def _has_average(row: EvalRow, average: OodAverage) -> bool:
    """Return whether a row has any number of this average."""
    means = average_of(row.detection, average)
    return any(value is not None for value in means.values())


def every_set_table(rows: Sequence[EvalRow]) -> Table:
    """Make a table of a line for each OOD set of each row; marks compare the rows within a set."""
    marked_table_of_set = {}
    for name in ood_names(rows):
        marked_table_of_set[name] = metric_table(rows, set_columns(name), "")
    lines = []
    for index, row in enumerate(rows):
        for name, measured in row.detection.ood.items():
            about_set = _cells_about_set(name, measured)
            marked_table = marked_table_of_set[name]
            _, numbers = marked_table.rows[index]
            lines.append((row.name, [*about_set, *numbers]))
    headings_about_set = _plain_headings("OOD set", "group", "n")
    metrics = [*OOD_METRICS, DIVERSITY_METRICS[0]]
    headings_of_numbers = _headings(metrics)
    return Table("", [*headings_about_set, *headings_of_numbers], lines, "OOD sets")


def _cells_about_set(name: str, measured: OodSetMetrics) -> list[Cell]:
    """Return name, group and size of an OOD set; dashes for what is not known."""
    group = measured.group or "-"
    size = "-"
    if measured.n is not None:
        size = str(measured.n)
    return [Cell(name, "text"), Cell(group, "text"), Cell(size)]


def score_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of mean OOD AUROC of every row by each OOD score that was asked for; marks are within a row."""
    return _table_by_score(rows, score_average_place, AUROC, "mean auroc by OOD score; bold: best of the row")


def error_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of the AUROC of wrong answers of every row by each OOD score; marks are within a row."""
    labelled = [row for row in rows if errors_of(row.detection)]
    title = "auroc of wrong answers by OOD score; bold: best of the row"
    return _table_by_score(labelled, score_errors_place, ERROR_AUROC, title)


def _table_by_score(rows: Sequence[EvalRow], place_of: Callable[[str], Place], metric: Metric, title: str) -> Table:
    """Make a table of one metric of every row by each OOD score that was asked for; marks are within a row.

    Args:
        rows: those of the table.
        place_of: returns the place of the metric by a score, from its name.
        metric: what is shown.
        title: that of the table.
    """
    scores = _names_of_scores(rows)
    if not scores:
        return Table("", [], [], title)
    shown = [Column(place_of(score), metric) for score in scores]
    lines = []
    for row in rows:
        values = [column.value(row) for column in shown]
        marks_within_row = marks(values, metric)
        cells = []
        for column, mark in zip(shown, marks_within_row, strict=True):
            (cell,) = metric_cells([row], column)
            cells.append(replace(cell, mark=mark))
        lines.append((row.name, cells))
    return Table("", _plain_headings(*scores), lines, title)


def _names_of_scores(rows: Sequence[EvalRow]) -> list[str]:
    """Return the OOD scores that stand beside those of the rows, in the order of the row that has most of them."""

    def number_of_scores(row: EvalRow) -> int:
        return len(row.scores)

    longest_first = sorted(rows, key=number_of_scores, reverse=True)
    return distinct_entries(row.scores for row in longest_first)


def difference_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of every row minus the first, on the same samples: the numbers of the main table.

    It has the rows that have differences, and the columns that are among the differences of any row.
    """
    keys_with_difference = distinct_entries(row.difference for row in rows)
    shown = [column for column in main_columns(rows) if column.key in keys_with_difference]
    lines = []
    for row in rows:
        if not row.difference or not shown:
            continue
        cells = [_difference_cell(column, row) for column in shown]
        lines.append((row.name, cells))
    caption = f"{SIGNIFICANT} significant: the interval of the difference excludes 0. ↑ and ↓: which way is better."
    headings = _headings(column.metric for column in shown)
    return Table(caption, headings, lines)


def _difference_cell(column: Column, row: EvalRow) -> Cell:
    """Return the difference of a row to the first with its interval and sign, marked where it is significant."""
    difference = column.difference(row)
    if difference is None:
        return Cell("-")
    value, ends = difference
    text = signed_number(value)
    if excludes_zero(ends):
        text += SIGNIFICANT
    return Cell(text, "", ends, signed=True)


def excludes_zero(ends: tuple[float, float] | None) -> bool:
    """Return whether a difference with this interval is significant; one without an interval is not."""
    if ends is None:
        return False
    low, high = ends
    holds_zero = low <= 0 <= high
    return not holds_zero


def signed_number(value: float) -> str:
    """Return a difference as text, with its sign."""
    sign = ""
    if value > 0:
        sign = "+"
    return sign + number(value)


# --- members, coverage, cost, diversity -------------------------------------------------------------------------------


def members_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of the members of each row: first all together, then each alone; no line for a single model."""
    lines = []
    for row in rows:
        if not row.members:
            continue
        together = _member_cells("together", row.id.metrics)
        lines.append((row.name, together))
        for index, member in enumerate(row.members):
            alone = _member_cells(f"member {index}", member.metrics)
            lines.append((row.name, alone))
    heads = [*_plain_headings(""), *_headings(ID_METRICS)]
    return Table(f"ID {sizes_of_sets(rows)}", heads, lines)


def _member_cells(title: str, metrics: Metrics) -> list[Cell]:
    """Return the cells of a line with this title and the metrics on ID data."""
    numbers = _unmarked_cells(metrics, ID_METRICS)
    return [Cell(title, "text"), *numbers]


def selective_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of accuracy among the most confident samples, by their share; without rows where none is known."""
    caption = f"Accuracy among that share of the samples, the most confident ones; ID {sizes_of_sets(rows)}"
    place = parts_place("accuracy_at")
    levels = sorted(distinct_entries(place.metrics(row) for row in rows))
    if not levels:
        return metric_table([], [AURC], caption)
    shown = []
    for level in levels:
        metric = replace(ACCURACY.metric, key=level, label=f"acc at {level}")
        shown.append(Column(place, metric))
    return metric_table(rows, [*shown, AURC], caption)


def cost_ratio(rows: Sequence[EvalRow]) -> tuple[list[float | None], str]:
    """Return mult-adds of every row over a reference's, None where not known, and what the reference is.

    The reference is the row's own single model with all heads where every row that has a cost names it, else the first
    row that has one.
    """
    with_cost = [row for row in rows if row.macs]
    if not with_cost:
        return [None] * len(rows), ""
    ratios = []
    if all(row.single_macs for row in with_cost):
        for row in rows:
            ratios.append(_ratio(row.macs, row.single_macs))
        return ratios, "the single model, all heads"
    reference = with_cost[0]
    for row in rows:
        ratios.append(_ratio(row.macs, reference.macs))
    return ratios, reference.name


def _ratio(macs: int | None, reference_macs: int | None) -> float | None:
    if not macs or not reference_macs:
        return None
    return macs / reference_macs


def cost_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of what every row costs for one sample; without lines where no row has a cost."""
    ratios, reference = cost_ratio(rows)
    caption = f"Parameters of all members, mult-adds for one sample, and these over those of {shown_name(reference)}"
    headings = _plain_headings("parameters", "mult-adds", "ratio")
    if all(row.cost is None for row in rows):
        return Table(caption, headings, [])
    lines = []
    for row, ratio in zip(rows, ratios, strict=True):
        cost = row.cost
        if cost is None:
            cost = CostRecord()  # of which nothing is known: the line is dashes
        parameters = params_text(cost.params, cost.params_nonzero)
        mult_adds = count_text(cost.macs)
        cells = [Cell(parameters), Cell(mult_adds), Cell(number(ratio, 3))]
        lines.append((row.name, cells))
    return Table(caption, headings, lines)


def diversity_table(rows: Sequence[EvalRow]) -> Table:
    """Make the table of how much the members differ on each set, all together and pair by pair."""
    lines = []
    for row in rows:
        for name, measured in row.diversity.items():
            set_cell = Cell(set_title(name), "text")
            for members, metrics in _metrics_of_members(row, measured):
                numbers = _unmarked_cells(metrics, DIVERSITY_METRICS)
                cells = [set_cell, Cell(members, "text"), *numbers]
                lines.append((row.name, cells))
    heads = [*_plain_headings("data set", "members"), *_headings(DIVERSITY_METRICS)]
    caption = "mi in nats; disagr: share of pairs of members that vote for different classes"
    return Table(caption, heads, lines)


def _metrics_of_members(row: EvalRow, measured: MemberDiversity) -> Iterator[tuple[str, Metrics]]:
    """Yield which members, in words, and how much they differ: all of them, then each pair.

    A single model has mutual information of its passes but no members that differ: it has no line of all.
    """
    disagreement = measured.metrics.get("disagreement")
    if row.members or disagreement is not None:
        yield "all", measured.metrics
    for pair in measured.pairs or ():
        yield f"{pair.a} and {pair.b}", pair.metrics


# --- corruptions ------------------------------------------------------------------------------------------------------


def corruption_tables(rows: Sequence[EvalRow]) -> Iterator[Table]:
    """Yield accuracy, Brier score and ECE under every corruption, by severity; the mean over corruptions last."""
    caption = f"by severity; {corrupted_sizes(rows)}"
    for kind in distinct_entries(row.corruptions for row in rows):
        severities_of_kind = distinct_entries(row.corruptions.get(kind, {}) for row in rows)
        places_of_kind = {severity: corruption_place(kind, severity) for severity in sorted(severities_of_kind)}
        columns_of_kind = _severity_columns(places_of_kind)
        if columns_of_kind:
            yield metric_table(rows, columns_of_kind, caption, shown_name(kind))

    severities = distinct_entries(row.corruption_avg for row in rows)
    places_of_mean = {severity: severity_place(severity) for severity in sorted(severities)}
    columns_of_mean = _severity_columns(places_of_mean)
    if columns_of_mean:
        yield metric_table(rows, columns_of_mean, caption, "Mean over the corruptions")


def _severity_columns(place_of_severity: Mapping[str, Place]) -> list[Column]:
    """Return the columns of each metric at each severity: first all of accuracy, then those of the next metric."""
    shown = []
    for metric in CORRUPTION_METRICS:
        for severity, place in place_of_severity.items():
            labelled = replace(metric, label=f"{metric.label} {severity}")
            shown.append(Column(place, labelled))
    return shown


def corrupted_accuracy(rows: Sequence[EvalRow]) -> Table:
    """Make the table of accuracy under corruptions: a line for each corruption of each row, a column for each severity.

    A corruption under which no accuracy of a row is known has no line.
    """
    severities = _severities(rows)
    lines = []
    for row in rows:
        for kind in row.corruptions:
            accuracies = [_accuracy_under(row, kind, severity) for severity in severities]
            if all(accuracy is None for accuracy in accuracies):
                continue
            cells = [Cell(shown_name(kind), "text")]
            for accuracy in accuracies:
                cells.append(Cell(number(accuracy)))
            lines.append((row.name, cells))
    title = f"accuracy under corruptions, by severity ({corrupted_sizes(rows)})"
    return Table("", _plain_headings("corruption", *severities), lines, title)


def _severities(rows: Sequence[EvalRow]) -> list[str]:
    """Return the severities that any corruption of any row was measured at, in order."""
    severities: set[str] = set()
    for row in rows:
        for by_severity in row.corruptions.values():
            severities.update(by_severity)
    return sorted(severities)


def _accuracy_under(row: EvalRow, kind: str, severity: str) -> float | None:
    """Return the accuracy of a row under a corruption at a severity; None where it was not measured there."""
    place = corruption_place(kind, severity)
    column = Column(place, ACCURACY.metric)
    return column.value(row)


def corrupted_sizes(rows: Sequence[EvalRow]) -> str:
    """Return ``n = 497 each``: how many samples every corruption is measured on at every severity.

    Without ``each`` where the sizes differ or are not known.
    """
    sizes: list[int | None] = []
    for row in rows:
        for by_severity in row.corruptions.values():
            for measured in by_severity.values():
                sizes.append(measured.n)
        for means in row.corruption_avg.values():
            sizes.append(means.n)
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
            "MC dropout": _dropout_words(row),
            "probe": probe_words(row),
            "calibration": _calibration_words(row),
            "conformal sets": _conformal_words(row),
            "threshold": _threshold_words(row),
        }
        for what, text in facts.items():
            if text:
                cells = [Cell(what, "text"), Cell(text, "text long")]
                lines.append((row.name, cells))
    headings = _plain_headings("what", "facts")
    return Table("Fitted on other samples, or given", headings, lines)


def _dropout_words(row: EvalRow) -> str:
    """Say how a row was measured by MC dropout; empty where it was not."""
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
    parts = [name, *_fitted_on_words(probe.fitted_on)]
    return "; ".join(parts)


def _fitted_on_words(data: DataSetRecord | None) -> list[str]:
    """Return the samples that something was fitted to, as a part of a text; no part where they are not known."""
    if data is None or not data.spec:
        return []
    size = ""
    if data.n is not None:
        size = f" (n = {data.n})"
    return [f"fitted on {data.spec}{size}"]


def _calibration_words(row: EvalRow) -> str:
    """Say how the logits of a row were calibrated; empty where they were not."""
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
    parts += _fitted_on_words(calibration.fitted_on)
    return "; ".join(parts)


def _conformal_words(row: EvalRow) -> str:
    """Say how well the conformal sets of a row keep to what was wanted; empty where it has none."""
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
        f"{sets.method or 'sets'}: {_percent(sets.coverage)} of the sets hold the label, "
        f"wanted {_percent(wanted)}; mean size "
        f"{number(sets.mean_size, 2)} classes, {_percent(sets.empty)} are empty; "
        f"qhat {number(sets.qhat)}{size}"
    )


def _threshold_words(row: EvalRow) -> str:
    """Say what the threshold of a row is, and which share of each data set it flags; empty where it has none."""
    threshold = row.threshold
    if threshold is None:
        return ""
    flagged = [f"{_percent(threshold.id_flagged)} of ID"]
    ood_flagged = threshold.ood_flagged or {}
    for name, share in ood_flagged.items():
        flagged.append(f"{_percent(share)} of {name}")
    rule = ""
    if threshold.rule:
        rule = f" (rule {threshold.rule})"
    score = threshold.score or "score"
    value = number(threshold.value)
    return f"{score} at least {value}{rule} flags {', '.join(flagged)}"


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    percent = 100 * share
    return f"{percent:.1f} %"
