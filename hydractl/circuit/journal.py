"""The journal of a search: what has been measured, a line for each, so that a killed search goes on where it was.

A file of JSON lines. The first says what search it is: ``{"schema": "hydractl.journal/1", "fingerprint": {...},
"environment": {...}}``; then one object per line, as the search appends them, and at most one ``{"order": ...}``.
Process N > 0 of a search by several processes writes a file of its own beside the first, with ``.N`` after the name.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from hydractl.circuit.journal_files import (
    BIRTH,
    ORDER,
    SCHEMA,
    START_OVER,
    claim,
    content,
    files_beside,
    line_of,
    parse,
)
from hydractl.errors import HydraError, InputError, OutputError
from hydractl.files.atomic import storage_error, sync_folder
from hydractl.jsonio import differences
from hydractl.log import Log


class Journal:
    """An open journal, locked against other processes until it is closed.

    Every line reaches the file in one write, so that a kill loses at most the line being written; :meth:`sync` guards
    against the loss of power. A journal that this process began and never appended to is removed when it is closed.

    Attributes:
        records: the records found at opening, of all processes, in file order, the first process's file first.
        order: what :meth:`set_order` stored, in this run or in the one that is resumed; None before.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        """Use :meth:`open`."""
        self.path = path
        self.records: list[dict[str, Any]] = []
        self.order: Any = None
        self._file = file
        self._begun_here = not self._size()
        self._appended = False

    @classmethod
    def open(
        cls,
        path: Path,
        fingerprint: Mapping[str, Any],
        environment: Mapping[str, Any],
        *,
        resume: bool,
        force: bool,
        log: Log,
        rank: int = 0,
    ) -> Journal:
        """Begin a journal, or go on with the one that is there.

        Of several processes, that of rank 0 opens first and the others when it has; none may append before all have
        opened, or they would not have read the same.

        Args:
            path: the file of rank 0.
            fingerprint: what must be equal for the records to be of use again; a flat object of JSON values.
            environment: what may differ, with a warning.
            resume: go on with the search that is recorded; where there is none, begin, and say so. It wins over
                ``force``, which then is about other outputs.
            force: start over, whatever is there.
            log: of rank 0; the others give a silent one.
            rank: of this process.

        Raises:
            OutputError: another process is writing the file; a search is recorded and neither ``resume`` nor
                ``force`` is set; the file cannot be made.
            InputError: on resuming, a file of another search, or one that is broken elsewhere than in its last line.
            StorageError: no space.
        """
        own = path if rank == 0 else path.with_name(f"{path.name}.{rank}")
        header = {"schema": SCHEMA, "fingerprint": dict(fingerprint), "environment": dict(environment)}
        journal = cls(own, claim(own))
        try:
            if resume:
                whole = journal._take_in(path, rank, json.loads(line_of(header)), log)
            else:
                whole = 0
                journal._make_way(path, rank, force)
            journal._file.truncate(whole)
            if not whole:
                journal._begun_here = True
                journal._write(line_of(header))
                journal._flush()
                sync_folder(own.parent)
        except BaseException as error:
            with contextlib.suppress(HydraError):
                journal.close()
            if isinstance(error, OSError):
                raise storage_error(error, own) from error
            raise
        return journal

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record. ``order`` is no key of a record: see :meth:`set_order`.

        Raises:
            StorageError, OutputError: it cannot be written; the file then ends with the record before.
        """
        if ORDER in record:
            raise ValueError(f"the key {ORDER!r} is the journal's own")
        self._append(record)

    def set_order(self, order: Any) -> None:
        """Store, once and durably, a JSON value that is known only after the first measurement and is needed again.

        Of several processes that of rank 0 stores it, before any of them appends a record that depends on it.
        """
        if self.order is not None:
            raise ValueError("the order is set already")
        self._append({ORDER: order})
        self.sync()
        self.order = order

    def sync(self) -> None:
        """Flush to the disk.

        Raises:
            StorageError, OutputError: the disk does not take it.
        """
        self._flush()

    def close(self) -> None:
        """Flush and unlock; closing again is safe."""
        if self._file.closed:
            return
        try:
            if self._begun_here and not self._appended:
                with contextlib.suppress(OSError):
                    self.path.unlink()
            else:
                self._flush()
        finally:
            with contextlib.suppress(OSError):
                self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, value: Mapping[str, Any]) -> None:
        self._write(line_of(value))
        self._appended = True

    def _write(self, line: bytes) -> None:
        size = self._size()
        try:
            done = self._file.write(line)
            while done < len(line):  # the disk is nearly full: it takes the rest, or says why it does not
                done += self._file.write(line[done:])
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(size)
            raise storage_error(error, self.path) from error

    def _flush(self) -> None:
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise storage_error(error, self.path) from error

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _make_way(self, path: Path, rank: int, force: bool) -> None:
        """See that nothing is there, or with ``force`` nothing is left, but the own file."""
        if not force:
            check_free(self.path)
        for other in files_beside(path) if rank == 0 else []:
            if not BIRTH.startswith(content(other, idle=True)[: len(BIRTH)]):
                raise OutputError(f"{other} is in the way and is no {SCHEMA} file", hint="move it away")
            other.unlink()

    def _take_in(self, path: Path, rank: int, header: Mapping[str, Any], log: Log) -> int:
        """Read what all processes have recorded. Returns the size of the whole lines of the own file, in bytes."""
        parts = []
        self._file.seek(0)
        for file in dict.fromkeys((path, *files_beside(path), self.path)):
            if file == self.path:
                parts.append(own := parse(file, self._file.read()))
            elif file.exists():
                # The others of this search open after rank 0: who has a file now belongs to an older one.
                parts.append(parse(file, content(file, idle=rank == 0)))
        for part in parts:
            part.check(header["fingerprint"])
        for part in parts:
            if part.torn:
                log.info(f"the {'last line' if part.whole else 'header'} of {part.path} is half-written: dropped")
            self.records += part.records
        orders = [part.order for part in parts if part.order is not None]
        if any(order != orders[0] for order in orders):
            raise InputError(f"{path} and the files beside it are of different searches", hint=START_OVER)
        self.order = orders[0] if orders else None
        begun = [part for part in parts if part.whole]
        if not begun:
            log.info(f"no search is recorded in {path}: starting afresh")
        now = header["environment"]
        changed = dict.fromkeys(d for part in begun for d in differences(part.environment, now, "in the journal"))
        if changed:
            log.warn("the search was begun in another environment: " + "; ".join(changed))
        return own.whole


def check_free(path: Path) -> None:
    """See that no search is recorded in a journal or in the files beside it.

    Raises:
        OutputError: there is one.
    """
    for file in (path, *files_beside(path)):
        if os.path.lexists(file) and os.lstat(file).st_size:
            hint = "add --resume to go on with it, or --force to start over"
            raise OutputError(f"a search is recorded in {file}", hint=hint)


class NoJournal(Journal):
    """Keeps nothing, for a search whose result goes to standard output."""

    def __init__(self) -> None:
        self.records = []
        self.order = None

    def _append(self, value: Mapping[str, Any]) -> None:
        """Nothing is kept."""

    def sync(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is kept."""
