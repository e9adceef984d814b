"""When an unfinished run is saved, and where."""

from __future__ import annotations

import time

from hydractl.training.state import Saved, StateFile

_SECONDS = {"s": 1, "m": 60, "h": 3600}


class Keeper:
    """Saves a run every so many steps or so much time.

    Args:
        file: where; None: nothing is kept.
        every: ``200`` (steps), ``30s``, ``5m`` or ``1h``.
    """

    def __init__(self, file: StateFile | None, every: str) -> None:
        self.file = file
        unit = every[-1]
        self.steps = None if unit in _SECONDS else int(every)
        self.seconds = int(every[:-1]) * _SECONDS[unit] if unit in _SECONDS else None
        self._last = time.monotonic()

    def due(self, steps: int) -> bool:
        """Whether it is time, after so many steps."""
        if self.file is None:
            return False
        if self.steps is not None:
            return steps % self.steps == 0
        assert self.seconds is not None  # one of the two is given
        return time.monotonic() - self._last >= self.seconds

    def save(self, saved: Saved) -> None:
        """Save now."""
        if self.file is not None:
            self.file.save(saved)
        self._last = time.monotonic()
