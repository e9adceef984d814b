"""The rows of an array in a ``.npz`` file, each read when it is asked for: the array never lies in memory as a whole.

A ``.npz`` is a zip archive of ``.npy`` members. A member that is stored as it is (``numpy.savez``) is read at any row.
A compressed one (``numpy.savez_compressed``) is a stream: going forward unpacks what lies between, and going back
begins anew.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hydractl.data.base import reason
from hydractl.errors import InputError

_BLOCK_BYTES = 1 << 20
"""About how much is read at once where rows are asked for one after another."""

_ENCRYPTED = 0x1
"""The bit of a zip member's flags that says so."""
_LOCAL_HEADER = struct.Struct("<26xHH")
"""What stands before a member in a zip archive; the lengths of its name and of its extra field come last."""


class _Version(NamedTuple):
    """What tells whether a file is still the one that was opened."""

    inode: int
    size: int
    modified_ns: int


def _version_of(handle: IO[bytes]) -> _Version:
    """Return the version of an opened file."""
    status = os.fstat(handle.fileno())
    return _Version(status.st_ino, status.st_size, status.st_mtime_ns)


class _Block(NamedTuple):
    """Rows of the array that follow each other.

    Attributes:
        start: the first of them.
        images: the rows, ``[rows, H, W]`` or ``[rows, H, W, C]``.
    """

    start: int
    images: npt.NDArray[np.uint8]

    @property
    def stop(self) -> int:
        """The row behind the last of them."""
        return self.start + len(self.images)


