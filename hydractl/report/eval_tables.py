"""The numbers of an eval as columns and tables, described once: terminal, page, card and pictures only show them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydractl.metrics.declaration import Metric, table_metrics
from hydractl.report.texts import count_text, number, params_text, shown_name

BEST, SECOND = "best", "second"
SIGNIFICANT = "*"
"""The mark behind a difference whose interval excludes 0."""
Row = Mapping[str, Any]
"""The entry of one model in the document of an eval."""


ID_METRICS, OOD_METRICS, DIVERSITY_METRICS = (table_metrics(kind) for kind in ("id", "ood", "diversity"))


def at(document: Mapping[str, Any], *keys: str) -> Any:
    """Return what stands below these keys, from the outside in; None where any of them is missing or null."""
    value: Any = document
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


@dataclass(frozen=True)
class Column:
    """A metric at one place of a row.

    Attributes:
        place: the keys that lead to it, from the outside in: ``("id",)``, ``("ood", NAME)``.
        metric: which.
        words: what a person calls it there.
    """

    place: tuple[str, ...]
    metric: Metric
    words: str = ""

    @property
    def key(self) -> str:
        """The name among the intervals and differences of a row: ``id.accuracy``."""
        return ".".join((*self.place, self.metric.key))

    def value(self, row: Row) -> float | None:
        """Return the number in this row; None where there is none."""
        number: float | None = at(row, *self.place, self.metric.key)
        return number

    def std(self, row: Row) -> float | None:
        """Return the sample standard deviation over the runs that the number is a mean of; None for a single run."""
        found: float | None = (row.get("std") or {}).get(self.key)
        return found

    def interval(self, row: Row) -> tuple[float, float] | None:
        """Return the confidence interval in this row; None where none was made."""
        return _pair(at(row, "ci", self.key))

    def difference(self, row: Row) -> tuple[float, tuple[float, float] | None] | None:
        """Return this row minus the first one, measured on the same samples, and the interval of that."""
        value = at(row, "difference", self.key, "value")
        return None if value is None else (value, _pair(at(row, "difference", self.key, "ci")))


def _pair(ends: Sequence[float | None] | None) -> tuple[float, float] | None:
    low, high = ends or (None, None)
    return None if low is None or high is None else (low, high)


def columns(metrics: Sequence[Metric], *place: str, words: str = "") -> tuple[Column, ...]:
    """Return the columns of these metrics at one place; ``words`` go behind the name of each."""
    return tuple(Column(place, metric, metric.words + words) for metric in metrics)


ID_COLUMNS = columns(ID_METRICS, "id")
(ACCURACY,) = (column for column in ID_COLUMNS if column.metric.key == "accuracy")
(AURC,) = (column for column in ID_COLUMNS if column.metric.key == "aurc")
(AUROC,) = (metric for metric in OOD_METRICS if metric.key == "auroc")
OOD_AVERAGE = columns(OOD_METRICS, "ood_avg", words=", mean over the OOD sets")
DIVERSITY = columns(DIVERSITY_METRICS, "diversity", "id")


def main_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of the main table; the averages over OOD sets only where there are such sets."""
    return [*ID_COLUMNS, *(OOD_AVERAGE if ood_names(rows) else ()), *DIVERSITY]


def ood_names(rows: Sequence[Row]) -> list[str]:
    """Return the OOD sets of all rows, in order."""
    return list(dict.fromkeys(name for row in rows for name in row.get("ood") or {}))


def ood_group(rows: Sequence[Row], name: str) -> str | None:
    """Return ``near``, ``far`` or None."""
    return next((row["ood"][name].get("group") for row in rows if at(row, "ood", name) is not None), None)


def samples(rows: Sequence[Row], names: Sequence[str] = ("id",)) -> str:
    """Return ``n = 497``, or ``n = 100 to 120`` where data sets or rows do not have equally many."""
    places = [("id",) if name == "id" else ("ood", name) for name in names]
    return sizes_text(at(row, *place, "n") for row in rows for place in places)


