"""What tables on a terminal are put together of: tables of text in one style, and maps of the heads of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
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


_KEPT, _GONE = "■", "·"
_ASCII = str.maketrans({_KEPT: "#", _GONE: "."})


@dataclass(frozen=True)
class KeptMap:
    """A rich renderable: one line per site, a mark for each kept and each removed head, and their counts.

    Attributes:
        entries: ``site``, ``heads`` (or None) and ``kept`` (or None) of each site.
    """

    entries: Sequence[Mapping[str, Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        longest = max((len(e["site"]) for e in self.entries), default=0)
        for entry in self.entries:
            kept = set(entry["kept"] or [])
            marks = "".join(_KEPT if head in kept else _GONE for head in range(entry["heads"] or 0))
            marks = marks.translate(_ASCII) if options.ascii_only else marks
            of = "?" if entry["heads"] is None else entry["heads"]
            line = f"{entry['site']:<{longest}}  {marks}  {len(kept)}/{of}"
            yield Text(line, no_wrap=True, overflow="crop")