class NpzRows:
    """The rows of one uint8 array in C order, as a sequence of arrays.

    Every process opens the file by itself, so that data workers may share these rows.

    Args:
        path: of the ``.npz``.
        name: of the array.
        where: how messages call the data set.
        rows: which rows of the array these are.

    Raises:
        OSError, zipfile.BadZipFile, ValueError: the file is damaged.
    """

    def __init__(self, path: Path, name: str, where: str, rows: Sequence[int]) -> None:
        """Note where the array begins and how large its rows are; none of them is read yet."""
        self._path = path
        self._member = f"{name}.npy"
        self._where = where
        self._rows = rows
        with open(path, "rb") as handle, zipfile.ZipFile(handle) as archive:
            self._version = _version_of(handle)
            info = archive.getinfo(self._member)
            with archive.open(info) as member:
                shape, _, dtype = read_array_header(member)
                self._first_byte = member.tell()
            self.row_shape = shape[1:]
            self._row_bytes = math.prod(self.row_shape) * dtype.itemsize
            self._array_rows = shape[0]
            # Where the array begins in the file; None where it has to be unpacked.
            self._place: int | None = None
            is_encrypted = info.flag_bits & _ENCRYPTED
            if info.compress_type == zipfile.ZIP_STORED and not is_encrypted:
                self._place = _first_byte_of_member(handle, info) + self._first_byte

        no_rows = np.empty((0, *self.row_shape), np.uint8)
        self._block = _Block(0, no_rows)
        self._stream: _Stream | None = None

    @property
    def at_any_row(self) -> bool:
        """Whether any row is read at once; else those before it have to be unpacked."""
        return self._place is not None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> npt.NDArray[np.uint8]:
        """Return row i, ``[H, W]`` or ``[H, W, C]``.

        Raises:
            InputError: the file is no longer what it was when it was opened, or cannot be read.
        """
        row = self._rows[i]
        is_in_block = self._block.start <= row < self._block.stop
        if not is_in_block:
            self._read_block(row)
        place = row - self._block.start
        image: npt.NDArray[np.uint8] = self._block.images[place]
        return image

    def _read_block(self, row: int) -> None:
        """Read a row, and several behind it where rows are asked for one after another, in place of the last block."""
        count = 1
        is_next = row == self._block.stop
        if is_next:
            count = max(1, _BLOCK_BYTES // self._row_bytes)
        rows_left = self._array_rows - row
        images = self._read_rows(row, min(count, rows_left))
        self._block = _Block(row, images)

    def check(self) -> None:
        """Unpack the array once, up to the last row that is to be read.

        Where that is its last row, the archive's own sum of it (CRC) is compared, too.

        Raises:
            OSError, zipfile.BadZipFile, zlib.error, EOFError: the file is damaged.
        """
        rows = 1 + max(self._rows)
        left = rows * self._row_bytes  # bytes
        with zipfile.ZipFile(self._path) as archive, archive.open(self._member) as member:
            member.read(self._first_byte)
            while left:
                content = member.read(min(left, _BLOCK_BYTES))
                if not content:
                    raise EOFError("the array ends too early")
                left -= len(content)
            if rows == self._array_rows:
                member.read(1)  # beyond the end the sum is compared

    def _read_rows(self, row: int, count: int) -> npt.NDArray[np.uint8]:
        """Return ``count`` rows of the array from ``row`` on, ``[count, H, W]`` or ``[count, H, W, C]``.

        Raises:
            InputError: the file is no longer what it was when it was opened, or cannot be read.
        """
        content = bytearray(count * self._row_bytes)  # a bytearray, so that the array can be written to
        start = row * self._row_bytes
        try:
            if self._place is None:
                self._fill_from_stream(start, content)
            else:
                self._fill_from_file(self._place + start, content)
        except (InputError, MemoryError):
            raise
        # A damaged archive makes zipfile and zlib raise nearly anything.
        except Exception as error:
            raise InputError(f"{self._where}: cannot read the file: {reason(error)}") from error
        return np.frombuffer(content, np.uint8).reshape(count, *self.row_shape)

    def _fill_from_file(self, place: int, content: bytearray) -> None:
        """Fill ``content`` from a place in the file."""
        with open(self._path, "rb", buffering=0) as handle:
            self._check_version(handle)
            handle.seek(place)
            _fill(content, handle)

    def _fill_from_stream(self, start: int, content: bytearray) -> None:
        """Fill ``content`` from so many bytes behind the beginning of a compressed array on."""
        # A process that was forked shares the place in the file with its parent, and opens its own.
        if self._stream is None or self._stream.process != os.getpid():
            self._stream = _Stream(self._path, self._member)
        self._check_version(self._stream.file)
        self._stream.member.seek(self._first_byte + start)
        _fill(content, self._stream.member)

    def _check_version(self, handle: IO[bytes]) -> None:
        """Refuse a file that is another one than that which was opened."""
        if _version_of(handle) != self._version:
            raise InputError(f"{self._where}: the file was changed while it was read", hint="run it again")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, which opens the file by itself."""
        return {**vars(self), "_stream": None}


class _Stream:
    """A compressed member that is being unpacked, and the process that does it."""

    def __init__(self, path: Path, member: str) -> None:
        self.process = os.getpid()
        self._archive = zipfile.ZipFile(path)
        assert self._archive.fp is not None  # it was opened just now
        self.file: IO[bytes] = self._archive.fp
        self.member = self._archive.open(member)


def _first_byte_of_member(handle: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Return where in a zip archive the bytes of a member begin: behind its header, its name and its extra field."""
    handle.seek(info.header_offset)
    header = handle.read(_LOCAL_HEADER.size)
    length_of_name, length_of_extra_field = _LOCAL_HEADER.unpack(header)
    end_of_header = info.header_offset + _LOCAL_HEADER.size
    return end_of_header + int(length_of_name) + int(length_of_extra_field)


def _fill(content: bytearray, handle: IO[bytes]) -> None:
    """Fill ``content`` from a file.

    Raises:
        EOFError: the file ends before.
    """
    view = memoryview(content)
    while view:
        count = handle.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise EOFError("the array ends too early")
        view = view[count:]


def read_array_header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape of a ``.npy``, whether it is in Fortran's order, and its type; afterwards its data follow.

    Raises:
        ValueError: it is no ``.npy``, or one of another version than 1.0 and 2.0, which is for structured arrays.
    """
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(member)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(member)
    raise ValueError(f"a .npy of version {version} is for structured arrays")
