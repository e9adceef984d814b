"""Writes predictions with one line or row for each sample, and keeps those of an unfinished run to resume it.

What is written is ``.jsonl``, or ``.csv`` with a header. The unfinished file has lines of JSON. The first line has the
settings of the run, ``{"schema": "hydractl.predict-part/2", "model": ...}``. Then comes one line for each window of
samples with its predictions. If a run was killed while it wrote a line, the incomplete line is dropped. Lines are read
one after another, never all at once.
"""

from __future__ import annotations

import codecs
import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from hydractl.errors import InputError
from hydractl.evaluation.predicting import Window
from hydractl.files.atomic import Output, open_own, storing
from hydractl.jsonio import differences, parse_json
from hydractl.log import Log

SCHEMA = "hydractl.predict-part/2"
_BEGIN_ANEW = "leave --resume out to begin anew"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


def write_rows(output: Output, rows: Iterable[Mapping[str, object]]) -> Path:
    """Write rows one after another and commit the file: as CSV if it has such an ending, otherwise as JSON lines.

    Args:
        output: the file.
        rows: for each sample the values of its fields, by name. All rows have the same fields in the same order, which
            are the columns of a CSV.
    """
    with output.opened() as handle:
        if output.path.suffix.lower() == ".csv":
            _write_csv(handle, rows)
        else:
            handle.writelines(map(json_line, rows))
    return output.commit()


def json_line(record: Mapping[str, object]) -> bytes:
    """Return an object as one line of JSON, including the line break."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogateescape") + b"\n"


def _write_csv(handle: IO[bytes], rows: Iterable[Mapping[str, object]]) -> None:
    """Write a header line with the names of the fields, then one line for each row; ``handle`` stays open.

    All rows have the same fields. Nothing is written without rows.
    """
    text_handle = codecs.getwriter("utf-8")(handle)
    writer = csv.writer(text_handle, lineterminator="\n")
    for index, row in enumerate(rows):
        if index == 0:
            writer.writerow(row)  # the keys of the mapping
        writer.writerow(map(_cell, row.values()))


def _cell(value: Any) -> Any:
    """Return a value as it is safe in a CSV file that a spreadsheet may open.

    A list becomes JSON. A text that a spreadsheet would read as a formula gets a leading ``'``, and control characters
    are written like ``\\x07``. Source: OWASP, "CSV injection".
    """
    if isinstance(value, list):
        value = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, str):
        return value
    printable = value.translate(_CONTROLS)
    return f"'{printable}" if value.startswith(_FORMULA) else printable


# --- unfinished runs --------------------------------------------------------------------------------------------------


def log_what_resumes(output: Output, log: Log, *, resume: bool) -> None:
    """Say that there is nothing to resume, or that an unfinished file is not resumed."""
    exists = output.unfinished.exists()
    if resume and not exists:
        log.info(f"nothing to resume: {output.path} is begun")
    elif exists and not resume:
        log.info(f"an unfinished {output.unfinished} is begun anew; --resume would have gone on with it")


def continued(
    path: Path, fingerprint: Mapping[str, object], predict: Callable[[int], Iterator[Window]], *, resume: bool
) -> Iterator[Window]:
    """Yield the windows that a file holds, then those that a function predicts, each after it was appended to the file.

    The caller must hold the lock of the output to which the file belongs. A file without any window is removed.

    Args:
        path: the file.
        fingerprint: all settings that decide the predictions, as a flat object of JSON values.
        predict: returns the windows from the index of a sample on.
        resume: whether to continue an existing file; otherwise it is emptied.

    Raises:
        InputError: with ``resume``, if the file belongs to another run, or is broken before its last line.
        OutputError, StorageError: if the file cannot be written.
    """
    with storing(path):
        file = open(path, "a+b", opener=open_own)  # noqa: SIM115 - closed by the next block
    with file:
        settings = {"schema": SCHEMA, **fingerprint}

        # What a stopped run has predicted.
        stop = 0  # the index of the first sample without a prediction
        complete_bytes = 0  # of all complete lines
        file.seek(0)
        for number, line in enumerate(file if resume else (), start=1):
            if not line.endswith(b"\n"):  # the run was killed while it wrote this line
                break
            record = parse_json(line, f"line {number} of {path}")
            if not isinstance(record, dict) or (number > 1 and set(record) != set(Window._fields)):
                raise InputError(f"line {number} of {path} is broken", hint=_BEGIN_ANEW)
            if number == 1:
                problems = differences(record, settings, "in the file")
                if problems:
                    hint = f"give the settings it was begun with, or {_BEGIN_ANEW}"
                    raise InputError(f"{path} is of another run", hint=hint, problems=problems)
            else:
                window = Window(**record)
                stop = window.stop
                yield window
            complete_bytes += len(line)

        # All other windows. The first line of a new file is written with its first window.
        with storing(path):
            file.truncate(complete_bytes)
        lines = b"" if complete_bytes else json_line(settings)
        try:
            for window in predict(stop):
                with storing(path):
                    file.write(lines + json_line(window._asdict()))
                    file.flush()
                lines = b""
                yield window
        finally:
            if not os.fstat(file.fileno()).st_size:
                path.unlink(missing_ok=True)
