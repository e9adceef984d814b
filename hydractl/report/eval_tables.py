"""The numbers of an eval as columns and tables, described once; terminal, page and pictures only show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydractl.files.eval_answer import ConformalSets, EvalAnswer, EvalRow, MetricBlock
from hydractl.files.model_records import (
    CalibrationRecord,
    CostRecord,
    DataSetRecord,
    MeasuredThreshold,
    ThresholdRecord,
)
from hydractl.files.results import Interval, Metrics, MetricValue, Record
from hydractl.metrics.declaration import Metric, table_metrics
from hydractl.report.tables import BEST, Cell, Ends, Table
from hydractl.report.texts import count_text, drawn_names, head_marks, number, params_text, percent, ratio, shown_name

SIGNIFICANT = "*"
"""The mark after a difference whose interval excludes 0."""

Rows = Sequence[EvalRow]
"""The rows of an eval, of which there is at least one."""

ID_METRICS = table_metrics("id")
OOD_METRICS = table_metrics("ood")
DIVERSITY_METRICS = table_metrics("diversity")
CORRUPTION_METRICS = tuple(metric for metric in ID_METRICS if metric.by_severity)


def single_number(value: MetricValue) -> float | None:
    """Return the value of a metric of one number; None for a metric of several parts, or without a value."""
    return None if isinstance(value, Mapping) else value


# --- columns ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A metric at one place of a row, e.g. accuracy on ID data or AUROC on one OOD set.

    Attributes:
        place: the path to the record that holds the metric, e.g. ``("ood", "svhn")``.
        metric: the metric.
    """

    place: tuple[str, ...]
    metric: Metric

    @property
    def key(self) -> str:
        """The key of the intervals and differences of a row, e.g. ``id.accuracy``."""
        return ".".join((*self.place, self.metric.key))

    def value(self, row: Record) -> float | None:
        """Return the number in a row; None if it has none."""
        return single_number(metrics_at(row, self.place).get(self.metric.key))

    def std(self, row: EvalRow) -> float | None:
        """Return the sample standard deviation over the runs that the number is a mean of; None for a single run."""
        return (row.std or {}).get(self.key)

    def interval(self, row: EvalRow) -> Ends:
        """Return the confidence interval in a row; None if it has none."""
        return known_interval(row.ci.get(self.key))


def known_interval(interval: Interval | None) -> Ends:
    """Return both ends of an interval; None if one of them is not known."""
    if not interval:
        return None
    low, high = interval
    if low is None or high is None:
        return None
    return low, high


def metrics_at(record: Record, place: Sequence[str]) -> Metrics:
    """Return the metrics that a record holds at the end of a path of names; empty if it has none there.

    For example those of ``row.ood["svhn"]`` for the path ``("ood", "svhn")``.
    """
    # Follow the names: keys of mappings, or attributes of records; None where there is nothing.
    value: Any = record
    for name in place:
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    if isinstance(value, MetricBlock):
        return value.metrics
    return value if isinstance(value, Mapping) else {}


def columns(metrics: Sequence[Metric], *place: str) -> list[Column]:
    """Return a column for each of the metrics at one place."""
    return [Column(place, metric) for metric in metrics]


ID_COLUMNS = columns(ID_METRICS, "id")
OOD_AVERAGE = columns(OOD_METRICS, "ood_avg")
DIVERSITY = columns(DIVERSITY_METRICS, "diversity", "id")
_COLUMNS = {column.key: column for column in [*ID_COLUMNS, *OOD_AVERAGE, *columns(table_metrics("errors"), "errors")]}
ACCURACY = _COLUMNS["id.accuracy"]
AUROC, FPR95 = _COLUMNS["ood_avg.auroc"], _COLUMNS["ood_avg.fpr95"]
ERROR_AUROC = _COLUMNS["errors.auroc"]


def main_columns(rows: Rows) -> list[Column]:
    """Return the columns of the main table; averages over OOD sets are among them only if there are OOD sets."""
    return [*ID_COLUMNS, *(OOD_AVERAGE if ood_names(rows) else ()), *DIVERSITY]


# --- facts of rows ----------------------------------------------------------------------------------------------------


