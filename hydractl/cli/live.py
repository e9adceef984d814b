"""Live display on a terminal: a bar for each running task, and the last rows of a task above the bars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column, Table
from rich.text import Text

_BAR_WIDTHS = (40, 20, 8)
_ANY_WIDTH = 10**4


class Bars(Progress):
    """The bars of all running tasks, the innermost at the bottom.

    A task is added with the fields ``unit``, ``note``, ``columns`` and ``rows`` (its last rows), and two functions
    without arguments that give texts: ``speed``, and ``left``, the time it still takes.
    """

    def __init__(self) -> None:
        self._screen = Console(stderr=True, markup=False, highlight=False, emoji=False)
        self._layouts = tuple(_layouts())
        super().__init__(
            *self._layouts[0],
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
            columns = task.fields["columns"]
            rows = task.fields["rows"]
            heading_lines = 0
            if columns:
                heading_lines = 1
            fitting = min(len(rows), room - heading_lines)
            if fitting > 0:
                tables.insert(0, _table(columns, rows[-fitting:]))
                room -= fitting + heading_lines
        yield from tables
        yield self._widest_that_fits(tasks)

    def _widest_that_fits(self, tasks: Sequence[Task]) -> Table:
        """Return the bars with as much beside them as a line holds: whole columns go, words are not cut."""
        anything = self._screen.options.update(width=_ANY_WIDTH)
        table = Table()
        for layout in self._layouts:
            self.columns = layout
            table = self.make_tasks_table(tasks)
            if Measurement.get(self._screen, anything, table).maximum <= self._screen.width:
                break
        return table


def _layouts() -> Iterator[tuple[ProgressColumn, ...]]:
    """Yield the columns of the bars, from the widest choice to the narrowest, which is what was done of how much."""
    title = TextColumn("{task.description}", markup=False)
    count = MofNCompleteColumn(table_column=Column(no_wrap=True))
    unit = TextColumn("{task.fields[unit]}", markup=False)
    speed = _Current("speed", "progress.data.speed", Column(no_wrap=True))
    left = _Current("left", "progress.remaining", Column(no_wrap=True))
    note = TextColumn("{task.fields[note]}", markup=False)
    for width in _BAR_WIDTHS:
        yield title, BarColumn(width), count, unit, speed, left, note
    shortest = BarColumn(_BAR_WIDTHS[-1])
    yield title, shortest, count, unit, speed, left
    yield title, count, unit, speed, left
    yield title, count, unit, left
    yield title, count, unit


class _Current(ProgressColumn):
    """A text that changes between one advance and the next, too; empty at the end."""

    def __init__(self, field: str, style: str, column: Column) -> None:
        super().__init__(column)
        self._field = field
        self._style = style

    def render(self, task: Task) -> Text:
        text = ""
        if not task.finished:
            text = task.fields[self._field]()
        return Text(text, style=self._style)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Rows of one line each: what is too long for the terminal is cut."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(columns))
    by_column = list(zip_longest(*rows, fillvalue=""))
    for name, cells in zip_longest(columns, by_column, fillvalue=""):
        has_letters = any(character.isalpha() for character in "".join(cells))
        if has_letters:
            table.add_column(Text(name), justify="left", no_wrap=True)
        else:
            table.add_column(Text(name), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
