"""The numbers of an eval as columns and tables, described once; terminal, page, card and pictures only show them."""

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
from hydractl.files.results import Interval, Metrics, MetricValue
from hydractl.metrics.declaration import Metric, table_metrics
from hydractl.report.texts import count_text, number, params_text, shown_name

BEST = "best"
SECOND = "second"
SIGNIFICANT = "*"
"""The mark after a difference whose interval excludes 0."""

ID_METRICS = table_metrics("id")
OOD_METRICS = table_metrics("ood")
DIVERSITY_METRICS = table_metrics("diversity")
CORRUPTION_METRICS = tuple(metric for metric in ID_METRICS if metric.by_severity)


def single_number(value: MetricValue) -> float | None:
    """Return the value of a metric of one number; None for a metric of several parts, or without a value."""
    if isinstance(value, Mapping):
        return None
    return value


# --- columns ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A metric at one place of a row, e.g. accuracy on ID data or AUROC on one OOD set.

    Attributes:
        place: the place in the row that holds the metric.
        metric: the metric.
        words: its name there, in a sentence.
    """

    place: Place
    metric: Metric
    words: str = ""

    @property
    def key(self) -> str:
        """The key of the intervals and differences of a row, e.g. ``id.accuracy``."""
        place = self.place.key
        return f"{place}.{self.metric.key}"

    def value(self, row: EvalRow) -> float | None:
        """Return the number in a row; None if it has none."""
        values = self.place.metrics(row)
        value = values.get(self.metric.key)
        return single_number(value)

    def std(self, row: EvalRow) -> float | None:
        """Return the sample standard deviation over the runs that the number is a mean of; None for a single run."""
        return (row.std or {}).get(self.key)

    def interval(self, row: EvalRow) -> tuple[float, float] | None:
        """Return the confidence interval in a row; None if it has none."""
        interval = row.ci.get(self.key)
        return known_interval(interval)

    def difference(self, row: EvalRow) -> tuple[float, tuple[float, float] | None] | None:
        """Return the row's number minus the first row's, on the same samples, and the interval; None if not known."""
        paired = row.difference.get(self.key)
        if paired is None or paired.value is None:
            return None
        ends = known_interval(paired.ci)
        return paired.value, ends


def known_interval(interval: Interval | None) -> tuple[float, float] | None:
    """Return both ends of an interval; None if one of them is not known."""
    if not interval:
        return None
    low, high = interval
    if low is None or high is None:
        return None
    return low, high


def columns(metrics: Sequence[Metric], place: Place, words: str = "") -> tuple[Column, ...]:
    """Return a column for each of the metrics at one place; ``words`` are added to the name of each."""
    metric_columns = []
    for metric in metrics:
        column_words = metric.words + words
        metric_columns.append(Column(place, metric, column_words))
    return tuple(metric_columns)


def _metric_of_key(metrics: Sequence[Metric], key: str) -> Metric:
    """Return the metric with this key; KeyError if none has it."""
    by_key = {metric.key: metric for metric in metrics}
    return by_key[key]


def _id_column(key: str) -> Column:
    """Return the column of a metric on ID data."""
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
    """Return the columns of the main table; averages over OOD sets are among them only if there are OOD sets."""
    if not ood_names(rows):
        return [*ID_COLUMNS, *DIVERSITY]
    return [*ID_COLUMNS, *OOD_AVERAGE, *DIVERSITY]


def set_columns(name: str) -> list[Column]:
    """Return the columns of one OOD set: the metrics of detection, and the mutual information of the members."""
    detection_columns = columns(OOD_METRICS, ood_set_place(name))
    place = diversity_place(name)
    mutual_information = Column(place, DIVERSITY_METRICS[0])
    return [*detection_columns, mutual_information]


# --- facts of rows ----------------------------------------------------------------------------------------------------


def ood_names(rows: Sequence[EvalRow]) -> list[str]:
    """Return the names of the OOD sets that any row was measured on, in the order in which they first appear."""
    sets_of_rows = [row.ood for row in rows]
    return distinct_entries(sets_of_rows)


def distinct_entries(lists: Iterable[Iterable[str]]) -> list[str]:
    """Return the entries of several lists without repetition, in the order in which they first appear."""
    entries: dict[str, None] = {}
    for names in lists:
        entries.update(dict.fromkeys(names))
    return list(entries)


def ood_group(rows: Sequence[EvalRow], name: str) -> str | None:
    """Return the group of an OOD set, ``near``, ``far`` or None, from the first row that has the set."""
    for row in rows:
        measured = row.ood.get(name)
        if measured is not None:
            return measured.group
    return None


def sizes_of_sets(rows: Sequence[EvalRow], names: Sequence[str] = ("id",)) -> str:
    """Return the number of samples of the named data sets in these rows, as text.

    For example ``n = 497``, or ``n = 100 to 120`` if data sets or rows have different numbers.
    """
    sizes = []
    for row in rows:
        for name in names:
            sizes.append(sample_count_of(row, name))
    return sizes_text(sizes)


def sample_count_of(row: EvalRow, name: str) -> int | None:
    """Return the number of samples of a data set in a row; None if it is not known."""
    if name == "id":
        return row.id.n
    measured = row.ood.get(name)
    if measured is not None:
        return measured.n
    return None


def sizes_text(sizes: Iterable[int | None]) -> str:
    """Return sizes as text: ``n = 497``; ``n = 100 to 120`` if they differ; ``n unknown`` if none is known."""
    known = {size for size in sizes if size is not None}
    if not known:
        return "n unknown"
    if len(known) == 1:
        return f"n = {min(known)}"
    return f"n = {min(known)} to {max(known)}"


def score_name(answer: EvalAnswer, row: EvalRow) -> str | None:
    """Return the name of the OOD score of a row; None if the document names none.

    Documents of earlier versions name one score for all rows, among their conventions.
    """
    if row.ood_score:
        return row.ood_score
    return answer.conventions.get("ood_score")


def set_title(name: str) -> str:
    """Return the name of a data set for people: ``ID``, or the name of an OOD set."""
    if name == "id":
        return "ID"
    return shown_name(name)


def seen_text(row: EvalRow) -> str:
    """Return how many samples of each data set the row had seen before, as text; empty if it had seen none."""
    seen = []
    for name, count in row.seen.items():
        if count:
            seen.append(f"{count} of {set_title(name)}")
    return ", ".join(seen)


def level_text(answer: EvalAnswer) -> str:
    """Return the level of the intervals, e.g. ``95 %``; empty if the answer does not tell it."""
    bootstrap = answer.bootstrap
    if bootstrap is None or bootstrap.level is None:
        return ""
    percent = 100 * bootstrap.level
    return f"{percent:g} %"


_RUNS_OVER = {"seed": "seeds", "data": "data sets"}


def runs_text(answer: EvalAnswer) -> str:
    """Return words on what the figures are means of, with the number of runs of each row; empty for no means."""
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
    """One cell of a table.

    Attributes:
        text: plain text.
        mark: ``best``, ``second`` or empty; for a cell without a number ``text``, or ``text long`` if it may be
            wrapped.
        ends: the interval of the number; None if there is none.
        signed: whether the number is a difference.
    """

    text: str
    mark: str = ""
    ends: tuple[float, float] | None = None
    signed: bool = False


@dataclass(frozen=True)
class Table:
    """A table with one or several rows for each model.

    Attributes:
        caption: a sentence about the table.
        heads: the heading of each column, without that of the names, and which direction is better there.
        rows: the name of a model, and its cells.
        title: a short heading.
    """

    caption: str
    heads: Sequence[tuple[str, str]]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    title: str = ""


def marks(values: Sequence[float | None], metric: Metric) -> list[str]:
    """Return the mark of each value: ``best``, ``second`` or empty.

    Values that look the same in the table count as the same, so several can be best. ``second`` marks the next
    different value, if three rows or more have a value. Nothing is marked if there is no better or worse: in a single
    row, among equal values, and for a metric without a better direction.

    Args:
        values: the values of a metric, one for each row; None if not known.
        metric: the metric, which says which direction is better.
    """
    unmarked = [""] * len(values)
    if not metric.direction:
        return unmarked

    # Compare the numbers as the table shows them, rounded.
    rounded = [_rounded_as_shown(value, metric) for value in values]
    known = [value for value in rounded if value is not None]
    higher_is_better = metric.direction == "higher"
    distinct_best_first = sorted(set(known), reverse=higher_is_better)
    if len(distinct_best_first) < 2:
        return unmarked

    best, second, *_ = distinct_best_first
    mark_of: dict[float | None, str] = {best: BEST}
    if len(known) > 2:
        mark_of[second] = SECOND
    return [mark_of.get(value, "") for value in rounded]


def _rounded_as_shown(value: float | None, metric: Metric) -> float | None:
    """Return the number that a reader of the table sees; None if there is none."""
    if value is None:
        return None
    return float(number(value, metric.digits))


def metric_cells(rows: Sequence[EvalRow], column: Column) -> list[Cell]:
    """Return the column's number in every row, with its deviation over runs and its interval; the best is marked.

    Args:
        rows: the rows of the models.
        column: a metric at one place of a row, e.g. AUROC on one OOD set.
    """
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
    """Return a table with one line for each model and one column for each number; the best of each column is marked.

    Args:
        rows: the rows of the models.
        shown: the columns.
        caption: a sentence about the table.
        title: its heading.
    """
    # Make the cells column by column, because marks compare the rows of a column. Then collect the cells of each row.
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
    """Return the numbers of these metrics as cells without marks; a dash for a missing number."""
    cells = []
    for metric in metrics:
        value = single_number(values.get(metric.key))
        text = number(value, metric.digits)
        cells.append(Cell(text))
    return cells


# --- the main numbers -------------------------------------------------------------------------------------------------


def main_table(rows: Sequence[EvalRow]) -> Table:
    """Return the table of every row with its numbers on ID data and its means over OOD sets."""
    words_on_groups = ""
    if ood_names(rows):
        words_on_groups = " acc to aurc on ID data; auroc, fpr95, aupr: mean over OOD sets;"
    words_on_members = " mi (nats) and disagr on ID data."
    caption = f"ID {sizes_of_sets(rows)}.{words_on_groups}{words_on_members} ↑ higher is better, ↓ lower is better."
    return metric_table(rows, main_columns(rows), caption)


_AVERAGES: tuple[tuple[OodAverage, str, str], ...] = (
    ("near_avg", "Mean: near", "the near OOD sets"),
    ("far_avg", "Mean: far", "the far OOD sets"),
    ("ood_avg", "Mean: all", "all sets"),
)


def ood_tables(rows: Sequence[EvalRow]) -> Iterator[Table]:
    """Yield one table for each OOD set, and then one for each average over a group that any row has."""
    for name in ood_names(rows):
        caption = sizes_of_sets(rows, [name])
        group = ood_group(rows, name)
        if group:
            caption = f"{group} OOD, {caption}"
        yield metric_table(rows, set_columns(name), caption, shown_name(name))
    for average, title, sets in _AVERAGES:
        if any(_has_average(row, average) for row in rows):
            average_columns = columns(OOD_METRICS, average_place(average))
            yield metric_table(rows, average_columns, f"unweighted mean over {sets}", title)


def _has_average(row: EvalRow, average: OodAverage) -> bool:
    """Return whether a row has any number of this average."""
    means = average_of(row, average)
    return any(value is not None for value in means.values())


def every_set_table(rows: Sequence[EvalRow]) -> Table:
    """Return a table with a line for each OOD set of each row; marks compare the rows within a set."""
    # A table of each set marks the best row. Its cells are then put into one table, below each other row by row.
    marked_table_of_set = {}
    for name in ood_names(rows):
        marked_table_of_set[name] = metric_table(rows, set_columns(name), "")
    lines = []
    for index, row in enumerate(rows):
        for name, measured in row.ood.items():
            # The line of a set has its name, group and size, and the marked cells of this row in its table.
            about_set = _cells_about_set(name, measured)
            marked_table = marked_table_of_set[name]
            _, numbers = marked_table.rows[index]
            lines.append((row.name, [*about_set, *numbers]))

    headings_about_set = _plain_headings("OOD set", "group", "n")
    metrics = [*OOD_METRICS, DIVERSITY_METRICS[0]]
    headings_of_numbers = _headings(metrics)
    return Table("", [*headings_about_set, *headings_of_numbers], lines, "OOD sets")


def _cells_about_set(name: str, measured: OodSetMetrics) -> list[Cell]:
    """Return the name, group and size of an OOD set; a dash for what is not known."""
    group = measured.group or "-"
    size = "-"
    if measured.n is not None:
        size = str(measured.n)
    return [Cell(name, "text"), Cell(group, "text"), Cell(size)]


def score_table(rows: Sequence[EvalRow]) -> Table:
    """Return the table of the mean OOD AUROC of every row by each OOD score; marks compare the scores within a row."""
    return _table_by_score(rows, score_average_place, AUROC, "mean auroc by OOD score; bold: best of the row")


def error_table(rows: Sequence[EvalRow]) -> Table:
    """Return the table of the AUROC of wrong answers of every row by each OOD score; marks compare within a row."""
    labelled = [row for row in rows if errors_of(row)]
    title = "auroc of wrong answers by OOD score; bold: best of the row"
    return _table_by_score(labelled, score_errors_place, ERROR_AUROC, title)


def _table_by_score(rows: Sequence[EvalRow], place_of: Callable[[str], Place], metric: Metric, title: str) -> Table:
    """Return a table of one metric: a line for each row, a column for each OOD score; marks compare within a row.

    Args:
        rows: the rows of the table.
        place_of: returns the place of the metric by a score, from the name of the score.
        metric: the metric.
        title: the title of the table.
    """
    scores = _names_of_scores(rows)
    if not scores:
        return Table("", [], [], title)
    score_columns = [Column(place_of(score), metric) for score in scores]
    lines = []
    for row in rows:
        values = [column.value(row) for column in score_columns]
        marks_within_row = marks(values, metric)
        # The cells of one row, with marks that compare the scores and not the rows.
        cells = []
        for column, mark in zip(score_columns, marks_within_row, strict=True):
            (cell,) = metric_cells([row], column)
            cells.append(replace(cell, mark=mark))
        lines.append((row.name, cells))
    return Table("", _plain_headings(*scores), lines, title)


def _names_of_scores(rows: Sequence[EvalRow]) -> list[str]:
    """Return the OOD scores that are reported beside the leading one, in the order of the row that has most of them."""

    def number_of_scores(row: EvalRow) -> int:
        return len(row.scores)

    longest_first = sorted(rows, key=number_of_scores, reverse=True)
    return distinct_entries(row.scores for row in longest_first)


def difference_table(rows: Sequence[EvalRow]) -> Table:
    """Return the table of the differences of every row to the first row, measured on the same samples.

    It has the rows that have differences, and those columns of the main table in which any row has one.
    """
    keys_with_difference = distinct_entries(row.difference for row in rows)
    columns_with_difference = [column for column in main_columns(rows) if column.key in keys_with_difference]

    lines = []
    for row in rows:
        if not row.difference or not columns_with_difference:
            continue
        cells = [_difference_cell(column, row) for column in columns_with_difference]
        lines.append((row.name, cells))
    caption = f"{SIGNIFICANT} significant: the interval of the difference excludes 0. ↑ and ↓: which way is better."
    headings = _headings(column.metric for column in columns_with_difference)
    return Table(caption, headings, lines)


def _difference_cell(column: Column, row: EvalRow) -> Cell:
    """Return the difference of a row to the first row, with its interval and sign, and a mark if it is significant."""
    difference = column.difference(row)
    if difference is None:
        return Cell("-")
    value, ends = difference
    text = signed_number(value)
    if excludes_zero(ends):
        text += SIGNIFICANT
    return Cell(text, "", ends, signed=True)


def excludes_zero(ends: tuple[float, float] | None) -> bool:
    """Return whether the interval of a difference excludes 0, so that it is significant; False without an interval."""
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
    """Return the table of the members of each row: first all together, then each alone; a single model has no lines."""
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
    """Return the cells of a line: its title, and the metrics on ID data."""
    numbers = _unmarked_cells(metrics, ID_METRICS)
    return [Cell(title, "text"), *numbers]


def selective_table(rows: Sequence[EvalRow]) -> Table:
    """Return the table of the accuracy among the most confident samples, by their share; empty if none is known."""
    caption = f"Accuracy among that share of the samples, the most confident ones; ID {sizes_of_sets(rows)}"
    place = parts_place("accuracy_at")
    shares = sorted(distinct_entries(place.metrics(row) for row in rows))
    if not shares:
        return metric_table([], [AURC], caption)

    # A column for each share, e.g. "acc at 0.80", and one for the area under the risk-coverage curve.
    share_columns = []
    for share in shares:
        metric = replace(ACCURACY.metric, key=share, label=f"acc at {share}")
        share_columns.append(Column(place, metric))
    return metric_table(rows, [*share_columns, AURC], caption)


def cost_ratio(rows: Sequence[EvalRow]) -> tuple[list[float | None], str]:
    """Return the mult-adds of every row relative to a reference, None if not known, and the name of the reference.

    The reference is each row's own single model with all heads, if every row with a cost has it. Otherwise it is the
    first row with a cost.
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
    """Return the mult-adds relative to a reference; None if one of the two is not known."""
    if not macs or not reference_macs:
        return None
    return macs / reference_macs


