"""What a verb may say while it works. The command line writes it to standard error; a library user hears nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class Progress:
    """One running task; this base class shows nothing."""

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Move on by ``amount`` units; ``note`` is shown beside the bar."""

    def row(self, cells: Sequence[str]) -> None:
        """A result on the way, one cell per column of the task; an empty cell says nothing."""

    def set_total(self, total: int) -> None:
        """The work is now known to be ``total`` units in all, those already done included."""


class Log:
    """The silent log. ``hydractl.cli.console`` has the one that writes."""

    def info(self, message: str) -> None:
        """Something a person wants to know."""

    def detail(self, message: str) -> None:
        """Something only ``-v`` asks for."""

    def warn(self, message: str) -> None:
        """Something that may make the result other than expected."""

    @contextmanager
    def progress(
        self, description: str, total: int | None, unit: str, columns: Sequence[str] = ()
    ) -> Iterator[Progress]:
        """A task of ``total`` units (None: unknown), counted in ``unit`` (for example ``"samples"``).

        ``columns`` names the cells of its rows; a cell under an empty name stands for itself.
        """
        yield Progress()


class PassedOn(Log):
    """A log that passes everything on to another one; subclasses change some of it."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def info(self, message: str) -> None:
        self._log.info(message)

    def detail(self, message: str) -> None:
        self._log.detail(message)

    def warn(self, message: str) -> None:
        self._log.warn(message)

    @contextmanager
    def progress(
        self, description: str, total: int | None, unit: str, columns: Sequence[str] = ()
    ) -> Iterator[Progress]:
        with self._log.progress(description, total, unit, columns) as progress:
            yield progress


class SayOnce(PassedOn):
    """Passes each warning on once: steps of one work may have the same to say.

    Args:
        log: where it goes.
        said: the warnings that were said before.
    """

    def __init__(self, log: Log, said: Iterable[str] = ()) -> None:
        super().__init__(log)
        self._said = set(said)

    def warn(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self._log.warn(message)
