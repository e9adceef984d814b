"""The rows of an array in a ``.npz`` file, read one by one, so that the whole array is never in memory.

A ``.npz`` is a zip archive of ``.npy`` members. A member that is stored without compression (``numpy.savez``) can be
read at any row. A compressed member (``numpy.savez_compressed``) is a stream: going forward unpacks everything in
between, and going back starts again at the beginning.
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
"""About how many bytes are read at once if rows are read one after another."""

_ENCRYPTED = 0x1
"""The bit in the flags of a zip member which says that the member is encrypted."""
_LOCAL_HEADER = struct.Struct("<26xHH")
"""The header before a member in a zip archive; its last two fields are the lengths of the name and the extra field."""


class _Version(NamedTuple):
    """Properties of a file that change if the file is replaced or written to."""

    inode: int
    size: int
    modified_ns: int


def _version_of(handle: IO[bytes]) -> _Version:
    """Return the version of an open file."""
    status = os.fstat(handle.fileno())
    return _Version(status.st_ino, status.st_size, status.st_mtime_ns)


class _Block(NamedTuple):
    """Consecutive rows of the array.

    Attributes:
        start: the index of the first row.
        images: the rows, ``[rows, H, W]`` or ``[rows, H, W, C]``.
    """

    start: int
    images: npt.NDArray[np.uint8]

    @property
    def stop(self) -> int:
        """The index after the last row."""
        return self.start + len(self.images)


class NpzRows:
    """Some rows of a uint8 array in C order, as a sequence of arrays.

    Every process opens the file itself, so data workers may share this object.

    Args:
        path: the ``.npz`` file.
        name: the name of the array in the file.
        where: the name of the data set in messages.
        rows: the indices of the rows that this sequence holds.

    Raises:
        OSError, zipfile.BadZipFile, ValueError: if the file is damaged.
    """

    def __init__(self, path: Path, name: str, where: str, rows: Sequence[int]) -> None:
        """Find out where the array begins and how large its rows are. No row is read yet."""
        self._path = path
        self._member = f"{name}.npy"
        self._where = where
        self._rows = rows

        # Find the first byte of the array, which follows the header of its .npy member.
        with open(path, "rb") as handle, zipfile.ZipFile(handle) as archive:
            self._version = _version_of(handle)
            info = archive.getinfo(self._member)
            with archive.open(info) as member:
                shape, _, dtype = read_array_header(member)
                self._begin_in_member = member.tell()
            # The array can be read directly from the file only if it is stored without compression. None otherwise.
            self._begin_in_file: int | None = None
            is_encrypted = bool(info.flag_bits & _ENCRYPTED)
            if info.compress_type == zipfile.ZIP_STORED and not is_encrypted:
                self._begin_in_file = _begin_of_member(handle, info) + self._begin_in_member

        # The sizes of the array and of one row.
        self._array_rows = shape[0]
        self.row_shape = shape[1:]
        self._row_bytes = math.prod(self.row_shape) * dtype.itemsize

        # The last block of rows that was read, and the open stream of a compressed array: nothing so far.
        self._block = _Block(0, np.empty((0, *self.row_shape), np.uint8))
        self._stream: _Stream | None = None

    @property
    def at_any_row(self) -> bool:
        """Whether any row can be read directly; otherwise all rows before it have to be unpacked first."""
        return self._begin_in_file is not None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> npt.NDArray[np.uint8]:
        """Return row i of this sequence, ``[H, W]`` or ``[H, W, C]``.

        Raises:
            InputError: if the file was changed since it was opened, or cannot be read.
        """
        row = self._rows[i]
        is_in_block = self._block.start <= row < self._block.stop
        if not is_in_block:
            self._read_block(row)
        row_in_block = row - self._block.start
        image: npt.NDArray[np.uint8] = self._block.images[row_in_block]
        return image

    def _read_block(self, row: int) -> None:
        """Read a block of rows that begins at ``row``, and store it in place of the last block.

        The block has one row, or about 1 MiB of rows if ``row`` comes right after the last block.
        """
        count = 1
        is_next = row == self._block.stop
        if is_next:  # rows are being read one after another, so the next ones will be needed too
            count = max(1, _BLOCK_BYTES // self._row_bytes)
        rows_left = self._array_rows - row
        images = self._read_rows(row, min(count, rows_left))
        self._block = _Block(row, images)

    def check(self) -> None:
        """Unpack the array once, up to the last row that will be read, to see that the file is sound.

        If the last row of the array is reached, the checksum (CRC) of the archive is compared, too.

        Raises:
            OSError, zipfile.BadZipFile, zlib.error, EOFError: if the file is damaged.
        """
        rows = 1 + max(self._rows)
        bytes_left = rows * self._row_bytes
        with zipfile.ZipFile(self._path) as archive, archive.open(self._member) as member:
            member.read(self._begin_in_member)
            while bytes_left:
                content = member.read(min(bytes_left, _BLOCK_BYTES))
                if not content:
                    raise EOFError("the array ends too early")
                bytes_left -= len(content)
            if rows == self._array_rows:
                member.read(1)  # zipfile compares the checksum when it reaches the end of the member

    def _read_rows(self, row: int, count: int) -> npt.NDArray[np.uint8]:
        """Return ``count`` rows of the array, beginning at ``row``: ``[count, H, W]`` or ``[count, H, W, C]``.

        Raises:
            InputError: if the file was changed since it was opened, or cannot be read.
        """
        content = bytearray(count * self._row_bytes)  # a bytearray, so that the resulting array is writable
        start = row * self._row_bytes  # in bytes from the start of the array
        try:
            if self._begin_in_file is None:
                # A forked process would share the position in the file with its parent, so it opens its own stream.
                if self._stream is None or self._stream.process != os.getpid():
                    self._stream = _Stream(self._path, self._member)
                self._check_version(self._stream.file)
                self._stream.member.seek(self._begin_in_member + start)
                _fill(content, self._stream.member)
            else:
                with open(self._path, "rb", buffering=0) as handle:
                    self._check_version(handle)
                    handle.seek(self._begin_in_file + start)
                    _fill(content, handle)
        except (InputError, MemoryError):
            raise
        # zipfile and zlib raise nearly anything for a damaged archive.
        except Exception as error:
            raise InputError(f"{self._where}: cannot read the file: {reason(error)}") from error
        return np.frombuffer(content, np.uint8).reshape(count, *self.row_shape)

    def _check_version(self, handle: IO[bytes]) -> None:
        """Refuse the file if it was changed or replaced since it was opened."""
        if _version_of(handle) != self._version:
            raise InputError(f"{self._where}: the file was changed while it was read", hint="run it again")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the stream: another process opens its own."""
        return {**vars(self), "_stream": None}


