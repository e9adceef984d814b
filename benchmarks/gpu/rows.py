"""Rows of a measurement that cannot be lost: each is on the disk as soon as it is measured, and a new run goes on.

The file is one JSON document, replaced as a whole and in one step: whenever a process is cut off, the document holds
every row that was finished before.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydractl.files.atomic import Output, write_json


@dataclass(frozen=True)
class Place:
    """What one row is measured of.

    Attributes:
        arch: of the models.
        dtype: their number format.
        batch_size: samples of a call.
        mode: ``eager`` or ``compiled``.
        model: which of the models.
    """

    arch: str
    dtype: str
    batch_size: int
    mode: str
    model: str

    def __str__(self) -> str:
        return f"{self.arch}, {self.dtype}, batch {self.batch_size}, {self.mode}: {self.model}"


class Clock:
    """The time of the whole run, from its very beginning.

    Args:
        seconds: that the run may take.
        begun: when it began, by ``time.perf_counter``.
    """

    def __init__(self, seconds: float, begun: float) -> None:
        self._end = begun + seconds

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._end - time.perf_counter()


class Record:
    """The document of a run and, where it has one, its file.

    Args:
        path: of the file; None: the rows are kept in memory.
        settings: that rows depend on. A file of other settings is refused.

    Attributes:
        rows: as they were measured, those of earlier runs first; each holds the fields of its :class:`Place`.
        missing: what was not measured, and why, by place.

    Raises:
        SystemExit: for a file that holds something else.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self.path = path
        self.settings = settings
        self.machine: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self.missing: dict[str, str] = {}
        self.aims: list[dict[str, Any]] = []
        # The main thread adds rows, and a timer may end the process meanwhile.
        self._changing = threading.RLock()
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            settings, machine, rows = document["settings"], document["machine"], document["rows"]
        except (ValueError, KeyError, TypeError):
            sys.exit(f"{path} is not a file of this script: move it, or write to another")
        as_stored = json.loads(json.dumps(self.settings))
        if settings != as_stored:
            different = sorted(key for key in as_stored if settings.get(key) != as_stored[key])
            sys.exit(f"{path} was measured with other settings ({', '.join(different)}): write to another file")
        self.machine = machine
        self.rows = rows

    def set_machine(self, facts: dict[str, Any]) -> None:
        """Say what the rows are measured on.

        Raises:
            SystemExit: those of the file were measured on another machine.
        """
        facts = json.loads(json.dumps(facts))
        if self.rows:
            different = sorted(key for key in facts if self.machine.get(key) != facts[key])
            if different:
                sys.exit(f"{self.path} was measured elsewhere ({', '.join(different)}): write to another file")
        self.machine = {**self.machine, **facts}
        self.write()

    def has(self, place: Place) -> bool:
        """Return whether a row is there."""
        fields = asdict(place)
        return any(all(row[key] == value for key, value in fields.items()) for row in self.rows)

    def add(self, place: Place, figures: dict[str, Any]) -> None:
        """Add a row, and write it."""
        with self._changing:
            self.rows.append({**asdict(place), **figures})
            self.missing.pop(str(place), None)
            self.write()

    def document(self) -> dict[str, Any]:
        """Return everything, as it is written."""
        return {
            "settings": self.settings,
            "machine": self.machine,
            "aims": self.aims,
            "rows": self.rows,
            "missing": [f"{place}: {reason}" for place, reason in self.missing.items()],
        }

    def write(self) -> None:
        """Replace the file by everything that is known, in one step."""
        if self.path is None:
            return
        with self._changing, Output(self.path, force=True) as output:
            write_json(output, self.document())

    def end_in_time(self, clock: Clock, places: Sequence[Place], say: Callable[[], None]) -> threading.Timer:
        """Let the process end when its time is up, whatever it is doing then.

        Args:
            clock: says when.
            places: what is to be measured: what is not by then is missing.
            say: prints what was measured.

        Returns:
            The timer, to be cancelled by a run that ends before.
        """

        def end() -> None:
            with self._changing:
                self.miss((place for place in places if not self.has(place)), "no time left")
                self.write()
                say()
                sys.stdout.flush()
                os._exit(0)  # the main thread may be inside a compiler that hears of nothing

        timer = threading.Timer(max(0.0, clock.left), end)
        timer.daemon = True
        timer.start()
        return timer

    def miss(self, places: Iterable[Place], reason: str) -> None:
        """Say why rows are missing, where nothing else is said already."""
        for place in places:
            self.missing.setdefault(str(place), reason)


def measure_all(
    places: Sequence[Place], record: Record, clock: Clock, measure: Callable[[Place], dict[str, Any]]
) -> None:
    """Measure what is not in the record yet, in order, each row written before the next is begun.

    Args:
        places: all of them, the most informative first.
        record: of this run and of earlier ones.
        clock: nothing is begun that took longer the last time, in the same mode, than there is time left.
        measure: returns the figures of one row, or raises :class:`CannotMeasure`.
    """
    last: dict[str, float] = {}  # the seconds of the last row of a mode
    for place in places:
        if record.has(place):
            continue
        if clock.left <= last.get(place.mode, 0.0):
            record.miss([place], "no time left")
            continue
        begun = time.perf_counter()
        try:
            figures = measure(place)
        except CannotMeasure as error:
            record.missing[str(place)] = str(error)
            continue
        record.add(place, figures)
        seconds = time.perf_counter() - begun
        last[place.mode] = seconds
        print(f"{place}: {seconds:.1f} s", file=sys.stderr, flush=True)
    record.write()


class CannotMeasure(Exception):
    """A row that cannot be measured, such as one whose model does not compile; the others can."""
