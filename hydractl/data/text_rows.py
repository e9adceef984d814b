"""Rows of ``.csv``, ``.tsv``, ``.jsonl`` (plain or gzipped) and ``.parquet`` files, each with its position there."""

from __future__ import annotations

import csv
import gzip
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from hydractl.data.base import reason
from hydractl.data.labels import similar_names, some
from hydractl.data.names import class_label_names
from hydractl.errors import InputError, UsageError, install_hint
from hydractl.expressions.data_sets import DataSpec
from hydractl.jsonio import parse_json, shown

_GZIP = b"\x1f\x8b"
_BOM = "\ufeff"

_LONGEST_LINE = 1 << 26
"""The most bytes of a line, and of a field that goes over several: a file of zeros is a single line."""

_ROWS_AT_A_TIME = 1024


@dataclass
class TextRow:
    """One row of a file.

    Attributes:
        place: the position of the row in the file, for messages: ``line 7``, counted from 1.
        values: the values by column; empty if there is a problem.
        problem: why the row cannot be read, as the end of a sentence that begins with ``place``.
    """

    place: str
    values: Mapping[str, object] = field(default_factory=dict)
    problem: str = ""

    def text_in(self, column: str, hint: str = "") -> str:
        """Return the text that the row has in a column.

        Raises:
            ValueError: if there is nothing in the column (the message then ends with ``hint``), or no text. The message
                is the end of a sentence about the row.
        """
        value = self.values.get(column)
        if value is None:
            raise ValueError(f"has no {column!r}{hint}")
        if not isinstance(value, str):
            raise ValueError(f"has {shown(value)} for {column!r}, which is no text")
        return value


@dataclass
class TextTable:
    """An open file of rows.

    Attributes:
        columns: the names of the columns in order; None if every row has keys of its own.
        rows: a function that yields the rows. Its argument lists the needed columns; it may return other columns, too.
        plain: whether the file stores every value as text, even numbers.
        class_names: the names that the integers of a column index, by column; only for columns that declare some.
    """

    columns: list[str] | None
    rows: Callable[[Sequence[str]], Iterator[TextRow]]
    plain: bool = False
    class_names: Mapping[str, list[str]] = field(default_factory=dict)


Fields = Iterator["tuple[str, list[str] | str]"]
"""For each row its position, and either its fields or a text that says why it cannot be read."""


def open_table(spec: DataSpec, settings: Sequence[str]) -> TextTable:
    """Return a file of rows as a table whose rows are read later. Its ending says which kind of file it is.

    Comma-separated fields may be quoted, and quoted fields may contain line ends (RFC 4180). Tab-separated fields are
    never quoted: every character except tab and line end belongs to the text (as in GLUE's files). JSON files have one
    object per line; blank lines are skipped. From a Parquet file only the needed columns are read.

    Args:
        spec: the SPEC of the file.
        settings: the settings that the query may have.

    Raises:
        UsageError: for other settings, and for Parquet if pyarrow is not installed.
        InputError: if a header cannot be read, or a file is no Parquet.
    """
    spec.check_query(settings)
    name = spec.path.lower().removesuffix(".gz")
    if name.endswith(".csv"):
        return _table_with_header(spec, _csv_fields(spec))
    if name.endswith(".tsv"):
        return _table_with_header(spec, _tsv_fields(spec))
    if name.endswith(".parquet"):
        return _open_parquet(spec)
    return TextTable(None, lambda _: _json_rows(spec))


def _json_rows(spec: DataSpec) -> Iterator[TextRow]:
    """Yield the rows of a file with one JSON object per line.

    - a blank line is skipped;
    - a line that is no JSON becomes a row with a problem, and so does JSON that is no object;
    - an object becomes a row with its keys and values.

    A problem is the end of a sentence that begins with the place of the row, e.g. ``line 7``.
    """
    for number, line in numbered_lines(spec):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            document = parse_json(line.rstrip("\r\n"), place)
        except InputError as error:
            without_place = error.message.removeprefix(f"{place} ")
            # The parser saw a single line, so its line number is always 1 and would mislead.
            problem = without_place.replace(" at line 1, column ", " at column ")
            yield TextRow(place, problem=problem)
            continue
        if isinstance(document, dict):
            yield TextRow(place, document)
        else:
            yield TextRow(place, problem=f"is no JSON object but {shown(document)}")


