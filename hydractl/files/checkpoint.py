"""Checkpoint files: one safetensors file that describes itself.

Reading starts from the header alone and refuses everything that is not exactly what the format promises. Writing is
canonical: the same tensors and the same description give the same bytes, whatever the order they come in. This
module never builds a model.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import stat
import struct
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from hydractl.errors import InputError
from hydractl.files.atomic import Output
from hydractl.jsonio import canonical_json, parse_json, shown

if TYPE_CHECKING:
    import torch

CHECKPOINT_SCHEMA = "hydractl.checkpoint/1"
MAX_HEADER_BYTES = 16 * 1024 * 1024
MAX_TENSORS = 100_000
_MAX_DIMENSIONS = 64
_OWN_PAGES = 256 * 1024
SCAN_BYTES = 4 * 1024 * 1024
"""Bytes looked at in one go; a multiple of every element size."""
_MAX_COUNT = 2**63 - 1

# safetensors name -> (torch name, bytes per element)
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
    """What the header says of one tensor: safetensors dtype, shape, byte range in the data section."""

    dtype: str
    shape: tuple[int, ...]
    start: int = 0
    end: int = 0

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.numel * DTYPES[self.dtype][1]


@dataclass(frozen=True)
class Header:
    """The header of a safetensors file: its tensors by name and its metadata."""

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    data_start: int
    state: tuple[int, ...] = field(default=(), compare=False)
    """The file as it was when the header was read: device, inode, size, time of the last change."""

    @property
    def description(self) -> dict[str, Any] | None:
        """The ``hydractl`` description of the file, or None in a file of another tool."""
        text = self.metadata.get("hydractl")
        return None if text is None else json.loads(text)  # checked by read_header


def read_header(path: str | Path) -> Header:
    """Read and check the header of a safetensors file without touching its data.

    Raises:
        InputError: saying what is wrong with the file, with all problems of its entries.
    """
    path = Path(path)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"{path} is a folder, not a checkpoint file")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path} is no regular file")
        with open(path, "rb") as handle:
            status = os.fstat(handle.fileno())
            text = _read_header_text(handle, status.st_size, path)
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    raw = _parse_header(text, path)
    metadata = raw.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise InputError(f"{path} has metadata that is not a map of strings")
    data_start = 8 + len(text)
    tensors = _check_entries(raw, status.st_size - data_start, path)
    if "hydractl" in metadata and not isinstance(parse_json(metadata["hydractl"], f"the description in {path}"), dict):
        raise InputError(f"{path} has a hydractl description that is not a JSON object")
    return Header(tensors, metadata, data_start, _state(status))


def _state(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _read_header_text(handle: IO[bytes], size: int, path: Path) -> bytes:
    start = handle.read(8)
    if start.startswith(b"version "):
        raise InputError(f"{path} is a git-LFS pointer, not the weights", hint="git lfs pull")
    if size < 8:
        raise InputError(f"{path} is {'empty' if size == 0 else f'only {size} bytes long'}, not a safetensors file")
    (length,) = struct.unpack("<Q", start)
    # Only after the length: that of a header of 640 bytes has the same first bytes as a pickle.
    if 8 + length > size and start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        raise InputError(
            f"{path} is a pickle, which hydractl never opens",
            hint="convert it where you trust it: safetensors.torch.save_file(torch.load(F, weights_only=True), OUT)",
        )
    if length > MAX_HEADER_BYTES:
        raise InputError(f"{path} claims a header of {length} bytes (the limit is {MAX_HEADER_BYTES})")
    if 8 + length > size:
        raise InputError(f"{path} is truncated: its header of {length} bytes does not fit in {size} bytes")
    return handle.read(length)


def _parse_header(text: bytes, path: Path) -> dict[str, Any]:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise InputError(f"{path} has a header with the same key twice")
        return result

    try:
        raw = json.loads(text.decode("utf-8"), object_pairs_hook=no_duplicates)
    except UnicodeDecodeError:
        raise InputError(f"{path} has a header that is not UTF-8, so it is no safetensors file") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} has a header that is not JSON, so it is no safetensors file") from None
    if not isinstance(raw, dict):
        raise InputError(f"{path} has a header that is not a JSON object")
    return raw


def _check_entries(raw: Mapping[str, Any], data_bytes: int, path: Path) -> dict[str, TensorInfo]:
    if not raw:
        raise InputError(f"{path} contains no tensors")
    if len(raw) > MAX_TENSORS:
        raise InputError(f"{path} lists {len(raw)} tensors (the limit is {MAX_TENSORS})")
    problems: list[str] = []
    tensors: dict[str, TensorInfo] = {}
    for name, entry in raw.items():
        info = _check_entry(name, entry, problems)
        if info is not None:
            tensors[name] = info
    position = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if not problems and info.start != position:
            gap = "overlaps the one before" if info.start < position else "leaves a hole before it"
            problems.append(f"tensor {shown(name)} {gap} (starts at {info.start}, expected {position})")
        position = max(position, info.end)
    if not problems and position != data_bytes:
        state = "truncated" if position > data_bytes else "over-long"
        problems.append(f"the file is {state}: {data_bytes} bytes of data, {position} described")
    if problems:
        raise InputError(f"{path} is not a valid safetensors file", problems=problems)
    return tensors


def _check_entry(name: str, entry: Any, problems: list[str]) -> TensorInfo | None:
    if not name.isascii() and any("\ud800" <= c <= "\udfff" for c in name):
        problems.append(f"tensor name {shown(name)} holds half a character (an unpaired surrogate)")
        return None
    if not name or name.startswith("/") or ".." in name.split("/") or "\\" in name or "\0" in name:
        problems.append(f"tensor name {shown(name)} looks like a path")
        return None
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        problems.append(f"tensor {shown(name)} has a malformed entry")
        return None
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        problems.append(f"tensor {shown(name)} has the unknown dtype {shown(dtype)}")
        return None
    if not _are_counts(shape) or len(shape) > _MAX_DIMENSIONS:
        problems.append(f"tensor {shown(name)} has the bad shape {shown(shape)}")
        return None
    if not _are_counts(offsets) or len(offsets) != 2:
        problems.append(f"tensor {shown(name)} has bad offsets {shown(offsets)}")
        return None
    info = TensorInfo(dtype, tuple(shape), offsets[0], offsets[1])
    if info.end - info.start != info.nbytes:
        problems.append(f"tensor {shown(name)} needs {info.nbytes} bytes, its range has {info.end - info.start}")
        return None
    return info


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(n) is int and 0 <= n <= _MAX_COUNT for n in values)


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file, as hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class TensorSource(Protocol):
    """Named tensors that can be described without being read."""

    def names(self) -> list[str]:
        """All tensor names, sorted."""
        ...

    def info(self, name: str) -> TensorInfo:
        """Dtype and shape of one tensor."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """One tensor, on the CPU, in its stored dtype."""
        ...


@dataclass(frozen=True)
class Scan:
    """What one pass over a whole file found.

    Attributes:
        sha256: of the file, as hex.
        not_finite: the tensors that hold NaN or infinity, sorted.
    """

    sha256: str
    not_finite: Sequence[str]


class FileTensors:
    """The tensors of one safetensors file, read one at a time.

    The file is read, never mapped: what is read belongs to the caller, nothing stays in memory, and a file that is cut
    short or written to meanwhile is an error where a mapping would end the process or give other numbers.
    """

    def __init__(self, path: str | Path, header: Header | None = None) -> None:
        self.path = Path(path)
        self.header = header or read_header(path)
        self._handle: int | None = None
        self._scan: Scan | None = None

    def names(self) -> list[str]:
        """All tensor names, sorted."""
        return sorted(self.header.tensors)

    def info(self, name: str) -> TensorInfo:
        """Dtype and shape of one tensor."""
        return self.header.tensors[name]

    def read(self, name: str) -> torch.Tensor:
        """One tensor, on the CPU, in its stored dtype.

        Raises:
            InputError: for a file that cannot be read, or has changed since its header was.
        """
        info = self.info(name)
        return self.read_piece(name, 0, info.numel).reshape(info.shape)

    def read_piece(self, name: str, start: int, stop: int) -> torch.Tensor:
        """The elements ``start`` to ``stop`` of one tensor in storage order, ``[stop - start]``.

        Raises:
            InputError: as :meth:`read` does.
        """

        info = self.info(name)
        size = DTYPES[info.dtype][1]
        raw = page_buffer((stop - start) * size)
        self._fill(raw.numpy().data, self.header.data_start + info.start + start * size, repr(name))
        return raw.view(torch_dtype(info))

    def scan(self) -> Scan:
        """Hash the whole file and look at every number of it, in one pass; found once and kept.

        Raises:
            InputError: as :meth:`read` does.
        """
        if self._scan is None:
            self._scan = self._scan_file()
        return self._scan

    def _scan_file(self) -> Scan:
        import torch

        head = bytearray(self.header.data_start)
        self._fill(memoryview(head), 0, "the header")
        digest, buffer = hashlib.sha256(head), torch.empty(SCAN_BYTES, dtype=torch.uint8)
        block, not_finite = buffer.numpy().data, []
        # The data section has neither holes nor overlaps, so its tensors in their order are the rest of the file.
        for name, info in sorted(self.header.tensors.items(), key=lambda item: (item[1].start, item[1].end)):
            finite, dtype = True, torch_dtype(info)
            for position in range(info.start, info.end, SCAN_BYTES):
                count = min(SCAN_BYTES, info.end - position)
                self._fill(block[:count], self.header.data_start + position, repr(name))
                digest.update(block[:count])
                finite = finite and is_finite(buffer[:count].view(dtype))
            if not finite:
                not_finite.append(name)
        return Scan(digest.hexdigest(), sorted(not_finite))

    def _fill(self, block: memoryview, position: int, what: str) -> None:
        """Read as many bytes as ``block`` has."""
        done = 0
        try:
            handle = self._opened()
            while done < len(block):
                count = os.preadv(handle, [block[done:]], position + done)
                if count == 0:
                    raise InputError(f"cannot read {what} from {self.path}: the file has become shorter")
                done += count
            changed = bool(self.header.state) and _state(os.fstat(handle)) != self.header.state
        except OSError as error:
            raise InputError(f"cannot read {what} from {self.path}: {error.strerror}") from error
        if changed:
            raise InputError(f"cannot read {what} from {self.path}: the file has changed since it was opened")

    def _opened(self) -> int:
        # Kept open, so that a file which is replaced meanwhile (by this very command, with --force) stays what it was.
        if self._handle is None:
            self._handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._handle)
        return self._handle


def page_buffer(count: int) -> torch.Tensor:
    """Bytes to read into, ``[count]``. Big ones are pages of their own: when they are dropped, they are free at once.

    The allocator would put them between what stays, and keep the holes that they leave.
    """
    import torch

    if count < _OWN_PAGES:
        return torch.empty(count, dtype=torch.uint8)
    return torch.frombuffer(mmap.mmap(-1, count), dtype=torch.uint8)


class LentTensors:
    """Base of tensor sources that a model may use in place, without a copy: its weights must never be changed."""


def read_piece(source: TensorSource, name: str, start: int, stop: int) -> torch.Tensor:
    """The elements ``start`` to ``stop`` of one tensor in storage order, without reading the others where it can be."""
    piece: Callable[[str, int, int], torch.Tensor] | None = getattr(source, "read_piece", None)
    return source.read(name).reshape(-1)[start:stop] if piece is None else piece(name, start, stop)


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether there is neither NaN nor infinity in a tensor; of any shape, none is finite too."""
    import torch

    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    # One pass without a mask of the size of the tensor: NaN and infinity survive in the extremes.
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(tensor))


