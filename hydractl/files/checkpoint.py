"""The tensors of checkpoints: read from files one at a time, combined with others, and written as one file.

This module never builds a model.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from hydractl.errors import InputError
from hydractl.files.atomic import Output
from hydractl.files.header import (
    DTYPES,
    Header,
    TensorInfo,
    header_bytes,
    meta_tensor,
    read_header,
    state_of,
    tensor_info,
    tensors_in_order,
    torch_dtype,
)
from hydractl.jsonio import read_json_file

if TYPE_CHECKING:
    import torch

BESIDE = "hydractl."
"""The prefix of the names of extra tensors, which are not weights of the model; ``names`` does not list them."""

SCAN_BYTES = 4 * 1024 * 1024
"""How many bytes are read at a time while scanning; a multiple of every element size."""


class TensorSource(Protocol):
    """Named tensors that can be described without being read."""

    def names(self) -> list[str]:
        """Return all tensor names, sorted."""
        ...

    def info(self, name: str) -> TensorInfo:
        """Return dtype and shape of one tensor."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """Read one tensor, on the CPU, in its stored dtype."""
        ...


@dataclass(frozen=True)
class Scan:
    """The results of one pass over a whole file.

    Attributes:
        sha256: the SHA-256 of the file, as hex.
        not_finite: the names of tensors that hold NaN or infinity, sorted.
        empty: whether every byte of every tensor is zero, as after a loss of power.
    """

    sha256: str
    not_finite: Sequence[str]
    empty: bool


class FileTensors:
    """The tensors of one safetensors file, read one at a time.

    The file is read, never mapped into memory: the caller owns what is read, and nothing else stays in memory. If the
    file is cut short or changed meanwhile, reading raises an error; a mapping would end the process or return wrong
    numbers.
    """

    def __init__(self, path: str | Path, header: Header | None = None) -> None:
        self.path = Path(path)
        self.header = header or read_header(path)
        self._handle: int | None = None
        self._scan: Scan | None = None

    def names(self) -> list[str]:
        """Return all tensor names, sorted, without those that begin with :data:`BESIDE`."""
        return sorted(name for name in self.header.tensors if not name.startswith(BESIDE))

    def info(self, name: str) -> TensorInfo:
        """Return dtype and shape of one tensor."""
        return self.header.tensors[name]

    def read(self, name: str) -> torch.Tensor:
        """Read one tensor, on the CPU, in its stored dtype.

        Raises:
            InputError: the file cannot be read, or has changed since its header was read.
        """
        info = self.info(name)
        elements = self.read_piece(name, 0, info.numel)
        return elements.reshape(info.shape)

    def read_piece(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Read the elements ``start`` to ``stop`` of one tensor in storage order, ``[stop - start]``.

        Raises:
            InputError: the file cannot be read, or has changed since its header was read.
        """
        import torch

        # From elements to bytes, and from the tensor to the file: element 10 of a float32 tensor begins 40 bytes behind
        # the tensor's start.
        info = self.info(name)
        _, bytes_an_element = DTYPES[info.dtype]
        size = (stop - start) * bytes_an_element
        start_of_tensor = self.header.data_start + info.start
        position = start_of_tensor + start * bytes_an_element

        # Read into a buffer of bytes, and return the same memory as the tensor's dtype.
        raw = torch.empty(size, dtype=torch.uint8)
        block = raw.numpy().data
        self._fill(block, position, repr(name))
        return raw.view(torch_dtype(info))

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        infos = self.header.tensors.values()
        last_end = max(info.end for info in infos)
        return self.header.data_start + last_end

    def sha256(self) -> str:
        """Return the SHA-256 of the whole file, as hex."""
        return self.scan().sha256

    def scan(self) -> Scan:
        """Hash the whole file and check all its numbers, in one pass; the result is kept for later calls.

        Raises:
            InputError: the file cannot be read, or has changed since its header was read.
        """
        if self._scan is None:
            self._scan = self._scan_file()
        return self._scan

    def _scan_file(self) -> Scan:
        """Return the SHA-256 of the file, the tensors that are not finite, and whether all numbers are 0.

        The file is read once, with one block of it in memory at a time.
        """
        import torch

        # Hash the header, then the tensors.
        head = bytearray(self.header.data_start)
        self._fill(memoryview(head), 0, "the header")
        digest = hashlib.sha256(head)
        buffer = torch.empty(SCAN_BYTES, dtype=torch.uint8)
        block = buffer.numpy().data  # the same memory as a byte view, to read into
        not_finite = []
        is_empty = True

        # The data section has no holes and no overlaps, so the tensors in their order are the rest of the file.
        for name, info in tensors_in_order(self.header.tensors):
            dtype = torch_dtype(info)
            all_finite = True
            for position in range(info.start, info.end, SCAN_BYTES):
                count = min(SCAN_BYTES, info.end - position)
                self._fill(block[:count], self.header.data_start + position, repr(name))
                digest.update(block[:count])
                read_bytes = buffer[:count]
                # Once an answer is known, the numbers are not checked for it again.
                is_empty = is_empty and not read_bytes.any()
                all_finite = all_finite and is_finite(read_bytes.view(dtype))
            if not all_finite:
                not_finite.append(name)
        return Scan(digest.hexdigest(), sorted(not_finite), is_empty)

    def _fill(self, block: memoryview, position: int, what: str) -> None:
        """Fill a block with the bytes of the file from a position on.

        Args:
            block: the memory to fill; its length says how much to read.
            position: the position of the first byte in the file.
            what: the name of what is read, for messages.

        Raises:
            InputError: the file cannot be read, or has changed since its header was read.
        """
        filled = 0
        try:
            handle = self._opened()
            while filled < len(block):  # one call may read less than asked
                rest = block[filled:]
                count = os.preadv(handle, [rest], position + filled)
                if count == 0:
                    raise InputError(f"cannot read {what} from {self.path}: the file has become shorter")
                filled += count
            state = state_of(os.fstat(handle))
        except OSError as error:
            raise InputError(f"cannot read {what} from {self.path}: {error.strerror}") from error

        # Checked after reading: a file that was written to meanwhile may have given old and new bytes.
        if self.header.state and state != self.header.state:
            raise InputError(f"cannot read {what} from {self.path}: the file has changed since it was opened")

    def _opened(self) -> int:
        """Return the descriptor of the file; it is opened by the first call and closed with this object."""
        # Keep the descriptor: if the file is replaced meanwhile (e.g. by this command with --force), it reads the old
        # file.
        if self._handle is None:
            self._handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._handle)
        return self._handle


