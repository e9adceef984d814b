"""Rows of ``.csv``, ``.tsv``, ``.jsonl`` (plain or gzipped) and ``.parquet`` files, each with the place it is at."""

from __future__ import annotations

import csv
import gzip
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from hydractl.data.base import Spec, reason
from hydractl.errors import InputError, UsageError, install_hint
from hydractl.jsonio import parse_json, shown

_BOM = "\ufeff"

# csv's own limit of 131,072 characters is a setting of the process; this is the largest it takes on every machine.
_LONGEST_FIELD = 2**31 - 1

_ROWS_AT_A_TIME = 1024


@dataclass
class TextRow:
    """One row of a file.

    Attributes:
        place: where it is, for messages: ``line 7``, counted from 1.
        values: by column; empty where there is a problem.
        problem: why the row cannot be read, a sentence that goes on after ``place``.
    """

    place: str
    values: Mapping[str, object] = field(default_factory=dict)
    problem: str = ""


@dataclass
class TextTable:
    """An opened file.

    Attributes:
        columns: the names of the columns in order; None where every row has names of its own.
        rows: yields the rows; it is given the columns that are needed, and may read others too.
        plain: whether every value is a text, whatever it stands for.
    """

    columns: list[str] | None
    rows: Callable[[Sequence[str]], Iterator[TextRow]]
    plain: bool = False


Fields = Iterator["tuple[str, list[str] | str]"]
"""For each row its place, and its fields or a text that says why it cannot be read."""


def open_table(spec: Spec, settings: Sequence[str]) -> TextTable:
    """Open a file of rows, of the kind its ending says.

    Comma-separated fields may be quoted, and quoted ones may hold line ends (RFC 4180). Tab-separated fields are never
    quoted: every character but tab and line end is the text's own (as GLUE has them). JSON has one object a line;
    blank lines are passed over. Of a Parquet file only the columns asked for are read.

    Args:
        spec: the SPEC.
        settings: those its query may have, and ``columns`` for a file that may lack a header.

    Raises:
        UsageError: for other settings, and for Parquet where pyarrow is not installed.
        InputError: for a header that cannot be read, or a file that is no Parquet.
    """
    name = spec.path.lower().removesuffix(".gz")
    if name.endswith((".csv", ".tsv")):
        spec.check_query([*settings, "columns"])
        if name.endswith(".csv"):
            return _table_with_header(spec, _csv_fields(spec))
        return _table_with_header(spec, _tsv_fields(spec))
    spec.check_query(settings)
    if name.endswith(".parquet"):
        return _open_parquet(spec)
    return TextTable(None, lambda _: _json_rows(spec))


def _json_rows(spec: Spec) -> Iterator[TextRow]:
    """Yield the rows of a file of one JSON object a line; a line that is none becomes a row with a problem."""
    for number, line in _numbered_lines(spec):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            document = parse_json(line.rstrip("\r\n"), place)
        except InputError as error:
            problem = error.message.removeprefix(f"{place} ")
            # A line has no lines of its own to count.
            problem = problem.replace(" at line 1, column ", " at column ")
            yield TextRow(place, problem=problem)
            continue
        if isinstance(document, dict):
            yield TextRow(place, document)
        else:
            yield TextRow(place, problem=f"is no JSON object but {shown(document)}")


def _table_with_header(spec: Spec, fields: Fields) -> TextTable:
    """Return the table of rows of fields; its columns are named by ``?columns=``, or else by the first row.

    Raises:
        UsageError: for ``?columns=`` with a name that is empty or there twice.
        InputError: for a first row that cannot be read.
    """
    if "columns" in spec.query:
        columns = _asked_columns(spec)
    else:
        empty_file: tuple[str, list[str] | str] = ("", [])
        place, header = next(fields, empty_file)
        if isinstance(header, str):
            raise InputError(f"{spec.where}: {place} {header}")
        # Spaces around a name are a matter of layout: "text, label" has the column "label".
        columns = [name.strip() for name in header]
    return TextTable(columns, lambda _: _rows_by_column(spec, columns, fields), plain=True)


def _asked_columns(spec: Spec) -> list[str]:
    """Return the names that ``?columns=`` gives.

    Raises:
        UsageError: for a name that is empty or there twice.
    """
    listed = spec.query["columns"]
    columns = [name.strip() for name in listed.split(",")]
    times_there = Counter(columns)
    for name in sorted(columns):
        if times_there[name] > 1:
            raise UsageError(f"{spec.where}: ?columns={listed}: {name!r} is given twice")
    if not all(columns):
        raise UsageError(f"{spec.where}: ?columns={listed}: a name is empty")
    return columns


