"""Progress bars for calls from a Python program, drawn by rich."""

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
"""The last argument of :func:`show_progress`."""


def show_progress(shown: bool | None = True) -> None:
    """Switch progress bars on or off for all calls of this process.

    Args:
        shown: True or False. None, as at the start, shows bars at an interactive prompt, and in a notebook that has
            ipywidgets.
    """
    global _asked
    _asked = shown


def _is_shown(screen: Console) -> bool:
    """Return whether to draw bars: as :func:`show_progress` was told, or else if a person works interactively."""
    if _asked is not None:
        return _asked
    if screen.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None  # in notebooks rich needs it to draw
    is_interactive = hasattr(sys, "ps1")
    return is_interactive and screen.is_terminal


class ShowsProgress(Log):
    """A log with a progress bar for each running task of one call; the bars vanish when the call ends."""

    _display: RichProgress | None = None
    """The display of the bars, while a task of the call runs and bars are shown; else None."""

    @contextlib.contextmanager
    def progress(
        self, description: str, total: int | None, unit: str, columns: Sequence[str] = ()
    ) -> Iterator[Progress]:
        """Show a bar for a task while the context lasts.

        The first task of a call opens a display. Tasks that are parts of it put their bars below its bar.

        Args:
            description: the name of the task.
            total: how many units the task has; None if that is not known yet.
            unit: the name of a unit, in the plural.
            columns: the columns of its rows of results, which are not shown here.

        Yields:
            The bar, which the task tells how far it is. If bars are not shown, it draws nothing.
        """
        if self._display is not None:  # this task is a part of another task of the same call
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
    """Return a display without bars, which vanishes when it ends."""
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
        """Remove the bar of a finished task from the display."""
        self._display.remove_task(self._task)

    def set_total(self, total: int) -> None:
        self._display.update(self._task, total=total)
