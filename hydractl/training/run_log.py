"""The log of a training: lines of JSON, and events for trackers. It has times and speeds, unlike the outputs.

The first line is ``{"schema": "hydractl.training-log/1", ...}``. Then follow lines with ``"event"``: ``step``,
``epoch``, ``candidate`` (one of several learning rates), ``resumed``, ``end``, and those of a method's own.
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
"""The bytes that every log begins with."""
_LINES = 1000
"""About how many steps of a training get a line."""
_SECONDS = 60.0
"""The longest time without a line, in seconds."""


class Sink(Protocol):
    """A place that the events of a training are written to."""

    def event(self, event: str, **values: Any) -> None:
        """Write an event."""

    def position(self) -> int:
        """Return the number of bytes written so far, all of them on the disk."""

    def close(self) -> None:
        """Close the place: nothing more will be written."""


@dataclass(frozen=True)
class RunFacts:
    """Facts about the training that a log belongs to.

    Attributes:
        model: the name of the model.
        samples: how many samples an epoch has.
        steps: how many steps all epochs have.
        seed: the seed of the training.
        settings: the settings in effect, by name.
    """

    model: str
    samples: int
    steps: int
    seed: int
    settings: Mapping[str, object]

    def to_json(self) -> dict[str, object]:
        """Return the facts in the form of a log's first line, with the settings as one object."""
        facts = self._without_settings()
        facts["settings"] = self.settings
        return facts

    def flat(self) -> dict[str, object]:
        """Return facts and settings in one flat object, as a tracker lists them."""
        facts = self._without_settings()
        facts.update(self.settings)
        return facts

    def _without_settings(self) -> dict[str, object]:
        """Return all facts but the settings."""
        return {
            "model": self.model,
            "samples": self.samples,
            "steps": self.steps,
            "seed": self.seed,
        }


class RunLog:
    """The log of a training, written to several sinks or to none.

    About a thousand of all steps become an event, but at least one a minute. An event has the mean loss since the
    event before.
    """

    def __init__(self, sinks: Sequence[Sink] = ()) -> None:
        self._sinks = sinks
        self._losses: list[float] = []
        self._samples = 0
        self._since = time.monotonic()

    def step(self, step: int, total: int, loss: float, lr: float, samples: int) -> None:
        """Count a step; if it is time for it, write one event for all steps since the last event.

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

        # One event for all steps since the last one; then begin counting anew.
        speed = self._samples / max(seconds, 1e-9)
        mean = sum(self._losses) / len(self._losses)
        self.event("step", step=step, loss=mean, lr=lr, samples_per_s=round(speed, 3))
        self._losses = []
        self._samples = 0
        self._since = now

    def event(self, event: str, **values: Any) -> None:
        """Write an event to every sink."""
        for sink in self._sinks:
            sink.event(event, **values)

    def position(self) -> int:
        """Return the position of the first sink, for saving the run.

        Every sink is asked for its position, which puts everything logged so far on the disk.
        """
        positions = [sink.position() for sink in self._sinks]
        if not positions:
            return 0
        return positions[0]

    def close(self) -> None:
        """Close every sink."""
        for sink in self._sinks:
            sink.close()


class FileLog:
    """A log file with lines of JSON. The first line that cannot be written causes one warning; the training goes on.

    Args:
        path: the file; a file that is not a log of this kind is never changed.
        position: the size in bytes from which to go on; None: start anew.
        about: facts about the training, for the first line.
        log: receives the warning.

    Raises:
        OutputError, StorageError: the file is something else, or cannot be created.
    """

    def __init__(self, path: Path, position: int | None, about: RunFacts, log: Log) -> None:
        """Open the file and cut off what follows ``position``; write the first line, or that the run is resumed."""
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
        if self.position() > 0:
            self.event("resumed")
        else:
            self._write({"schema": SCHEMA, "time": _now(), **about.to_json()})

    def position(self) -> int:
        """Return the size of the file in bytes."""
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
        """Write a line, unless writing has failed before; warn when it fails for the first time."""
        if self._failed:
            return
        try:
            text = json.dumps(line, allow_nan=False)
            self._file.write(text.encode() + b"\n")
        except OSError as error:
            self._failed = True
            self._log.warn(f"the log {self.path} ends here: {error.strerror}")


def first_new_step(saved: Saved | None, about: RunFacts) -> int:
    """Return the first step that a tracker gets anew: 0 for a new run, else the step after the saved one.

    If the run was saved between the last step of an epoch and its validation, return that last step: the validation,
    which has the same step number, is yet to be sent.

    Args:
        saved: the saved run to resume; None for a new one.
        about: facts about the training.
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
    """Return the current time in UTC to the millisecond, in the format of ISO 8601."""
    now = datetime.now(UTC)
    return now.isoformat(timespec="milliseconds")
