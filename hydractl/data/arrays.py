"""Images in a ``.npz`` file: ``x`` uint8, optionally ``y`` and ``classes``. Nothing is ever unpickled.

Images are read from the file when they are asked for. A compressed array would have to be unpacked again for each
image, so it is held in memory.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from hydractl.data.base import Dataset, RowIds, UnreadableSample, reason
from hydractl.data.files import printable
from hydractl.data.labels import RawLabels
from hydractl.errors import InputError
from hydractl.expressions.data_sets import DataSpec
from hydractl.families.pixels import image_of
from hydractl.files.header import state_of

_SETTINGS = ("x", "y", "classes")
_LOCAL_HEADER = struct.Struct("<26xHH")
"""The header before a member in a zip archive; its last two fields are the lengths of the name and the extra field."""

_READ_AHEAD = 1 << 18
"""Bytes of rows that are read at once where they are asked for one after the other."""

# The errors of numpy quote whole headers, so the reason in a message is cut to this many characters.
_LONGEST_REASON = 200


@dataclass(eq=False, repr=False)
class ArrayImages(Dataset):
    """Images in memory, or in one array.

    Attributes:
        images: the images by index, each in a form that :func:`hydractl.families.pixels.image_of` accepts. They are in
            memory, or rows that are read from a file. Of a compressed array it is a function that unpacks rows.
    """

    images: Any

    def prepare(self, rows: Sequence[int]) -> None:
        """Unpack these images if they are compressed."""
        if isinstance(self.images, partial):
            with _errors_of_file(self.where):
                self.images = self.images(rows)

    def _sample(self, i: int) -> Image.Image:
        image = self.images[i]
        try:
            return image_of(image)
        except InputError as error:
            why = f"cannot read image {self.ids[i]}: {error.message} ({self.where})"
            raise UnreadableSample(why, hint=error.hint) from error


class _Header(NamedTuple):
    """The shape and type of an array, as the header of its ``.npy`` member states them.

    Attributes:
        shape, dtype: the shape and the element type of the array.
        fortran: whether the array is stored in Fortran's order, where the values of one row are not contiguous.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    @property
    def row_bytes(self) -> int:
        """The size of one row in bytes."""
        return self.dtype.itemsize * math.prod(self.shape[1:])


def read_npz(spec: DataSpec, _limit: int | None) -> tuple[Dataset, RawLabels]:
    """Return the images and labels in a ``.npz`` file, whose arrays ``?x=``, ``?y=`` and ``?classes=`` name.

    ``x`` are the images, uint8 ``[N, H, W]`` or ``[N, H, W, C]`` with C 1 or 3. ``y`` are the labels, integers or
    unicode strings ``[N]`` or ``[N, 1]``. ``classes`` are the class names, unicode strings ``[K]``. The images must be
    there, and so must an array that the query names. All headers are checked before an array is unpacked. The images
    are read through once, so that a damaged file is refused here and not later.

    Returns:
        The images, and their labels before they are mapped to the classes of a model.

    Raises:
        InputError: if the file is damaged, or arrays are missing or have wrong types or shapes (all are listed).
    """
    spec.check_query(_SETTINGS)
    names = {key: spec.query.get(key, key) for key in _SETTINGS}  # an array is called like its setting by default
    with _errors_of_file(spec.where):
        # Unusable images are an error. Unusable labels are only handed on: a set may be used without its labels.
        headers, problems = _read_headers(spec, names)
        if "x" in headers:
            problems += _problems_of_images(names["x"], headers["x"])
        label_problems = _problems_of_labels(names, headers)
        if problems:
            raise InputError(f"{spec.where}: not a usable image set", problems=problems + label_problems)
        raw = RawLabels(problems=label_problems) if label_problems else _read_labels(spec.file, names, headers)
        images = _open_images(spec, names["x"], headers["x"])
    ids = RowIds(printable(spec.file.name), headers["x"].shape[0])
    return ArrayImages(spec.text, spec.where, ids, images), raw


