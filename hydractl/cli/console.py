"""Standard error: log, warnings, errors and progress. All output there passes through this module."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TextIO

from hydractl.cli.pace import Pace, duration, speed
from hydractl.log import Log, Progress

if TYPE_CHECKING:
    from rich.progress import TaskID

    from hydractl.cli.failures import Failure
    from hydractl.cli.live import Bars

# Control characters (C0, DEL, C1), marks that turn the direction of writing, line separators, lone surrogates: a
# terminal may obey the first, a reader may be deceived by the others, and the last cannot be encoded.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_LINE_EVERY_S = 5.0
_ROWS = 8
_TIMED = "samples"  # the unit whose number a second is shown
_MOST_PROBLEMS = 50


def clean(text: str) -> str:
    """One line that is safe on a terminal: control characters are spelled out, as in ``\\x1b``."""
    return _UNSAFE.sub(_spell, text)


def _spell(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def clean_document(value: Any) -> Any:
    """The same JSON value with every text cleaned, keys too."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): clean_document(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_document(item) for item in value]
    return value


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person reads the stream on a terminal that can move its cursor."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def debugging() -> bool:
    """Whether ``HYDRACTL_DEBUG`` asks for tracebacks."""
    return os.environ.get("HYDRACTL_DEBUG", "0") not in ("", "0")


def say(line: str) -> None:
    """Write one line to standard error; a reader who has gone away is no reason to fail."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(clean(line), file=sys.stderr, flush=True)


def send_nowhere(stream: TextIO | None) -> None:
    """Send what a stream still holds nowhere: the interpreter flushes at its exit, and would fail with 120."""
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def settle_log() -> None:
    """The end of standard error: a full disk or a reader who has gone away does not change the exit code."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        send_nowhere(sys.stderr)


class Stray(io.TextIOBase):
    """Sends what libraries print to standard output while a verb runs to standard error: it is no answer."""

    def write(self, text: str) -> int:
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(text)
        return len(text)


def say_failure(failure: Failure, error: BaseException) -> None:
    """Write what went wrong: one ``error:`` line, a line for each problem, and a ``hint:``."""
    if debugging():
        for part in traceback.format_exception(error):
            for line in part.splitlines():
                say(line)
    say(f"error: {failure.message}")
    for problem in failure.problems[:_MOST_PROBLEMS]:
        say(f"  - {problem}")
    if len(failure.problems) > _MOST_PROBLEMS:
        say(f"  - and {len(failure.problems) - _MOST_PROBLEMS} more")
    if failure.hint:
        say(f"hint: {failure.hint}")


class ConsoleLog(Log):
    """The log of the command line.

    Args:
        quiet: say nothing but warnings.
        verbose: say details too.
        clock: seconds, for tests.
    """

    def __init__(
        self, *, quiet: bool = False, verbose: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self._clock = clock
        self._bars: Bars | None = None

    def info(self, message: str) -> None:
        if not self.quiet:
            self._line(message)

    def detail(self, message: str) -> None:
        if self.verbose:
            self._line(message)

    def warn(self, message: str) -> None:
        self._line(f"warning: {message}")

    @contextlib.contextmanager
    def progress(
        self, description: str, total: int | None, unit: str, columns: Sequence[str] = ()
    ) -> Iterator[Progress]:
        if self.quiet:
            yield Progress()
            return
        task = _Task(self, description, total, unit, columns, self._clock)
        if not is_terminal(sys.stderr):
            yield task
        else:
            with self._bar(task):
                yield task
        task.finish()

    @contextlib.contextmanager
    def _bar(self, task: _Task) -> Iterator[None]:
        """Show a bar for the task; a nested bar is shown below the outer one."""
        if self._bars is not None:
            task.show(self._bars)
            yield
            task.hide()
            return
        from hydractl.cli.live import Bars

        with Bars() as bars:
            self._bars = bars
            try:
                task.show(bars)
                yield
            finally:
                self._bars = None

    def _line(self, message: str) -> None:
        if self._bars is None:
            say(message)
        else:
            self._bars.console.print(clean(message), soft_wrap=True)


class _Task(Progress):
    """One task: a bar where there is one, otherwise a line at most every few seconds, and a line at its end.

    A row stands in a table above the bar; where there is no bar, it is a line.
    """

    def __init__(
        self,
        log: ConsoleLog,
        description: str,
        total: int | None,
        unit: str,
        columns: Sequence[str],
        clock: Callable[[], float],
    ) -> None:
        self._log, self._description, self._total, self._unit = log, clean(description), total, clean(unit)
        self._columns = tuple(map(clean, columns))
        self._clock = clock
        self._start = self._last = clock()
        self._done = 0
        self._pace = Pace()
        self._rows: tuple[tuple[str, ...], ...] = ()
        self._bars: Bars | None = None
        self._id: TaskID | None = None

    def show(self, bars: Bars) -> None:
        self._bars = bars
        fields: dict[str, Any] = {"unit": self._unit, "columns": self._columns}
        fields |= {"left": self._left, "rate": self._rate}
        self._id = bars.add_task(self._description, total=self._total, note="", rows=(), **fields)

    def hide(self) -> None:
        if self._bars is not None and self._id is not None:
            self._bars.remove_task(self._id)

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._done += amount
        now = self._clock()
        self._pace.mark(now, self._done)
        if self._bars is not None and self._id is not None:
            self._bars.update(self._id, advance=amount, note=clean(note))
        elif now - self._last >= _LINE_EVERY_S:
            self._last = now
            rate, left = self._rate(), self._pace.left(now, self._total)
            fast = "" if rate is None else f", {speed(rate, self._unit)}"
            about = "" if left is None else f", about {duration(left)} left"
            self._log.info(f"{self._state(now - self._start)}{fast}{about}{', ' + note if note else ''}")

    def row(self, cells: Sequence[str]) -> None:
        cells = tuple(map(clean, cells))
        if self._bars is not None and self._id is not None:
            self._rows = (*self._rows, cells)[-_ROWS:]
            self._bars.update(self._id, rows=self._rows)
            return
        named = zip_longest(self._columns, cells, fillvalue="")
        self._log.info(f"{self._description}: " + "  ".join(f"{name} {cell}".strip() for name, cell in named if cell))

    def set_total(self, total: int) -> None:
        self._total = total
        if self._bars is not None and self._id is not None:
            self._bars.update(self._id, total=total)

    def finish(self) -> None:
        elapsed = self._clock() - self._start
        timed = self._unit == _TIMED and self._done and elapsed > 0
        fast = f", {speed(self._done / elapsed, self._unit)}" if timed else ""
        self._log.info(self._state(elapsed) + fast)

    def _rate(self) -> float | None:
        return self._pace.rate() if self._unit == _TIMED else None

    def _left(self) -> float | None:
        return self._pace.left(self._clock(), self._total)

    def _state(self, elapsed: float) -> str:
        of = "" if self._total is None else f"/{self._total}"
        return f"{self._description}: {self._done}{of} {self._unit}, {elapsed:.1f} s"