def sizes_text(sizes: Iterable[int | None]) -> str:
    """Return the same for any sizes, some of which may not be known."""
    known = {size for size in sizes if size is not None}
    if not known:
        return "n unknown"
    return f"n = {min(known)}" if len(known) == 1 else f"n = {min(known)} to {max(known)}"


def score_name(document: Mapping[str, Any], row: Row) -> str | None:
    """Return the OOD score of a row; in documents of earlier versions that of all of them."""
    name: str | None = row.get("ood_score") or at(document, "conventions", "ood_score")
    return name


def seen_text(row: Row) -> str:
    """Say how many samples of each data set the row had seen before; empty where it had seen none."""
    counts = (row.get("seen") or {}).items()
    return ", ".join(f"{count} of {'ID' if name == 'id' else shown_name(name)}" for name, count in counts if count)


def marks(values: Sequence[float | None], metric: Metric) -> list[str]:
    """Return for each value ``best``, ``second`` or nothing.

    Values that look the same in the table are the same: all of the best ones are best. Nothing is marked where there is
    no better and worse: in a single row, among equal values, and where neither direction is better. ``second`` is the
    next different value, marked among three rows or more.
    """
    shown = [None if value is None else float(number(value, metric.digits)) for value in values]
    ranked = sorted({value for value in shown if value is not None}, reverse=metric.direction == "higher")
    if not metric.direction or len(ranked) < 2:
        return [""] * len(shown)
    second = ranked[1] if sum(value is not None for value in shown) > 2 else None
    return [BEST if v == ranked[0] else SECOND if v is not None and v == second else "" for v in shown]


def level_text(document: Mapping[str, Any]) -> str:
    """Return ``95 %``, or what else the intervals of this document cover; empty where it does not say."""
    level = at(document, "bootstrap", "level")
    return "" if level is None else f"{100 * level:g} %"


def runs_text(document: Mapping[str, Any]) -> str:
    """Say what figures are means of, and how many runs each row has; empty where they are no means."""
    over = {"seed": "seeds", "data": "data sets"}.get(document.get("over") or "")
    counts = ", ".join(f"{shown_name(row['name'])} {row.get('runs', '-')}" for row in document["models"])
    return f"means over {over} ± sample standard deviation; runs: {counts}" if over else ""


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


def metric_cells(rows: Sequence[Row], column: Column) -> list[Cell]:
    """Return the column's number in every row, marked, with its interval."""
    values = [column.value(row) for row in rows]
    return [
        Cell(_with_std(value, column.std(row), column.metric.digits), mark, column.interval(row))
        for row, value, mark in zip(rows, values, marks(values, column.metric), strict=True)
    ]


def _with_std(value: float | None, std: float | None, digits: int) -> str:
    return number(value, digits) + ("" if std is None else f" ± {number(std, digits)}")


def metric_table(rows: Sequence[Row], shown: Sequence[Column], caption: str, title: str = "", tail: str = "") -> Table:
    """Make a table of one line for each model and one column for each number.

    Args:
        tail: what to put behind each heading.
    """
    cells = [metric_cells(rows, column) for column in shown]
    lines = [(row["name"], [column[index] for column in cells]) for index, row in enumerate(rows)]
    return Table(caption, [(column.metric.label + tail, column.metric.direction) for column in shown], lines, title)


def _heads(*labels: str, metrics: Sequence[Metric] = ()) -> list[tuple[str, str]]:
    return [*((label, "") for label in labels), *((metric.label, metric.direction) for metric in metrics)]


def _numbers(values: Mapping[str, Any], metrics: Sequence[Metric]) -> list[Cell]:
    return [Cell(number(values.get(metric.key), metric.digits)) for metric in metrics]


# --- the main numbers -------------------------------------------------------------------------------------------------


def main_table(rows: Sequence[Row]) -> Table:
    """Make the table of every row with its numbers on ID data and its means over OOD sets."""
    groups = " acc to aurc on ID data; auroc, fpr95, aupr: mean over OOD sets;" if ood_names(rows) else ""
    caption = f"ID {samples(rows)}.{groups} mi (nats) and disagr on ID data. ↑ higher is better, ↓ lower is better."
    return metric_table(rows, main_columns(rows), caption)