def ood_names(rows: Rows) -> list[str]:
    """Return the names of the OOD sets that any row was measured on, in the order in which they first appear."""
    return distinct_entries(row.ood for row in rows)


def distinct_entries(lists: Iterable[Iterable[str]]) -> list[str]:
    """Return the entries of several lists without repetition, in the order in which they first appear."""
    return list(dict.fromkeys(name for names in lists for name in names))


def sizes_of_sets(rows: Rows, names: Sequence[str] = ("id",)) -> str:
    """Return the number of samples of the named data sets in these rows (models), as text.

    For example ``n = 497``, or ``n = 100 to 120`` if data sets or rows have different numbers; ``n unknown`` if none is
    known.
    """
    sizes = [sample_count_of(row, name) for row in rows for name in names]
    known_sizes = {size for size in sizes if size is not None}
    if not known_sizes:
        return "n unknown"
    smallest, largest = min(known_sizes), max(known_sizes)
    return f"n = {smallest}" if smallest == largest else f"n = {smallest} to {largest}"


def sample_count_of(row: EvalRow, name: str) -> int | None:
    """Return the number of samples of a data set in a row; None if it is not known."""
    if name == "id":
        return row.id.n
    return row.ood[name].n if name in row.ood else None


def set_title(name: str) -> str:
    """Return the name of a data set for people: ``ID``, or the name of an OOD set."""
    return "ID" if name == "id" else shown_name(name)


def seen_text(row: EvalRow) -> str:
    """Return how many samples of each data set the model had seen before, e.g. in its training; empty if none.

    For example ``3 of ID, 1 of svhn``.
    """
    return ", ".join(f"{count} of {set_title(name)}" for name, count in row.seen.items() if count)


_RUNS_OVER = {"seed": "seeds", "data": "data sets"}


def interval_sentence(answer: EvalAnswer) -> str:
    """Return the sentence on how far the figures can be relied on. By what the answer has, it says:

    * means over several runs: over what, and how many runs each row (model) has;
    * no intervals: that small differences may be chance;
    * else: what the intervals cover.
    """
    if answer.over is not None:
        counts = [f"{shown_name(row.name)} {row.runs or '-'}" for row in answer.models]
        return (
            f"Figures are means over {_RUNS_OVER[answer.over]} ± sample standard deviation; runs: {', '.join(counts)}."
        )
    bootstrap = answer.bootstrap
    if bootstrap is None or bootstrap.level is None:
        return "No confidence intervals were computed: small differences may be chance."
    return (
        f"Intervals cover {100 * bootstrap.level:g} %, from {bootstrap.rounds or 'unknown'} bootstrap resamples of the "
        "samples; they do not cover training again with another seed."
    )


# --- tables -----------------------------------------------------------------------------------------------------------


def marks(values: Sequence[float | None], metric: Metric) -> list[str]:
    """Return ``best`` for each value that is the best, and an empty text for each other one.

    Values that look the same in the table count as the same, so several can be best. Nothing is marked if there is no
    better or worse: in a single row, among equal values, and for a metric without a better direction.

    Args:
        values: the values of a metric, one for each row; None if not known.
        metric: the metric, which says which direction is better.
    """
    # Compare the numbers as the table shows them, rounded. Metrics that have no better direction have an empty one.
    rounded = [None if value is None else float(number(value, metric.digits)) for value in values]
    distinct = {value for value in rounded if value is not None}
    if not metric.direction or len(distinct) < 2:
        return [""] * len(values)
    best = max(distinct) if metric.direction == "higher" else min(distinct)
    return [BEST if value == best else "" for value in rounded]


def metric_cells(rows: Rows, column: Column) -> list[Cell]:
    """Return the cells of a column, one for each row: the number, its deviation over runs, and its interval.

    The best number is marked. A number that is not known is a dash.
    """
    digits = column.metric.digits
    values = [column.value(row) for row in rows]
    cells = []
    for row, value, mark in zip(rows, values, marks(values, column.metric), strict=True):
        deviation = column.std(row)
        beside = "" if deviation is None else f" ± {number(deviation, digits)}"
        cells.append(Cell(number(value, digits) + beside, mark, column.interval(row)))
    return cells


