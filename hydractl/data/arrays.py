"""Images in a ``.npz`` file: ``x`` uint8, optionally ``y`` and ``classes``. Nothing is ever unpickled.

Labels are read first, and then the images that are drawn, which are held in memory.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from PIL import Image

from hydractl.data.base import Dataset, RowIds, UnreadableSample, reason
from hydractl.data.files import printable
from hydractl.data.labels import RawLabels, labels_of_column
from hydractl.errors import InputError
from hydractl.expressions.data_sets import DataSpec
from hydractl.families.pixels import image_of

_SETTINGS = ("x", "y", "classes")

# The errors of numpy quote whole headers, so the reason in a message is cut to this many characters.
_LONGEST_REASON = 200


@dataclass(eq=False, repr=False)
class ArrayImages(Dataset):
    """Images in memory: ``images`` has them by index, each in a form that :func:`image_of` accepts."""

    images: Any

    def _sample(self, i: int) -> Image.Image:
        try:
            return image_of(self.images[i])
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


@dataclass(eq=False, repr=False)
class NpzImages(ArrayImages):
    """The images of the array ``name`` in the file at ``path``."""

    path: Path
    name: str
    header: _Header

    def prepare(self, rows: Sequence[int]) -> None:
        """Read these images into memory.

        Raises:
            InputError: if the file is damaged.
        """
        with _errors_of_file(self.where):
            self.images = _read_rows(self.path, self.name, self.header, rows)


def read_npz(spec: DataSpec, _limit: int | None) -> tuple[Dataset, RawLabels]:
    """Return the images and the labels in a ``.npz`` file.

    The file is named by a SPEC, the text that names a data set: ``a.npz``, or ``a.npz?y=fine`` for one whose array of
    labels is called ``fine``. Its arrays are:

    ===========  ===================================================================================
    array        content
    ===========  ===================================================================================
    ``x``        the images, uint8 ``[N, H, W]`` or ``[N, H, W, C]`` with C 1 or 3; they must be there
    ``y``        the labels, integers or unicode strings ``[N]`` or ``[N, 1]``
    ``classes``  the class names that integers index, unicode strings ``[K]``
    ===========  ===================================================================================

    An array that the SPEC names must be there, too. All headers are checked before an array is unpacked. The labels are
    read now; an image is read later, when it is known which of them are needed.

    Returns:
        The images, and their labels as the file has them, not yet mapped to the classes of a model.

    Raises:
        InputError: if the file is damaged, or arrays are missing or have wrong types or shapes (all are listed).
    """
    spec.check_query(_SETTINGS)  # refuses settings other than x, y and classes
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
    ids = RowIds(printable(spec.file.name), headers["x"].shape[0])
    return NpzImages(spec.text, spec.where, ids, {}, spec.file, names["x"], headers["x"]), raw


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
    """Return the headers of the named arrays, and what is wrong with them; no array is unpacked.

    Args:
        spec: the SPEC of the file (the text that names the data set), whose settings may name arrays.
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
            elif key == "x" or key in spec.query:  # it is needed; other arrays may be missing
                problems.append(f"no array {name!r} (the file has: {listed}; choose with ?{key}=NAME)")
    return headers, problems


def _read_labels(path: Path, names: Mapping[str, str], headers: Mapping[str, _Header]) -> RawLabels:
    """Return the labels of a file, with the class names that integers index.

    Args:
        path: the file.
        names: the name of the array for each of ``x``, ``y`` and ``classes``.
        headers: the headers of the arrays in the file, by ``x``, ``y`` and ``classes``; one that is missing has none.

    Returns:
        The labels with the class names, each None if the file has none.

    Raises:
        UnicodeDecodeError: if a string is no valid text.
    """
    labels = None  # [N], also if the file has [N, 1]
    classes = None  # [K]
    with np.load(path, allow_pickle=False) as arrays:
        if "y" in headers:
            labels = arrays[names["y"]].reshape(-1)
        if "classes" in headers:
            classes = arrays[names["classes"]]
    # NumPy stores a character as its number, and takes numbers that are no characters. Decoding raises an error for
    # them; its result is not needed.
    for array in (labels, classes):
        if array is not None and array.dtype.kind == "U":
            array.astype(array.dtype.newbyteorder("<")).tobytes().decode("utf-32-le")
    class_names = None if classes is None else classes.tolist()

    if labels is None:
        return RawLabels(None, class_names)
    return labels_of_column(labels.tolist(), class_names)  # labels that are texts name their classes themselves


def _read_rows(path: Path, name: str, header: _Header, rows: Sequence[int]) -> Any:
    """Return some images of an array so that ``result[row]`` is image ``row``, uint8 ``[H, W]`` or ``[H, W, C]``.

    Usually that is a dict with the wanted images alone; the file is read once, up to the last of them. An array in
    Fortran's order, where the pixels of an image are scattered over the file, is returned whole. If the last image of
    the array is read, the checksum (CRC) of the archive is compared, too.

    Args:
        path: the ``.npz`` file.
        name: the name of the array.
        header: the header of the array.
        rows: the indices of the images, at least one.

    Raises:
        OSError, zipfile.BadZipFile, zlib.error, EOFError: if the file is damaged.
    """
    if header.fortran:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays[name]

    images = {}
    wanted = set(rows)
    count = max(rows) + 1  # images to read: for the rows 2 and 5 these are the first 6
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
        read_array_header(member)
        # A compressed member cannot be entered in the middle, so rows that are not wanted are read, too.
        for row in range(count):
            content = member.read(header.row_bytes)
            if len(content) < header.row_bytes:
                raise EOFError("the array ends too early")
            if row in wanted:
                images[row] = np.frombuffer(content, np.uint8).reshape(header.shape[1:])
        if count == header.shape[0]:
            member.read(1)  # zipfile compares the checksum when it reaches the end of the member
    return images


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

    It can if it is uint8 of the shape ``(N, H, W)``, ``(N, H, W, 1)`` or ``(N, H, W, 3)``, without a 0. The list is
    then empty.
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
    elif shape[3:] not in ((), (1,), (3,)):  # (N, H, W) has no axis of channels. Guess what other numbers of them are.
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
