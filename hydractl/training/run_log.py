"""The log of a training: lines of JSON, for a file and for a caller. It has times and speeds, unlike the outputs.

The first line is ``{"schema": "hydractl.training-log/1", ...}``. Then follow lines with ``"event"``: ``step``,
``epoch``, ``candidate`` (one of several learning rates), ``resumed``, ``end``, and those of a method's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from hydractl.errors import OutputError
from hydractl.files.atomic import storing
from hydractl.log import Log

SCHEMA = "hydractl.training-log/1"
_BIRTH = json.dumps({"schema": SCHEMA}).removesuffix("}").encode()
"""The bytes that every log begins with."""


class RunLog:
    """The log of a training: lines that a file and a caller get, if there are such.

    The first line that cannot be written to the file causes one warning; the training goes on.

    Args:
        log: takes every line, and that warning; None: there is no caller.
        path: the file; None for none. One that is not a log of this kind is never changed.
        position: the size of the file in bytes from which to go on; 0: start anew.

    Raises:
        OutputError, StorageError: the file is something else, or cannot be created.
    """

    def __init__(self, log: Log | None = None, path: Path | None = None, position: int = 0) -> None:
        """Open the log file; without a path nothing is written.

        Args:
            log: receives messages to the user.
            path: the file, which is made if it is missing.
            position: the length of the file, in bytes, when the run to resume was saved; 0 for a new run. What follows
                is cut off: a killed run has logged these steps, and they are made again.

        Raises:
            OutputError: the file is there and is no log of a training.
        """
        self._log = log or Log()
        self._path = path
        self._file: IO[bytes] | None = None
        self._failed = False
        if path is not None:
            with storing(path):
                self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - open as long as the training runs
                self._file.seek(0)
                start = self._file.read(len(_BIRTH))
                is_empty = not start
                if not is_empty and start != _BIRTH:
                    raise OutputError(f"{path} is no log of a training", hint="choose another --log, or none")
                self._file.truncate(min(position, self.position()))
        self._since = time.monotonic()  # the end of the last step

    def begin(self, about: Mapping[str, object], *, resumed: bool) -> None:
        """Write the first line, or that the run is resumed.

        Args:
            about: facts about the training, for the first line.
            resumed: whether the run is resumed; a file that has no line yet gets its first line all the same.
        """
        continues = self.position() > 0 if self._file is not None else resumed
        if continues:
            self.event("resumed")
        else:
            self._write({"schema": SCHEMA, "time": _now(), **about})

    def step(self, step: int, loss: float, lr: float, samples: int) -> None:
        """Write a line for a step: how many are made with it, its loss and learning rate, and its samples a second."""
        now = time.monotonic()
        speed = samples / max(now - self._since, 1e-9)
        self._since = now
        self.event("step", step=step, loss=loss, lr=lr, samples_per_s=round(speed, 3))

    def event(self, event: str, **values: Any) -> None:
        """Write a line."""
        self._write({"event": event, "time": _now(), **values})

    def position(self) -> int:
        """Return how many bytes the file has, all of them on the disk, for saving the run; 0 where there is none."""
        if self._file is None:
            return 0
        return self._file.seek(0, 2)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _write(self, line: Mapping[str, object]) -> None:
        if self._file is not None and not self._failed:
            text = json.dumps(line, allow_nan=False)
            try:
                self._file.write(text.encode() + b"\n")
            except OSError as error:
                self._failed = True
                self._log.warn(f"the log {self._path} ends here: {error.strerror}")
        self._log.line_of_training(line)


def _now() -> str:
    """Return the current time in UTC to the millisecond, in the format of ISO 8601."""
    now = datetime.now(UTC)
    return now.isoformat(timespec="milliseconds")
