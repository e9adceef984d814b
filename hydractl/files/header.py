"""The header of a safetensors file: it describes a checkpoint without any of its weights.

It is read strictly: everything that is not exactly as the format promises is refused. It is written canonically: the
same tensors and the same description give the same bytes, in whatever order they come.
"""

from __future__ import annotations

import math
import os
import shlex
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hydractl.errors import InputError, near_path
from hydractl.jsonio import canonical_json, parse_json, shown

if TYPE_CHECKING:
    import torch

CHECKPOINT_SCHEMA = "hydractl.checkpoint/1"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""Endings of files that may hold a pickle, which hydractl never opens."""

MAX_HEADER_BYTES = 16 * 1024 * 1024
MAX_TENSORS = 100_000
CONVERT = (
    "convert it where you trust it: safetensors.torch.save_file("
    'torch.load(F, map_location="cpu", weights_only=True), OUT)'
)
"""The hint that says what to do with a pickle."""
_MAX_DIMENSIONS = 64
_MAX_COUNT = 2**63 - 1

# The dtypes by their names in safetensors: the name in torch, and the bytes per element.
DTYPES: dict[str, tuple[str, int]] = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}
_SAFETENSORS_NAME = {torch_name: name for name, (torch_name, _) in DTYPES.items()}


@dataclass(frozen=True)
class TensorInfo:
    """The header's entry for one tensor: its dtype in safetensors' terms, shape, and byte range in the data section."""

    dtype: str
    shape: tuple[int, ...]
    start: int = 0
    end: int = 0

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        _, bytes_an_element = DTYPES[self.dtype]
        elements = self.numel
        return elements * bytes_an_element


@dataclass(frozen=True)
class Header:
    """The header of a safetensors file: its tensors by name and its metadata."""

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    data_start: int
    state: tuple[int, ...] = field(default=(), compare=False)
    """The state of the file when the header was read, see :func:`state_of`."""
    description: dict[str, Any] | None = None
    """The ``hydractl`` description of the file; None if another program has written it."""


def read_header(path: str | Path) -> Header:
    """Read and check the header of a safetensors file, without reading its data.

    Raises:
        InputError: says what is wrong with the file, with all problems of its entries.
    """
    path = Path(path)
    try:
        _refuse_irregular(path)
        with open(path, "rb") as handle:
            status = os.fstat(handle.fileno())
            text = _read_header_text(handle, status.st_size, path)
    except FileNotFoundError:
        raise InputError(f"no such file: {path}", hint=near_path(path)) from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None

    # The file has 8 bytes with the length of the header, the header, and the data. The header is a JSON object that
    # maps the name of each tensor to its dtype, shape and place in the data; the entry __metadata__ holds texts.
    entries = parse_json(text, f"the header of {path}")
    if not isinstance(entries, dict):
        raise InputError(f"{path} has a header that is not a JSON object")
    metadata = _checked_metadata(entries.pop("__metadata__", {}), path)
    data_start = 8 + len(text)
    data_bytes = status.st_size - data_start
    tensors = _check_entries(entries, data_bytes, path)
    description = None
    if "hydractl" in metadata:
        description = parse_json(metadata["hydractl"], f"the description in {path}")
        if not isinstance(description, dict):
            raise InputError(f"{path} has a hydractl description that is not a JSON object")
    return Header(tensors, metadata, data_start, state_of(status), description)


def _refuse_irregular(path: Path) -> None:
    """Raise an error for a folder, and for anything else but a file: opening a pipe would wait for its other end."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path} is a folder, not a checkpoint file")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is no regular file")


def _checked_metadata(metadata: Any, path: Path) -> dict[str, str]:
    """Return the metadata of a header, which must map strings to strings.

    Raises:
        InputError: the metadata are something else.
    """
    if isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()):
        return metadata
    raise InputError(f"{path} has metadata that is not a map of strings")


