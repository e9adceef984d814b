"""Images in a ``.npz`` file: ``x`` uint8, optionally ``y`` and ``classes``. Nothing is ever unpickled."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from hydractl.data.base import Dataset, Spec, reason
from hydractl.data.files import printable
from hydractl.data.labels import RawLabels, limited
from hydractl.errors import InputError

_SETTINGS = ("x", "y", "classes")

# numpy quotes whole headers in its errors.
_LONGEST_REASON = 200


class ArrayImages(Dataset):
    """Images in one array.

    Args:
        spec, where, ids: as of :class:`Dataset`.
        images: uint8 ``[N, H, W]`` (grey) or ``[N, H, W, 3]`` (RGB).
    """

    def __init__(self, spec: str, where: str, ids: Sequence[str], images: npt.NDArray[np.uint8]) -> None:
        super().__init__(spec, where, ids)
        self.images = images

    def _sample(self, i: int) -> Image.Image:
        return Image.fromarray(self.images[i])

    def _content(self, i: int) -> Iterable[bytes]:
        image = self.images[i]
        # The shape goes in as well: 2x8 and 4x4 pixels may be the same bytes.
        return [f"uint8 {image.shape}\n".encode(), image.tobytes()]


class _Header(NamedTuple):
    """Header of a ``.npy`` member."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def read_npz(spec: Spec, limit: int | None, seed: int = 0) -> tuple[Dataset, RawLabels]:
    """Open a ``.npz`` file; ``?x=``, ``?y=`` and ``?classes=`` name its arrays.

    ``x`` is uint8 ``[N, H, W]`` or ``[N, H, W, C]`` with C 1 or 3; ``y`` integers or unicode strings ``[N]``;
    ``classes`` unicode strings ``[K]``. Headers are checked before any array is unpacked.

    Raises:
        InputError: a damaged file, missing arrays, wrong types or shapes (all of them listed).
    """
    spec.check_query(_SETTINGS)
    path = Path(os.path.expanduser(spec.path))
    names = {key: spec.query.get(key, key) for key in _SETTINGS}
    try:
        headers, problems = _checked_headers(spec, path, names)
        label_problems = _label_problems(names, headers)
        if problems:
            raise InputError(f"{spec.where}: not a usable image set", problems=[*problems, *label_problems])
        images, rows, raw = _read_arrays(path, names, headers, label_problems, limit, seed)
    except (InputError, MemoryError):
        raise
    # A damaged archive or header makes zipfile, zlib and numpy's parser raise nearly anything.
    except Exception as error:
        why = reason(error)[:_LONGEST_REASON]
        raise InputError(f"{spec.where}: cannot read the file: {why}", hint="write it with numpy.savez") from error
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    ids = [f"{printable(path.name)}#{i}" for i in rows]
    return ArrayImages(spec.text, spec.where, ids, images), raw


def _checked_headers(spec: Spec, path: Path, names: Mapping[str, str]) -> tuple[dict[str, _Header], list[str]]:
    """Return the headers of the named arrays that are there, and why the images cannot be used."""
    with zipfile.ZipFile(path) as archive:
        headers, problems = _read_headers(archive, names.values())
    present = sorted(member.removesuffix(".npy") for member in archive.namelist())
    listed = ", ".join(present) or "nothing"
    # The array of the images is needed, and those that the SPEC names.
    for key, wanted in {"x": names["x"], **spec.query}.items():
        if wanted not in present:
            problems.append(f"no array {wanted!r} (the file has: {listed}; choose with ?{key}=NAME)")
    if names["x"] in headers:
        problems += _image_problems(names["x"], headers[names["x"]])
    return headers, problems


def _read_arrays(
    path: Path,
    names: Mapping[str, str],
    headers: Mapping[str, _Header],
    label_problems: list[str],
    limit: int | None,
    seed: int,
) -> tuple[npt.NDArray[Any], list[int], RawLabels]:
    """Return the images that ``limit`` takes, their places in the file, and their labels."""
    labels = None
    classes = None
    with np.load(path, allow_pickle=False) as arrays:
        if names["y"] in headers and not label_problems:
            labels = arrays[names["y"]]
        total = headers[names["x"]].shape[0]
        rows = limited(None if labels is None else labels.tolist(), total, limit, seed)
        images = None
        if rows == list(range(len(rows))):
            images = _first_images(path, names["x"], len(rows))
        if images is None:
            images = np.ascontiguousarray(arrays[names["x"]][rows])
        if names["classes"] in headers and not label_problems:
            classes = arrays[names["classes"]]

    if label_problems:
        return images, rows, RawLabels(problems=label_problems)
    for key, array in (("y", labels), ("classes", classes)):
        if array is not None and _has_no_characters(array):
            label_problems.append(f"{names[key]} has strings with numbers that are no characters")
    if label_problems:
        return images, rows, RawLabels(problems=label_problems)
    class_names = None if classes is None else classes.tolist()
    return images, rows, _labels(labels, rows, class_names, names["y"])


