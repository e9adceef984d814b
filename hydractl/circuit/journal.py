"""The journal of a search: one line for each measurement, so that a search that was killed can be resumed.

A journal is a file of JSON lines. The first line is the header, which says what search it is: ``{"schema":
"hydractl.journal/2", "fingerprint": {...}, "environment": {...}, "crc": ...}``. Then follows one object per line, in
the order in which the search appends them, and at most one ``{"order": ..., "crc": ...}``. The last key of every line
is a checksum of what stands before it, so that no damaged number becomes a result. If several processes search
together, process N > 0 writes to its own file beside the first one, with ``.N`` after the name.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hydractl.errors import HydraError, InputError, OutputError
from hydractl.files.atomic import lock, make_folder, open_locked, open_own, storage_error, sync_folder
from hydractl.jsonio import differences, parse_json
from hydractl.log import Log

JOURNAL_SCHEMA = "hydractl.journal/2"
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
        records: the records of all processes that were found at opening, in file order, the first process's file first.
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
        rank: int = 0,
    ) -> Journal:
        """Begin a new journal, or go on with an existing one.

        If several processes search together, the process of rank 0 must open its journal first. No process may append
        before all have opened: otherwise they would not all read the same records.

        Args:
            path: the file of rank 0; rank N > 0 uses the file with ``.N`` after this name.
            fingerprint: the settings that decide the result, a flat object of JSON values. Recorded measurements are
                used again only if all these values are equal.
            environment: values that may change rounding, e.g. versions; if they differ, the log warns.
            resume: go on with the recorded search; if none is recorded, begin a new one and log that. If ``resume`` is
                set, ``force`` is ignored here (it then concerns other outputs).
            force: discard a recorded search and start over.
            log: receives the differences and the dropped lines; ranks above 0 pass a silent log.
            rank: the rank of this process.

        Returns:
            The journal, open for appending, with the records that were found.

        Raises:
            OutputError: another process is writing the file; a search is recorded and neither ``resume`` nor
                ``force`` is set; the file cannot be created.
            InputError: on resuming, a file of another search, or a file that is broken before its last line.
            StorageError: no space.
        """
        # Every process has its own file.
        path_of_rank = path if rank == 0 else path.with_name(f"{path.name}.{rank}")
        header = {"schema": JOURNAL_SCHEMA, "fingerprint": dict(fingerprint), "environment": dict(environment)}
        header_line = _json_line(header)
        journal = cls(path_of_rank, _open_locked(path_of_rank))
        try:
            kept_bytes = 0
            if resume:
                # Parse the header line back, since JSON changes some values: tuples become lists, and characters that
                # cannot be encoded become "?". Only then can it be compared with a recorded header.
                kept_bytes = journal._read_search(path, rank, json.loads(header_line), log)
            else:
                journal._check_free_or_clear(path, rank, force)

            # Cut off a half-written last line, or all of an older search (kept_bytes is 0 then).
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
                raise storage_error(error, path_of_rank) from error
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
        """Store once, and durably, a JSON value that is known only after the first measurement: the order of samples.

        Only the process of rank 0 calls this, before any process appends a record that depends on the order.
        """
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
        """Write a whole line, or nothing."""
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

    def _check_free_or_clear(self, path: Path, rank: int, force: bool) -> None:
        """Check that no search is recorded. With ``force``, skip this; rank 0 then removes the files of other ranks."""
        if not force:
            check_free(self.path)
        if rank != 0:
            return
        for other in _files_beside(path):
            beginning = _content_of(other, idle=True)[: len(FIRST_BYTES)]
            if not FIRST_BYTES.startswith(beginning):
                raise OutputError(f"{other} is in the way and is no {JOURNAL_SCHEMA} file", hint="move it away")
            other.unlink()

    def _read_search(self, path: Path, rank: int, header: Record, log: Log) -> int:
        """Take over what the files of all processes record of a search. The files are not changed.

        Args:
            path: the file of rank 0.
            rank: the rank of this process.
            header: the header of this search, in the form in which it would be read from a file.
            log: receives a line for each half-written line, which is ignored, and for another environment.

        Returns:
            The size in bytes of the whole lines in the file of this process; new lines are appended after them.

        Raises:
            InputError: a file belongs to another search, or is broken.
        """
        files = self._parse_files(path, rank)
        files_with_header = [file for file in files if file.objects]
        for file in files_with_header:
            recorded = file.objects[0].get("fingerprint", {})
            problems = differences(recorded, header["fingerprint"], "in the journal")
            if problems:
                hint = f"give the settings it was begun with, or {HOW_TO_START_OVER}"
                raise InputError(f"{file.path} records another search", hint=hint, problems=problems)

        # The records of all processes, and the order of the samples, which all files must agree on.
        for file in files:
            if file.torn:
                half_written = "last line" if file.objects else "header"
                log.info(f"the {half_written} of {file.path} is half-written: dropped")
            for record in file.objects[1:]:
                if ORDER_KEY not in record:
                    self.records.append(record)
                    continue
                if self.order not in (None, record[ORDER_KEY]):
                    message = f"{path} and the files beside it are of different searches"
                    raise InputError(message, hint=HOW_TO_START_OVER)
                self.order = record[ORDER_KEY]

        # Messages about what was found. Another environment may round differently; the search goes on all the same.
        if not files_with_header:
            log.info(f"no search is recorded in {path}: starting afresh")
        changes: dict[str, None] = {}  # each once, in the order of the files
        for file in files_with_header:
            recorded = file.objects[0].get("environment", {})
            changes.update(dict.fromkeys(differences(recorded, header["environment"], "in the journal")))
        if changes:
            log.warn("the search was begun in another environment: " + "; ".join(changes))
        return next(file.whole_bytes for file in files if file.path == self.path)

    def _parse_files(self, path: Path, rank: int) -> list[_JournalFile]:
        """Return the content of the existing journals of all processes, the file of rank 0 first.

        Args:
            path: the file of rank 0.
            rank: the rank of this process; its own file is open already.
        """
        parsed = []
        paths = [path, *_files_beside(path), self.path]
        for path_of_rank in dict.fromkeys(paths):  # each path once
            if path_of_rank == self.path:  # open already, and locked by this process
                self._file.seek(0)
                parsed.append(_parse_file(path_of_rank, self._file.read()))
            elif path_of_rank.exists():
                # Rank 0 opens first, so the files that it finds beside its own belong to older searches, whose
                # processes must have ended. A higher rank reads files that other ranks of this search hold open.
                is_of_older_search = rank == 0
                content = _content_of(path_of_rank, idle=is_of_older_search)
                parsed.append(_parse_file(path_of_rank, content))
        return parsed


class NoJournal(Journal):
    """A journal that keeps nothing, for a search whose result goes to standard output."""

    def __init__(self) -> None:
        self.records = []
        self.order = None

    def append(self, record: Mapping[str, object]) -> None:
        """Nothing is kept."""

    def sync(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is kept."""


