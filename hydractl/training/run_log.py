"""The log of a training: lines of JSON, for a file and for a caller. It has times and speeds, unlike the outputs.

The first line is ``{"schema": "hydractl.training-log/1", ...}``. Then follow lines with ``"event"``: ``step``,
``epoch``, ``candidate`` (one of several learning rates), ``resumed``, ``end``, and those of a method's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from hydractl.errors import OutputError
from hydractl.files.atomic import storing
from hydractl.log import Log

SCHEMA = "hydractl.training-log/1"
_BIRTH = json.dumps({"schema": SCHEMA}).removesuffix("}").encode()
"""The bytes that every log begins with."""
_LINES = 1000
"""About how many steps of a training get a line."""
_SECONDS = 60.0
"""The longest time without a line, in seconds."""


class RunLog:
    """The log of a training: lines that a file and a caller get, if there are such.

    About a thousand of all steps become a line, but at least one a minute. It has the mean loss since the line before.

    Args:
        file: the file; None for none.
        on_line: is called with every line.
    """

    def __init__(
        self, file: FileLog | None = None, on_line: Callable[[Mapping[str, object]], None] | None = None
    ) -> None:
        self._file = file
        self._on_line = on_line
        self._losses: list[float] = []
        self._samples = 0
        self._since = time.monotonic()

    def begin(self, about: Mapping[str, object], *, resumed: bool) -> None:
        """Write the first line, or that the run is resumed.

        Args:
            about: facts about the training, for the first line.
            resumed: whether the run is resumed; a file that has no line yet gets its first line all the same.
        """
        continues = resumed
        if self._file is not None:
            continues = self._file.position() > 0
        if continues:
            self.event("resumed")
        else:
            self._write({"schema": SCHEMA, "time": _now(), **about})

    def step(self, step: int, total: int, loss: float, lr: float, samples: int) -> None:
        """Count a step; if it is time for it, write one line for all steps since the last one.

        Args:
            step: how many steps are made, including this one.
            total: how many steps there will be.
            loss: the loss of the step.
            lr: the learning rate of the step.
            samples: how many samples the step used.
        """
        self._losses.append(loss)
        self._samples += samples
        now = time.monotonic()
        seconds = now - self._since

        # Write after so many steps, after the last one, and after a minute at the latest.
        steps_of_a_line = max(1, total // _LINES)
        is_full = step % steps_of_a_line == 0
        is_last = step == total
        is_overdue = seconds >= _SECONDS
        if not (is_full or is_last or is_overdue):
            return

        # One line for all steps since the last one; then begin counting anew.
        speed = self._samples / max(seconds, 1e-9)
        mean = sum(self._losses) / len(self._losses)
        self.event("step", step=step, loss=mean, lr=lr, samples_per_s=round(speed, 3))
        self._losses = []
        self._samples = 0
        self._since = now

    def event(self, event: str, **values: Any) -> None:
        """Write a line."""
        self._write({"event": event, "time": _now(), **values})

    def position(self) -> int:
        """Return how many bytes the file has, all of them on the disk, for saving the run; 0 where there is none."""
        if self._file is None:
            return 0
        return self._file.position()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _write(self, line: Mapping[str, object]) -> None:
        if self._file is not None:
            self._file.write(line)
        if self._on_line is not None:
            self._on_line(line)


class FileLog:
    """A log file with lines of JSON. The first line that cannot be written causes one warning; the training goes on.

    Args:
        path: the file; a file that is not a log of this kind is never changed.
        position: the size in bytes from which to go on; None: start anew.
        log: receives the warning.

    Raises:
        OutputError, StorageError: the file is something else, or cannot be created.
    """

    def __init__(self, path: Path, position: int | None, log: Log) -> None:
        """Open the file and cut off what follows ``position``."""
        self.path = path
        self._log = log
        self._failed = False
        kept_bytes = 0 if position is None else position
        with storing(path):
            self._file: IO[bytes] = open(path, "a+b", buffering=0)  # noqa: SIM115 - open as long as the training runs
            self._file.seek(0)
            start = self._file.read(len(_BIRTH))
            is_empty = not start
            if not is_empty and start != _BIRTH:
                raise OutputError(f"{path} is no log of a training", hint="choose another --log, or none")
            # Cut off what a killed run has logged after the point of resuming: these steps are made again.
            size = self.position()
            self._file.truncate(min(kept_bytes, size))

    def position(self) -> int:
        """Return the size of the file in bytes."""
        return self._file.seek(0, 2)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def write(self, line: Mapping[str, object]) -> None:
        """Write a line, unless writing has failed before; warn when it fails for the first time."""
        if self._failed:
            return
        try:
            text = json.dumps(line, allow_nan=False)
            self._file.write(text.encode() + b"\n")
        except OSError as error:
            self._failed = True
            self._log.warn(f"the log {self.path} ends here: {error.strerror}")


def _now() -> str:
    """Return the current time in UTC to the millisecond, in the format of ISO 8601."""
    now = datetime.now(UTC)
    return now.isoformat(timespec="milliseconds")