def _rows_by_column(spec: Spec, columns: Sequence[str], rows: Fields) -> Iterator[TextRow]:
    """Yield the rows with their fields by column; a row with too many or too few fields has a problem instead.

    Raises:
        InputError: for a first row that is the header which ``?columns=`` says is not there.
    """
    for number, (place, fields) in enumerate(rows):
        if isinstance(fields, str):  # why the row cannot be read
            yield TextRow(place, problem=fields)
            continue
        if len(fields) != len(columns):
            yield TextRow(place, problem=_wrong_width(fields, columns))
            continue
        may_be_header = number == 0 and "columns" in spec.query
        if may_be_header and [name.strip() for name in fields] == columns:
            raise InputError(f"{spec.where}: the file has a header, so ?columns= would make a sample of it")
        values = dict(zip(columns, fields, strict=True))
        yield TextRow(place, values)


def _wrong_width(fields: Sequence[str], columns: Sequence[str]) -> str:
    """Return the problem of a row with more or fewer fields than there are columns."""
    count = f"{len(fields)} fields"
    if len(fields) == 1:
        count = "1 field"
    names = ", ".join(columns)
    return f"has {count}, not {len(columns)} ({names})"


def _tsv_fields(spec: Spec) -> Fields:
    """Yield the fields of the lines of a ``.tsv`` file; blank lines are passed over where rows have several fields."""
    width = 0  # fields of the first line that has some
    for number, line in _numbered_lines(spec, bom=True):
        content = line.removesuffix("\n").removesuffix("\r")
        # In a table of one column a blank line is an empty text.
        if not content and width != 1:
            continue
        fields = content.split("\t")
        if width == 0:
            width = len(fields)
        yield f"line {number}", fields


def _csv_fields(spec: Spec) -> Fields:
    """Yield the fields of the rows of a ``.csv`` file, one of which may go over several lines.

    Blank lines are passed over. The first row that cannot be read is the last: what follows it is in doubt.
    """
    lines = (line for _, line in _numbered_lines(spec, bom=True))
    reader = csv.reader(lines, strict=True)
    while True:
        place = f"line {reader.line_num + 1}"
        try:
            with _long_fields():
                fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            why = str(error).partition(" - ")[0]
            if why == "unexpected end of data":
                why = "it opens a quote that is never closed"
            yield place, f"cannot be read as comma-separated values: {why}"
            return
        if fields:
            yield place, fields


@contextmanager
def _long_fields() -> Iterator[None]:
    """Allow fields of any length for the time of one call: others in this process may rely on the limit."""
    before = csv.field_size_limit(_LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _numbered_lines(spec: Spec, *, bom: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file with their numbers and ends. Lines end at a line feed and nowhere else.

    Args:
        spec: of the file, which may be gzipped.
        bom: whether a byte order mark at the start is left out.

    Raises:
        InputError: for a file that cannot be read, or with line and byte of what is not UTF-8.
    """
    try:
        path = Path(os.path.expanduser(spec.path))
        with _open_unpacked(path) as file:
            for number, line in enumerate(file, start=1):
                text = line.decode("utf-8")
                if bom and number == 1:
                    text = text.removeprefix(_BOM)
                yield number, text
    except UnicodeDecodeError as error:
        value = line[error.start]
        raise InputError(
            f"{spec.where}: line {number} is not UTF-8 text: byte {error.start + 1} of the line is 0x{value:02x}",
            hint="save the file as UTF-8",
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{spec.where}: cannot read the file: {reason(error)}") from error


def _open_unpacked(path: Path) -> IO[bytes]:
    """Open a file for reading, unpacked if it is gzipped."""
    if path.suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return open(path, "rb")


def _open_parquet(spec: Spec) -> TextTable:
    """Open a Parquet file, whose columns are read as they are asked for.

    Raises:
        UsageError: where pyarrow is not installed.
        InputError: for a file that cannot be read.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            f"{spec.where}: reading Parquet needs pyarrow, which is not installed", hint=install_hint("pyarrow")
        ) from error
    # pyarrow.lib.ArrowException is no base of all it raises: a missing file is an OSError, bad text a ValueError.
    errors = (pyarrow.lib.ArrowException, OSError, ValueError)

    @contextmanager
    def errors_of_reading() -> Iterator[None]:
        """Raise what pyarrow raises as an error of input."""
        try:
            yield
        except UnicodeDecodeError as error:
            raise InputError(f"{spec.where}: the file holds text that is not UTF-8: {error.reason}") from error
        except errors as error:
            raise InputError(f"{spec.where}: cannot read the file: {reason(error)}") from error

    path = Path(os.path.expanduser(spec.path))
    with errors_of_reading():
        file: Any = pyarrow.parquet.ParquetFile(path)
        columns_of_file: list[str] = list(file.schema_arrow.names)

    def rows(columns: Sequence[str]) -> Iterator[TextRow]:
        """Yield the rows, each with its number from 1, a batch of them in memory at a time."""
        number = 0
        with errors_of_reading():
            for batch in file.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=list(columns)):
                for values in batch.to_pylist():
                    number += 1
                    yield TextRow(f"row {number}", values)

    return TextTable(columns_of_file, rows)