@contextmanager
def _errors_of_file(where: str) -> Iterator[None]:
    """Turn the errors of a damaged file into errors of input."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    # A damaged archive or header makes zipfile, zlib and numpy's parser raise nearly anything.
    except Exception as error:
        why = reason(error)[:_LONGEST_REASON]
        raise InputError(f"{where}: cannot read the file: {why}", hint="write it with numpy.savez") from error


def _read_headers(spec: DataSpec, names: Mapping[str, str]) -> tuple[dict[str, _Header], list[str]]:
    """Read the headers of the named arrays.

    Args:
        spec: the SPEC of the file.
        names: the name of the array for each of ``x``, ``y`` and ``classes``.

    Returns:
        The headers of the usable arrays, by ``x``, ``y`` and ``classes``; and one message for each needed array that is
        missing and each array that cannot be used. Needed are the images, and what the SPEC names by a setting.
    """
    headers = {}
    problems = []
    with zipfile.ZipFile(spec.file) as archive:
        members = archive.namelist()
        listed = ", ".join(sorted(member.removesuffix(".npy") for member in members)) or "nothing"
        for key, name in names.items():
            if f"{name}.npy" in members:
                try:
                    headers[key] = _read_header(archive, name)
                except _UnusableArray as error:
                    problems.append(str(error))
            elif key == "x" or key in spec.query:
                problems.append(f"no array {name!r} (the file has: {listed}; choose with ?{key}=NAME)")
    return headers, problems


def _read_labels(path: Path, names: Mapping[str, str], headers: Mapping[str, _Header]) -> RawLabels:
    """Return the labels of a file, with its class names.

    =================  ===============================================================================
    labels             result
    =================  ===============================================================================
    none               no labels; the class names, if there are any
    strings            the strings; the class names, or else the different labels in alphabetical order
    up to 2^63 - 1     an int64 array; the class names, if there are any
    larger integers    a list of integers, which is refused later with the sample at fault
    =================  ===============================================================================

    Args:
        path: the file.
        names: the name of the array for each of ``x``, ``y`` and ``classes``.
        headers: the headers of the arrays in the file, by ``x``, ``y`` and ``classes``.
    """
    labels = None  # [N], also if the file has [N, 1]
    classes = None  # [K]
    with np.load(path, allow_pickle=False) as arrays:
        if "y" in headers:
            labels = arrays[names["y"]].reshape(-1)
        if "classes" in headers:
            classes = arrays[names["classes"]]
    # NumPy reads numbers that are no characters, of which broken texts become; decoding raises an error.
    for array in (labels, classes):
        if array is not None and array.dtype.kind == "U":
            array.astype(array.dtype.newbyteorder("<")).tobytes().decode("utf-32-le")
    class_names = None if classes is None else classes.tolist()

    # The cases, in the order of the table.
    if labels is None:
        return RawLabels(None, class_names)
    if labels.dtype.kind == "U":
        return RawLabels(labels.tolist(), class_names or sorted(set(labels.tolist())))
    if labels.max() > np.iinfo(np.int64).max:
        return RawLabels(labels.tolist(), class_names)
    return RawLabels(labels.astype(np.int64), class_names)


def _open_images(spec: DataSpec, name: str, header: _Header) -> npt.NDArray[np.uint8] | _StoredRows | partial[Any]:
    """Return the images of an array, in one of three forms, by the way in which the file stores them.

    ================================  ==================================================================
    stored                            form
    ================================  ==================================================================
    in Fortran's order                all images in memory
    uncompressed                      rows that are read from the file one by one when they are needed
    compressed                        a function that unpacks the rows whose indices it is called with
    ================================  ==================================================================

    Args:
        spec: the SPEC of the file.
        name: the name of the array.
        header: the header of the array.
    """
    # In Fortran's order the pixels of an image are scattered over the file, so a single image cannot be read.
    if header.fortran:
        with np.load(spec.file, allow_pickle=False) as arrays:
            return np.ascontiguousarray(arrays[name])

    # A compressed array would have to be unpacked from its start again for every image, so its rows are kept.
    with zipfile.ZipFile(spec.file) as archive:
        info = archive.getinfo(f"{name}.npy")
    unpack = partial(_unpacked_rows, spec.file, name, header)
    if info.compress_type == zipfile.ZIP_STORED:
        unpack([])  # no rows: this only reads to the end, and raises an error if the checksum is wrong
        return _StoredRows(spec.file, info, header, spec.where)
    return unpack


def _unpacked_rows(path: Path, name: str, header: _Header, rows: Sequence[int]) -> dict[int, npt.NDArray[np.uint8]]:
    """Return some rows of an array in C order, by reading it through once, up to the last of them or to its end.

    At its end the checksum (CRC) of the archive is compared, too.

    Args:
        path: the ``.npz`` file.
        name: the name of the array.
        header: the header of the array.
        rows: the indices of the rows. If it is empty, the array is read to its end.

    Raises:
        OSError, zipfile.BadZipFile, zlib.error, EOFError: if the file is damaged.
    """
    unpacked = {}
    wanted = set(rows)
    total = header.shape[0]
    count = max(rows) + 1 if rows else total
    row_bytes = header.row_bytes
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
        read_array_header(member)
        # A compressed member cannot be entered in the middle, so rows that are not wanted are read, too.
        for row in range(count):
            content = member.read(row_bytes)
            if len(content) < row_bytes:
                raise EOFError("the array ends too early")
            if row in wanted:
                unpacked[row] = np.frombuffer(content, np.uint8).reshape(header.shape[1:])
        if count == total:
            member.read(1)  # zipfile compares the checksum when it reaches the end of the member
    return unpacked


class _StoredRows:
    """The rows of an array that is stored in C order and without compression, each read when it is asked for.

    A row that follows the one before is read with those behind it. Every read opens the file itself, so data workers
    may share this object.

    Args:
        path: the ``.npz`` file.
        info: the member of the archive that holds the array.
        header: the header of the array.
        where: the name of the data set in messages.
    """

    def __init__(self, path: Path, info: zipfile.ZipInfo, header: _Header, where: str) -> None:
        """Find out where the array begins; no row is read yet."""
        self._path = path
        self._header = header
        self._where = where
        self._block = (0, b"")  # the rows that were read last: the index of the first one in the array, and their bytes

        # The bytes of a member stand behind its header in the archive, its name and its extra field; those of the array
        # behind the header of the .npy.
        with open(path, "rb") as file:
            self._state = state_of(os.fstat(file.fileno()))
            file.seek(info.header_offset)
            name_length, extra_length = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            file.seek(name_length + extra_length, os.SEEK_CUR)
            read_array_header(file)
            self._begin = file.tell()

    def __getitem__(self, row: int) -> npt.NDArray[np.uint8]:
        """Return a row, ``[H, W]`` or ``[H, W, C]``.

        Raises:
            InputError: if the file was changed since it was opened, or cannot be read.
        """
        # Where the row begins in the block of rows that was read last.
        row_bytes = self._header.row_bytes
        first, content = self._block
        start = (row - first) * row_bytes

        # If it is not in the block, read another one. The row behind the block means that rows are read in order, and
        # then many are read at once.
        if not 0 <= start < len(content):
            is_next = start == len(content)
            count = 1
            if is_next:
                count = max(1, _READ_AHEAD // row_bytes)
            content = self._read(row, count)
            self._block = (row, content)
            start = 0
        image = np.frombuffer(content, np.uint8, row_bytes, start)
        return image.reshape(self._header.shape[1:])

    def _read(self, row: int, count: int) -> bytes:
        """Return the bytes of ``count`` rows of the array from ``row`` on, or of fewer at its end.

        Raises:
            InputError: if the file was changed since it was opened, or cannot be read.
        """
        count = min(count, self._header.shape[0] - row)
        wanted = count * self._header.row_bytes
        try:
            with open(self._path, "rb", buffering=0) as file:
                state = state_of(os.fstat(file.fileno()))
                file.seek(self._begin + row * self._header.row_bytes)
                content = file.read(wanted)
        except OSError as error:
            raise InputError(f"{self._where}: cannot read the file: {reason(error)}") from error
        if state != self._state or len(content) < wanted:
            raise InputError(f"{self._where}: the file was changed while it was read", hint="run it again")
        return content


def read_array_header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a ``.npy``; the next bytes of ``member`` are then the data.

    Returns:
        The shape of the array, whether it is stored in Fortran's order, and its element type.

    Raises:
        ValueError: if it is no ``.npy``.
        _UnusableArray: if it has a version other than 1.0 and 2.0.
    """
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(member)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(member)
    raise _UnusableArray(f"a .npy of version {version} is for structured arrays")