def cost_table(rows: Sequence[EvalRow]) -> Table:
    """Return the table of what every row costs for one sample; without lines if no row has a cost."""
    ratios, reference = cost_ratio(rows)
    caption = f"Parameters of all members, mult-adds for one sample, and these over those of {shown_name(reference)}"
    headings = _plain_headings("parameters", "mult-adds", "ratio")
    if all(row.cost is None for row in rows):
        return Table(caption, headings, [])
    lines = []
    for row, ratio in zip(rows, ratios, strict=True):
        cost = row.cost
        if cost is None:
            cost = CostRecord()  # nothing is known, so the line has dashes
        parameters = params_text(cost.params, cost.params_nonzero)
        mult_adds = count_text(cost.macs)
        cells = [Cell(parameters), Cell(mult_adds), Cell(number(ratio, 3))]
        lines.append((row.name, cells))
    return Table(caption, headings, lines)


def diversity_table(rows: Sequence[EvalRow]) -> Table:
    """Return the table of how much the members differ on each data set, all together and pair by pair."""
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
    """Yield which members are compared, in words, and their metrics: first all members, then each pair.

    A single model has mutual information of its passes but no members that differ, so it has no line of all.
    """
    disagreement = measured.metrics.get("disagreement")
    if row.members or disagreement is not None:
        yield "all", measured.metrics
    for pair in measured.pairs or ():
        yield f"{pair.a} and {pair.b}", pair.metrics


