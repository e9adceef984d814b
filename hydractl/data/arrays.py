"""Images in a ``.npz`` file: ``x`` uint8, optionally ``y`` and ``classes``. Nothing is ever unpickled."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from hydractl.data.base import Dataset, Spec, reason
from hydractl.data.files import printable
from hydractl.data.labels import RawLabels, limited
from hydractl.errors import InputError

QUERY = ("x", "y", "classes")

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
    spec.check_query(QUERY)
    path = Path(os.path.expanduser(spec.path))
    name = {key: spec.query.get(key, key) for key in QUERY}
    try:
        with zipfile.ZipFile(path) as archive:
            headers, problems = _read_headers(archive, name.values())
        present = sorted(member.removesuffix(".npy") for member in archive.namelist())
        problems += [
            f"no array {wanted!r} (the file has: {', '.join(present) or 'nothing'}; choose with ?{key}=NAME)"
            for key, wanted in {"x": name["x"], **spec.query}.items()
            if wanted not in present
        ]
        if name["x"] in headers:
            problems += _image_problems(name["x"], headers[name["x"]])
        label_problems = _label_problems(name, headers)
        if problems:
            raise InputError(f"{spec.where}: not a usable image set", problems=[*problems, *label_problems])
        with np.load(path, allow_pickle=False) as arrays:
            total = headers[name["x"]].shape[0]
            labels = arrays[name["y"]] if name["y"] in headers and not label_problems else None
            rows = limited(None if labels is None else labels.tolist(), total, limit, seed)
            images = _first_images(path, name["x"], len(rows)) if rows == list(range(len(rows))) else None
            if images is None:
                images = np.ascontiguousarray(arrays[name["x"]][rows])
            classes = arrays[name["classes"]] if name["classes"] in headers and not label_problems else None
            label_problems += [
                f"{name[key]} has strings with numbers that are no characters"
                for key, array in (("y", labels), ("classes", classes))
                if array is not None and _has_no_characters(array)
            ]
            raw = RawLabels(problems=label_problems)
            if not label_problems:
                raw = _labels(labels, rows, None if classes is None else classes.tolist(), name["y"])
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


def _first_images(path: Path, name: str, count: int) -> npt.NDArray[Any] | None:
    """So many images, without unpacking the others; None for an array whose images do not follow each other."""
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(member)
        if fortran:
            return None
        wanted = math.prod((count, *shape[1:])) * dtype.itemsize
        return np.frombuffer(bytearray(member.read(wanted)), dtype).reshape(count, *shape[1:])


def _read_headers(archive: zipfile.ZipFile, names: Iterable[str]) -> tuple[dict[str, _Header], list[str]]:
    """The headers of those of the named arrays that are there, and what is wrong with them."""
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
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(member)
            start = member.tell()
        if dtype.hasobject:
            problems.append(f"{name} holds Python objects, which are never unpickled: save it as a plain array")
            continue
        # A header may claim any size: numpy would first set that much memory aside.
        claimed = math.prod((dtype.itemsize, *shape))
        if claimed != info.file_size - start:
            problems.append(f"{name}: {shape} of {dtype} needs {claimed} bytes, the file has {info.file_size - start}")
            continue
        headers[name] = _Header(shape, dtype)
    return headers, problems


def _image_problems(name: str, header: _Header) -> list[str]:
    """Problems of the images' type and shape."""
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
            reason = "a fourth channel (alpha or CMYK) has no one meaning: convert to RGB first"
        elif shape[1] in (1, 3):
            reason = "channels come last: transpose to (N, H, W, C)"
        else:
            reason = "1 or 3 channels are needed"
        problems.append(f"{name} has shape {shape}; {reason}")
    return problems


def _label_problems(name: dict[str, str], headers: dict[str, _Header]) -> list[str]:
    """Problems of the types and shapes of labels and class names."""
    problems = []
    images, labels, classes = (headers.get(name[key]) for key in QUERY)
    if labels is not None:
        if labels.dtype.kind not in "iuU":
            problems.append(f"{name['y']} is {labels.dtype}; integers or unicode strings are needed")
        if len(labels.shape) != 1:
            problems.append(f"{name['y']} has shape {labels.shape}, one label for each image is needed")
        elif images is not None and images.shape and labels.shape[0] != images.shape[0]:
            problems.append(f"{name['y']} has {labels.shape[0]} labels for {images.shape[0]} images")
    if classes is not None and (classes.dtype.kind != "U" or len(classes.shape) != 1 or classes.shape[0] == 0):
        problems.append(f"{name['classes']} is {classes.dtype} {classes.shape}; a list of unicode strings is needed")
    return problems


def _has_no_characters(array: npt.NDArray[Any]) -> bool:
    """Whether strings hold numbers beyond Unicode or half characters, which Python takes in and fails at later."""
    if array.dtype.kind != "U" or not array.nbytes:
        return False
    codes = np.ascontiguousarray(array).view(np.dtype(f"{array.dtype.byteorder}u4"))
    return int(codes.max()) > 0x10FFFF or bool(((codes >= 0xD800) & (codes < 0xE000)).any())


def _labels(every: npt.NDArray[Any] | None, rows: Sequence[int], names: list[str] | None, array: str) -> RawLabels:
    """The labels of some samples, out of those of all, and the class names; ``array`` is what their array is called."""
    if every is None:
        return RawLabels(None, names)
    if every.dtype.kind == "U":
        return RawLabels(every[rows].tolist(), names if names is not None else sorted(set(every.tolist())))
    every = every[rows]
    if every.dtype.kind == "u" and int(every.max()) > np.iinfo(np.int64).max:
        return RawLabels(problems=[f"{array} has labels beyond 2^63"])
    return RawLabels(every.astype(np.int64), names)
