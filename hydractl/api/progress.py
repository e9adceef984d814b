"""Progress bars of the calls of a Python program, by rich."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from hydractl.log import Log, Progress

_asked: bool | None = None
"""What :func:`show_progress` was told."""


def show_progress(shown: bool | None = True) -> None:
    """Show progress bars while calls of this process work, or show none.

    Args:
        shown: True or False; None, as at the start: in a notebook that has ipywidgets, and at an interactive prompt.
    """
    global _asked
    _asked = shown


def _is_shown(screen: Console) -> bool:
    """Return whether to draw bars: as :func:`show_progress` was told, else where a person works step by step."""
    if _asked is not None:
        return _asked
    if screen.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None  # rich draws with it there
    is_interactive = hasattr(sys, "ps1")
    return is_interactive and screen.is_terminal


class ShowsProgress(Log):
    """A log with a bar for each running task of one call; they vanish at its end."""

    _display: RichProgress | None = None
    """What draws the bars, while any task of the call runs and its progress is shown."""

    @contextlib.contextmanager
    def progress(
        self, description: str, total: int | None, unit: str, columns: Sequence[str] = ()
    ) -> Iterator[Progress]:
        """Show a bar for a task as long as the context lasts.

        The first task of a call opens a display, and the tasks that are parts of it put their bars below its own.

        Args:
            description: the name of the task.
            total: how many units it has; None: not known yet.
            unit: the name of a unit, in the plural.
            columns: those of its rows of results, which are not shown here.

        Yields:
            The bar, which the task tells how far it is; where bars are not to be shown, one that draws nothing.
        """
        if self._display is not None:  # another task of this call runs, and this is a part of it
            bar = _Bar(self._display, description, total, unit)
            yield bar
            bar.remove()
            return

        screen = Console(stderr=True)
        if not _is_shown(screen):
            yield Progress()
            return

        with _new_display(screen) as display:
            self._display = display
            try:
                yield _Bar(display, description, total, unit)
            finally:
                self._display = None


def _new_display(screen: Console) -> RichProgress:
    """Return a display without bars, which vanishes at its end."""
    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]} {task.fields[note]}", markup=False),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
    )


class _Bar(Progress):
    """The bar of one task in a display of rich."""

    def __init__(self, display: RichProgress, description: str, total: int | None, unit: str) -> None:
        self._display = display
        self._task: TaskID = display.add_task(description, total=total, unit=unit, note="")

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._display.update(self._task, advance=amount, note=note)

    def remove(self) -> None:
        """Remove the bar of a task that is done from the display."""
        self._display.remove_task(self._task)

    def set_total(self, total: int) -> None:
        self._display.update(self._task, total=total)
