"""The one form of all tables: what a terminal, a page and a notebook show is described once, and drawn here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

from hydractl.report.texts import drawn_names

BEST = "best"
UNKNOWN = "-"
"""The text for a number that was not measured."""

Ends = tuple[float, float] | None
"""Both ends of an interval; None if there is none."""


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: plain text.
        mark: ``best`` or empty.
        ends: the interval of the number.
        signed: whether the number is a difference.
        small: what a page explains below the text.
    """

    text: str
    mark: str = ""
    ends: Ends = None
    signed: bool = False
    small: str = ""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: a short heading; empty means none.
        heads: the heading of each column, and which direction is better there: ``higher``, ``lower`` or empty.
        rows: the cells of each row.
        left: the number of first columns that are aligned to the left.
        names: the number of first columns that name a row: all parts of a wide table have them, cut where long.
        note: a sentence on the table, for a page.
    """

    title: str
    heads: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[Cell]]
    left: int = 1
    names: int = 1
    note: str = ""


def text_table(title: str, labels: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Table:
    """Return a table of texts; ``-`` stands for no value."""
    heads = [(label, "") for label in labels]
    return Table(title, heads, [[Cell(text) for text in row] for row in rows], left)


def plain_table(title: str, labels: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> RichTable:
    """Return a table of texts for a terminal of any width; columns in which no row has a value are left out."""
    return _rich_table(text_table(title, labels, rows, left))


def fact_table(rows: Sequence[tuple[str, str]]) -> RichTable:
    """Return a table of names and values for a terminal."""
    return plain_table("", ("", ""), rows, left=2)


# --- on a terminal ----------------------------------------------------------------------------------------------------

_WIDEST_TITLE = 40
_STYLES = {BEST: "bold"}
_LETTERS_OF_NAME = (40, 24, 14)
"""The most letters of a name: the largest number with which a table fits is taken."""
_ANY_WIDTH = Console(width=10**4)


def needed_width(drawn: RichTable) -> int:
    """Return the width of terminal that a table needs, in characters, without being cut."""
    return _ANY_WIDTH.measure(drawn).maximum


def fitted(shown: Table, width: int) -> Group:
    """Return a table for a terminal of this width, with intervals below their numbers.

    A table that is too wide is split into parts of as many columns as fit, below each other, with shorter names. If
    nothing fits, it has one column in each part, and the shortest names.
    """
    # Try one part, then two and so on; in each number of parts longer names first. The columns of names stand in every
    # part, the other columns are shared out: 7 of them in 3 parts are 3, 3 and 1.
    other_columns = len(shown.heads) - shown.names
    drawn_parts: list[RichTable] = []
    for parts in range(1, other_columns + 1):
        columns_of_part = math.ceil(other_columns / parts)
        for letters in _LETTERS_OF_NAME:
            short = _with_short_names(shown, letters)
            drawn_parts = []
            for start in range(shown.names, len(shown.heads), columns_of_part):
                part = _some_columns(short, start, start + columns_of_part)
                drawn_parts.append(_rich_table(part))
            if max(map(needed_width, drawn_parts)) <= width:
                return Group(*drawn_parts)
    return Group(*drawn_parts)  # nothing fits: the last try


def _some_columns(shown: Table, start: int, stop: int) -> Table:
    """Return a part of a table: its columns of names, and those from index ``start`` up to ``stop`` (exclusive).

    Only the first part, whose columns follow right behind the names, has the title.
    """
    is_first_part = start == shown.names
    title = shown.title if is_first_part else ""
    heads = [*shown.heads[: shown.names], *shown.heads[start:stop]]
    rows = [[*row[: shown.names], *row[start:stop]] for row in shown.rows]
    return replace(shown, title=title, heads=heads, rows=rows)


def _with_short_names(shown: Table, letters: int) -> Table:
    """Return a table whose names (its first columns) have at most this many letters, and still differ."""
    rows = [list(row) for row in shown.rows]  # copies, whose first cells are replaced
    for column in range(shown.names):
        names = list(dict.fromkeys(row[column].text for row in rows))
        short_name = dict(zip(names, drawn_names(names, letters), strict=True))
        for row in rows:
            row[column] = replace(row[column], text=short_name[row[column].text])
    return replace(shown, rows=rows)


def _rich_table(shown: Table) -> RichTable:
    """Return a table for the terminal, without lines; columns that hold only dashes are left out."""
    drawn = RichTable(title=shown.title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    drawn.min_width = min(len(shown.title), _WIDEST_TITLE)  # rich would wrap a title at the width of its table
    drawn_columns = []  # their indices
    for index, (label, _) in enumerate(shown.heads):
        has_only_dashes = all(row[index].text == UNKNOWN for row in shown.rows)
        if shown.rows and has_only_dashes:
            continue
        drawn_columns.append(index)
        is_text = index < shown.left
        drawn.add_column(label, justify="left" if is_text else "right", no_wrap=not is_text)
    for row in shown.rows:
        drawn.add_row(*[_cell_text(row[index]) for index in drawn_columns])
    return drawn


def _cell_text(cell: Cell) -> Text:
    """Return a cell in the style of its mark; a deviation and an interval stand on lines of their own."""
    text = Text(cell.text.replace(" ± ", "\n± "), _STYLES.get(cell.mark, ""))
    if cell.ends is None:
        return text
    low, high = map(_short_number, cell.ends)
    between = " to " if cell.signed else "-"  # a dash would look like the sign of the second number
    return Text.assemble(text, "\n", (f"{low}{between}{high}", "not bold"))


def _short_number(value: float) -> str:
    """Return a number with three decimals and without a zero before the point, e.g. ``.912`` or ``-.034``."""
    text = f"{value:.3f}"
    if -1 < value < 1:
        return text.replace("0.", ".", 1)
    return text
