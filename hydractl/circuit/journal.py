"""The journal of a search: one line for each measurement, so that a search that was killed can be resumed.

A journal is a file of JSON lines. The first line is the header, which says what search it is: ``{"schema":
"hydractl.journal/3", "fingerprint": {...}, "environment": {...}, "crc": ...}``. Then follows one object per line, in
the order in which the search appends them, and at most one ``{"order": ..., "crc": ...}``. The last key of every line
is a checksum of what stands before it, so that no damaged number becomes a result. If several processes search
together, the first one alone has a journal.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from hydractl.errors import HydraError, InputError, OutputError
from hydractl.files.atomic import make_folder, open_locked, storage_error, sync_folder
from hydractl.jsonio import differences, parse_json
from hydractl.log import Log

JOURNAL_SCHEMA = "hydractl.journal/3"
ORDER_KEY = "order"
_CHECKSUM_KEY = "crc"
HOW_TO_START_OVER = "start over with --force and without --resume"
FIRST_BYTES = json.dumps({"schema": JOURNAL_SCHEMA}).removesuffix("}").encode()
"""The bytes that every journal begins with: they tell a header that was cut short from a file of another program."""
_FIRST_BYTES_OF_ANY = b'{"schema": "hydractl.journal/'
"""The bytes that journals of all versions begin with."""

Record = Mapping[str, Any]
"""A JSON object of a line:

