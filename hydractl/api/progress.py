"""Progress bars for calls from a Python program, drawn by rich."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence

from rich.console import Console

from hydractl.cli.console import ConsoleLog
from hydractl.log import Progress

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


class ShowsProgress(ConsoleLog):
    """A log with the bars of the command line while a task of a call runs, if they are to be shown."""

    shows_bars = True

    @contextlib.contextmanager
    def progress(
        self, description: str, total: int | None, unit: str, columns: Sequence[str] = ()
    ) -> Iterator[Progress]:
        """Show a bar for a task while the context lasts; see :meth:`hydractl.log.Log.progress`."""
        self.quiet = not _is_shown(Console(stderr=True))
        with super().progress(description, total, unit, columns) as task:
            yield task
