"""Standard error: log, warnings, errors and progress. All output there passes through this module."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from hydractl.jsonio import clean
from hydractl.log import Log, Progress

if TYPE_CHECKING:
    from hydractl.cli.live import Bars

_LINE_EVERY_S = 5.0
_TIMED = "samples"  # the only unit for which a speed (units per second) is shown
_EXPECTED_SHARE = 0.2


def clean_document(value: Any) -> Any:
    """Return a JSON value, or the record of a result, with control characters spelled out in every text and every key.

    Numbers, booleans and None stay as they are.
    """
    from hydractl.files.results import Record

    if isinstance(value, Record):
        # A frozen pydantic model: its fields, and then the extra keys that the file had.
        cleaned = value.model_copy(update={name: clean_document(item) for name, item in value.__dict__.items()})
        object.__setattr__(cleaned, "__pydantic_extra__", clean_document(value.model_extra))
        return cleaned
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): clean_document(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_document(item) for item in value]
    return value


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal that can move its cursor."""
    if stream is None:
        return False
    try:
        is_on_terminal = stream.isatty()
    except ValueError:  # closed
        return False
    can_move_cursor = os.environ.get("TERM") != "dumb"
    return is_on_terminal and can_move_cursor


def debugging() -> bool:
    """Return whether ``HYDRACTL_DEBUG`` asks for tracebacks."""
    value = os.environ.get("HYDRACTL_DEBUG", "")
    return value not in ("", "0")


def say(line: str) -> None:
    """Write one line to standard error; it is no error if the reader has gone away."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(clean(line), file=sys.stderr, flush=True)


def send_nowhere(stream: TextIO | None) -> None:
    """Send what a stream has buffered to /dev/null; otherwise the interpreter's flush at exit would fail (code 120)."""
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def settle_log() -> None:
    """Flush standard error at the end; a full disk or a reader who has gone away does not change the exit code."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        send_nowhere(sys.stderr)


class Stray(io.TextIOBase):
    """A replacement of standard output while a verb runs: what libraries print goes to standard error."""

    def write(self, text: str) -> int:
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(text)
        return len(text)


class ConsoleLog(Log):
    """The log of the command line.

    Args:
        quiet: write only warnings.
        verbose: write details, too.
    """

    shows_bars = False
    """Whether tasks have bars even where standard error is no terminal, as in a notebook."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        super().__init__()
        self.quiet = quiet
        self.verbose = verbose
        self._bars: Bars | None = None

    def info(self, message: str) -> None:
        if not self.quiet:
            self._line(message)

    def detail(self, message: str) -> None:
        if self.verbose:
            self._line(message)

    def warn(self, message: str) -> None:
        super().warn(message)
        self._line(f"warning: {message}")

    @contextlib.contextmanager
    def progress(self, description: str, total: int | None, unit: str) -> Iterator[Progress]:
        """Yield, for a ``with`` block, an object that shows how far a task is; at the end it writes a line.

        Args:
            description: what is done, e.g. ``eval``.
            total: how many units there are; None if that is not known.
            unit: how a unit is called, e.g. ``samples``.
        """
        # There is nothing to show: yield an object that ignores its calls.
        nothing_to_do = total == 0
        if self.quiet or nothing_to_do:
            yield Progress()
            return

        # A terminal has bars. Otherwise ``bars`` is None, and the task writes lines.
        display: contextlib.AbstractContextManager[Bars | None] = contextlib.nullcontext()
        if self.shows_bars or is_terminal(sys.stderr):
            display = self._open_bars()
        with display as bars:
            task = Task(self, bars, clean(description), total, clean(unit))
            try:
                yield task
            finally:
                task.hide()

        # Only a task that succeeded has a last line: what was done, and in how many seconds.
        task.finish()

    @contextlib.contextmanager
    def _open_bars(self) -> Iterator[Bars]:
        """Yield the display of the bars of all running tasks; the outermost task opens and closes it."""
        if self._bars is not None:
            yield self._bars
            return
        from hydractl.cli.live import Bars

        with Bars() as bars:
            self._bars = bars
            try:
                yield bars
            finally:
                self._bars = None

    def _line(self, message: str) -> None:
        """Write a line, above the bars if there are any."""
        if self._bars is None:
            say(message)
        else:
            self._bars.console.print(clean(message), soft_wrap=True)