class MappedTensors(Mapping[str, "torch.Tensor"]):
    """Tensors with known dtypes and shapes, which a function reads or makes when they are asked for."""

    def __init__(self, infos: Mapping[str, TensorInfo], read: Callable[[str], torch.Tensor]) -> None:
        self._infos = infos
        self.read = read

    def names(self) -> list[str]:
        """Return all tensor names, sorted."""
        return sorted(self._infos)

    def info(self, name: str) -> TensorInfo:
        """Return dtype and shape of one tensor."""
        return self._infos[name]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)


class LentTensors(MappedTensors):
    """Tensors that a model may use in place, without a copy; the weights of such a model must never be changed."""


class DictTensors(MappedTensors):
    """Tensors that are already in memory."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Move all tensors to the CPU."""
        self.tensors = {}
        infos = {}
        for name, tensor in tensors.items():
            on_cpu = tensor.detach().cpu()
            self.tensors[name] = on_cpu
            infos[name] = tensor_info(on_cpu)
        super().__init__(infos, self.tensors.__getitem__)


class ShardedTensors(MappedTensors):
    """The tensors of several safetensors files that an index names, as transformers splits big models.

    Args:
        index: the file ``model.safetensors.index.json`` beside them.

    Raises:
        InputError: the index does not list exactly the tensors in the files, or a file cannot be read.
    """

    def __init__(self, index: Path) -> None:
        """Read the index and the headers of all files, and check that they agree; no tensor is read yet."""
        file_of_tensor = _weight_map(index)

        # All files that the index names must exist, and have exactly the tensors that it lists.
        file_names = sorted(set(file_of_tensor.values()))
        folder = index.parent
        missing = [name for name in file_names if not (folder / name).exists()]
        if missing:
            message = f"{len(missing)} of the {len(file_names)} files of {index} are missing"
            raise InputError(message, "download the rest of the folder", problems=missing)
        files = {name: FileTensors(folder / name) for name in file_names}
        _check_index(index, file_of_tensor, files)

        # Dtype and shape of each tensor, from the header of its file.
        infos = {}
        for tensor, file_name in file_of_tensor.items():
            infos[tensor] = files[file_name].info(tensor)

        def read(tensor: str) -> torch.Tensor:
            file = files[file_of_tensor[tensor]]
            return file.read(tensor)

        super().__init__(infos, read)


def _check_index(index: Path, file_of_tensor: Mapping[str, str], files: Mapping[str, FileTensors]) -> None:
    """Raise an error unless an index lists exactly the tensors that its files have, each in its file.

    Args:
        index: the index file, for messages.
        file_of_tensor: the name of the file of each tensor, as the index says.
        files: the files by name.

    Raises:
        InputError: with a line for each tensor that only the index or only a file names, 40 at most.
    """
    in_files = {(tensor, name) for name, file in files.items() for tensor in file.names()}
    differences = in_files ^ set(file_of_tensor.items())  # what only one of the two has
    if differences:
        problems = sorted(f"tensor {tensor!r} of {name}" for tensor, name in differences)
        raise InputError(f"{index} and its files do not name the same tensors", problems=problems[:40])