def metric_table(rows: Rows, shown: Sequence[Column], title: str = "", note: str = "") -> Table:
    """Return a table with one line for each model and one column for each number; the best of each column is marked."""
    # Make the cells column by column, because marks compare the rows of a column. Then collect the cells of each row.
    cells_of_columns = [metric_cells(rows, column) for column in shown]
    lines = [[name_cell(row), *cells] for row, *cells in zip(rows, *cells_of_columns, strict=True)]
    return Table(title, _heads("model", *(column.metric for column in shown)), lines, note=note)


def name_cell(row: EvalRow) -> Cell:
    """Return the cell with the name of a row (a model), and in small print what it is, such as its members.

    For example ``an ensemble of 2 members; heads kept: 144 / 120 of 144``.
    """
    # What it is; the first of these that holds.
    kind = "a single model"
    if row.runs is not None:
        kind = f"the mean of {row.runs} runs"
    elif row.mc_dropout is not None:
        kind = f"{row.mc_dropout.passes} passes of MC dropout (rate {row.mc_dropout.p})"
    elif row.members:
        kind = f"an ensemble of {len(row.members)} members"
    # The number of attention heads that each member keeps in all sites (attention modules), if it is known.
    sites = row.heads or ()
    if sites:
        members = max(len(site.kept) for site in sites)
        kept_of_members = []
        for member in range(members):
            kept = sum(len(site.kept_by(member)) for site in sites)
            kept_of_members.append(str(kept))
        all_heads = sum(site.heads for site in sites)
        kind += f"; heads kept: {' / '.join(kept_of_members)} of {all_heads}"
    return Cell(row.name, small=kind)


def _heads(*columns: str | Metric) -> list[tuple[str, str]]:
    """Return the heading of each column, a text or that of a metric, and which direction is better there."""
    return [(column, "") if isinstance(column, str) else (column.label, column.direction) for column in columns]


# --- the main numbers -------------------------------------------------------------------------------------------------


def main_table(rows: Rows) -> Table:
    """Return the table of every row (model) with its numbers on ID data and its means over OOD sets."""
    # The title, which names the number of ID samples.
    size = "-" if rows[0].id.n is None else rows[0].id.n
    title = f"in distribution (n = {size})"
    if ood_names(rows):
        title += f", {_ood_title(rows)}"
    return metric_table(rows, main_columns(rows), title)


def _ood_title(rows: Rows) -> str:
    """Return the title of the columns on OOD data; it names the scores of the rows where they differ."""
    scores = {row.ood_score for row in rows if row.ood_score is not None}
    if len(scores) < 2:
        return "OOD averages"
    score_of_each = ", ".join(f"{shown_name(row.name)} by {shown_name(row.ood_score or '-')}" for row in rows)
    return f"OOD averages by different scores ({score_of_each})"


_AT_A_GLANCE = ("accuracy", "nll", "ece", "auroc", "fpr95")


def glance_columns(rows: Rows) -> list[Column]:
    """Return the columns of the most important numbers."""
    return [column for column in main_columns(rows) if column.metric.key in _AT_A_GLANCE]


def glance_table(rows: Rows) -> Table:
    """Return the main table of a page: of every row its most important numbers, mult-adds and parameters.

    A note below explains the columns.
    """
    # The numbers, with cells for the cost behind them.
    shown = glance_columns(rows)
    measured = metric_table(rows, shown)
    lines = []
    for row, (name, *cells) in zip(rows, measured.rows, strict=True):
        cost = row.cost or CostRecord()  # nothing is known of some
        sizes = (number(cost_ratio(row), 2), count_text(cost.macs), params_text(cost.params, cost.params_nonzero))
        lines.append([name, *cells, *map(Cell, sizes)])

    # The note.
    words = [f"{column.metric.label}: {column.metric.words}" for column in shown]
    if ood_names(rows):
        words.append(f"AUROC and FPR95: {_ood_title(rows)}")
    if any(row.macs for row in rows):
        words.append("mult-adds ratio: mult-adds of all members for one sample, over those of the model with all heads")
    heads = [*measured.heads, *_heads("mult-adds ratio", "mult-adds", "parameters")]
    return Table("", heads, lines, note=f"{'; '.join(words)}.")


