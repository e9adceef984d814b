"""The live display on a terminal: a bar for each running task, and above the bars the last rows of each task."""

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
    """The bars of all running tasks; the innermost task is at the bottom.

    A task is added with the field ``of``, the :class:`hydractl.cli.console.Task` whose unit, rows and so on are shown.
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
        """Yield what rich draws: a table of the last results of each running task, and below them the bars.

        If the terminal is too low, tables are cut or left out, those of the outer tasks first; the bars always stay.
        """
        # Lines of the screen that are left for tables: each bar takes one, and one stays free. The innermost task,
        # which is the last one, gets its lines first.
        tasks = self.tasks
        lines_left = self._screen.height - len(tasks) - 1
        tables: list[Table] = []
        for task in reversed(tasks):
            columns = task.fields["of"].columns
            rows = task.fields["of"].rows
            heading_lines = 1 if columns else 0
            rows_that_fit = min(len(rows), lines_left - heading_lines)
            if rows_that_fit > 0:
                tables.insert(0, _rows_table(columns, rows[-rows_that_fit:]))  # outer tasks are above inner ones
                lines_left -= rows_that_fit + heading_lines
        yield from tables
        yield self._bars_that_fit(tasks)

    def _bars_that_fit(self, tasks: Sequence[Task]) -> Table:
        """Return the bars of the tasks in the widest layout of columns that fits into a line of the screen.

        If none fits, the narrowest is taken.
        """
        without_limit = self._screen.options.update(width=_ANY_WIDTH)
        table = Table()
        for layout in self._layouts:  # from the widest
            self.columns = layout
            table = self.make_tasks_table(tasks)
            if Measurement.get(self._screen, without_limit, table).maximum <= self._screen.width:
                break
        return table


def _layouts() -> Iterator[tuple[ProgressColumn, ...]]:
    """Yield the columns for the line of a task, in layouts from the widest to the narrowest.

    ``fields[of]`` is the :class:`hydractl.cli.console.Task` that a bar belongs to.
    """
    title = TextColumn("{task.description}", markup=False)
    count = MofNCompleteColumn(table_column=Column(no_wrap=True))
    unit = TextColumn("{task.fields[of].unit}", markup=False)
    speed = _CurrentText("speed", "progress.data.speed", Column(no_wrap=True))
    left = _CurrentText("time_left", "progress.remaining", Column(no_wrap=True))
    note = TextColumn("{task.fields[of].note}", markup=False)
    # First make the bar shorter, then leave out the note, the bar, the speed and the time left.
    for width in _BAR_WIDTHS:
        yield title, BarColumn(width), count, unit, speed, left, note
    yield title, BarColumn(_BAR_WIDTHS[-1]), count, unit, speed, left
    yield title, count, unit, speed, left
    yield title, count, unit, left
    yield title, count, unit


class _CurrentText(ProgressColumn):
    """A column whose text also changes between two advances of a task; it is empty when the task has ended.

    Args:
        method: the name of a method of the task that returns the text.
        style: a style of rich's theme.
        column: how the column is formatted.
    """

    def __init__(self, method: str, style: str, column: Column) -> None:
        super().__init__(column)
        self._method = method
        self._style = style

    def render(self, task: Task) -> Text:
        current_text = getattr(task.fields["of"], self._method)
        return Text("" if task.finished else current_text(), style=self._style)


def _rows_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table with one line for each row; lines too long for the terminal are cut.

    Args:
        columns: the names of the columns; empty for a table without a heading.
        rows: the cells of each row. Columns with letters are aligned to the left, others (numbers) to the right.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(columns))
    # Transpose the rows, which may be of unlike lengths. Headings and columns may differ in number, too.
    cells_by_column = list(zip_longest(*rows, fillvalue=""))
    for name, cells in zip_longest(columns, cells_by_column, fillvalue=""):
        has_letters = any(map(str.isalpha, "".join(cells)))
        table.add_column(Text(name), justify="left" if has_letters else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