def set_columns(name: str) -> list[Column]:
    """Return the numbers of one OOD set."""
    return [*columns(OOD_METRICS, "ood", name), Column(("diversity", name), DIVERSITY_METRICS[0])]


def ood_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield one table for each OOD set and each average over a group."""
    for name in ood_names(rows):
        group = ood_group(rows, name)
        caption = f"{group} OOD, {samples(rows, [name])}" if group else samples(rows, [name])
        yield metric_table(rows, set_columns(name), caption, shown_name(name))
    for place, title, which in (
        *(("near_avg", "near", "the near OOD sets"), ("far_avg", "far", "the far OOD sets")),
        ("ood_avg", "all", "all sets"),
    ):
        if any(value is not None for row in rows for value in (row.get(place) or {}).values()):
            yield metric_table(rows, columns(OOD_METRICS, place), f"unweighted mean over {which}", f"Mean: {title}")


def every_set_table(rows: Sequence[Row]) -> Table:
    """Make a table of a line for each OOD set of each row; marks are within a set."""
    body: dict[tuple[int, str], list[Cell]] = {}
    for name in ood_names(rows):
        cells = [metric_cells(rows, column) for column in set_columns(name)]
        body.update({(index, name): [column[index] for column in cells] for index in range(len(rows))})
    lines = []
    for index, row in enumerate(rows):
        for name, entry in (row.get("ood") or {}).items():
            n = "-" if entry.get("n") is None else str(entry["n"])
            about = [Cell(name, "text"), Cell(entry.get("group") or "-", "text"), Cell(n)]
            lines.append((row["name"], [*about, *body[index, name]]))
    heads = _heads("OOD set", "group", "n", metrics=[*OOD_METRICS, DIVERSITY_METRICS[0]])
    return Table("", heads, lines, "OOD sets")


def score_table(rows: Sequence[Row]) -> Table:
    """Make the table of mean OOD AUROC of every row by each OOD score that was asked for; marks are within a row."""
    longest_first = sorted((row.get("scores") or {} for row in rows), key=len, reverse=True)
    scores = list(dict.fromkeys(score for own in longest_first for score in own))
    lines = []
    for row in rows:
        shown = [Column(("scores", score, "ood_avg"), AUROC) for score in scores]
        best = marks([column.value(row) for column in shown], AUROC)
        cells = [replace(metric_cells([row], column)[0], mark=mark) for column, mark in zip(shown, best, strict=True)]
        lines.append((row["name"], cells))
    title = "mean auroc by OOD score; bold: best of the row"
    return Table("", [(score, "") for score in scores], lines if scores else [], title)


def difference_table(rows: Sequence[Row]) -> Table:
    """Make the table of every row minus the first, on the same samples: the numbers of the main table."""
    known = {key for row in rows for key in row.get("difference") or {}}
    shown = [column for column in main_columns(rows) if column.key in known]
    lines = [(row["name"], [_difference(column, row) for column in shown]) for row in rows if row.get("difference")]
    caption = f"{SIGNIFICANT} significant: the interval of the difference excludes 0. ↑ and ↓: which way is better."
    return Table(caption, _heads(metrics=[column.metric for column in shown]), lines if shown else [])


def _difference(column: Column, row: Row) -> Cell:
    found = column.difference(row)
    if found is None:
        return Cell("-")
    value, ends = found
    return Cell(signed_number(value) + SIGNIFICANT * excludes_zero(ends), "", ends, signed=True)


def excludes_zero(ends: tuple[float, float] | None) -> bool:
    """Return whether a difference with this interval is significant."""
    return ends is not None and not ends[0] <= 0 <= ends[1]


def signed_number(value: float) -> str:
    """A difference, with its sign."""
    return ("+" if value > 0 else "") + number(value)


# --- the others -------------------------------------------------------------------------------------------------------


def members_table(rows: Sequence[Row]) -> Table:
    """Make the table of the members alone, below the row they make up."""
    lines = []
    for row in rows:
        members = row.get("members") or []
        for who, values in [("together", row.get("id") or {}), *((f"member {i}", m) for i, m in enumerate(members))]:
            if members:
                lines.append((row["name"], [Cell(who, "text"), *_numbers(values, ID_METRICS)]))
    return Table(f"ID {samples(rows)}", _heads("", metrics=ID_METRICS), lines)


def selective_table(rows: Sequence[Row]) -> Table:
    """Make the table of accuracy among the most confident samples."""
    levels = sorted({key for row in rows for key in at(row, "id", "accuracy_at") or {}})
    shown = [Column(("id", "accuracy_at"), replace(ACCURACY.metric, key=key, label=f"acc at {key}")) for key in levels]
    caption = f"Accuracy among that share of the samples, the most confident ones; ID {samples(rows)}"
    return metric_table(rows if levels else [], [*shown, AURC], caption)


def cost_ratio(rows: Sequence[Row]) -> tuple[list[float | None], str]:
    """Return mult-adds of every row over a reference's, None where not known, and what the reference is.

    The reference is the row's own single model with all heads where every row that has a cost names it, else the first
    row that has one.
    """
    costs = [row.get("cost") or {} for row in rows]
    known = [cost for cost in costs if cost.get("macs")]
    if known and all(cost.get("single_macs") for cost in known):
        return [c["macs"] / c["single_macs"] if c.get("macs") else None for c in costs], "the single model, all heads"
    first = next((row["name"] for row, cost in zip(rows, costs, strict=True) if cost.get("macs")), "")
    return [c["macs"] / known[0]["macs"] if c.get("macs") else None for c in costs], first


def cost_table(rows: Sequence[Row]) -> Table:
    """Make the table of what every row costs for one sample."""
    ratios, reference = cost_ratio(rows)
    lines = []
    for row, ratio in zip(rows, ratios, strict=True):
        texts = (params_text(row.get("cost") or {}), count_text(at(row, "cost", "macs")), number(ratio, 3))
        lines.append((row["name"], [Cell(text) for text in texts]))
    caption = f"Parameters of all members, mult-adds for one sample, and these over those of {shown_name(reference)}"
    known = any(row.get("cost") for row in rows)
    return Table(caption, _heads("parameters", "mult-adds", "ratio"), lines if known else [])


def diversity_table(rows: Sequence[Row]) -> Table:
    """Make the table of how much the members differ on each set, all together and pair by pair."""
    lines = []
    for row in rows:
        for name, found in (row.get("diversity") or {}).items():
            title = Cell("ID" if name == "id" else shown_name(name), "text")
            if row.get("members") or found.get("disagreement") is not None:
                lines.append((row["name"], [title, Cell("all", "text"), *_numbers(found, DIVERSITY_METRICS)]))
            for pair in found.get("pairs") or []:
                who = Cell(f"{pair['a']} and {pair['b']}", "text")
                lines.append((row["name"], [title, who, *_numbers(pair, DIVERSITY_METRICS)]))
    caption = "mi in nats; disagr: share of pairs of members that vote for different classes"
    return Table(caption, _heads("data set", "members", metrics=DIVERSITY_METRICS), lines)


CORRUPTION_METRICS = tuple(metric for metric in ID_METRICS if metric.by_severity)


def corruption_tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yield accuracy, Brier score and ECE under every corruption, by severity; the mean over corruptions last."""
    kinds = list(dict.fromkeys(kind for row in rows for kind in row.get("corruptions") or {}))
    places = [(("corruptions", kind), shown_name(kind)) for kind in kinds]
    for place, title in [*places, (("corruption_avg",), "Mean over the corruptions")]:
        levels = sorted({level for row in rows for level in at(row, *place) or {}})
        shown = [
            Column((*place, level), replace(one, label=f"{one.label} {level}"))
            for one in CORRUPTION_METRICS
            for level in levels
        ]
        if shown:
            yield metric_table(rows, shown, f"by severity; {corrupted_samples(rows)}", title)