def further_table(rows: Rows) -> Table:
    """Return the table of the main numbers that :func:`glance_table` leaves out."""
    shown = [column for column in main_columns(rows) if column.metric.key not in _AT_A_GLANCE]
    return metric_table(rows, shown, note="mi (in nats) and disagr: how much members differ, on ID data.")


def averages_table(rows: Rows) -> Table:
    """Return the table of the means over near and over far OOD sets; without lines unless there are both."""
    # The columns of near, then those of far, each metric named after its group.
    shown = []
    for average in ("near_avg", "far_avg"):
        for metric in OOD_METRICS:
            shown.append(Column((average,), replace(metric, label=f"{average.removesuffix('_avg')} {metric.label}")))
    has_both = all(any(metrics_at(row, column.place) for row in rows) for column in shown)
    lines_of = rows if has_both else []
    return metric_table(lines_of, shown, "means over near and over far OOD sets")


def every_set_table(rows: Rows) -> Table:
    """Return a table with a line for each row (model) on each OOD set; the best row of each set is marked."""
    # Make a table for each set, in which the best row is marked, and collect the lines of all.
    lines = []
    for name in ood_names(rows):
        mutual_information = Column(("diversity", name), DIVERSITY_METRICS[0])
        of_set = metric_table(rows, [*columns(OOD_METRICS, "ood", name), mutual_information])
        for row, (_, *numbers) in zip(rows, of_set.rows, strict=True):
            if name in row.ood:
                group, size = row.ood[name].group, row.ood[name].n
                facts = [row.name, name, group or "-", "-" if size is None else str(size)]
                lines.append([*map(Cell, facts), *numbers])
    heads = _heads("model", "OOD set", "group", "n", *OOD_METRICS, DIVERSITY_METRICS[0])
    return Table("OOD sets", heads, lines, left=3, names=2)


def score_table(rows: Rows) -> Table:
    """Return the table of the mean OOD AUROC of every row by each OOD score; marks compare the scores within a row."""
    return _table_by_score(rows, AUROC, "mean AUROC by OOD score; bold: best of the row")


def error_table(rows: Rows) -> Table:
    """Return the table of the AUROC of wrong answers of every row by each OOD score; marks compare within a row."""
    labelled = [row for row in rows if row.errors is not None and row.errors.metrics]
    return _table_by_score(labelled, ERROR_AUROC, "AUROC of wrong answers by OOD score; bold: best of the row")


def _table_by_score(rows: Rows, by_own_score: Column, title: str) -> Table:
    """Return a table of one number: a line for each row (model), a column for each OOD score; the best is marked.

    Marks compare the scores within a row. The table has no lines if no row was measured with several scores.

    Args:
        rows: the rows of the table.
        by_own_score: the column of the number by the one score that the main table has, e.g. ``ood_avg.auroc``. By
            another score, a row holds the same number at ``scores.SCORE.ood_avg.auroc``.
        title: the title of the table.
    """
    metric = by_own_score.metric
    names = distinct_entries(row.scores for row in rows)
    if not names:
        return Table(title, _heads("model"), [])
    score_columns = [Column(("scores", score, *by_own_score.place), metric) for score in names]
    lines = []
    for row in rows:
        marks_within_row = marks([column.value(row) for column in score_columns], metric)
        cells = [name_cell(row)]
        for column, mark in zip(score_columns, marks_within_row, strict=True):
            cell = metric_cells([row], column)[0]
            cells.append(replace(cell, mark=mark))
        lines.append(cells)
    return Table(title, _heads("model", *names), lines)


def difference_table(rows: Rows) -> Table:
    """Return the table of the differences of every row to the first row, measured on the same samples.

    It has the rows that have differences, and those columns of the main table in which any row has one.
    """
    # The columns: those of the main table in which any row has a difference.
    keys_with_difference = distinct_entries(row.difference for row in rows)
    columns_with_difference = [column for column in main_columns(rows) if column.key in keys_with_difference]

    lines = []
    for row in rows:
        if row.difference and columns_with_difference:
            lines.append([Cell(row.name), *(_difference_cell(column, row) for column in columns_with_difference)])

    # The title names the first row, shortened.
    first = drawn_names([rows[0].name], 14)[0]
    note = f"{SIGNIFICANT} significant: the interval of the difference excludes 0. ↑ and ↓: which way is better."
    heads = _heads("model", *(column.metric for column in columns_with_difference))
    return Table(f"paired difference to {first}", heads, lines, note=note)