@dataclass
class Task(Progress):
    """One task on standard error: a bar on a terminal, else a line every few seconds; and a line at the end.

    Attributes:
        log: writes the lines.
        bars: the display to put a bar in; None if standard error is not a terminal.
        description: the name of the task.
        total: how many units the task has; None if that is not known yet.
        unit: the name of a unit, in the plural.
        note: what is shown beside the bar.
    """

    log: ConsoleLog
    bars: Bars | None
    description: str
    total: int | None
    unit: str
    note: str = ""

    def __post_init__(self) -> None:
        self._start = time.monotonic()
        self._last_line = self._start
        self._done = 0
        self._pace = Pace()
        if self.bars is not None:
            self._bar = self.bars.add_task(self.description, total=self.total, of=self)

    def hide(self) -> None:
        """Remove the bar, if there is one."""
        if self.bars is not None:
            self.bars.remove_task(self._bar)

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Count units as done, and show it: at a terminal by moving the bar, else by a line every few seconds.

        Args:
            amount: how many units were done since the last call.
            note: what is shown behind the figures; empty for nothing.
        """
        self._done += amount
        now = time.monotonic()  # seconds
        self._pace.mark(now, self._done)

        # With a bar: move it.
        if self.bars is not None:
            self.note = clean(note)
            self.bars.update(self._bar, advance=amount)
            return

        # Without a bar: write a line, unless the last one was written a moment ago.
        seconds_since_line = now - self._last_line
        if seconds_since_line < _LINE_EVERY_S:
            return
        self._last_line = now
        # E.g. "eval: 640/10000 samples, 5.0 s, 128 samples/s, about 73 s left"; parts that are not known are empty.
        left = self.time_left and f"about {self.time_left}"
        parts = [self._state(now - self._start), self.speed, left, note]
        self.log.info(", ".join(filter(None, parts)))

    def expect(self, seconds: float) -> None:
        self._pace.expected = seconds

    def set_total(self, total: int) -> None:
        self.total = total
        if self.bars is not None:
            self.bars.update(self._bar, total=total)

    def finish(self) -> None:
        """Write the line at the end: what was done, and in how many seconds."""
        elapsed = time.monotonic() - self._start
        line = self._state(elapsed)
        if self.unit == _TIMED and self._done and elapsed > 0:
            line += f", {speed(self._done / elapsed, self.unit)}"
        self.log.info(line)

    @property
    def speed(self) -> str:
        """The mean number of samples per second as text; empty for tasks that count other units."""
        rate = self._pace.rate()
        return "" if self.unit != _TIMED or rate is None else speed(rate, self.unit)

    @property
    def time_left(self) -> str:
        """The time that is left, as ``12 s left``; empty if it cannot be estimated."""
        seconds = self._pace.left(time.monotonic(), self.total)
        return "" if seconds is None else f"{duration(seconds)} left"

    def _state(self, elapsed: float) -> str:
        """Return how many units are done, of how many, and in how many seconds."""
        of_total = "" if self.total is None else f"/{self.total}"
        return f"{self.description}: {self._done}{of_total} {self.unit}, {elapsed:.1f} s"


# --- speed and remaining time -----------------------------------------------------------------------------------------


class Pace:
    """The mean speed of a task since its first mark: a time in seconds, and the number of units that were done then.

    The units that were done up to the first mark do not count: a resumed task starts with units that took no time.

    Attributes:
        expected: the seconds that the whole task is expected to take; None if nobody knows.
    """

    def __init__(self) -> None:
        self.expected: float | None = None
        self._first: tuple[float, int] | None = None
        self._last = (0.0, 0)

    def mark(self, now: float, done: int) -> None:
        """Record that ``done`` units in all are done at the time ``now`` (seconds)."""
        self._last = (now, done)
        if self._first is None:
            self._first = self._last

    def rate(self) -> float | None:
        """Return units per second; None if the marks do not tell."""
        units, seconds = self._since_first()
        return units / seconds if units > 0 and seconds > 0 else None

    def _since_first(self) -> tuple[float, float]:
        """Return the units that were done since the first mark, and in how many seconds; zeros without a mark."""
        first_time, done_at_first = self._first or self._last
        last_time, done_at_last = self._last
        return done_at_last - done_at_first, last_time - first_time

    def left(self, now: float, total: int | None) -> float | None:
        """Return the seconds from ``now`` until ``total`` units are done, at the mean speed; None if nothing tells.

        If somebody has said how long the whole task takes, this counts as if a fifth of the task had gone at that
        speed: units may take unlike times, and then the first ones say little of the others. E.g. of 100 units 10 took
        20 s, and 100 s are expected: (10 + 20) units in (20 + 20) s, so the other 90 take 120 s.

        Args:
            now: the time in seconds, by the clock of the marks.
            total: the number of units; None if it is not known.
        """
        if total is None or self._first is None:
            return None
        units, seconds = self._since_first()
        if self.expected is not None:
            # speed = (units so far + 0.2 total) / (their seconds + 0.2 expected seconds)
            units += _EXPECTED_SHARE * total
            seconds += _EXPECTED_SHARE * self.expected
        if units <= 0 or seconds <= 0:
            return None
        # Count down from the last mark.
        last_time, done_at_last = self._last
        seconds_left_at_last = (total - done_at_last) * seconds / units
        seconds_since_last = now - last_time
        return max(seconds_left_at_last - seconds_since_last, 0.0)


def speed(rate: float, unit: str) -> str:
    """Return a speed as text, with a decimal below ten: ``7.6 samples/s``, ``1,234 samples/s``."""
    if rate < 10:
        return f"{rate:.1f} {unit}/s"
    return f"{rate:,.0f} {unit}/s"


def duration(seconds: float) -> str:
    """Return a time as text: in seconds below two minutes, else as ``H:MM:SS``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    all_minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(all_minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