class _Stream:
    """A compressed member that is being unpacked by one process.

    Attributes:
        process: the id of that process.
        file: the archive; its position moves while the member is read.
        member: yields the unpacked bytes.
    """

    def __init__(self, path: Path, member: str) -> None:
        self.process = os.getpid()
        self._archive = zipfile.ZipFile(path)
        assert self._archive.fp is not None  # zipfile sets it to None only when the archive is closed
        self.file: IO[bytes] = self._archive.fp
        self.member = self._archive.open(member)


def _begin_of_member(handle: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Return the position in a zip archive at which the bytes of a member begin: after header, name and extra field."""
    handle.seek(info.header_offset)
    header = handle.read(_LOCAL_HEADER.size)
    length_of_name, length_of_extra_field = _LOCAL_HEADER.unpack(header)
    end_of_header = info.header_offset + _LOCAL_HEADER.size
    return end_of_header + int(length_of_name) + int(length_of_extra_field)


def _fill(content: bytearray, handle: IO[bytes]) -> None:
    """Fill ``content`` with the next bytes of a file.

    Raises:
        EOFError: if the file ends too early.
    """
    view = memoryview(content)
    while view:
        count = handle.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise EOFError("the array ends too early")
        view = view[count:]


def read_array_header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a ``.npy``; the next bytes of ``member`` are then the data.

    Returns:
        The shape of the array, whether it is stored in Fortran's order, and its element type.

    Raises:
        ValueError: if it is no ``.npy``, or has a version other than 1.0 and 2.0, which is for structured arrays.
    """
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(member)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(member)
    raise ValueError(f"a .npy of version {version} is for structured arrays")
