"""The log of a call by a Python program, with progress bars drawn by rich."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console

from hydractl.cli.console import ConsoleLog
from hydractl.log import Progress

OnLog = Callable[[Mapping[str, object]], None]
_LOGGER = logging.getLogger("hydractl")

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


class PythonLog(ConsoleLog):
    """A log for Python: warnings are Python warnings, tasks have progress bars, the rest goes to a logger.

    Args:
        said: words a message for Python.
        on_log: takes the lines of the log of a training, each as a dict with what its line of JSON has.
    """

    shows_bars = True

    def __init__(self, said: Callable[[str], str] = str, on_log: OnLog | None = None) -> None:
        super().__init__()
        self._said = said
        self._on_log = on_log

    def info(self, message: str) -> None:
        _LOGGER.info(message)

    def detail(self, message: str) -> None:
        _LOGGER.debug(message)

    def line_of_training(self, line: Mapping[str, object]) -> None:
        if self._on_log is not None:
            self._on_log(line)

    def warn(self, message: str) -> None:
        """Issue a Python warning that points to the line of the program that called hydractl."""
        self.warnings.append(message)
        frames_of_hydractl = 0
        frame = inspect.currentframe()
        while frame is not None:
            module = str(frame.f_globals.get("__name__"))
            if not module.startswith("hydractl."):
                break
            frames_of_hydractl += 1
            frame = frame.f_back
        warnings.warn(self._said(message), stacklevel=frames_of_hydractl + 1)

    @contextlib.contextmanager
    def progress(self, description: str, total: int | None, unit: str) -> Iterator[Progress]:
        """Show a bar for a task while the context lasts; see :meth:`hydractl.log.Log.progress`."""
        self.quiet = not _is_shown(Console(stderr=True))
        with super().progress(description, total, unit) as task:
            yield task