def corrupted_accuracy(rows: Sequence[Row]) -> Table:
    """Make the table of accuracy of every row under each corruption, by severity: one line each."""
    every = [(row["name"], kind, found) for row in rows for kind, found in (row.get("corruptions") or {}).items()]
    levels = sorted({level for _, _, found in every for level in found})
    lines = [
        (name, [Cell(shown_name(kind), "text"), *[Cell(number(at(found, level, "accuracy"))) for level in levels]])
        for name, kind, found in every
        if any(at(entry, "accuracy") is not None for entry in found.values())
    ]
    title = f"accuracy under corruptions, by severity ({corrupted_samples(rows)})"
    return Table("", _heads("corruption", *levels), lines, title)


def corrupted_samples(rows: Sequence[Row]) -> str:
    """Return ``n = 497 each``: how many samples every corruption is measured on at every severity."""
    kinds = [kind for row in rows for kind in (row.get("corruptions") or {}).values()]
    kinds += [row.get("corruption_avg") or {} for row in rows]
    text = sizes_text(entry.get("n") for kind in kinds for entry in kind.values())
    return text if "to" in text or "unknown" in text else f"{text} each"


def settings_table(rows: Sequence[Row]) -> Table:
    """Make the table of MC dropout, probe, calibration, conformal sets and threshold of rows that have them."""
    lines = []
    for row in rows:
        for what, facts in (("MC dropout", _passes(row)), ("probe", probe_words(row)),
                            ("calibration", _calibration(row)),
                            ("conformal sets", _conformal(row)), ("threshold", _threshold(row))):  # fmt: skip
            lines += [(row["name"], [Cell(what, "text"), Cell(facts, "text long")])] if facts else []
    return Table("Fitted on other samples, or given", _heads("what", "facts"), lines)


