"""What a person sees of an eval on a terminal: the best of each column bold, the second best underlined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from hydractl.report.eval_columns import (
    BEST,
    DIVERSITY,
    ID_COLUMNS,
    OOD_AVERAGE,
    SECOND,
    Column,
    level_text,
    main_columns,
    marks,
    ood_columns,
    ood_names,
)
from hydractl.report.eval_names import drawn_names
from hydractl.report.figures import number
from hydractl.report.tables import table

_STYLES = {BEST: "bold", SECOND: "underline", "": ""}
_NAMES = (40, 24, 14)  # letters of a name, the more the better
_OTHERS = 47  # columns of the OOD sets' table beside its names
_ANY_WIDTH = Console(width=10**4)

Row = Mapping[str, Any]
_Part = tuple[str, Sequence[Column]]  # a title and what stands under it


def eval_table(document: dict[str, Any], width: int) -> RenderableType:
    """The tables of an eval: all numbers of a row beside each other, or one group below the other where they do not
    fit; intervals below their numbers where they fit.
    """
    rows = document["models"]
    outside = bool(ood_names(rows))
    n = (rows[0].get("id") or {}).get("n") if rows else 0
    inside = f"in distribution (n = {'-' if n is None else n})"
    second = "OOD averages, and diversity in distribution" if outside else "diversity in distribution"
    every = [(f"{inside}, OOD averages" if outside else inside, main_columns(rows))]
    apart = [(inside, ID_COLUMNS), (second, [*(OOD_AVERAGE if outside else ()), *DIVERSITY])]
    tables = _fitting(rows, every, apart, width)
    parts: list[RenderableType] = [part for one in tables for part in (one, Text(""))]
    parts += [_ood(rows, width), Text("")] if outside else []
    with_intervals = any("\n" in str(cell) for one in tables for column in one.columns for cell in column.cells)
    return Group(*parts, _Note(document, with_intervals))


def _fitting(rows: Sequence[Row], every: Sequence[_Part], apart: Sequence[_Part], width: int) -> list[Table]:
    """All columns in one table, else in two; with intervals if at all possible, and with names as long as possible."""
    tries = [(parts, True, name) for parts in (every, apart) for name in _NAMES[:2]]
    tries += [(parts, False, name) for parts in (every, apart) for name in _NAMES]
    found: list[Table] = []
    for parts, intervals, name in tries:
        found = [_numbers(title, rows, columns, intervals, name) for title, columns in parts]
        if all(_needed(one) <= width for one in found):
            break
    return found


def _needed(one: Table) -> int:
    return _ANY_WIDTH.measure(one).maximum


def _numbers(title: str, rows: Sequence[Row], columns: Sequence[Column], intervals: bool, letters: int) -> Table:
    found = table(title, ("model", *[column.title for column in columns]), [])
    names = drawn_names([row["name"] for row in rows], letters)
    cells = [_cells(rows, column, intervals) for column in columns]
    for index, name in enumerate(names):
        found.add_row(Text(name), *[column[index] for column in cells])
    return found


def _cells(rows: Sequence[Row], column: Column, intervals: bool) -> list[Text]:
    """The column's number in every row, marked, with its interval on a second line."""
    values = [column.value(row) for row in rows]
    found = []
    for row, value, mark in zip(rows, values, marks(values, column.better), strict=True):
        cell = Text(number(value), _STYLES[mark])
        ends = column.interval(row) if intervals else None
        if ends is not None:
            cell = Text.assemble(cell, "\n", (f"{_short(ends[0])}-{_short(ends[1])}", "not bold not underline"))
        found.append(cell)
    return found


def _short(value: float) -> str:
    """Three digits, and no nought before the point: an interval is read beside its number."""
    return f"{value:.3f}".replace("0.", ".", 1) if 0 <= value < 1 else f"{value:.3f}"


def _ood(rows: Sequence[Row], width: int) -> Table:
    """Every OOD set of every row; marks are within a set."""
    body: dict[tuple[int, str], list[Text]] = {}
    for name in ood_names(rows):
        cells = [_cells(rows, column, False) for column in ood_columns("ood", name)]
        for index, row in enumerate(rows):
            mi = Column(("diversity", name, "mi"), "mi", "").value(row)
            body[index, name] = [*[column[index] for column in cells], Text(number(mi))]
    found = table("OOD sets", ("model", "OOD set", "group", "n", "auroc", "fpr95", "aupr", "mi"), [], left=3)
    sets = drawn_names(ood_names(rows), 16)
    letters = max(_NAMES[-1], min(_NAMES[0], width - _OTHERS - max(map(len, sets))))
    names = drawn_names([row["name"] for row in rows], letters)
    for index, row in enumerate(rows):
        for name, shown in zip(ood_names(rows), sets, strict=True):
            entry = (row.get("ood") or {}).get(name)
            if entry is not None:
                n = "-" if entry.get("n") is None else str(entry["n"])
                found.add_row(names[index], shown, entry.get("group") or "-", n, *body[index, name])
    return found


class _Note:
    """What the marks and the second lines are, or where intervals are to be had; of marks only where they show."""

    def __init__(self, document: Mapping[str, Any], intervals: bool) -> None:
        rows = document["models"]
        self.marks = "bold: best of the column, underlined: second best" if len(rows) > 1 else ""
        level = f"{level_text(document)} " if level_text(document) else ""
        known = any(end for row in rows for end in (row.get("ci") or {}).values() if end and None not in end)
        self.intervals = f"{level}intervals: --json, or a wider terminal" if known else ""
        if intervals:
            self.intervals = f"below a number: its {level}interval"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        marked = self.marks if console.is_terminal and not console.is_dumb_terminal else ""
        text = "; ".join(part for part in (marked, self.intervals) if part)
        if text:
            yield Text(text)