def _table_with_header(spec: DataSpec, fields: Fields) -> TextTable:
    """Return a table of a .csv or .tsv file, whose first row names the columns. Only that row is read now.

    Args:
        spec: the SPEC of the file, the text that names the data set.
        fields: yields the place and the fields of each row, or the place and the reason why it cannot be read.

    Raises:
        InputError: if the first row cannot be read.
    """
    # An empty file has no first row, and then no columns.
    empty_file: tuple[str, list[str] | str] = ("", [])
    place, header = next(fields, empty_file)
    if isinstance(header, str):  # the reason why the row cannot be read
        raise InputError(f"{spec.where}: {place} {header}")
    # Spaces around a name are only layout: the header "text, label" names a column "label".
    columns = [name.strip() for name in header]
    return TextTable(columns, lambda _: _rows_by_column(columns, fields), plain=True)


def _rows_by_column(columns: Sequence[str], rows: Fields) -> Iterator[TextRow]:
    """Yield the rows with their fields by column. A row with too many or too few fields gets a problem instead.

    Args:
        columns: the names of the columns.
        rows: the place and the fields of each row, or the place and the reason why it cannot be read.
    """
    for place, fields in rows:
        if isinstance(fields, str):  # the reason why the row cannot be read
            yield TextRow(place, problem=fields)
        elif len(fields) != len(columns):
            count = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
            names = ", ".join(columns)
            yield TextRow(place, problem=f"has {count}, not {len(columns)} ({names})")
        else:
            yield TextRow(place, dict(zip(columns, fields, strict=True)))


def _tsv_fields(spec: DataSpec) -> Fields:
    """Yield the fields of each line of a ``.tsv`` file. Blank lines are skipped if the table has several columns."""
    width = 0  # the number of fields in the first line that is not blank
    for number, line in numbered_lines(spec, bom=True):
        content = line.removesuffix("\n").removesuffix("\r")
        # In a table with one column a blank line is an empty text.
        if not content and width != 1:
            continue
        fields = content.split("\t")
        if width == 0:
            width = len(fields)
        yield f"line {number}", fields


def _csv_fields(spec: DataSpec) -> Fields:
    """Yield the place (``line 7``) and the fields of each row of a ``.csv`` file; a row may span several lines.

    For a row that cannot be read, a text that says why takes the place of the fields. Blank lines are skipped. Reading
    ends at the first row that cannot be read, because what follows is uncertain.
    """
    csv.field_size_limit(_LONGEST_LINE)  # of this process; 131,072 characters before
    lines = (line for _, line in numbered_lines(spec, bom=True))
    reader = csv.reader(lines, strict=True)

    # Fetch row after row by hand, because the reader raises its errors from next().
    while True:
        place = f"line {reader.line_num + 1}"
        try:
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