def state_of(status: os.stat_result) -> tuple[int, ...]:
    """Return the numbers that tell one state of a file from another: device, inode, size, time of the last change."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _read_header_text(handle: IO[bytes], size: int, path: Path) -> bytes:
    """Return the bytes of the header of an open file; the first eight bytes of the file are its length.

    Args:
        handle: the file, at its beginning.
        size: the size of the file in bytes.
        path: the file, for messages.

    Raises:
        InputError: the file is of another kind, is truncated, or claims a header that is too long.
    """
    # Pointers of git-LFS, and files that are too short to have a length.
    start = handle.read(8)
    if start.startswith(b"version "):
        raise InputError(f"{path} is a git-LFS pointer, not the weights", hint="git lfs pull")
    if size == 0:
        raise InputError(f"{path} is empty, not a safetensors file")
    if size < 8:
        raise InputError(f"{path} is only {size} bytes long, not a safetensors file")

    # A file of another kind usually claims a header that is longer than the file. Naming that kind helps more than the
    # two messages below, so it comes first.
    (length,) = struct.unpack("<Q", start)
    is_cut_off = 8 + length > size
    if is_cut_off:  # check the kind only now: a valid header of 640 bytes begins with the same bytes as a pickle
        beginning = start + handle.read(64)
        _refuse_other_kind(beginning, path)
    if length > MAX_HEADER_BYTES:
        raise InputError(f"{path} claims a header of {length} bytes (the limit is {MAX_HEADER_BYTES})")
    if is_cut_off:
        raise InputError(f"{path} is truncated: its header of {length} bytes does not fit in {size} bytes")
    return handle.read(length)


def _refuse_other_kind(beginning: bytes, path: Path) -> None:
    """Raise an error for a file that begins like JSON, ``.npz``, a pickle or GGUF; do nothing for any other file.

    Raises:
        InputError: names the kind, with a hint how to make a checkpoint of it, if there is a way.
    """
    if beginning.lstrip()[:1] in (b"{", b"["):
        quoted = shlex.quote(str(path))
        raise InputError(f"{path} is JSON, not a checkpoint", hint=f"hydractl --info {quoted} says which")
    is_zip = beginning.startswith(b"PK\x03\x04")
    if is_zip and b".npy" in beginning:
        raise InputError(f"{path} is an .npz file of arrays, not a checkpoint", hint="arrays are data, and no MODEL")
    is_bare_pickle = beginning.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"))
    if is_zip or is_bare_pickle:  # torch puts its pickles into ZIP archives
        raise InputError(f"{path} is a pickle, which hydractl never opens", hint=CONVERT)
    if beginning.startswith(b"GGUF"):
        hint = "transformers reads those of some models: from_pretrained(FOLDER, gguf_file=FILE), then save_pretrained"
        raise InputError(f"{path} is a GGUF file, not safetensors", hint=hint)


def _check_entries(entries: Mapping[str, Any], data_bytes: int, path: Path) -> dict[str, TensorInfo]:
    """Return the tensors that the entries of a header describe, after checking them.

    Args:
        entries: the entries of the header, by the name of the tensor.
        data_bytes: the size of the data section after the header.
        path: the file, for messages.

    Raises:
        InputError: with a line for each malformed entry, or a line that says how the tensors do not fit the data.
    """
    if not entries:
        raise InputError(f"{path} contains no tensors")
    if len(entries) > MAX_TENSORS:
        raise InputError(f"{path} lists {len(entries)} tensors (the limit is {MAX_TENSORS})")

    # Read every entry; those that are malformed are listed together.
    tensors: dict[str, TensorInfo] = {}
    problems = []
    for name, entry in entries.items():
        problem_of_name = _name_problem(name)
        problem_of_fields = _fields_problem(entry)
        if problem_of_name is not None:
            problems.append(f"tensor name {shown(name)} {problem_of_name}")
        elif problem_of_fields is not None:
            problems.append(f"tensor {shown(name)} {problem_of_fields}")
        else:
            start, end = entry["data_offsets"]
            tensors[name] = TensorInfo(entry["dtype"], tuple(entry["shape"]), start, end)

    # Offsets are compared only if every entry is sound.
    if not problems:
        problems = _gap_problems(tensors, data_bytes)
    if problems:
        raise InputError(f"{path} is not a valid safetensors file", problems=problems)
    return tensors


_KEYS_OF_ENTRY = {"dtype", "shape", "data_offsets"}


def _name_problem(name: str) -> str | None:
    """Return what is wrong with the name of a tensor, without the name itself; None if nothing is."""
    if not name or name.startswith("/") or "\\" in name or "\0" in name or ".." in name.split("/"):
        return "looks like a path"
    return None


def _fields_problem(entry: Any) -> str | None:
    """Return the first thing that is wrong with the fields of an entry; None if nothing is.

    A sound entry is ``{"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}``: 6 numbers of 4 bytes.
    """
    if not isinstance(entry, dict) or set(entry) != _KEYS_OF_ENTRY:
        return "has a malformed entry"
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        return f"has the unknown dtype {shown(dtype)}"
    shape = entry["shape"]
    if not _are_counts(shape) or len(shape) > _MAX_DIMENSIONS:
        return f"has the bad shape {shown(shape)}"
    offsets = entry["data_offsets"]
    if not _are_counts(offsets) or len(offsets) != 2:
        return f"has bad offsets {shown(offsets)}"

    # The byte range must have exactly the size that dtype and shape ask for.
    needed = TensorInfo(dtype, tuple(shape)).nbytes
    start, end = offsets
    in_file = end - start
    if needed != in_file:
        return f"needs {needed} bytes, its range has {in_file}"
    return None


def _gap_problems(tensors: Mapping[str, TensorInfo], data_bytes: int) -> list[str]:
    """Return one line that says where the tensors first leave a hole, overlap, or do not fill the file.

    The list is empty if every byte of the data belongs to exactly one tensor.

    Args:
        tensors: the tensors of the header, by name.
        data_bytes: the size of the data section.
    """
    position = 0
    for name, info in tensors_in_order(tensors):
        if info.start != position:
            gap = "overlaps the one before" if info.start < position else "leaves a hole before it"
            return [f"tensor {shown(name)} {gap} (starts at {info.start}, expected {position})"]
        position = info.end

    # The last tensor must end with the file.
    if position == data_bytes:
        return []
    state = "truncated" if position > data_bytes else "over-long"
    return [f"the file is {state}: {data_bytes} bytes of data, {position} described"]


def tensors_in_order(tensors: Mapping[str, TensorInfo]) -> list[tuple[str, TensorInfo]]:
    """Return the tensors of a file in the order of their data; an empty one comes before one at the same position."""

    def first_and_last_byte(item: tuple[str, TensorInfo]) -> tuple[int, int]:
        _, info = item
        return info.start, info.end

    return sorted(tensors.items(), key=first_and_last_byte)


def _are_counts(values: Any) -> bool:
    """Return whether a value is a list of whole numbers from 0 to the largest that a tensor can have."""
    if not isinstance(values, list):
        return False
    return all(type(value) is int and 0 <= value <= _MAX_COUNT for value in values)


def header_bytes(infos: Mapping[str, TensorInfo], description: Mapping[str, object]) -> tuple[bytes, list[str]]:
    """Return the canonical header of a file, and the order in which the tensors' data must be written.

    The data are sorted by falling element size, then by name, which keeps every tensor aligned. The keys of the header
    are sorted by name. safetensors' own writer orders several metadata keys at random, so hydractl has its own.

    Args:
        infos: dtype and shape of each tensor.
        description: the ``hydractl`` description of the file.

    Returns:
        The bytes of the header, including its length, and the names of the tensors in order.

    Raises:
        InputError: the header would be longer than a header that is read may be.
    """

    def larger_elements_first(name: str) -> tuple[int, str]:
        dtype = infos[name].dtype
        _, bytes_an_element = DTYPES[dtype]
        return -bytes_an_element, name

    # The header's entries. The data of the tensors follow each other without gaps.
    order = sorted(infos, key=larger_elements_first)
    metadata = {"format": "pt", "hydractl": canonical_json(description)}
    entries: dict[str, object] = {"__metadata__": metadata}

    start = 0
    for name in order:
        info = infos[name]
        end = start + info.nbytes
        entries[name] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [start, end]}
        start = end

    # A longer header could not be read again.
    text = canonical_json(entries).encode("utf-8")
    longest_text = MAX_HEADER_BYTES - 8  # leaves room for the padding
    if len(text) > longest_text:
        raise InputError(f"the header would take {len(text)} bytes, and checkpoints have at most {MAX_HEADER_BYTES}")

    # Pad with spaces, so that the data begin at a multiple of eight bytes, e.g. 13 bytes with -13 % 8 = 3 spaces. The
    # first eight bytes of the file are the length, with the padding.
    padding = -len(text) % 8
    padded = text + b" " * padding
    length = struct.pack("<Q", len(padded))
    return length + padded, order


def tensor_info(tensor: torch.Tensor) -> TensorInfo:
    """Return dtype and shape of a tensor in safetensors' terms."""
    torch_name = str(tensor.dtype).removeprefix("torch.")
    dtype = _SAFETENSORS_NAME[torch_name]
    shape = tuple(tensor.shape)
    return TensorInfo(dtype, shape)


def torch_dtype(info: TensorInfo) -> torch.dtype:
    """Return the torch dtype of a described tensor."""
    import torch

    torch_name, _ = DTYPES[info.dtype]
    dtype: torch.dtype = getattr(torch, torch_name)
    return dtype


def meta_tensor(info: TensorInfo) -> torch.Tensor:
    """Return a tensor of this dtype and shape that has no numbers (on torch's meta device)."""
    import torch

    return torch.empty(info.shape, dtype=torch_dtype(info), device="meta")
