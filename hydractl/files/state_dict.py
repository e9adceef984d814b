"""The tensors of a state dict as torch saves it (``.pth``), read as data: nothing in the file is unpickled or run.

The file is a zip archive of numbers, one part for each storage, and of a pickle that says which of them are which
tensor. Of pickle's instructions the few that such a list takes are followed here, and any other is refused.

Source: torch.serialization, "zip file format"; pickletools.
"""

from __future__ import annotations

import math
import pickletools
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.errors import InputError
from hydractl.files.checkpoint import MappedTensors
from hydractl.files.header import DTYPES, MAX_HEADER_BYTES, MAX_TENSORS, TensorInfo, torch_dtype

if TYPE_CHECKING:
    import torch

STATE_DICT = ".pth"
_STORAGES = {"Double": "F64", "Float": "F32", "Half": "F16", "BFloat16": "BF16", "Long": "I64", "Int": "I32"}
_STORAGES |= {"Short": "I16", "Char": "I8", "Byte": "U8", "Bool": "BOOL"}
_MOST_DIMENSIONS = 64


@dataclass(frozen=True)
class _Stored:
    """A tensor: the part of the archive that its numbers are in, its dtype, and where in it they are."""

    part: str
    dtype: str
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def check(self, nbytes: int) -> None:
        counts = (self.start, *self.shape, *self.strides)
        if len(self.shape) != len(self.strides) or len(self.shape) > _MOST_DIMENSIONS:
            raise ValueError("a tensor has no shape")
        if not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError("a tensor has no shape")
        there = nbytes // DTYPES[self.dtype][1]
        last = self.start + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        if math.prod(self.shape) and (last >= there or math.prod(self.shape) > there):
            raise ValueError("a tensor is larger than what is stored of it")


class StateDict(MappedTensors):
    """The tensors of one ``.pth`` file, read one at a time.

    Raises:
        InputError: for anything else than plain tensors by name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with zipfile.ZipFile(path) as archive:
                self._found = _listed(archive, path.stat().st_size)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        except Exception as error:  # of a damaged archive anything may come
            raise self._refused(error) from error
        super().__init__({name: TensorInfo(one.dtype, one.shape) for name, one in self._found.items()}, self._tensor)

    def _refused(self, error: Exception) -> InputError:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        return InputError(
            f"{self._path} is no state dict of plain tensors: {reason}",
            hint="where you trust it, load it in Python and save model.state_dict() with safetensors.torch.save_file",
        )

    def _tensor(self, name: str) -> torch.Tensor:
        import torch

        one = self._found[name]
        try:
            with zipfile.ZipFile(self._path) as archive:
                raw = bytearray(archive.read(one.part))
            numbers = torch.frombuffer(raw, dtype=torch_dtype(self.info(name))) if raw else torch.empty(0)
            return numbers.as_strided(one.shape, one.strides, one.start).clone()
        except Exception as error:
            raise self._refused(error) from error


def _listed(archive: zipfile.ZipFile, size: int) -> dict[str, _Stored]:
    """The tensors of an archive of so many bytes, by name."""
    parts = {part.filename: part for part in archive.infolist()}
    if any(p.compress_type for p in parts.values()) or sum(p.file_size for p in parts.values()) > size:
        raise ValueError("its archive is packed")
    (listing,) = [name for name in parts if name.rpartition("/")[2] == "data.pkl"] or ("",)
    if not listing or parts[listing].file_size > MAX_HEADER_BYTES:
        raise ValueError("it has no list of tensors")
    folder = listing.removesuffix("data.pkl")
    if f"{folder}byteorder" in parts and archive.read(f"{folder}byteorder") != b"little":
        raise ValueError("its numbers are big-endian")
    found = _followed(archive.read(listing), f"{folder}data/")
    if not isinstance(found, dict) or not 0 < len(found) <= MAX_TENSORS:
        raise ValueError("it is no list of tensors")
    for name, one in found.items():
        if not isinstance(one, _Stored):
            raise ValueError(f"{name[:80]!r} is no tensor")
        one.check(parts[one.part].file_size)
    return found


@dataclass(frozen=True)
class _Name:
    """What a pickle names: a function or class that is never looked up."""

    name: str


def _followed(listing: bytes, folder: str) -> Any:
    """What the instructions of a pickle put together, of dicts, tuples, texts, numbers and tensors."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def cut(count: int) -> list[Any]:
        if count > len(stack):
            raise ValueError("its list of tensors is broken")
        taken = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        return taken

    argument: Any
    for code, argument, _ in pickletools.genops(listing):
        match code.name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "MARK":
                marks.append(len(stack))
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(cut(int(code.name[5:]) if code.name[0] == "T" else 0)))
            case "TUPLE":
                stack.append(tuple(cut(len(stack) - marks.pop())))
            case "NEWTRUE" | "NEWFALSE" | "NONE":
                stack.append(None)
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1":
                stack.append(argument)
            case "GLOBAL":
                stack.append(_Name(argument))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "BINPERSID":
                stack.append(_storage(stack.pop(), folder))
            case "REDUCE":
                stack.append(_made(*cut(2)))
            case "SETITEM":
                _set(stack[-3], cut(2))
            case "SETITEMS":
                pairs = cut(len(stack) - marks.pop())
                _set(stack[-1], pairs)
            case "BUILD":  # the versions of modules, which a state dict carries along
                stack.pop()
            case _:
                raise ValueError(f"it asks for pickle's {code.name}")
    return stack[-1]


def _set(target: dict[str, Any], pairs: list[Any]) -> None:
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        if type(key) is not str or type(target) is not dict:
            raise ValueError("its tensors have no names")
        target[key] = value


def _storage(found: Any, folder: str) -> tuple[str, str]:
    """The part of a storage and its dtype, from ``("storage", torch.FloatStorage, key, device, count)``."""
    kind = found[1].name.removeprefix("torch ").removesuffix("Storage")
    return f"{folder}{found[2]}", _STORAGES[kind]


def _made(function: Any, given: Any) -> Any:
    """What a call that a pickle asks for would make."""
    match function.name if isinstance(function, _Name) else "":
        case "collections OrderedDict" if given == ():
            return {}
        case "torch._utils _rebuild_tensor_v2":
            (part, dtype), start, shape, strides = given[:4]
            return _Stored(part, dtype, start, tuple(shape), tuple(strides))
        case "torch._utils _rebuild_parameter" if isinstance(given[0], _Stored):
            return given[0]
    raise ValueError(f"it asks for {function.name if isinstance(function, _Name) else 'a call of no name'}")