class _UnusableArray(ValueError):
    """An array must not be read. The text of the error says why, in the end in a sentence that names the array."""


def _read_header(archive: zipfile.ZipFile, name: str) -> _Header:
    """Return the header of array ``name``, which is in the archive.

    Raises:
        _UnusableArray: if its values are not plain ones, or its size differs from what the header claims.
    """
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as member:
        try:
            shape, fortran, dtype = read_array_header(member)
        except _UnusableArray as error:
            raise _UnusableArray(f"{name}: {error}") from None
        size_in_file = info.file_size - member.tell()
    if dtype.hasobject:
        raise _UnusableArray(f"{name} holds Python objects, which are never unpickled: save it as a plain array")

    # A header may claim any size, and numpy would allocate that much memory before it reads.
    claimed_size = dtype.itemsize * math.prod(shape)
    if claimed_size != size_in_file:
        raise _UnusableArray(f"{name}: {shape} of {dtype} needs {claimed_size} bytes, the file has {size_in_file}")
    return _Header(shape, dtype, fortran)


def _problems_of_images(name: str, header: _Header) -> list[str]:
    """Return why an array cannot be read as images, one message each.

    It can if it is uint8 of the shape ``(N, H, W)``, ``(N, H, W, 1)`` or ``(N, H, W, 3)``, without a 0.
    """
    problems = []
    if header.dtype != np.uint8:
        problems.append(f"{name} is {header.dtype}, uint8 (0..255) is needed")
    shape = header.shape
    if len(shape) not in (3, 4):
        problems.append(f"{name} has shape {shape}, (N, H, W) or (N, H, W, C) is needed")
    elif shape[0] == 0:
        problems.append(f"{name} has no images: shape {shape}")
    elif 0 in shape:
        problems.append(f"{name} has images without pixels: shape {shape}")
    elif shape[3:] not in ((), (1,), (3,)):  # guess what other numbers of channels are
        advice = "1 or 3 channels are needed"
        if shape[3] == 4:
            advice = "a fourth channel (alpha or CMYK) has no one meaning: convert to RGB first"
        elif shape[1] in (1, 3):
            advice = "channels come last: transpose to (N, H, W, C)"
        problems.append(f"{name} has shape {shape}; {advice}")
    return problems