# --- the files of a journal -------------------------------------------------------------------------------------------


def check_free(path: Path) -> None:
    """Check that no search is recorded in a journal or in the files beside it.

    Raises:
        OutputError: a search is recorded.
    """
    for file in (path, *_files_beside(path)):
        if not os.path.lexists(file):
            continue
        if os.lstat(file).st_size:
            hint = "add --resume to go on with it, or --force to start over"
            raise OutputError(f"a search is recorded in {file}", hint=hint)


@dataclass(frozen=True)
class _JournalFile:
    """The file of one process, as it was read.

    Attributes:
        path: the file.
        whole_bytes: the size of its whole lines in bytes; 0 if even the header is missing.
        torn: whether a half-written line follows the whole ones.
        objects: the objects of its whole lines, the header first; empty if even the header is missing.
    """

    path: Path
    whole_bytes: int
    torn: bool
    objects: list[Record]


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


def _parse_file(path: Path, data: bytes) -> _JournalFile:
    """Parse the content of one file, and drop a broken last line.

    Args:
        path: the file, for messages.
        data: its content: a header line, then records and at most one order.

    Raises:
        InputError: the file is not a journal, or lines before the last are damaged; all of them are listed.
    """
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
    return _JournalFile(path, whole_bytes=len(data) - len(torn), torn=bool(torn), objects=objects)


def _files_beside(path: Path) -> list[Path]:
    """Return the existing files of ranks above 0 beside the file of rank 0, in the order of the ranks."""
    name_with_rank = re.compile(re.escape(path.name) + r"\.([1-9][0-9]*)")
    file_by_rank = {}
    try:
        for file in path.parent.iterdir():
            match = name_with_rank.fullmatch(file.name)
            if match:
                file_by_rank[int(match[1])] = file
    except OSError as error:
        raise storage_error(error, path) from error
    return [file_by_rank[rank] for rank in sorted(file_by_rank)]


def _content_of(path: Path, *, idle: bool) -> bytes:
    """Read the file of another process.

    Args:
        path: the file.
        idle: whether that process must have ended; if so, the file is locked for a moment to check that.

    Returns:
        All bytes of the file.

    Raises:
        InputError: the file cannot be read, or is not a regular file.
        OutputError: with ``idle``, a process is still writing it.
    """
    try:
        with open(path, "rb", buffering=0, opener=open_own) as file:
            if not _is_regular(file):
                raise InputError(f"cannot read {path}: it is no regular file")
            if idle:
                lock(file, path)
            return file.read()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


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
