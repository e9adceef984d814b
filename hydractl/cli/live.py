"""Live display on a terminal: a bar for each running task, and the last rows of a task above the bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column, Table
from rich.text import Text


class Bars(Progress):
    """The bars of all running tasks, the innermost at the bottom.

    A task is added with the fields ``unit``, ``note``, ``columns`` and ``rows`` (its last rows), and two functions
    without arguments that give texts: ``speed``, and ``left``, the time it still takes.
    """

    def __init__(self) -> None:
        one_line = Column(no_wrap=True)  # where a line is too long the bar gets shorter, then the note
        self._screen = Console(stderr=True, markup=False, highlight=False, emoji=False)
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(table_column=one_line),
            TextColumn("{task.fields[unit]}", markup=False),
            _Current("speed", "progress.data.speed", one_line),
            _Current("left", "progress.remaining", one_line),
            TextColumn("{task.fields[note]}", markup=False),
            console=self._screen,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """Tables above, bars below; where the terminal is low the tables give way, never the bars."""
        tasks = self.tasks
        room = self._screen.height - len(tasks) - 1
        tables: list[Table] = []
        for task in reversed(tasks):
            columns, rows = task.fields["columns"], task.fields["rows"]
            fitting = min(len(rows), room - bool(columns))
            if fitting > 0:
                tables.insert(0, _table(columns, rows[-fitting:]))
                room -= fitting + bool(columns)
        yield from tables
        yield self.make_tasks_table(tasks)


class _Current(ProgressColumn):
    """A text that changes between one advance and the next, too; empty at the end."""

    def __init__(self, field: str, style: str, column: Column) -> None:
        super().__init__(column)
        self._field, self._style = field, style

    def render(self, task: Task) -> Text:
        return Text("" if task.finished else task.fields[self._field](), style=self._style)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Rows of one line each: what is too long for the terminal is cut."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(columns))
    by_column = list(zip_longest(*rows, fillvalue=""))
    for name, cells in zip_longest(columns, by_column, fillvalue=""):
        number = not any(character.isalpha() for cell in cells for character in cell)
        table.add_column(Text(name), justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