def _difference_cell(column: Column, row: EvalRow) -> Cell:
    """Return the difference of a row to the first row, with its interval and sign, and a mark if it is significant."""
    paired = row.difference.get(column.key)
    if paired is None or paired.value is None:
        return Cell("-")
    # Significant if the interval is known and lies on one side of 0.
    ends = known_interval(paired.ci)
    mark = ""
    if ends is not None:
        low, high = ends
        if low > 0 or high < 0:
            mark = SIGNIFICANT
    return Cell(signed_number(paired.value) + mark, ends=ends, signed=True)


def signed_number(value: float) -> str:
    """Return a difference as text with its sign and four digits after the point; one that rounds to 0 has no sign."""
    text = f"{value:+.4f}"
    return "0.0000" if float(text) == 0 else text


def signed_range(low: float, high: float) -> str:
    """Return the interval of a difference as text."""
    return f"{signed_number(low)} to {signed_number(high)}"


def data_table(answer: EvalAnswer) -> Table:
    """Return the table of the data sets that rows were measured on: the spec, the group and the size of each."""
    rows = answer.models
    lines = []
    for name in distinct_entries([["id"], ood_names(rows), answer.test]):
        data = answer.test.get(name, DataSetRecord())  # of an OOD set that only rows know, nothing is known
        # The group, near or far, is that of the first row that was measured on the set.
        group_of_rows = next((row.ood[name].group for row in rows if name in row.ood), None)
        group = "in distribution" if name == "id" else group_of_rows or "-"
        lines.append([*map(Cell, (set_title(name), data.spec or "-", group, sizes_of_sets(rows, [name])))])
    return Table("", _heads("data set", "", "group", "samples"), lines, left=3)


# --- members, cost, heads -------------------------------------------------------------------------------


def members_table(rows: Rows) -> Table:
    """Return the table of the members of each row: first all together, then each alone; a single model has no lines."""
    lines = []
    for row in rows:
        if not row.members:
            continue
        # A title and the ID metrics for each line of the row.
        measured = [("together", row.id.metrics)]
        for index, member in enumerate(row.members):
            measured.append((f"member {index}", member.metrics))
        for title, metrics in measured:
            cells = [Cell(number(single_number(metrics.get(metric.key)), metric.digits)) for metric in ID_METRICS]
            lines.append([Cell(row.name), Cell(title), *cells])
    heads = _heads("model", "", *ID_METRICS)
    return Table("", heads, lines, left=2, names=2, note=f"ID {sizes_of_sets(rows)}")


def cost_ratio(row: EvalRow) -> float | None:
    """Return the mult-adds of a row over those of its own single model with all heads; None if not known."""
    return ratio(row.macs, row.single_macs)


def heads_table(rows: Rows) -> Table:
    """Return the heads at each site (attention module) of every member that was pruned; without lines if none was."""
    # By the name of the site, and then by the name of the member: a cell with a mark for each head.
    marks_at: dict[str, dict[str, Cell]] = {}
    for row in rows:
        sites = row.heads or ()
        members_of_row = max((len(site.kept) for site in sites), default=0)
        for member in range(members_of_row):
            has_all_heads = all(len(site.kept_by(member)) == site.heads for site in sites)
            if has_all_heads:  # it was not pruned
                continue
            name = shown_name(row.name)
            if row.members:
                name += f", member {member}"
            for site in sites:
                path = site.site if site.tower in (None, "main") else f"{site.tower}: {site.site}"
                marks_of_site = marks_at.setdefault(path, {})
                marks_of_site[name] = Cell(head_marks(site.heads, site.kept_by(member)))

    # A line for each site, a column for each member; a dash where a member does not have the site.
    members = distinct_entries(marks_at.values())
    lines = []
    for path, marks_of_site in marks_at.items():
        lines.append([Cell(path), *(marks_of_site.get(name, Cell("-")) for name in members)])
    return Table("", _heads("site", *members), lines, left=1 + len(members))


# --- corruptions ------------------------------------------------------------------------------------------------------


