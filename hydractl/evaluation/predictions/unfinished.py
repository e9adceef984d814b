"""Stores the predictions of an unfinished run, so that the same command can be resumed.

The file has lines of JSON. The first line describes the run, ``{"schema": "hydractl.predict-part/1", "fingerprint":
{...}}``. Then comes one line for each window of samples with its predictions. If a run was killed while it wrote a
line, the incomplete line is dropped. Lines are read one after another, never all at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from hydractl.errors import InputError, OutputError
from hydractl.evaluation.predicting import Window
from hydractl.files.atomic import open_own, storing
from hydractl.jsonio import differences, parse_json

SCHEMA = "hydractl.predict-part/1"
_BEGIN_ANEW = "leave --resume out to begin anew"


class UnfinishedPredictions:
    """The file with the predictions of an unfinished run, open for appending windows.

    The caller must hold the lock of the output to which the file belongs.

    Args:
        path: the path of the file.
        fingerprint: all settings that decide the predictions, as a flat object of JSON values.
        resume: whether to continue an existing file; otherwise the file is emptied.

    Attributes:
        path: the path of the file.
        stop: the index of the first sample without a prediction; 0 if the file has no window yet.
        predicted: the number of samples with predictions.

    Raises:
        InputError: with ``resume``, if the file belongs to another run, or is broken before its last line.
        OutputError, StorageError: if the file cannot be written.
    """

    def __init__(self, path: Path, fingerprint: Mapping[str, object], *, resume: bool) -> None:
        """Open the file and read how far a stopped run came, or begin a new file with its first line."""
        self.path = path
        self.stop = 0
        self.predicted = 0
        with storing(path):  # turns errors of the file system into hydractl's errors
            if path.is_symlink():
                raise OutputError(f"the unfinished file is a symbolic link: {path}", hint="remove it")
            self._file: IO[bytes] = open(path, "a+b", opener=open_own)  # noqa: SIM115 - closed by close()
            try:
                complete_bytes = self._read_progress(fingerprint) if resume else 0
                self._file.truncate(complete_bytes)
                if not complete_bytes:
                    self._append({"schema": SCHEMA, "fingerprint": dict(fingerprint)})
            except BaseException:
                self._file.close()
                raise

    def append(self, window: Window) -> None:
        """Append one window to the file, and update ``stop`` and ``predicted``.

        Raises:
            StorageError, OutputError: if it cannot be written.
        """
        with storing(self.path):
            self._append(window._asdict())
        self.stop = window.stop
        self.predicted += len(window.rows)

    def close(self) -> None:
        """Close the file, and delete it if it has no predictions, as there is nothing to resume; again does nothing."""
        self._file.close()
        if not self.predicted:
            self.path.unlink(missing_ok=True)

    def _append(self, record: Mapping[str, object]) -> None:
        """Append one record as a line of JSON."""
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        self._file.write(text.encode("utf-8", "surrogateescape") + b"\n")
        self._file.flush()

    def _read_progress(self, fingerprint: Mapping[str, object]) -> int:
        """Read how far a stopped run came: set ``stop`` and ``predicted``.

        Args:
            fingerprint: the settings that the run must have had.

        Returns:
            The length of all complete lines in bytes; 0 means that there is nothing to continue.

        Raises:
            InputError: if the file belongs to another run, with all differences in the settings, or is broken before
                its last line.
        """
        self._file.seek(0)
        complete_bytes = 0
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):  # the run was killed while it wrote this line
                break
            record = parse_json(line, f"line {number} of {self.path}")
            keys = ("schema", "fingerprint") if number == 1 else Window._fields
            if not isinstance(record, dict) or set(record) != set(keys):
                raise self._other_file()
            # The first line describes the run, which must be this one; every other line is a window of predictions.
            if number == 1:
                stored_fingerprint = record["fingerprint"]
                if record["schema"] != SCHEMA or not isinstance(stored_fingerprint, dict):
                    raise self._other_file()
                problems = differences(stored_fingerprint, fingerprint, "in the file")
                if problems:
                    hint = f"give the settings it was begun with, or {_BEGIN_ANEW}"
                    raise InputError(f"{self.path} is of another run", hint=hint, problems=problems)
            elif type(record["stop"]) is not int or not isinstance(record["rows"], list):
                raise InputError(f"line {number} of {self.path} is broken", hint=_BEGIN_ANEW)
            else:
                self.stop = record["stop"]
                self.predicted += len(record["rows"])
            complete_bytes += len(line)
        return complete_bytes

    def _other_file(self) -> InputError:
        """Return the error for a file that this program has not written."""
        return InputError(f"{self.path} is no unfinished file of predict", hint=_BEGIN_ANEW)


def windows_in(path: Path) -> Iterator[Window]:
    """Yield the windows of a file without incomplete lines."""
    with storing(path), open(path, "rb", opener=open_own) as lines:
        next(lines, None)  # skip the first line, which describes the run
        for line in lines:
            record = json.loads(line)
            yield Window(record["stop"], record["rows"], record["skipped"])