def numbered_lines(spec: DataSpec, *, bom: bool = False) -> Iterator[tuple[int, str]]:
    """Yield each line of a file with its number. The text keeps its line end; only a line feed ends a line.

    Args:
        spec: the SPEC of the file, which may be gzipped.
        bom: whether to remove a byte order mark at the start.

    Raises:
        InputError: if the file cannot be read, has a line of more than 64 MiB, or is not UTF-8 (with line and
            byte of the first error).
    """
    try:
        path = spec.file
        with _open_unpacked(path) as file:
            # readline returns one byte more than the limit of a line that is too long, and b"" at the end of the file.
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), b""), start=1):
                if len(line) > _LONGEST_LINE:
                    raise InputError(f"{spec.where}: line {number} has more than {_LONGEST_LINE >> 20} MiB")
                text = line.decode("utf-8")
                if bom and number == 1:
                    text = text.removeprefix(_BOM)
                yield number, text
    except UnicodeDecodeError as error:  # of the last `line`, which was number `number`
        value = line[error.start]
        is_packed = number == 1 and line.startswith(_GZIP)
        raise InputError(
            f"{spec.where}: line {number} is not UTF-8 text: byte {error.start + 1} of the line is 0x{value:02x}",
            hint="it is packed by gzip: end its name in .gz" if is_packed else "save the file as UTF-8",
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{spec.where}: cannot read the file: {reason(error)}") from error


def _open_unpacked(path: Path) -> IO[bytes]:
    """Open a file for reading; a gzipped file is unpacked while it is read."""
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else open(path, "rb")


@contextmanager
def parquet_errors(where: str) -> Iterator[None]:
    """Turn the errors of pyarrow into errors of input."""
    import pyarrow

    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: the file holds text that is not UTF-8: {error.reason}") from error
    # Not only ArrowException: a missing file gives an OSError, and bad text a ValueError.
    except (pyarrow.lib.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{where}: cannot read the file: {reason(error)}") from error


def _open_parquet(spec: DataSpec) -> TextTable:
    """Open a Parquet file. Its rows are read later, and only the columns asked for.

    Raises:
        UsageError: if pyarrow is not installed.
        InputError: if the file cannot be read.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            f"{spec.where}: reading Parquet needs pyarrow, which is not installed", hint=install_hint("pyarrow")
        ) from error

    path = spec.file
    with parquet_errors(spec.where):
        file: Any = pyarrow.parquet.ParquetFile(path)
        schema: Any = file.schema_arrow

    def rows(columns: Sequence[str]) -> Iterator[TextRow]:
        """Yield the rows with their numbers from 1. Only one batch of rows is in memory at a time."""
        number = 0
        with parquet_errors(spec.where):
            for batch in file.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=list(columns)):
                for values in batch.to_pylist():
                    number += 1
                    yield TextRow(f"row {number}", values)

    return TextTable(list(schema.names), rows, class_names=class_label_names(schema.metadata))


# --- columns ----------------------------------------------------------------------------------------------------------

# A damaged file may seem to have thousands of columns, or names of thousands of characters.
MOST_COLUMNS_SHOWN = 20
_LONGEST_NAME_SHOWN = 40

_MOST_PROBLEMS = 20
"""Reading stops after this many broken rows, because the rest of such a file tells nothing new."""

_SEPARATED = {
    "\t": "name it FILE.tsv",
    ";": "write it with commas: pandas.read_csv(FILE, sep=';').to_csv(OUT, index=False)",
    "|": "write it with commas: pandas.read_csv(FILE, sep='|').to_csv(OUT, index=False)",
    ",": "name it FILE.csv",
}
"""What to do with a .csv or .tsv file whose columns are separated by something else."""


_MAY_LACK = ("text_b", "label")
"""The settings whose columns a file need not have."""


def choose_columns(
    spec: DataSpec, names: Mapping[str, Sequence[str]], available: Sequence[str], what: str = "column"
) -> dict[str, str]:
    """Choose the columns to read, by the settings of a SPEC, or else by their known names.

    Args:
        spec: the SPEC, whose settings may name columns.
        names: the known names of each column, by the setting that names it: ``{"text": ["sentence", "review"]}``
            takes a column ``sentence`` or ``review`` for the text, unless the SPEC has ``?text=NAME``.
        available: the columns of the file, or the keys of its first row.
        what: how messages call a column: ``column``, or ``key`` for rows that have keys of their own.

    Returns:
        The name of each column by its setting; those that a file need not have may be left out.

    Raises:
        InputError: if a column is missing, occurs twice or is ambiguous; the message names the available columns.
    """
    # The columns that the SPEC asks for must exist.
    columns = {key: spec.query[key] for key in names if key in spec.query}
    it_has = f"it has {_shown_columns(available)}"
    missing = {key: name for key, name in columns.items() if name not in available}
    if missing:
        listed = " and ".join(f"?{key}={name}" for key, name in missing.items())
        near = _hint_at_similar(missing.values(), available)
        raise InputError(f"{spec.where}: no {what} for {listed}: {it_has}", hint=near)

    # A column that the SPEC does not name: the only one with a known name. With several, nothing tells which one.
    for key, known in names.items():
        candidates = [name for name in known if name in available]
        if key in columns:
            continue
        if len(candidates) > 1:
            named = " and ".join(map(repr, candidates))
            message = f"{spec.where}: {named} may both be the {key}: {it_has}"
            raise InputError(message, hint=f"say which {what} with ?{key}=NAME")
        if candidates:
            columns[key] = candidates[0]
        elif key not in _MAY_LACK:
            hint = _hint_at_missing(key, names, available, what)
            raise InputError(f"{spec.where}: no {what} of the {key}: {it_has}", hint=hint)

    # No column may be there twice, or be taken for two things.
    taken = list(columns.values())
    for name in taken:
        if taken.count(name) > 1 or available.count(name) > 1:
            raise InputError(f"{spec.where}: the {what} {name!r} is there twice, or taken for two things: {it_has}")
    return columns


def _hint_at_missing(key: str, names: Mapping[str, Sequence[str]], available: Sequence[str], what: str) -> str:
    """Return the hint of an error that no column can be taken for ``key``, e.g. ``name the column with ?text=NAME``.

    Args:
        key: the setting that would name the column.
        names: the known names of each column, by its setting.
        available: the columns of the file, or the keys of its first row.
        what: ``column`` or ``key``, as messages call them.
    """
    # A single column that contains a semicolon or the like was probably separated in another way.
    if len(available) == 1:
        for mark, way_out in _SEPARATED.items():
            if mark in available[0]:
                return f"its columns are separated by {mark!r}: {way_out}"
    hints = [f"name the {what} with ?{key}=NAME"]
    near = _hint_at_similar(names[key], available)
    if near is not None:
        hints.insert(0, near)
    if what == "column":
        hints.append("a file without a header needs one as its first line")
    return "; ".join(hints)


def _shown_columns(names: Sequence[str]) -> str:
    """Return the names of columns for a message: the first few, with long ones cut."""
    shortened = [repr(name[:_LONGEST_NAME_SHOWN]) for name in names]
    return some(shortened, MOST_COLUMNS_SHOWN)


def _hint_at_similar(wanted: Iterable[str], available: Sequence[str]) -> str | None:
    """Return a hint at available names that are similar to the wanted ones; None if there are none."""
    similar = similar_names(wanted, available).values()
    if not similar:
        return None
    return f"near: {', '.join(dict.fromkeys(map(repr, similar)))}"  # each once, though several may resemble it


# --- reading the rows -------------------------------------------------------------------------------------------------


def read_rows(
    spec: DataSpec,
    table: TextTable,
    names: Mapping[str, Sequence[str]],
    add: Callable[[TextRow, Mapping[str, str]], None],
    limit: int | None,
) -> None:
    """Call ``add`` with each of the first ``limit`` rows of a table, and with the name of each needed column.

    The columns of a .csv, .tsv or Parquet file are chosen before reading. The rows of a JSON file have keys instead,
    and those of its first readable row are taken for the columns.

    Args:
        spec: the SPEC of the file, whose settings may name columns.
        table: the table.
        names: the known names of each column, by the setting that names it; see :func:`choose_columns`.
        add: takes a row and the columns; it raises a ValueError, the end of a sentence, for one that cannot be used.
        limit: how many rows are read; None means all.

    Raises:
        InputError: if columns are missing, or rows are broken (all are listed).
    """
    columns = None  # the name of each column by its setting, e.g. {"text": "sentence"}; None until they are chosen
    needed: list[str] = []  # for a JSON file it stays empty, and rows have all their keys
    if table.columns:
        columns = choose_columns(spec, names, table.columns)
        needed = [name for name in table.columns if name in columns.values()]
    problems = []
    for row in itertools.islice(table.rows(needed), limit):
        problem = row.problem
        if not problem:
            if columns is None:
                columns = choose_columns(spec, names, list(row.values), "key")
            try:
                add(row, columns)
                continue
            except ValueError as error:
                problem = str(error)

        # Collect what is wrong with the row, and stop if too many rows are broken.
        problems.append(f"{row.place} {problem}")
        if len(problems) == _MOST_PROBLEMS:
            break
    refuse_rows(spec, problems)


def refuse_rows(spec: DataSpec, problems: Sequence[str], hint: str | None = None) -> None:
    """Raise an error that lists the rows that cannot be used, one line for each, if there are any."""
    if problems:
        count = f"{len(problems)} or more" if len(problems) == _MOST_PROBLEMS else len(problems)
        raise InputError(f"{spec.where}: rows that cannot be used: {count}", hint=hint, problems=problems)
