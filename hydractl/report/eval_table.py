"""What a person sees of an eval on a terminal: the best of each column bold, the second best underlined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from hydractl.report.columns import (
    BEST,
    DIVERSITY,
    ID_COLUMNS,
    OOD_AVERAGE,
    SECOND,
    Column,
    Row,
    level_text,
    main_columns,
    ood_names,
)
from hydractl.report.eval_tables import Cell, Table, every_set_table, metric_table
from hydractl.report.names import drawn_names
from hydractl.report.rich_tables import table

_STYLES = {BEST: "bold", SECOND: "underline"}
_NAMES = (40, 24, 14)  # letters of a name, the more the better
_OTHERS = 47  # columns of the OOD sets' table beside its names
_ANY_WIDTH = Console(width=10**4)
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


def _fitting(rows: Sequence[Row], every: Sequence[_Part], apart: Sequence[_Part], width: int) -> list[RichTable]:
    """All columns in one table, else in two; with intervals if at all possible, and with names as long as possible."""
    tries = [(parts, True, letters) for parts in (every, apart) for letters in _NAMES[:2]]
    tries += [(parts, False, letters) for parts in (every, apart) for letters in _NAMES]
    found: list[RichTable] = []
    for parts, intervals, letters in tries:
        found = [_rich(metric_table(rows, columns, "", title), letters, intervals) for title, columns in parts]
        if all(_ANY_WIDTH.measure(one).maximum <= width for one in found):
            break
    return found


def _rich(shown: Table, letters: int, intervals: bool = False, left: int = 1) -> RichTable:
    """A table for the terminal, with names of so many letters."""
    found = table(shown.title, ("model", *[label for label, _ in shown.heads]), [], left=left)
    short = dict(zip(names := list(dict.fromkeys(n for n, _ in shown.rows)), drawn_names(names, letters), strict=True))
    for name, cells in shown.rows:
        found.add_row(Text(short[name]), *[_text(cell, intervals) for cell in cells])
    return found


def _text(cell: Cell, intervals: bool) -> Text:
    """A number with its mark, and its interval on a second line."""
    text = Text(cell.text, _STYLES.get(cell.mark, ""))
    if intervals and cell.ends is not None:
        return Text.assemble(text, "\n", ("-".join(map(_short, cell.ends)), "not bold not underline"))
    return text


def _short(value: float) -> str:
    """Three digits, and no nought before the point: an interval is read beside its number."""
    return f"{value:.3f}".replace("0.", ".", 1) if 0 <= value < 1 else f"{value:.3f}"


def _ood(rows: Sequence[Row], width: int) -> RichTable:
    """Every OOD set of every row."""
    every = every_set_table(rows)
    sets = ood_names(rows)
    short = dict(zip(sets, drawn_names(sets, 16), strict=True))
    lines = [(name, [Cell(short[cells[0].text]), *cells[1:]]) for name, cells in every.rows]
    letters = max(_NAMES[-1], min(_NAMES[0], width - _OTHERS - max(map(len, short.values()))))
    return _rich(Table("", every.heads, lines, every.title), letters, left=3)


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
