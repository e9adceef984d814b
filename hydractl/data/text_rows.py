"""Rows of ``.csv``, ``.tsv`` and ``.jsonl`` files, plain or gzipped, each with the line it starts at."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from hydractl.data.spec import Spec
from hydractl.errors import InputError, UsageError
from hydractl.jsonio import parse_json, shown

_BOM = "\ufeff"

# csv's own limit of 131,072 characters is a setting of the process; this is the largest it takes on every machine.
_LONGEST_FIELD = 2**31 - 1

# csv of Python 3.10 takes no NUL. Half a character stands in for it, as no text decoded from UTF-8 can hold one.
_NUL, _STAND_IN = "\0", "\udc00"


@dataclass
class Row:
    """One row as it was found.

    Attributes:
        place: where it is, as ``line 7``; counted from 1.
        values: by column; empty where there is a problem.
        problem: why the row cannot be read, a sentence that goes on after ``place``.
    """

    place: str
    values: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


@dataclass
class Table:
    """An opened file.

    Attributes:
        columns: the names of the columns in order; None where every row has names of its own.
        rows: reads on in the file.
    """

    columns: list[str] | None
    rows: Iterator[Row]


Numbered = Iterator["tuple[int, str]"]


def open_csv(spec: Spec) -> Table:
    """Comma-separated values: fields may be quoted, and quoted ones may hold line ends (RFC 4180)."""
    return _with_header(spec, _csv_fields(spec))


def open_tsv(spec: Spec) -> Table:
    """Tab-separated values: no quoting, every character but tab and line end is the text's own (as GLUE has them)."""
    return _with_header(spec, _tsv_fields(spec))


def open_jsonl(spec: Spec) -> Table:
    """One JSON object a line; blank lines are passed over."""
    return Table(None, _objects(spec))


def _objects(spec: Spec) -> Iterator[Row]:
    for number, line in _lines(spec):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            document = parse_json(line.rstrip("\r\n"), place)
        except InputError as error:
            # A line has no lines of its own to count.
            problem = error.message.removeprefix(f"{place} ").replace(" at line 1, column ", " at column ")
            yield Row(place, problem=problem)
            continue
        if isinstance(document, dict):
            yield Row(place, document)
        else:
            yield Row(place, problem=f"is no JSON object but {shown(document)}")


@dataclass
class _Fields:
    """The fields of one row, not yet named."""

    line: int
    fields: list[str]
    problem: str = ""


def _with_header(spec: Spec, found: Iterator[_Fields]) -> Table:
    """Name the fields by the first row, or by ``?columns=``."""
    if "columns" in spec.query:
        columns = [name.strip() for name in spec.query["columns"].split(",")]
        twice = sorted({name for name in columns if columns.count(name) > 1})
        if twice or not all(columns):
            what = f"{twice[0]!r} is given twice" if twice else "a name is empty"
            raise UsageError(f"{spec.where}: ?columns={spec.query['columns']}: {what}")
        return Table(columns, _named(spec, columns, found, headless=True))
    first = next(found, None)
    if first is None:
        return Table([], iter(()))
    if first.problem:
        raise InputError(f"{spec.where}: line {first.line} {first.problem}")
    # Spaces around a name are a matter of layout: "text, label" has the column "label".
    columns = [name.strip() for name in first.fields]
    return Table(columns, _named(spec, columns, found, headless=False))


def _named(spec: Spec, columns: Sequence[str], found: Iterator[_Fields], *, headless: bool) -> Iterator[Row]:
    for index, one in enumerate(found):
        place = f"line {one.line}"
        if one.problem:
            yield Row(place, problem=one.problem)
        elif len(one.fields) != len(columns):
            yield Row(place, problem=f"has {_count(len(one.fields))}, not {len(columns)} ({', '.join(columns)})")
        elif headless and index == 0 and [name.strip() for name in one.fields] == columns:
            raise InputError(f"{spec.where}: the file has a header, so ?columns= would make a sample of it")
        else:
            yield Row(place, dict(zip(columns, one.fields, strict=True)))