def _passes(row: Row) -> str:
    found = row.get("mc_dropout") or {}
    forms = {"samples": "{} passes", "p": "dropout rate {}", "seed": "seed {}"}
    return ", ".join(text.format(found[key]) for key, text in forms.items() if found.get(key) is not None)


def probe_words(row: Row) -> str:
    """Return the classifier of features that a row was measured by; empty for its own."""
    found = row.get("probe") or {}
    strengths = ", ".join(f"C = {value:g}" for value in found.get("c") or [])
    parts = [f"{found['name']} ({strengths})" if strengths else str(found["name"])] if found.get("name") else []
    return "; ".join([*parts, *_on(found)])


def _on(found: Mapping[str, Any]) -> list[str]:
    on = found.get("fitted_on") or {}
    n = "" if on.get("n") is None else f" (n = {on['n']})"
    return [f"fitted on {on['spec']}{n}"] if on.get("spec") else []


def _calibration(row: Row) -> str:
    found = row.get("calibration") or {}
    parts = [str(found["kind"])] if found.get("kind") else []
    parts += [f"temperature {number(found['temperature'])}"] if found.get("temperature") is not None else []
    parts += [f"{len(found[key])} numbers of {key}" for key in ("scale", "bias") if found.get(key)]
    return "; ".join([*parts, *_on(found)])


def _conformal(row: Row) -> str:
    found = row.get("conformal") or {}
    if not found:
        return ""
    size = "" if found.get("n_val") is None else f" from n = {found['n_val']} validation samples"
    return (
        f"{found.get('method') or 'sets'}: {_share(found.get('coverage'))} of the sets hold the label, "
        f"wanted {_share(None if found.get('alpha') is None else 1 - found['alpha'])}; mean size "
        f"{number(found.get('mean_size'), 2)} classes, {_share(found.get('empty'))} are empty; "
        f"qhat {number(found.get('qhat'))}{size}"
    )


def _threshold(row: Row) -> str:
    found = row.get("threshold") or {}
    if not found:
        return ""
    flagged = [f"{_share(found.get('id_flagged'))} of ID"]
    flagged += [f"{_share(share)} of {name}" for name, share in (found.get("ood_flagged") or {}).items()]
    rule = f" (rule {found['rule']})" if found.get("rule") else ""
    return f"{found.get('score') or 'score'} at least {number(found.get('value'))}{rule} flags {', '.join(flagged)}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