* ``base``: the counts of the model before the first removal, with the fields of :class:`EvaluationCounts`.
* ``of`` (the objective), ``step``, and the fields of :class:`Trial`: a candidate that was evaluated.
* ``removed`` (the objective), ``step``, and the fields of :class:`Trial`: a removal.
"""


class Journal:
    """An open journal, locked against other processes until it is closed.

    Every line reaches the file in one write, so that a kill loses at most the line being written; :meth:`sync` guards
    against the loss of power. A journal that this process began and never appended to is removed when it is closed.

    Attributes:
        records: the records that were found at opening, in their order.
        order: the value that :meth:`set_order` stored, in this run or in the run that is resumed; None before that.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        """Use :meth:`open`."""
        self.path = path
        self.records: list[Record] = []
        self.order: Any = None
        self._file = file
        self._begun_here = not self._size_in_bytes()
        self._appended = False

    @classmethod
    def open(
        cls,
        path: Path,
        fingerprint: Mapping[str, object],
        environment: Mapping[str, object],
        *,
        resume: bool,
        force: bool,
        log: Log,
    ) -> Journal:
        """Begin a new journal, or go on with an existing one.

        Args:
            path: the file.
            fingerprint: the settings that decide the result, a flat object of JSON values. Recorded measurements are
                used again only if all these values are equal.
            environment: values that may change rounding, e.g. versions; if they differ, the log warns.
            resume: go on with the recorded search; if none is recorded, begin a new one and log that. If ``resume`` is
                set, ``force`` is ignored here (it then concerns other outputs).
            force: discard a recorded search and start over.
            log: receives the differences and the dropped line.

        Returns:
            The journal, open for appending, with the records that were found.

        Raises:
            OutputError: another process is writing the file; a search is recorded and neither ``resume`` nor
                ``force`` is set; the file cannot be created.
            InputError: on resuming, a file of another search, or a file that is broken before its last line.
            StorageError: no space.
        """
        header = {"schema": JOURNAL_SCHEMA, "fingerprint": dict(fingerprint), "environment": dict(environment)}
        header_line = _json_line(header)
        journal = cls(path, _open_locked(path))
        try:
            kept_bytes = 0
            if resume:
                # Parse the header line back, since JSON changes some values: tuples become lists, and characters that
                # cannot be encoded become "?". Only then can it be compared with a recorded header.
                kept_bytes = journal._read_search(json.loads(header_line), log)
            elif not force:
                check_free(path)

            # Cut off a half-written last line, or all of an older search (kept_bytes is 0 then). Without --resume and
            # --force, check_free() has refused a file that is not empty.
            journal._file.truncate(kept_bytes)
            if not kept_bytes:
                # The file of a new journal is to survive a loss of power.
                journal._begun_here = True
                journal._write_line(header_line)
                journal.sync()
                sync_folder(journal.path.parent)
        except BaseException as error:
            # Report the first error: an error raised while closing would hide it.
            with contextlib.suppress(HydraError):
                journal.close()
            if isinstance(error, OSError):
                raise storage_error(error, path) from error
            raise
        return journal

    def append(self, record: Mapping[str, object]) -> None:
        """Write one record, which must not have the key ``order``; see :meth:`set_order`.

        Raises:
            StorageError, OutputError: the record cannot be written; the file then ends with the record before it.
        """
        self._write_line(_json_line(record))
        self._appended = True

    def set_order(self, order: Any) -> None:
        """Store once, and durably, a JSON value that is known after the first measurement: the order of samples."""
        self.append({ORDER_KEY: order})
        self.sync()
        self.order = order

    def sync(self) -> None:
        """Flush to the disk.

        Raises:
            StorageError, OutputError: the disk does not accept the data.
        """
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise storage_error(error, self.path) from error

    def close(self) -> None:
        """Flush and unlock; remove a journal that holds nothing but its header. Closing again is safe."""
        if self._file.closed:
            return
        holds_nothing = self._begun_here and not self._appended
        try:
            if holds_nothing:
                with contextlib.suppress(OSError):  # a header that stays behind does no harm
                    self.path.unlink()
            else:
                self.sync()
        finally:
            with contextlib.suppress(OSError):  # everything is on the disk already, or `sync` has raised
                self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_line(self, line: bytes) -> None:
        """Write a whole line, or nothing.

        Raises:
            StorageError, OutputError: the disk does not take the line; the file ends as it did before.
        """
        size_before = self._size_in_bytes()
        try:
            written = self._file.write(line)
            while written < len(line):  # the disk is nearly full: the next write takes the rest, or raises
                written += self._file.write(line[written:])
        except OSError as error:
            with contextlib.suppress(OSError):  # a half-written last line is dropped when the journal is read
                self._file.truncate(size_before)
            raise storage_error(error, self.path) from error

    def _size_in_bytes(self) -> int:
        """Return the size of the file in bytes."""
        return os.fstat(self._file.fileno()).st_size

    def _read_search(self, header: Record, log: Log) -> int:
        """Take over what the file records of a search. The file is not changed.

        Args:
            header: the header of this search, in the form in which it would be read from a file.
            log: receives a line for a half-written line, which is ignored, and for another environment.

        Returns:
            The size in bytes of the whole lines in the file; new lines are appended after them.

        Raises:
            InputError: the file belongs to another search, or is broken.
        """
        self._file.seek(0)
        content = self._file.read()
        objects, half_written = _parse(self.path, content)
        if half_written:
            cut_short = "last line" if objects else "header"
            log.info(f"the {cut_short} of {self.path} is half-written: dropped")
        if not objects:
            log.info(f"no search is recorded in {self.path}: starting afresh")
            return 0

        # Another search is refused; another environment may round differently, and the search goes on all the same.
        recorded, *records = objects
        problems = differences(recorded.get("fingerprint", {}), header["fingerprint"], "in the journal")
        if problems:
            hint = f"give the settings it was begun with, or {HOW_TO_START_OVER}"
            raise InputError(f"{self.path} records another search", hint=hint, problems=problems)
        changes = differences(recorded.get("environment", {}), header["environment"], "in the journal")
        if changes:
            log.warn("the search was begun in another environment: " + "; ".join(changes))

        for record in records:
            if ORDER_KEY in record:
                self.order = record[ORDER_KEY]
            else:
                self.records.append(record)
        return len(content) - len(half_written)