class DictTensors:
    """Tensors that are already in memory."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = {name: t.detach().cpu() for name, t in tensors.items()}

    def names(self) -> list[str]:
        """All tensor names, sorted."""
        return sorted(self.tensors)

    def info(self, name: str) -> TensorInfo:
        """Dtype and shape of one tensor."""
        return tensor_info(self.tensors[name])

    def read(self, name: str) -> torch.Tensor:
        """One tensor, on the CPU."""
        return self.tensors[name]


def tensor_info(tensor: torch.Tensor) -> TensorInfo:
    """Dtype and shape of a tensor in safetensors' terms."""
    return TensorInfo(_SAFETENSORS_NAME[str(tensor.dtype).removeprefix("torch.")], tuple(tensor.shape))


def torch_dtype(info: TensorInfo) -> torch.dtype:
    """The torch dtype of a described tensor."""
    import torch

    return getattr(torch, DTYPES[info.dtype][0])


def header_bytes(infos: Mapping[str, TensorInfo], description: Mapping[str, Any]) -> tuple[bytes, list[str]]:
    """The canonical header of a file and the order of its tensors.

    Data is sorted by falling element size, then name, which keeps every tensor aligned; header keys are sorted by
    name. The library's own writer orders several metadata keys at random, hence a writer of our own.
    """
    order = sorted(infos, key=lambda name: (-DTYPES[infos[name].dtype][1], name))
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", "hydractl": canonical_json(description)}}
    position = 0
    for name in order:
        info = infos[name]
        entries[name] = {
            "dtype": info.dtype,
            "shape": list(info.shape),
            "data_offsets": [position, position + info.nbytes],
        }
        position += info.nbytes
    text = canonical_json(entries).encode("utf-8")
    if len(text) > MAX_HEADER_BYTES - 8:  # what is read back may not be longer, padding included
        raise InputError(f"the header would take {len(text)} bytes, and checkpoints have at most {MAX_HEADER_BYTES}")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, order


