"""The live display on a terminal: a bar for each running task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
from rich.table import Column, Table

_BAR_WIDTHS = (40, 20, 8)
_ANY_WIDTH = 10**4


class Bars(Progress):
    """The bars of all running tasks; the innermost task is at the bottom.

    A task is added with the field ``of``, the :class:`hydractl.cli.console.Task` whose unit, speed and so on are shown.
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
        """Yield what rich draws: the bars in the widest layout of columns that fits into a line of the screen.

        If none fits, the narrowest is taken.
        """
        without_limit = self._screen.options.update(width=_ANY_WIDTH)
        table = Table()
        for layout in self._layouts:  # from the widest
            self.columns = layout
            table = self.make_tasks_table(self.tasks)
            if Measurement.get(self._screen, without_limit, table).maximum <= self._screen.width:
                break
        yield table


def _layouts() -> Iterator[tuple[ProgressColumn, ...]]:
    """Yield the columns for the line of a task, in layouts from the widest to the narrowest.

    ``fields[of]`` is the :class:`hydractl.cli.console.Task` that a bar belongs to; it is asked at every drawing.
    """
    title = TextColumn("{task.description}", markup=False)
    count = MofNCompleteColumn(table_column=Column(no_wrap=True))
    unit = TextColumn("{task.fields[of].unit}", markup=False)
    speed = TextColumn("{task.fields[of].speed}", "progress.data.speed", markup=False)
    left = TextColumn("{task.fields[of].time_left}", "progress.remaining", markup=False)
    note = TextColumn("{task.fields[of].note}", markup=False)
    # First make the bar shorter, then leave out the note, the bar, the speed and the time left.
    for width in _BAR_WIDTHS:
        yield title, BarColumn(width), count, unit, speed, left, note
    yield title, BarColumn(_BAR_WIDTHS[-1]), count, unit, speed, left
    yield title, count, unit, speed, left
    yield title, count, unit, left
    yield title, count, unit
