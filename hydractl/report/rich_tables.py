"""Tables of text, in the one style of all answers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Table:
    """A table without lines; the first ``left`` columns are aligned to the left, the rest to the right."""
    found = Table(title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        found.add_column(column, justify="left" if index < left else "right", no_wrap=index >= left)
    for row in rows:
        found.add_row(*[Text(cell) for cell in row])
    return found


def facts(rows: Sequence[tuple[str, str]]) -> Table:
    """Names and values."""
    return table("", ("", ""), rows, left=2)