def _first_images(path: Path, name: str, count: int) -> npt.NDArray[Any] | None:
    """Read so many images, without unpacking the others; None for an array whose images do not follow each other."""
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
        shape, fortran, dtype = _read_header(member, np.lib.format.read_magic(member))
        if fortran:
            return None
        shape = (count, *shape[1:])
        content = member.read(math.prod(shape) * dtype.itemsize)
        return np.frombuffer(bytearray(content), dtype).reshape(shape)


def _read_header(member: IO[bytes], version: tuple[int, int]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and type of a ``.npy`` whose version was read."""
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(member)
    return np.lib.format.read_array_header_2_0(member)


def _read_headers(archive: zipfile.ZipFile, names: Iterable[str]) -> tuple[dict[str, _Header], list[str]]:
    """Return the headers of those of the named arrays that are there, and what is wrong with them."""
    headers: dict[str, _Header] = {}
    problems = []
    members = set(archive.namelist())
    for name in names:
        if f"{name}.npy" not in members:
            continue
        info = archive.getinfo(f"{name}.npy")
        with archive.open(info) as member:
            version = np.lib.format.read_magic(member)
            if version not in ((1, 0), (2, 0)):
                problems.append(f"{name}: a .npy of version {version} is for structured arrays")
                continue
            shape, _, dtype = _read_header(member, version)
            in_file = info.file_size - member.tell()
        if dtype.hasobject:
            problems.append(f"{name} holds Python objects, which are never unpickled: save it as a plain array")
            continue
        # A header may claim any size: numpy would first set that much memory aside.
        claimed = math.prod((dtype.itemsize, *shape))
        if claimed != in_file:
            problems.append(f"{name}: {shape} of {dtype} needs {claimed} bytes, the file has {in_file}")
            continue
        headers[name] = _Header(shape, dtype)
    return headers, problems


def _image_problems(name: str, header: _Header) -> list[str]:
    """List what is wrong with the images' type and shape."""
    problems = []
    shape = header.shape
    if header.dtype != np.uint8:
        problems.append(f"{name} is {header.dtype}, uint8 (0..255) is needed")
    if len(shape) not in (3, 4):
        problems.append(f"{name} has shape {shape}, (N, H, W) or (N, H, W, C) is needed")
    elif shape[0] == 0:
        problems.append(f"{name} has no images: shape {shape}")
    elif 0 in shape:
        problems.append(f"{name} has images without pixels: shape {shape}")
    elif len(shape) == 4 and shape[3] not in (1, 3):
        if shape[3] == 4:
            advice = "a fourth channel (alpha or CMYK) has no one meaning: convert to RGB first"
        elif shape[1] in (1, 3):
            advice = "channels come last: transpose to (N, H, W, C)"
        else:
            advice = "1 or 3 channels are needed"
        problems.append(f"{name} has shape {shape}; {advice}")
    return problems


def _label_problems(names: Mapping[str, str], headers: Mapping[str, _Header]) -> list[str]:
    """List what is wrong with the types and shapes of labels and class names."""
    problems = []
    images = headers.get(names["x"])
    labels = headers.get(names["y"])
    classes = headers.get(names["classes"])
    if labels is not None:
        if labels.dtype.kind not in "iuU":
            problems.append(f"{names['y']} is {labels.dtype}; integers or unicode strings are needed")
        if len(labels.shape) != 1:
            problems.append(f"{names['y']} has shape {labels.shape}, one label for each image is needed")
        elif images is not None and images.shape and labels.shape[0] != images.shape[0]:
            problems.append(f"{names['y']} has {labels.shape[0]} labels for {images.shape[0]} images")
    if classes is not None and not _is_list_of_strings(classes):
        problems.append(f"{names['classes']} is {classes.dtype} {classes.shape}; a list of unicode strings is needed")
    return problems


def _is_list_of_strings(header: _Header) -> bool:
    return header.dtype.kind == "U" and len(header.shape) == 1 and header.shape[0] > 0


def _has_no_characters(array: npt.NDArray[Any]) -> bool:
    """Return whether strings hold numbers beyond Unicode or half characters: Python takes them in and fails later."""
    if array.dtype.kind != "U" or not array.nbytes:
        return False
    codes = np.ascontiguousarray(array).view(np.dtype(f"{array.dtype.byteorder}u4"))
    is_half = (codes >= 0xD800) & (codes < 0xE000)
    return int(codes.max()) > 0x10FFFF or bool(is_half.any())


def _labels(all_labels: npt.NDArray[Any] | None, rows: Sequence[int], names: list[str] | None, array: str) -> RawLabels:
    """Return the labels of some samples.

    Args:
        all_labels: those of all samples; None where there are none.
        rows: the samples.
        names: the class names, where the file has them.
        array: what the array of the labels is called.
    """
    if all_labels is None:
        return RawLabels(None, names)
    if all_labels.dtype.kind == "U":
        if names is None:
            names = sorted(set(all_labels.tolist()))
        return RawLabels(all_labels[rows].tolist(), names)
    labels = all_labels[rows]
    if labels.dtype.kind == "u" and int(labels.max()) > np.iinfo(np.int64).max:
        return RawLabels(problems=[f"{array} has labels beyond 2^63"])
    return RawLabels(labels.astype(np.int64), names)