# --- corruptions ------------------------------------------------------------------------------------------------------


def corruption_tables(rows: Sequence[EvalRow]) -> Iterator[Table]:
    """Yield tables of accuracy, Brier score and ECE by severity: one for each corruption, and at last their mean."""
    caption = f"by severity; {corrupted_sizes(rows)}"

    # Each corruption, with the severities at which any row was measured.
    for kind in distinct_entries(row.corruptions for row in rows):
        severities_of_kind = distinct_entries(row.corruptions.get(kind, {}) for row in rows)
        places_of_kind = {severity: corruption_place(kind, severity) for severity in sorted(severities_of_kind)}
        columns_of_kind = _severity_columns(places_of_kind)
        if columns_of_kind:
            yield metric_table(rows, columns_of_kind, caption, shown_name(kind))

    # The mean over corruptions.
    severities = distinct_entries(row.corruption_avg for row in rows)
    places_of_mean = {severity: severity_place(severity) for severity in sorted(severities)}
    columns_of_mean = _severity_columns(places_of_mean)
    if columns_of_mean:
        yield metric_table(rows, columns_of_mean, caption, "Mean over the corruptions")


def _severity_columns(place_of_severity: Mapping[str, Place]) -> list[Column]:
    """Return the columns of each metric at each severity: all severities of one metric, then of the next one."""
    shown = []
    for metric in CORRUPTION_METRICS:
        for severity, place in place_of_severity.items():
            labelled = replace(metric, label=f"{metric.label} {severity}")
            shown.append(Column(place, labelled))
    return shown