class NoJournal(Journal):
    """A journal that keeps nothing: of a search whose result goes to standard output, or of a further process.

    Args:
        records, order: what the journal of the first process has.
    """

    def __init__(self, records: Sequence[Record] = (), order: Any = None) -> None:
        self.records = list(records)
        self.order = order

    def append(self, record: Mapping[str, object]) -> None:
        """Nothing is kept."""

    def sync(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is kept."""


# --- the file of a journal --------------------------------------------------------------------------------------------


def check_free(path: Path) -> None:
    """Check that no search is recorded in a journal.

    Raises:
        OutputError: a search is recorded.
    """
    if os.path.lexists(path) and os.lstat(path).st_size:
        hint = "add --resume to go on with it, or --force to start over"
        raise OutputError(f"a search is recorded in {path}", hint=hint)


def _json_line(value: Mapping[str, object]) -> bytes:
    """Return an object as one line of JSON, encoded, with its checksum and its newline."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)

    # Characters that UTF-8 cannot encode become "?". They come e.g. from file names that are not text, and JSON with
    # them could be written but not read again.
    beginning = text.removesuffix("}").encode("utf-8", "replace")
    return beginning + _checksum(beginning) + b"\n"


def _checksum(beginning: bytes) -> bytes:
    """Return the end of a line that begins like this: the key of its checksum."""
    return b', "%s": %d}' % (_CHECKSUM_KEY.encode(), zlib.crc32(beginning))


def _object_of(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line, without its checksum; None if the line is not as it was written."""
    beginning, _, _ = line.rpartition(b", ")
    if line != beginning + _checksum(beginning):
        return None
    try:
        value = parse_json(line, "a line")
    except InputError:
        return None
    del value[_CHECKSUM_KEY]
    return dict(value)


def _parse(path: Path, data: bytes) -> tuple[list[Record], bytes]:
    """Return the objects of the whole lines, the header first, and the bytes of a half-written line after them.

    A last line whose checksum is wrong counts as half-written, too. The bytes are empty if all lines are whole. An
    empty file, or a header that was cut short, has no objects.

    Args:
        path: the file, for messages.
        data: its content: a header line, then records and at most one order.

    Raises:
        InputError: the file is not a journal, or lines before the last are damaged; all of them are listed.
    """
    # The file may be a journal, the beginning of one, a journal of another version, or something else.
    begins_as_journal = data.startswith(FIRST_BYTES)
    is_header_cut_short = FIRST_BYTES.startswith(data)
    if not begins_as_journal and data.startswith(_FIRST_BYTES_OF_ANY):
        raise InputError(
            f"{path} records a search that another version of hydractl began: it is no {JOURNAL_SCHEMA} file",
            hint=f"go on with that version, or {HOW_TO_START_OVER}",
        )
    if not begins_as_journal and not is_header_cut_short:
        raise InputError(f"{path} is no {JOURNAL_SCHEMA} file", hint="move it away, or choose another output with -o")

    # Each line is an object. After the split, what follows the last newline is empty, or a half-written line.
    *lines, torn = data.split(b"\n")
    objects: list[Record] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        value = _object_of(line)
        if value is not None:
            objects.append(value)
        elif number == len(lines) and not torn:
            torn = line + b"\n"  # dropped like a half-written line, including its newline
        else:
            problems.append(f"line {number} is not as it was written")
    if problems:
        raise InputError(f"{path} is broken", hint=HOW_TO_START_OVER, problems=problems)
    return objects, torn


def _open_locked(path: Path) -> IO[bytes]:
    """Return the file of a journal, open for reading and appending, and locked; it is created if it does not exist.

    Raises:
        OutputError: its folder does not exist, the file is a link or not a regular file, or another process is
            writing it.
        StorageError: no space.
    """
    # The folder must exist already; only the file is created.
    folder = path.parent
    try:
        if not folder.is_dir():
            raise OutputError(f"the folder of the journal does not exist: {folder}", hint=make_folder(folder))
        file = open_locked(path, path, buffering=0)
        if not _is_regular(file):
            file.close()
            raise OutputError(f"the journal is no regular file: {path}")
        return file
    except OSError as error:
        raise storage_error(error, path) from error


def _is_regular(file: IO[bytes]) -> bool:
    """Return whether an open file is a regular file, not e.g. a pipe."""
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
