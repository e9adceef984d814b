"""Live display on a terminal: a bar for each running task."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text


class Bars(Progress):
    """The bars of all running tasks, the innermost at the bottom.

    A task is added with the fields ``unit`` and ``note``, and two functions without arguments that give texts:
    ``speed``, and ``left``, the time it still takes.
    """

    def __init__(self) -> None:
        one_line = Column(no_wrap=True)  # where a line is too long the bar gets shorter, then the note
        screen = Console(stderr=True, markup=False, highlight=False, emoji=False)
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(table_column=one_line),
            TextColumn("{task.fields[unit]}", markup=False),
            _Current("speed", "progress.data.speed", one_line),
            _Current("left", "progress.remaining", one_line),
            TextColumn("{task.fields[note]}", markup=False),
            console=screen,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )


class _Current(ProgressColumn):
    """A text that changes between one advance and the next, too; empty at the end."""

    def __init__(self, field: str, style: str, column: Column) -> None:
        super().__init__(column)
        self._field, self._style = field, style

    def render(self, task: Task) -> Text:
        return Text("" if task.finished else task.fields[self._field](), style=self._style)
