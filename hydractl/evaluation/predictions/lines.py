"""Writes predictions with one line or row for each sample: ``.jsonl``, or ``.csv`` with a header."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from hydractl.files.atomic import Output

LineValue = str | int | float | None

FLAG = "is_ood"
"""An additional field, if there is a threshold."""
CUT = "cut"
"""An additional field of texts: whether the model does not read the end of it."""

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
            for row in rows:
                handle.write(json_line(row).encode("utf-8"))
    return output.commit()


def json_line(row: Mapping[str, object]) -> str:
    """Return a row as one line of JSON, including the line break."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def _write_csv(handle: IO[bytes], rows: Iterable[Mapping[str, object]]) -> None:
    """Write a header line with the names of the fields, then one line for each row; ``handle`` stays open."""
    writer = csv.writer(codecs.getwriter("utf-8")(handle), lineterminator="\n")
    for place, row in enumerate(rows):
        if place == 0:
            writer.writerow(row.keys())
        writer.writerow([_cell(value) for value in row.values()])


def _cell(value: Any) -> LineValue:
    """Return a value as it is safe in a CSV file that a spreadsheet may open.

    A list becomes JSON. A text that a spreadsheet would read as a formula gets a leading ``'``, and control characters
    are written like ``\\x07``. Source: OWASP, "CSV injection".
    """
    if isinstance(value, list):
        value = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, str):
        return value
    printable = value.translate(_CONTROLS)
    if value.startswith(_FORMULA):
        return "'" + printable
    return printable
