"""The files of a journal: whose they are, what they hold, and where they are broken."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from hydractl.errors import InputError, OutputError
from hydractl.files.atomic import lock, open_locked, open_own, storage_error
from hydractl.jsonio import differences, parse_json, shown

SCHEMA = "hydractl.journal/1"
ORDER = "order"
START_OVER = "start over with --force and without --resume"
BIRTH = json.dumps({"schema": SCHEMA}).removesuffix("}").encode()
"""What every journal begins with, to the byte: it tells a header cut short from a file of another program."""


@dataclass
class Part:
    """The file of one process, as found.

    Attributes:
        whole: size of its whole lines, in bytes; 0 when even the header is missing.
        torn: whether a line follows that is half-written.
    """

    path: Path
    whole: int
    torn: bool
    fingerprint: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    order: Any = None
    records: list[dict[str, Any]] = field(default_factory=list)

    def check(self, fingerprint: Mapping[str, Any]) -> None:
        """See that the file is of the search that is asked for.

        Raises:
            InputError: listing every difference.
        """
        problems = differences(self.fingerprint, fingerprint, "in the journal") if self.whole else []
        if problems:
            hint = f"give the settings it was begun with, or {START_OVER}"
            raise InputError(f"{self.path} records another search", hint=hint, problems=problems)


def line_of(value: Any) -> bytes:
    """One line of a journal.

    Raises:
        TypeError, ValueError: for what JSON cannot say, NaN too.
    """
    # Half a character, as in a file name that is no text, could be written but never be read again.
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"


def parse(path: Path, data: bytes) -> Part:
    """What one file holds.

    Raises:
        InputError: listing every broken line but the last, which is dropped.
    """
    if not data.startswith(BIRTH) and not BIRTH.startswith(data):
        raise InputError(f"{path} is no {SCHEMA} file", hint="move it away, or choose another output with -o")
    *lines, torn = data.split(b"\n")
    objects: list[dict[str, Any]] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            value = parse_json(line, f"line {number}")
        except InputError as error:
            if number == len(lines) and not torn:
                torn = line + b"\n"
            else:
                problems.append(error.message.replace(" at line 1, column", " at column"))
            continue
        if isinstance(value, dict):
            objects.append(value)
        else:
            problems.append(f"line {number} is {shown(value)}, not an object")
    header, records = (objects[0], objects[1:]) if objects else ({}, [])
    settings = [header.get("fingerprint", {}), header.get("environment", {})]
    if not all(isinstance(one, dict) for one in settings):
        problems.append("line 1 is no header")
    if problems:
        raise InputError(f"{path} is broken", hint=START_OVER, problems=problems)
    part = Part(path, len(data) - len(torn), bool(torn), *settings)
    part.order = next((record[ORDER] for record in records if ORDER in record), None)
    part.records = [record for record in records if ORDER not in record]
    return part


def files_beside(path: Path) -> list[Path]:
    """The files of ranks above 0 that are there, in the order of the ranks.

    Raises:
        OutputError: the folder cannot be read.
    """
    name = re.compile(re.escape(path.name) + r"\.([1-9][0-9]*)")
    try:
        found = [(int(match[1]), file) for file in path.parent.iterdir() if (match := name.fullmatch(file.name))]
    except OSError as error:
        raise storage_error(error, path) from error
    return [file for _, file in sorted(found)]


def content(path: Path, *, idle: bool) -> bytes:
    """What another process has written.

    Raises:
        InputError: it cannot be read.
        OutputError: with ``idle``, when somebody is still writing it.
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


def claim(path: Path) -> IO[bytes]:
    """Open and lock a file for reading and appending; make it where it is not there.

    Raises:
        OutputError, StorageError: it cannot be made, or another process has it.
    """
    try:
        if not path.parent.is_dir():
            where = path.parent
            raise OutputError(f"the folder of the journal does not exist: {where}", hint=f"mkdir -p {where}")
        file = open_locked(path, path, buffering=0)
        if not _is_regular(file):
            file.close()
            raise OutputError(f"the journal is no regular file: {path}")
        return file
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OutputError(f"the journal is a symbolic link: {path}", hint="remove it") from None
        raise storage_error(error, path) from error


def _is_regular(file: IO[bytes]) -> bool:
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
