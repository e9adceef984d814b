"""Remaining time of a task, estimated from its recent speed."""

from __future__ import annotations

from collections import deque

_LEAST_WINDOW_S = 60.0
_LEAST_MARKS = 8
_MARK_EVERY_S = 1.0


class Pace:
    """The speed of a task over the last half of its time, or the last minute where that is longer.

    What was done up to the first mark does not count: a resumed task starts with work that took no time. Long windows
    even out steps of uneven length, and still forget a beginning that was faster or slower.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()
        self._start = 0.0

    def mark(self, now: float, done: int) -> None:
        """``done`` units in all are done at ``now`` (seconds)."""
        marks = self._marks
        if not marks:
            self._start = now
        if len(marks) > 1 and now - marks[-2][0] < _MARK_EVERY_S:
            marks.pop()  # thousands of marks a second would tell no more
        marks.append((now, done))
        horizon = now - max(_LEAST_WINDOW_S, (now - self._start) / 2)
        while len(marks) > _LEAST_MARKS and marks[1][0] <= horizon:
            marks.popleft()

    def rate(self) -> float | None:
        """Units a second; None where nothing tells."""
        if len(self._marks) < 2:
            return None
        (first, before), (last, done) = self._marks[0], self._marks[-1]
        return (done - before) / (last - first) if last > first and done > before else None

    def left(self, now: float, total: int | None) -> float | None:
        """Seconds from ``now`` until ``total`` units are done; None where nothing tells."""
        rate = self.rate()
        if total is None or rate is None:
            return None
        last, done = self._marks[-1]
        return max((total - done) / rate - (now - last), 0.0)


def speed(rate: float, unit: str) -> str:
    """``7.6 samples/s`` below ten, ``1,234 samples/s`` above."""
    return f"{rate:.1f} {unit}/s" if rate < 10 else f"{rate:,.0f} {unit}/s"


def duration(seconds: float) -> str:
    """Seconds up to two minutes, ``H:MM:SS`` above."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
