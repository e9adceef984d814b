"""The predictions that an unfinished run has made, so that the same command goes on where it was stopped.

A file of JSON lines. The first says what run it is, ``{"schema": "hydractl.predict-part/1", "fingerprint": {...}}``;
then one line for each window of samples, with all that was predicted of them. Whatever of a line a kill left is
dropped. The lines are read one after another, never all at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from hydractl.errors import InputError, OutputError
from hydractl.evaluation.predicting import Window
from hydractl.files.atomic import open_own, storing
from hydractl.jsonio import differences, parse_json

SCHEMA = "hydractl.predict-part/1"
_BEGIN_ANEW = "leave --resume out to begin anew"


class UnfinishedPredictions:
    """The file of an unfinished run, for appending to it.

    Whoever opens it holds the lock of the output that it belongs to.

    Args:
        path: the path of the file.
        fingerprint: everything that decides the predictions: a flat object of JSON values.
        resume: whether to go on with the file that is there.

    Attributes:
        stop: the first sample of which there is no prediction yet; None where there is none at all.
        predicted: how many samples there are predictions of.

    Raises:
        InputError: with ``resume``, the file is of another run, or broken elsewhere than at its end.
        OutputError, StorageError: it cannot be written.
    """

    def __init__(self, path: Path, fingerprint: Mapping[str, object], *, resume: bool) -> None:
        self.path = path
        self.stop: int | None = None
        self.predicted = 0
        with storing(path):
            if path.is_symlink():
                raise OutputError(f"the unfinished file is a symbolic link: {path}", hint="remove it")
            self._file: IO[bytes] = open(path, "a+b", opener=open_own)  # noqa: SIM115 - closed by close()
            try:
                goes_on = resume and self._read_progress(fingerprint)
                if not goes_on:
                    self._file.truncate(0)
                    self._append({"schema": SCHEMA, "fingerprint": dict(fingerprint)})
            except BaseException:
                self._file.close()
                raise

    def append(self, window: Window) -> None:
        """Write one window.

        Raises:
            StorageError, OutputError: it cannot be written.
        """
        with storing(self.path):
            self._append(window._asdict())
        self.stop = window.stop
        self.predicted += len(window.rows)

    def close(self) -> None:
        """Close the file, which stays; closing again is safe."""
        self._file.close()

    def _append(self, record: Mapping[str, object]) -> None:
        """Write one record as a line of JSON."""
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        self._file.write(text.encode("utf-8", "surrogateescape") + b"\n")
        self._file.flush()

    def _read_progress(self, fingerprint: Mapping[str, object]) -> bool:
        """Read how far the stopped run came, and cut off a line that is half-written.

        Sets ``stop`` and ``predicted``, and leaves the file where the next line goes.

        Returns:
            Whether there was a run: at least its first line is whole.

        Raises:
            InputError: the file is of another run, or broken elsewhere than at its end.
        """
        self._file.seek(0)
        whole_bytes = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):  # a kill left half of it
                break
            if number == 1:
                self._check_same_run(line, fingerprint)
            else:
                window = self._parsed_window(line, number)
                self.stop = window.stop
                self.predicted += len(window.rows)
            whole_bytes += len(line)
        self._file.truncate(whole_bytes)
        return whole_bytes > 0

    def _parsed_object(self, line: bytes, number: int, keys: Collection[str]) -> dict[str, object]:
        """Return one line as an object with just these keys; ``number`` names the line in messages.

        Raises:
            InputError: it is none.
        """
        record = parse_json(line, f"line {number} of {self.path}")
        if not isinstance(record, dict) or set(record) != set(keys):
            raise InputError(f"{self.path} is no unfinished file of predict", hint=_BEGIN_ANEW)
        return record

    def _parsed_window(self, line: bytes, number: int) -> Window:
        """Return the window of samples that a line holds.

        Raises:
            InputError: the line holds none.
        """
        record = self._parsed_object(line, number, Window._fields)
        if type(record["stop"]) is not int or not isinstance(record["rows"], list):
            raise InputError(f"line {number} of {self.path} is broken", hint=_BEGIN_ANEW)
        return Window(**record)  # type: ignore[arg-type]  # its rows are what this program wrote

    def _check_same_run(self, line: bytes, fingerprint: Mapping[str, object]) -> None:
        """Refuse the file of another run, by its first line.

        Raises:
            InputError: listing every difference.
        """
        record = self._parsed_object(line, 1, ("schema", "fingerprint"))
        stored = record["fingerprint"]
        if record["schema"] != SCHEMA or not isinstance(stored, dict):
            raise InputError(f"{self.path} is no unfinished file of predict", hint=_BEGIN_ANEW)
        problems = differences(stored, fingerprint, "in the file")
        if problems:
            hint = f"give the settings it was begun with, or {_BEGIN_ANEW}"
            raise InputError(f"{self.path} is of another run", hint=hint, problems=problems)


def windows_in(paths: Iterable[Path]) -> Iterator[Window]:
    """Yield the windows of whole unfinished files, one file after another."""
    for path in paths:
        with storing(path), open(path, "rb", opener=open_own) as lines:
            next(lines, None)  # the header
            for line in lines:
                record = json.loads(line)
                yield Window(record["stop"], record["rows"], record["skipped"])


def unfinished_path(target: Path) -> Path:
    """Return where the unfinished predictions of an output are."""
    return target.with_name(f"{os.path.basename(target)}.part")