def corrupted_accuracy(rows: Sequence[EvalRow]) -> Table:
    """Return the table of accuracy under corruptions: a line for each corruption of each row, a column by severity.

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
    """Return the severities at which any corruption of any row was measured, in order."""
    severities: set[str] = set()
    for row in rows:
        for by_severity in row.corruptions.values():
            severities.update(by_severity)
    return sorted(severities)


def _accuracy_under(row: EvalRow, kind: str, severity: str) -> float | None:
    """Return the accuracy of a row under a corruption at a severity; None if it was not measured there."""
    place = corruption_place(kind, severity)
    column = Column(place, ACCURACY.metric)
    return column.value(row)


def corrupted_sizes(rows: Sequence[EvalRow]) -> str:
    """Return the number of samples of every corruption at every severity, as text, e.g. ``n = 497 each``.

    Without ``each`` if the sizes differ or are not known.
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
    """Return the table of MC dropout, calibration, conformal sets and threshold, for rows that have them."""
    lines = []
    for row in rows:
        facts = {
            "MC dropout": _dropout_words(row),
            "calibration": _calibration_words(row),
            "conformal sets": _conformal_words(row),
            "threshold": _threshold_words(row),
        }
        for name, text in facts.items():
            if text:
                cells = [Cell(name, "text"), Cell(text, "text long")]
                lines.append((row.name, cells))
    headings = _plain_headings("what", "facts")
    return Table("Fitted on other samples, or given", headings, lines)


def _dropout_words(row: EvalRow) -> str:
    """Return words on how a row was measured by MC dropout; empty if it was not."""
    dropout = row.mc_dropout
    if dropout is None:
        return ""
    return f"{dropout.passes} passes, dropout rate {dropout.p}, seed {dropout.seed}"


def _fitted_on_words(data: DataSetRecord | None) -> list[str]:
    """Return a list with words on the samples that something was fitted to; an empty list if they are not known."""
    if data is None or not data.spec:
        return []
    size = ""
    if data.n is not None:
        size = f" (n = {data.n})"
    return [f"fitted on {data.spec}{size}"]


def _calibration_words(row: EvalRow) -> str:
    """Return words on how the logits of a row were calibrated; empty if they were not."""
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
    """Return words on how well the conformal sets of a row reach what was wanted; empty if it has none."""
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
    """Return words on the threshold of a row, and the share of each data set that it flags; empty if it has none."""
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
    """Return a share in percent with one decimal; a dash for None."""
    if share is None:
        return "-"
    percent = 100 * share
    return f"{percent:.1f} %"
