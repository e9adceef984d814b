"""The log of a verb while it works. The command line writes it to standard error; this base class writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager


class Progress:
    """One running task; this base class shows nothing."""

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Move on by ``amount`` units; ``note`` is shown beside the bar."""

    def expect(self, seconds: float) -> None:
        """Take an estimate of how long the whole task takes, with which the time left begins."""

    def set_total(self, total: int) -> None:
        """Set the number of units in all, with those already done, when it becomes known."""


class Log:
    """A log that writes nothing. :class:`hydractl.cli.console.ConsoleLog` is the one that writes.

    Attributes:
        warnings: the warnings so far; the result of a verb has those of its run.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def info(self, message: str) -> None:
        """Log something that a person wants to know."""

    def detail(self, message: str) -> None:
        """Log something that is only shown with ``-v``."""

    def warn(self, message: str) -> None:
        """Log something that may make the result other than expected; the result has it in ``warnings``."""
        self.warnings.append(message)

    def warn_all(self, findings: Iterable[str | None]) -> None:
        """Warn of everything that was found; None is a check that found nothing."""
        for finding in findings:
            if finding is not None:
                self.warn(finding)

    def line_of_training(self, line: Mapping[str, object]) -> None:
        """Take a line of the log of a training, as ``finetune --log`` writes it."""

    @contextmanager
    def progress(self, description: str, total: int | None, unit: str) -> Iterator[Progress]:
        """Open a task of ``total`` units (None: not known yet), counted in ``unit``, for example ``"samples"``."""
        yield Progress()


class PassedOn(Log):
    """A log that passes everything on to another log; subclasses change some of it."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def info(self, message: str) -> None:
        self._log.info(message)

    def detail(self, message: str) -> None:
        self._log.detail(message)

    def warn(self, message: str) -> None:
        super().warn(message)
        self._log.warn(message)

    def line_of_training(self, line: Mapping[str, object]) -> None:
        self._log.line_of_training(line)

    @contextmanager
    def progress(self, description: str, total: int | None, unit: str) -> Iterator[Progress]:
        with self._log.progress(description, total, unit) as progress:
            yield progress


class SayOnce(PassedOn):
    """A log that passes each warning on only once, because several steps of one task may give the same warning.

    Args:
        log: the log that gets the warnings.
        said: warnings that were logged before.
    """

    def __init__(self, log: Log, said: Iterable[str] = ()) -> None:
        super().__init__(log)
        self._said = set(said)

    def warn(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            super().warn(message)
