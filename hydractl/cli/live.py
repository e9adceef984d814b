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
        """Yield a table of the last rows of each task, and below them the bars.

        Where the terminal is low the tables give way, those of the outer tasks first, never the bars.
        """
        tasks = self.tasks
        lines_of_bars = len(tasks)
        lines_left = self._screen.height - lines_of_bars - 1
        tables: list[Table] = []
        for task in reversed(tasks):
            columns = task.fields["columns"]
            rows = task.fields["rows"]
            heading_lines = 0
            if columns:
                heading_lines = 1
            rows_that_fit = min(len(rows), lines_left - heading_lines)
            if rows_that_fit > 0:
                last_rows = rows[-rows_that_fit:]
                tables.insert(0, _rows_table(columns, last_rows))
                lines_left -= rows_that_fit + heading_lines
        yield from tables
        yield self._bars_that_fit(tasks)

    def _bars_that_fit(self, tasks: Sequence[Task]) -> Table:
        """Return the bars with as much beside them as a line holds: whole columns go, words are not cut."""
        without_limit = self._screen.options.update(width=_ANY_WIDTH)
        table = Table()
        for layout in self._layouts:  # from the widest
            self.columns = layout
            table = self.make_tasks_table(tasks)
            needed = Measurement.get(self._screen, without_limit, table)
            if needed.maximum <= self._screen.width:
                break
        return table


def _layouts() -> Iterator[tuple[ProgressColumn, ...]]:
    """Yield the columns beside the title of a task, from the widest choice to the narrowest: how much is done."""
    title = TextColumn("{task.description}", markup=False)
    count = MofNCompleteColumn(table_column=Column(no_wrap=True))
    unit = TextColumn("{task.fields[unit]}", markup=False)
    speed = _CurrentText("speed", "progress.data.speed", Column(no_wrap=True))
    left = _CurrentText("left", "progress.remaining", Column(no_wrap=True))
    note = TextColumn("{task.fields[note]}", markup=False)
    for width in _BAR_WIDTHS:
        yield title, BarColumn(width), count, unit, speed, left, note
    shortest_bar = BarColumn(_BAR_WIDTHS[-1])
    yield title, shortest_bar, count, unit, speed, left
    yield title, count, unit, speed, left
    yield title, count, unit, left
    yield title, count, unit


class _CurrentText(ProgressColumn):
    """A text that changes between one advance and the next, too; empty at the end.

    Args:
        field: of the task, which holds a function that returns the text.
        style: of rich's theme.
        column: how the text is set.
    """

    def __init__(self, field: str, style: str, column: Column) -> None:
        super().__init__(column)
        self._field = field
        self._style = style

    def render(self, task: Task) -> Text:
        text = ""
        if not task.finished:
            current_text = task.fields[self._field]
            text = current_text()
        return Text(text, style=self._style)


def _rows_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of rows of one line each: what is too long for the terminal is cut.

    Args:
        columns: the names of the columns; empty for a table without a heading.
        rows: the cells of each row. Columns of numbers are set to the right, those with any letter to the left.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(columns))
    cells_by_column = list(zip_longest(*rows, fillvalue=""))
    for name, cells in zip_longest(columns, cells_by_column, fillvalue=""):
        text_of_column = "".join(cells)
        has_letters = any(character.isalpha() for character in text_of_column)
        if has_letters:
            table.add_column(Text(name), justify="left", no_wrap=True)
        else:
            table.add_column(Text(name), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
