"""Log of a training: lines of JSON, and what trackers are sent, with clocks and speeds, which belong into no artefact.

The first line is ``{"schema": "hydractl.training-log/1", ...}``; then lines with ``"event"``: ``step``, ``epoch``,
``candidate`` (of a grid of learning rates), ``cycle`` (the end of one, of snapshots), ``resumed``, ``end``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Protocol

from hydractl.errors import OutputError
from hydractl.files.atomic import storing
from hydractl.log import Log
from hydractl.training.checkpointing import Saved

SCHEMA = "hydractl.training-log/1"
_BIRTH = json.dumps({"schema": SCHEMA}).removesuffix("}").encode()
_LINES = 1000
"""About how many steps of a training have a line of their own."""
_SECONDS = 60.0
"""The longest time, in seconds, without a line."""


class Sink(Protocol):
    """A place that the events of a training are written to."""

    def event(self, event: str, **values: Any) -> None:
        """Write an event."""

    def position(self) -> int:
        """Bytes written so far, all of them on the disk."""

    def close(self) -> None:
        """Close the place: nothing more will be written."""


@dataclass(frozen=True)
class RunFacts:
    """The training that a log is of.

    Attributes:
        model: the name of the model.
        samples: of an epoch.
        steps: of all epochs.
        seed: of the training.
        settings: those in effect, by name.
    """

    model: str
    samples: int
    steps: int
    seed: int
    settings: Mapping[str, object]

    def to_json(self) -> dict[str, object]:
        """Return the facts as the first line of a log has them."""
        facts = self._without_settings()
        facts["settings"] = self.settings
        return facts

    def flat(self) -> dict[str, object]:
        """Return the facts and the settings beside each other, as a tracker lists them."""
        facts = self._without_settings()
        facts.update(self.settings)
        return facts

    def _without_settings(self) -> dict[str, object]:
        return {
            "model": self.model,
            "samples": self.samples,
            "steps": self.steps,
            "seed": self.seed,
        }


class RunLog:
    """The log of a training in several places, or in none.

    Of all steps about a thousand become an event, one a minute at least, with the mean loss since the last.
    """

    def __init__(self, sinks: Sequence[Sink] = ()) -> None:
        self._sinks = sinks
        self._losses: list[float] = []
        self._samples = 0
        self._since = time.monotonic()

    def step(self, step: int, total: int, loss: float, lr: float, samples: int) -> None:
        """Count a step, and write an event of all steps since the last one if it is time for it.

        Args:
            step: how many steps are made, with this one.
            total: how many there will be.
            loss: of the step.
            lr: its learning rate.
            samples: how many it was made on.
        """
        self._losses.append(loss)
        self._samples += samples
        now = time.monotonic()
        seconds = now - self._since
        steps_of_a_line = max(1, total // _LINES)
        is_full = step % steps_of_a_line == 0
        is_last = step == total
        is_overdue = seconds >= _SECONDS
        if not (is_full or is_last or is_overdue):
            return
        speed = self._samples / max(seconds, 1e-9)
        mean = sum(self._losses) / len(self._losses)
        self.event("step", step=step, loss=mean, lr=lr, samples_per_s=round(speed, 3))
        self._losses = []
        self._samples = 0
        self._since = now

    def event(self, event: str, **values: Any) -> None:
        """Write an event to every place."""
        for sink in self._sinks:
            sink.event(event, **values)

    def position(self) -> int:
        """Return the position of the first place.

        It is asked for when the run is saved; every place is asked, so what was logged by then is on the disk.
        """
        positions = [sink.position() for sink in self._sinks]  # each is asked
        if not positions:
            return 0
        return positions[0]

    def close(self) -> None:
        """Close every place."""
        for sink in self._sinks:
            sink.close()


class FileLog:
    """Lines of JSON in a file. What cannot be written later on is warned of once; the training goes on.

    Args:
        path: the file; one that is no log of this kind is never touched.
        position: where to go on, in bytes; None: from the beginning.
        about: what the first line says.
        log: hears of a log that cannot be written.

    Raises:
        OutputError, StorageError: the file is something else, or cannot be made.
    """

    def __init__(self, path: Path, position: int | None, about: RunFacts, log: Log) -> None:
        """Open the file, cut off what it has behind ``position``, and write its first line or that it goes on."""
        self.path = path
        self._log = log
        self._failed = False
        if position is None:
            position = 0
        with storing(path):
            self._file: IO[bytes] = open(path, "a+b", buffering=0)  # noqa: SIM115 - open as long as the training runs
            self._file.seek(0)
            start = self._file.read(len(_BIRTH))
            is_empty = not start
            if not is_empty and start != _BIRTH:
                raise OutputError(f"{path} is no log of a training", hint="choose another --log, or none")
            # What a killed run logged behind the point where it is taken up happens again.
            size = self.position()
            self._file.truncate(min(position, size))
        if self.position() > 0:
            self.event("resumed")
        else:
            self._write({"schema": SCHEMA, "time": _now(), **about.to_json()})

    def position(self) -> int:
        """Return its size in bytes."""
        return self._file.seek(0, 2)

    def event(self, event: str, **values: Any) -> None:
        """Write one line."""
        line = {"event": event, "time": _now()}
        line.update(values)
        self._write(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: Mapping[str, object]) -> None:
        """Write a line, unless an earlier one could not be written; warn where this is the first that cannot."""
        if self._failed:
            return
        try:
            text = json.dumps(line, allow_nan=False)
            self._file.write(text.encode() + b"\n")
        except OSError as error:
            self._failed = True
            self._log.warn(f"the log {self.path} ends here: {error.strerror}")


def first_new_step(saved: Saved | None, about: RunFacts) -> int:
    """Return the first step whose points a tracker gets anew: 0, or the one after the step the run was saved at.

    Saved between the last step of an epoch and its validation, it is that last step: the point of the validation, which
    has its number, comes again.

    Args:
        saved: the run that is taken up; None for a new one.
        about: the training.
    """
    if saved is None or "steps" not in saved.progress:
        return 0
    steps = int(saved.progress["steps"])
    position = saved.progress["position"]
    is_inside_epoch = position > 0
    is_at_end_of_epoch = position >= about.samples or steps >= about.steps
    if is_inside_epoch and is_at_end_of_epoch:
        return steps
    return steps + 1


def _now() -> str:
    """Return the time in UTC, to the millisecond, as ISO 8601 writes it."""
    now = datetime.now(UTC)
    return now.isoformat(timespec="milliseconds")