def write_tensors(handle: IO[bytes], source: TensorSource, description: Mapping[str, Any]) -> str:
    """Stream ``source`` as one canonical safetensors file, one tensor in memory at a time.

    Returns:
        The SHA-256 of the bytes written.
    """
    import torch

    head, order = header_bytes({name: source.info(name) for name in source.names()}, description)
    digest = hashlib.sha256(head)
    handle.write(head)
    for name in order:
        tensor = source.read(name).contiguous()
        if tensor.numel() == 0:
            continue
        block = memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)
        digest.update(block)
        handle.write(block)
    return digest.hexdigest()


def write_checkpoint(output: Output, source: TensorSource, description: Mapping[str, Any]) -> str:
    """Write and commit a checkpoint; returns the SHA-256 of the file."""
    with output.opened() as handle:
        digest = write_tensors(handle, source, description)
    output.commit()
    return digest


def same_names(found: Iterable[str], expected: Iterable[str], what: str) -> list[str]:
    """Problems of a set of tensor names against the expected one, at most ten of each kind, each on its line."""
    found_set, expected_set = set(found), set(expected)
    problems: list[str] = []
    for kind, names in (("missing", expected_set - found_set), ("unexpected", found_set - expected_set)):
        ordered = sorted(names)
        problems.extend(f"{kind} tensor {name!r}" for name in ordered[:10])
        if len(ordered) > 10:
            problems.append(f"... and {len(ordered) - 10} more {kind} tensors in {what}")
    return problems


def file_bytes(path: str | Path) -> int:
    """Size of a file in bytes."""
    return os.stat(path).st_size