def _count(fields: int) -> str:
    return "1 field" if fields == 1 else f"{fields} fields"


def _tsv_fields(spec: Spec) -> Iterator[_Fields]:
    width = 0
    for number, line in _without_bom(_lines(spec)):
        line = line.removesuffix("\n").removesuffix("\r")
        # In a table of one column a blank line is an empty text.
        if line or width == 1:
            fields = line.split("\t")
            width = width or len(fields)
            yield _Fields(number, fields)


def _csv_fields(spec: Spec) -> Iterator[_Fields]:
    lines = (line.replace(_NUL, _STAND_IN) for _, line in _without_bom(_lines(spec)))
    reader = csv.reader(lines, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            with _long_fields():
                fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            reason = str(error)
            if reason == "unexpected end of data":
                reason = "it opens a quote that is never closed"
            yield _Fields(start, [], f"cannot be read as comma-separated values: {reason.partition(' - ')[0]}")
            return
        if fields:
            yield _Fields(start, [value.replace(_STAND_IN, _NUL) for value in fields])


@contextmanager
def _long_fields() -> Iterator[None]:
    """Fields of any length, for the time of one call: others in this process may rely on the limit."""
    before = csv.field_size_limit(_LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _without_bom(lines: Numbered) -> Numbered:
    """The byte order mark that spreadsheets write before the first line is no part of the first column's name."""
    for number, line in lines:
        yield number, line.removeprefix(_BOM) if number == 1 else line


def _lines(spec: Spec) -> Numbered:
    """Numbered lines with their ends. Lines end at a line feed and nowhere else.

    Raises:
        InputError: naming a file that cannot be read, or line and byte of what is no UTF-8.
    """
    path = Path(spec.path).expanduser()
    zipped = path.name.lower().endswith(".gz")
    opener: Callable[[Path, str], IO[bytes]] = gzip.open if zipped else open  # type: ignore[assignment]
    try:
        with opener(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                yield number, _decoded(spec, number, line)
    except (OSError, EOFError, zlib.error) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise InputError(f"{spec.where}: cannot read the file: {reason.splitlines()[0]}") from error


def _decoded(spec: Spec, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{spec.where}: line {number} is not UTF-8 text: byte {error.start + 1} of the line is "
            f"0x{line[error.start]:02x}",
            hint="save the file as UTF-8",
        ) from error


_ROWS_AT_A_TIME = 1024


class ParquetTable:
    """An opened Parquet file.

    Args:
        spec: the SPEC.

    Attributes:
        columns: the names of the columns in order.

    Raises:
        UsageError: where pyarrow is not installed.
        InputError: for a file that is no Parquet.
    """

    def __init__(self, spec: Spec) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise UsageError(
                f"{spec.where}: reading Parquet needs pyarrow, which is not installed",
                hint="pip install pyarrow",
            ) from error
        # pyarrow.lib.ArrowException is no base of all it raises: a missing file is an OSError, bad text a ValueError.
        self._errors = (pyarrow.lib.ArrowException, OSError, ValueError)
        self._spec = spec
        try:
            self._file: Any = pyarrow.parquet.ParquetFile(Path(spec.path).expanduser())
            self.columns: list[str] = list(self._file.schema_arrow.names)
        except self._errors as error:
            raise self._unreadable(error) from error

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """The rows with only these columns; nothing else is read."""
        number = 0
        try:
            for batch in self._file.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=list(columns)):
                values = {name: batch.column(name).to_pylist() for name in columns}
                for index in range(batch.num_rows):
                    number += 1
                    yield Row(f"row {number}", {name: values[name][index] for name in columns})
        except self._errors as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> InputError:
        if isinstance(error, UnicodeDecodeError):
            return InputError(f"{self._spec.where}: the file holds text that is not UTF-8: {error.reason}")
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return InputError(f"{self._spec.where}: cannot read the file: {reason}")