def _problems_of_labels(names: Mapping[str, str], headers: Mapping[str, _Header]) -> list[str]:
    """Return one message for each thing that is wrong with the types and shapes of labels and class names.

    Args:
        names: the name of the array for each of ``x``, ``y`` and ``classes``.
        headers: the headers of the arrays in the file, by ``x``, ``y`` and ``classes``.
    """
    # Missing arrays are None here; they are judged elsewhere.
    images = headers.get("x")
    labels = headers.get("y")
    classes = headers.get("classes")
    problems = []
    if labels is not None:
        if labels.dtype.kind not in "iuU":
            problems.append(f"{names['y']} is {labels.dtype}; integers or unicode strings are needed")
        is_list = len(labels.shape) == 1 or labels.shape[1:] == (1,)  # a column of labels is taken, as MedMNIST has it
        if not is_list:
            problems.append(f"{names['y']} has shape {labels.shape}, one label for each image is needed")
        elif images is not None and images.shape and labels.shape[0] != images.shape[0]:
            problems.append(f"{names['y']} has {labels.shape[0]} labels for {images.shape[0]} images")
    if classes is not None:
        are_names = classes.dtype.kind == "U" and len(classes.shape) == 1 and classes.shape[0] > 0
        if not are_names:
            problems.append(
                f"{names['classes']} is {classes.dtype} {classes.shape}; a list of unicode strings is needed"
            )
    return problems
