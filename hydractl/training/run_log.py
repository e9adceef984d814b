"""The log of a training: lines of JSON with clocks and speeds, which belong into no artefact.

The first line is ``{"schema": "hydractl.training-log/1", ...}``; then lines with ``"event"``: ``step``, ``epoch``,
``candidate`` (of a grid of learning rates), ``cycle`` (the end of one, of ``--snapshots``), ``resumed``, ``end``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from hydractl.errors import OutputError
from hydractl.files.atomic import storage_error
from hydractl.log import Log

SCHEMA = "hydractl.training-log/1"
_BIRTH = json.dumps({"schema": SCHEMA}).removesuffix("}").encode()
_LINES = 1000
"""About how many steps of a training have a line of their own."""
_SECONDS = 60.0
"""After so long there is one anyway."""


class RunLog:
    """Keeps nothing; :class:`FileLog` does."""

    def position(self) -> int:
        """Bytes written so far; asked for when the run is saved, so that what was logged by then is on the disk."""
        return 0

    def step(self, step: int, total: int, loss: float, lr: float, samples: int) -> None:
        """A step was made on so many samples."""

    def event(self, event: str, **values: Any) -> None:
        """Something happened."""

    def close(self) -> None:
        """Nothing more will be said."""


class Thinned(RunLog):
    """Makes about a thousand events ``step`` of all steps, one a minute at least, with the mean loss since the last."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._samples, self._since = 0, time.monotonic()

    def step(self, step: int, total: int, loss: float, lr: float, samples: int) -> None:
        self._losses.append(loss)
        self._samples += samples
        now = time.monotonic()
        if step % max(1, total // _LINES) and step != total and now - self._since < _SECONDS:
            return
        speed = self._samples / max(now - self._since, 1e-9)
        mean = sum(self._losses) / len(self._losses)
        self.event("step", step=step, loss=mean, lr=lr, samples_per_s=round(speed, 3))
        self._losses, self._samples, self._since = [], 0, now


class Together(RunLog):
    """Several logs of one training; the position is that of the first."""

    def __init__(self, logs: Sequence[RunLog]) -> None:
        self._logs = logs

    def position(self) -> int:
        positions = [log.position() for log in self._logs]  # each is asked
        return positions[0]

    def step(self, step: int, total: int, loss: float, lr: float, samples: int) -> None:
        for log in self._logs:
            log.step(step, total, loss, lr, samples)

    def event(self, event: str, **values: Any) -> None:
        for log in self._logs:
            log.event(event, **values)

    def close(self) -> None:
        for log in self._logs:
            log.close()


class FileLog(Thinned):
    """A log in a file. What cannot be written later on is warned of once; the training goes on.

    Args:
        path: the file; one that is no log of this kind is never touched.
        position: where to go on, in bytes; None: from the beginning.
        about: what the first line says.
        log: hears of a log that cannot be written.

    Raises:
        OutputError, StorageError: the file is something else, or cannot be made.
    """

    def __init__(self, path: Path, position: int | None, about: Mapping[str, Any], log: Log) -> None:
        super().__init__()
        self.path, self._log, self._failed = path, log, False
        try:
            self._file: IO[bytes] = open(path, "a+b", buffering=0)  # noqa: SIM115 - open as long as the training runs
            self._file.seek(0)
            start = self._file.read(len(_BIRTH))
            if start and start != _BIRTH:
                raise OutputError(f"{path} is no log of a training", hint="choose another --log, or none")
            # What a killed run logged behind the point where it is taken up happens again.
            self._file.truncate(min(position or 0, self._size()))
        except OSError as error:
            raise storage_error(error, path) from error
        if self._size():
            self.event("resumed")
        else:
            self._write({"schema": SCHEMA, "time": _now(), **about})

    def position(self) -> int:
        return self._size()

    def event(self, event: str, **values: Any) -> None:
        self._write({"event": event, "time": _now(), **values})

    def close(self) -> None:
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._failed:
            return
        try:
            self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        except OSError as error:
            self._failed = True
            self._log.warn(f"the log {self.path} ends here: {error.strerror}")

    def _size(self) -> int:
        return self._file.seek(0, 2)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