def _weight_map(index: Path) -> dict[str, str]:
    """Return the name of the file that has each tensor, from an index file.

    Raises:
        InputError: the index names no files, or files that are not safetensors files beside it.
    """
    document = read_json_file(index)
    file_of_tensor = document.get("weight_map") if isinstance(document, dict) else None
    if isinstance(file_of_tensor, dict) and file_of_tensor and all(map(_lies_beside, file_of_tensor.values())):
        return file_of_tensor
    raise InputError(f"{index} is no index of safetensors files beside it")


def _lies_beside(name: object) -> bool:
    """Return whether a name in an index is that of a safetensors file beside it, and not e.g. ``../name``."""
    return isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name


def with_tensors(source: TensorSource, tensors: Mapping[str, torch.Tensor]) -> MappedTensors:
    """Return a source of tensors like another one, with some tensors replaced or added; none is read yet."""

    def read(name: str) -> torch.Tensor:
        if name in tensors:
            return tensors[name]
        return source.read(name)

    infos = {name: source.info(name) for name in source.names()}
    for name, tensor in tensors.items():
        infos[name] = tensor_info(tensor)
    return MappedTensors(infos, read)


def beside(source: TensorSource, start: str = BESIDE) -> dict[str, torch.Tensor]:
    """Return the extra tensors of a file, which are not weights of its model: their names begin with ``start``."""
    if not isinstance(source, FileTensors):
        return {}
    return {name: source.read(name) for name in source.header.tensors if name.startswith(start)}


def beside_infos(source: TensorSource) -> list[TensorInfo]:
    """Return dtype and shape of the tensors of :func:`beside`, without reading them."""
    if not isinstance(source, FileTensors):
        return []
    return [info for name, info in source.header.tensors.items() if name.startswith(BESIDE)]


def shapes_only(source: TensorSource) -> MappedTensors:
    """Return the tensors of a source as meta tensors, which have dtypes and shapes but no numbers."""
    infos = {name: source.info(name) for name in source.names()}

    def read(name: str) -> torch.Tensor:
        return meta_tensor(source.info(name))  # also works for tensors beside the weights, which are not listed

    return MappedTensors(infos, read)


def read_piece(source: TensorSource, name: str, start: int, stop: int) -> torch.Tensor:
    """Read the elements ``start`` to ``stop`` of one tensor in storage order, ``[stop - start]``.

    If the source can only read whole tensors, the whole tensor is read.
    """
    read_piece_of_source: Callable[[str, int, int], torch.Tensor] | None = getattr(source, "read_piece", None)
    if read_piece_of_source is not None:
        return read_piece_of_source(name, start, stop)
    whole = source.read(name)
    elements = whole.reshape(-1)
    return elements[start:stop]


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has neither NaN nor infinity; an empty tensor is finite."""
    import torch

    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True

    # One pass, without a mask as large as the tensor: the extremes are NaN or infinite if any element is.
    lowest, highest = torch.aminmax(tensor)
    return bool(torch.isfinite(lowest)) and bool(torch.isfinite(highest))


def write_tensors(handle: IO[bytes], source: TensorSource, description: Mapping[str, object]) -> str:
    """Write tensors as one canonical safetensors file, with one tensor in memory at a time; return its SHA-256.

    Args:
        handle: the file to write to.
        source: the tensors.
        description: the ``hydractl`` description for the header.

    Returns:
        The SHA-256 of the written bytes.
    """
    import torch

    # The header says in which order the tensors follow. It is written first, so the hash begins with it.
    infos = {name: source.info(name) for name in source.names()}
    head, order = header_bytes(infos, description)
    digest = hashlib.sha256(head)
    handle.write(head)
    for name in order:
        tensor = source.read(name).contiguous()
        if tensor.numel() == 0:  # an empty tensor has no view of its bytes
            continue
        as_bytes = tensor.reshape(-1).view(torch.uint8)
        block = memoryview(as_bytes.numpy().data)
        digest.update(block)
        handle.write(block)
    return digest.hexdigest()


def sha256_file(path: str | Path) -> str:
    """Return the SHA-256 of a file, as hex."""
    with open(path, "rb") as handle:
        digest = hashlib.file_digest(handle, "sha256")
    return digest.hexdigest()


def write_checkpoint(output: Output, source: TensorSource, description: Mapping[str, object]) -> str:
    """Write and commit a checkpoint; return the SHA-256 of the file."""
    with output.opened() as handle:
        digest = write_tensors(handle, source, description)
    output.commit()
    return digest