def corruption_means(rows: Rows) -> Table:
    """Return the table of accuracy, Brier score and ECE by severity, means over the corruptions.

    Without lines if no row (model) was measured under corruptions.
    """
    severities = sorted(distinct_entries(row.corruption_avg for row in rows))
    shown = []
    for metric in CORRUPTION_METRICS:
        for severity in severities:
            labelled = replace(metric, label=f"{metric.label} {severity}")
            shown.append(Column(("corruption_avg", severity), labelled))
    corrupted_rows = rows if severities else []
    return metric_table(corrupted_rows, shown, "Mean over the corruptions")


def corrupted_accuracy(rows: Rows) -> Table:
    """Return the table of accuracy under corruptions: a line for each corruption of each row, a column by severity.

    A corruption under which no accuracy of a row is known has no line.
    """
    severities = sorted({severity for row in rows for measured in row.corruptions.values() for severity in measured})
    lines = []
    for row in rows:
        for kind in row.corruptions:
            shown = [Column(("corruptions", kind, severity), ACCURACY.metric) for severity in severities]
            accuracies = [column.value(row) for column in shown]
            if any(accuracy is not None for accuracy in accuracies):
                lines.append([Cell(row.name), Cell(shown_name(kind)), *(Cell(number(value)) for value in accuracies)])
    return Table(
        "accuracy under corruptions, by severity", _heads("model", "corruption", *severities), lines, left=2, names=2
    )


# --- what was fitted or given -----------------------------------------------------------------------------------------


def settings_table(rows: Rows) -> Table:
    """Return the table of MC dropout, calibration, conformal sets and threshold, a line for each that a row has."""
    lines = []
    for row in rows:
        # Words for each of the four; empty for what the row (model) does not have.
        dropout = row.mc_dropout
        passes = f"{dropout.passes} passes, dropout rate {dropout.p}, seed {dropout.seed}" if dropout else ""
        threshold = row.threshold or MeasuredThreshold()  # without values if the row has none
        facts = {
            "MC dropout": passes,
            "calibration": calibration_words(row.calibration),
            "conformal sets": _conformal_words(row.conformal),
            "threshold": threshold_words(row.threshold, {"ID": threshold.id_flagged, **(threshold.ood_flagged or {})}),
        }
        for name, text in facts.items():
            if text:
                lines.append([Cell(row.name), Cell(name), Cell(text)])
    return Table("fitted or given", _heads("model", "what", ""), lines, left=3)


def calibration_words(calibration: CalibrationRecord | None) -> str:
    """Return words on how logits were calibrated, e.g. ``temperature 1.31; fitted on val.csv (n = 500)``.

    Empty if they were not.
    """
    if calibration is None:
        return ""
    words = "a scale and a bias of each class"
    if calibration.temperature is not None:
        words = f"temperature {number(calibration.temperature)}"
    data = calibration.fitted_on
    return words if data is None else f"{words}; fitted on {data.spec or '-'} (n = {data.n or '-'})"


def _conformal_words(sets: ConformalSets | None) -> str:
    """Return words on how many conformal (prediction) sets hold the label, and how many should; empty without sets.

    That is a share of 1 - alpha: with an alpha of 0.1 there should be 90 %.
    """
    if sets is None:
        return ""
    wanted = None if sets.alpha is None else 1 - sets.alpha
    return (
        f"{sets.method or '-'}: {percent(sets.coverage)} of the sets hold the label, wanted {percent(wanted)}; "
        f"mean size {number(sets.mean_size, 2)} classes, {percent(sets.empty)} are empty; "
        f"qhat {number(sets.qhat)} from n = {sets.n_val or '-'} validation samples"
    )


def threshold_words(threshold: ThresholdRecord | None, flagged: Mapping[str, float | None]) -> str:
    """Return words on an OOD threshold, and the share of each data set that it flags; empty without one.

    For example ``energy at least -4.20000 (rule id:0.05) flags 5.2 % of ID, 80.1 % of svhn``.
    """
    if threshold is None:
        return ""
    words = f"{threshold.score or '-'} at least {number(threshold.value, 6)} (rule {threshold.rule or '-'})"
    shares = [f"{percent(share)} of {name}" for name, share in flagged.items()]
    return f"{words} flags {', '.join(shares)}" if shares else words
