"""The tables of the report of an eval, as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydractl.metrics.registry import table_metrics
from hydractl.report.eval_columns import (
    DIVERSITY,
    ID_COLUMNS,
    Column,
    main_columns,
    marks,
    ood_columns,
    ood_group,
    ood_names,
)
from hydractl.report.eval_comparisons import corrupted_samples, cost_ratio
from hydractl.report.eval_figures import all_samples
from hydractl.report.figures import count_text, number
from hydractl.report.html_parts import Cell, name, table, words

Row = Mapping[str, Any]
_ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}


def head(column: Column) -> str:
    """A heading with the direction that is better."""
    return column.title + _ARROWS[column.better]


def cells(rows: Sequence[Row], columns: Sequence[Column]) -> list[list[Cell]]:
    """For each row its numbers, marked within each column, with their intervals below them."""
    found: list[list[Cell]] = [[] for _ in rows]
    for column in columns:
        values = [column.value(row) for row in rows]
        for row, value, mark, line in zip(rows, values, marks(values, column.better), found, strict=True):
            ends = column.interval(row)
            line.append(Cell(number(value), mark, "" if ends is None else interval_text(ends)))
    return found


def interval_text(ends: tuple[float, float]) -> str:
    """Both ends; with a dash, which is short, as no measured number is negative."""
    return f"{number(ends[0])}–{number(ends[1])}"


def main_table(rows: Sequence[Row]) -> str:
    """Every row with its numbers on ID data and its means over OOD sets."""
    columns = main_columns(rows)
    body = zip(rows, cells(rows, columns), strict=True)
    groups = " acc to aurc on ID data; auroc, fpr95, aupr: mean over OOD sets;" if ood_names(rows) else ""
    caption = f"ID {all_samples(rows)}.{groups} mi (nats) and disagr on ID data. ↑ higher is better, ↓ lower is better."
    return table(caption, ["model", *map(head, columns)], [(name(row["name"]), line) for row, line in body])


def ood_tables(rows: Sequence[Row]) -> str:
    """One table for each OOD set and each average over a group."""
    parts = []
    for one in ood_names(rows):
        group = ood_group(rows, one)
        extra = (Column(("diversity", one, "mi"), "mi", ""),)
        title = f"{group} OOD, {all_samples(rows, [one])}" if group else all_samples(rows, [one])
        parts.append((f"<bdi>{name(one)}</bdi>", title, (*ood_columns("ood", one), *extra)))
    for place, title in (("near_avg", "near"), ("far_avg", "far"), ("ood_avg", "all")):
        if any(value is not None for row in rows for value in (row.get(place) or {}).values()):
            caption = (
                f"unweighted mean over the {title} OOD sets" if title != "all" else "unweighted mean over all sets"
            )
            parts.append((f"Mean: {title}", caption, ood_columns(place)))
    found = []
    for title, caption, columns in parts:
        body = zip(rows, cells(rows, columns), strict=True)
        lines = [(name(row["name"]), line) for row, line in body]
        found.append(f"<div><h3>{title}</h3>{table(caption, ['model', *map(head, columns)], lines)}</div>")
    return f'<div class="grid tables">{"".join(found)}</div>' if found else ""


def difference_table(rows: Sequence[Row]) -> str:
    """Every row minus the first, on the same samples: the numbers of the main table."""
    known = {key for row in rows for key in row.get("difference") or {}}
    columns = [column for column in main_columns(rows) if ".".join(column.path) in known]
    compared = [row for row in rows if row.get("difference")]
    body = [(name(row["name"]), [_difference_cell(column, row) for column in columns]) for row in compared]
    caption = "Bold: the interval of the difference leaves out zero. ↑ and ↓: which way is better."
    return table(caption, ["model", *map(head, columns)], body) if body and columns else ""


def _difference_cell(column: Column, row: Row) -> Cell:
    found = column.difference(row)
    if found is None:
        return Cell("-")
    value, ends = found
    clear = ends is not None and not ends[0] <= 0 <= ends[1]
    return Cell(
        _signed(value), "best" if clear else "", "" if ends is None else f"{_signed(ends[0])} to {_signed(ends[1])}"
    )


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + number(value)


def members_table(rows: Sequence[Row]) -> str:
    """The members alone, below the row they make up."""
    body = []
    for row in rows:
        members = row.get("members") or []
        if members:
            together = [number(column.value(row)) for column in ID_COLUMNS]
            body.append((f"{name(row['name'])}", [Cell("together", "text"), *map(Cell, together)]))
            for index, member in enumerate(members):
                line = [number(column.value({"id": member})) for column in ID_COLUMNS]
                body.append((name(row["name"]), [Cell(f"member {index}", "text"), *map(Cell, line)]))
    return table(f"ID {all_samples(rows)}", ["model", "", *map(head, ID_COLUMNS)], body) if body else ""


def selective_table(rows: Sequence[Row]) -> str:
    """Accuracy among the most confident samples."""
    levels = sorted({key for row in rows for key in (row.get("id") or {}).get("accuracy_at") or {}})
    columns = [Column(("id", "accuracy_at", key), f"acc at {key}", "", "higher") for key in levels]
    columns.append(next(one for one in ID_COLUMNS if one.path == ("id", "aurc")))
    lines = [(name(row["name"]), line) for row, line in zip(rows, cells(rows, columns), strict=True)]
    caption = f"Accuracy among that share of the samples, the most confident ones; ID {all_samples(rows)}"
    return table(caption, ["model", *map(head, columns)], lines) if levels else ""


def cost_table(rows: Sequence[Row]) -> str:
    """What every row costs for one sample."""
    ratios, reference = cost_ratio(rows)
    body = []
    for row, ratio in zip(rows, ratios, strict=True):
        cost = row.get("cost") or {}
        line = [count_text(cost.get("params")), count_text(cost.get("macs")), number(ratio, 3)]
        body.append((name(row["name"]), line))
    caption = f"Parameters of all members, mult-adds for one sample, and these over those of {reference}"
    known = any(row.get("cost") for row in rows)
    return table(caption, ["model", "parameters", "mult-adds", "ratio"], body) if known else ""


def diversity_table(rows: Sequence[Row]) -> str:
    """How much the members differ on each set, all together and pair by pair."""
    body = []
    for row in rows:
        for one, found in (row.get("diversity") or {}).items():
            title = Cell("ID" if one == "id" else name(one), "text")
            if len(row.get("members") or []) or found.get("disagreement") is not None:
                both = [number(found.get(column.path[-1])) for column in DIVERSITY]
                body.append((name(row["name"]), [title, Cell("all", "text"), *map(Cell, both)]))
            for pair in found.get("pairs") or []:
                both = [number(pair.get(column.path[-1])) for column in DIVERSITY]
                who = Cell(f"{pair['a']} and {pair['b']}", "text")
                body.append((name(row["name"]), [title, who, *map(Cell, both)]))
    caption = "mi in nats; disagr: share of pairs of members that vote for different classes"
    return table(caption, ["model", "data set", "members", "mi", "disagr"], body) if body else ""


def corruption_tables(rows: Sequence[Row]) -> str:
    """Accuracy, Brier score and ECE under every corruption, by severity; the mean over corruptions last."""
    kinds = list(dict.fromkeys(kind for row in rows for kind in row.get("corruptions") or {}))
    found = []
    for place in [("corruptions", kind) for kind in kinds] + [("corruption_avg",)]:
        levels = sorted({level for row in rows for level in _inside(row, place)})
        if not levels:
            continue
        columns = [
            Column((*place, level, key), f"{title} {level}", "", better)
            for key, title, better in (
                (one.key, one.label, one.direction) for one in table_metrics("id") if one.by_severity
            )
            for level in levels
        ]
        lines = [(name(row["name"]), line) for row, line in zip(rows, cells(rows, columns), strict=True)]
        title = name(place[1]) if len(place) == 2 else "Mean over the corruptions"
        found.append(
            f"<h3>{title}</h3>"
            + table(f"by severity; {corrupted_samples(rows)}", ["model", *map(head, columns)], lines)
        )
    return "".join(found)


def _inside(row: Row, place: Sequence[str]) -> Mapping[str, Any]:
    found: Any = row
    for key in place:
        found = (found or {}).get(key)
    return found or {}


def settings_table(rows: Sequence[Row]) -> str:
    """MC dropout, calibration, conformal sets and threshold of every row that has them."""
    body = []
    for row in rows:
        for what, facts in (("MC dropout", _passes(row)), ("calibration", _calibration(row)),
                            ("conformal sets", _conformal(row)), ("threshold", _threshold(row))):  # fmt: skip
            body += [(name(row["name"]), [Cell(what, "text"), Cell(words(facts), "text wrap")])] if facts else []
    return table("Fitted on other samples, or given", ["model", "what", "facts"], body) if body else ""


def _passes(row: Row) -> str:
    found = row.get("mc_dropout") or {}
    told = {"samples": "{} passes", "p": "dropout rate {}", "seed": "seed {}"}
    return ", ".join(text.format(found[key]) for key, text in told.items() if found.get(key) is not None)


def _calibration(row: Row) -> str:
    found = row.get("calibration") or {}
    parts = [str(found["kind"])] if found.get("kind") else []
    parts += [f"temperature {number(found['temperature'])}"] if found.get("temperature") is not None else []
    parts += [f"{len(found[key])} numbers of {key}" for key in ("scale", "bias") if found.get(key)]
    on = found.get("fitted_on") or {}
    n = "" if on.get("n") is None else f" (n = {on['n']})"
    return "; ".join([*parts, *([f"fitted on {on['spec']}{n}"] if on.get("spec") else [])])


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
    flagged += [f"{_share(share)} of {one}" for one, share in (found.get("ood_flagged") or {}).items()]
    rule = f" (rule {found['rule']})" if found.get("rule") else ""
    return f"{found.get('score') or 'score'} at least {number(found.get('value'))}{rule} flags {', '.join(flagged)}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
