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
    if _asked is not None:
        return _asked
    if screen.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None  # rich draws with it there
    return hasattr(sys, "ps1") and screen.is_terminal


class ShowsProgress(Log):
    """A log with a bar for each running task of one call; they vanish at its end."""

    _bars: RichProgress | None = None

    @contextlib.contextmanager
    def progress(
        self, description: str, total: int | None, unit: str, columns: Sequence[str] = ()
    ) -> Iterator[Progress]:
        """Show a task below those that it is a part of; rows of results are not shown."""
        if self._bars is not None:
            bar = _Bar(self._bars, description, total, unit)
            yield bar
            bar.remove()
            return
        screen = Console(stderr=True)
        if not _is_shown(screen):
            yield Progress()
            return
        columns_of_a_bar = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]} {task.fields[note]}", markup=False),
            TimeRemainingColumn(),
        )
        bars = RichProgress(*columns_of_a_bar, console=screen, transient=True)
        with bars:
            self._bars = bars
            try:
                yield _Bar(bars, description, total, unit)
            finally:
                self._bars = None


class _Bar(Progress):
    """One task of a display of rich."""

    def __init__(self, bars: RichProgress, description: str, total: int | None, unit: str) -> None:
        self._bars = bars
        self._task: TaskID = bars.add_task(description, total=total, unit=unit, note="")

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._bars.update(self._task, advance=amount, note=note)

    def remove(self) -> None:
        """Take the bar of a part that is done away."""
        self._bars.remove_task(self._task)

    def set_total(self, total: int) -> None:
        self._bars.update(self._task, total=total)
