"""The tensors of a state dict as torch saves it, read by torch's reader of weights, which runs no code.

A file may hold the state dict itself, or keep it as one entry of a dictionary. Many published files do so, e.g. DeiT's,
and the checkpoints of the training scripts of timm (``train.py``, which writes ``.pth.tar``) and torchvision
(``references/classification/train.py``), which also hold the state of the optimiser and the script's arguments.
Lightning's (``.ckpt``) do, too, and have the model's attribute of the module, such as ``model.``, before each name.
"""

from __future__ import annotations

import argparse
import pickle
import pickletools
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hydractl.errors import InputError
from hydractl.files.checkpoint import MappedTensors
from hydractl.files.header import MAX_TENSORS, tensor_info

STATE_DICTS = (".pth", ".pth.tar", ".pt", ".ckpt")
"""The endings of files that this module reads."""

_WEIGHTS = {
    "state_dict_ema": "timm",
    "ema_state_dict": "timm",
    "state_dict": "timm",
    "model_ema": "torchvision",
    "model": "torchvision",
}
"""The entries that may hold weights, and the library whose training script calls them so; averaged weights come first.

Whether one of these scripts did write the file is told by its arguments, which both scripts store as ``args``.
"""

_WRAPPERS = ("_orig_mod.", "module.")
"""Prefixes that ``torch.compile``, parallel training and averaged models put before the names of tensors."""

_LONGEST_PICKLE = 1 << 24
"""The most bytes of the part of a file that says what is in it, beside the numbers themselves."""

_CALLED = {
    "argparse": {"Namespace"},
    "collections": {"OrderedDict", "Counter", "defaultdict"},
    "torch": {
        *("FloatStorage", "DoubleStorage", "HalfStorage", "BFloat16Storage", "ByteStorage", "CharStorage"),
        *("ShortStorage", "IntStorage", "LongStorage", "BoolStorage", "Size", "device"),
        *("float16", "float32", "float64", "bfloat16", "uint8", "int8", "int16", "int32", "int64", "bool"),
    },
    "torch._utils": {
        *("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter", "_rebuild_parameter_with_state"),
        *("_rebuild_sparse_tensor", "_rebuild_meta_tensor_no_storage"),  # refused later, by name
    },
    "torch.serialization": {"_get_layout"},
    "torch.storage": {"UntypedStorage"},
    "builtins": {"set"},
    "__builtin__": {"set"},
}
"""By module, what a file may name in order to be called: tensors, and plain containers of what the file holds.

None of it sets memory aside by a number in the file. torch allows more, such as ``bytearray(N)``.
"""

_NUMBER_OF_AVERAGED = "n_averaged"
"""A buffer of torch's averaged models that does not belong to the model itself."""


class StateDict(MappedTensors):
    """The tensors of one such file, which is mapped: the numbers of a tensor are read when it is asked for.

    Attributes:
        entry: the entry of the file that has the weights; None if the file is a bare state dict.
        script: the library whose training script wrote the file, ``timm`` or ``torchvision``; None if the file has no
            arguments of a script.
        arguments: the arguments of that script, by name.
        prefix: what all names in the file begin with and have lost here, such as ``model.``; empty if they differ.

    Raises:
        InputError: the file holds anything else than plain tensors by name.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, find its weights, and check that they are plain tensors."""
        try:
            # The weights may be one entry of a dictionary, e.g. "state_dict", beside the arguments of the script that
            # trained them. `entry` is the name of that entry; None means that the content itself is the weights.
            content = _read_safely(path)
            self.entry = _entry_of_weights(content)
            self.script = None
            self.arguments = _script_arguments(content)
            weights = content
            if self.entry is not None:
                weights = _without_wrappers(content[self.entry])
                if "args" in content:
                    self.script = _WEIGHTS[self.entry]

            # Only now is it known that there are tensors by name. All names may begin with one prefix, e.g. "model.".
            _check_tensors(weights)
            self.prefix = _prefix_of_all(weights)
            # A compiled model that is an attribute of a module has its wrapper behind the prefix.
            weights = _without_wrappers({name.removeprefix(self.prefix): weights[name] for name in weights})
            infos = {name: tensor_info(tensor) for name, tensor in weights.items()}
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        except Exception as error:  # a damaged archive may raise any exception
            raise InputError(
                f"{path} is no state dict of plain tensors: {_refusal_reason(error)}",
                hint="where you trust it, load it in Python and save model.state_dict() with "
                "safetensors.torch.save_file",
            ) from error
        super().__init__(infos, lambda name: weights[name].detach().clone())


def _refusal_reason(error: Exception) -> str:
    """Return why a file is refused, in one line of at most 200 characters."""
    if isinstance(error, pickle.UnpicklingError):
        return "it asks for more than tensors"
    said = str(error) or type(error).__name__
    first_line = said.splitlines()[0]
    return first_line[:200]


def is_state_dict(path: Path) -> bool:
    """Return whether this module reads a file, judging by its name."""
    name = path.name.lower()
    return name.endswith(STATE_DICTS)


def _read_safely(path: Path) -> Any:
    """Return the content of a file that ``torch.save`` has written: tensors, plain containers, numbers and texts.

    Raises:
        ValueError: the archive is compressed, or holds more than 16 MiB beside the numbers of its tensors.
        UnpicklingError: it names a function or class that is not in :data:`_CALLED`.
    """
    import torch

    # The file may come from anyone. It must run no code, and take no more memory than its size:
    # - Its parts are not compressed (torch never compresses them), since a small one could unpack to any size.
    # - Its pickle, the list of operations that puts the content together, is short and names only harmless types.
    # - torch.load checks the names once more (weights_only). A Namespace, the arguments of a script, only holds values.
    # - With mmap, a tensor with more numbers than are stored raises an error instead of reading beyond them.
    with zipfile.ZipFile(path) as archive:
        if any(part.compress_type for part in archive.infolist()):
            raise ValueError("its archive is packed")
        for part in archive.infolist():
            if part.filename.endswith(".pkl"):
                if part.file_size > _LONGEST_PICKLE:
                    raise ValueError(f"it holds {part.file_size:,} bytes beside its tensors")
                _check_called(archive.read(part))

    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _check_called(pickled: bytes) -> None:
    """Refuse a pickle that names a function or class outside of :data:`_CALLED`. It is read, but not run.

    Raises:
        UnpicklingError: it names something else, or is damaged.
    """
    # GLOBAL has the name as its argument, "module name", which can be compared. STACK_GLOBAL takes it from the stack
    # and EXT from a registry, so it is known only when they are run. INST calls at once what it names.
    for operation, argument, _ in pickletools.genops(pickled):
        if operation.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"):
            raise pickle.UnpicklingError(f"{operation.name} is not allowed")
        if operation.name == "GLOBAL":
            module, _, name = str(argument).partition(" ")
            if name not in _CALLED.get(module, ()):
                raise pickle.UnpicklingError(f"{module}.{name} is not allowed")


def _entry_of_weights(content: Any) -> str | None:
    """Return the entry that holds the weights; None if none of the known entries is a dictionary that is not empty."""
    if not isinstance(content, dict):
        return None
    for entry in _WEIGHTS:
        weights = content.get(entry)
        if isinstance(weights, dict) and weights:
            return entry
    return None


def _script_arguments(content: Any) -> Mapping[str, object]:
    """Return the arguments of a training script, by name; empty if the content is not a checkpoint of one."""
    arguments = content.get("args") if isinstance(content, dict) else None
    if type(arguments) is argparse.Namespace:
        return dict(vars(arguments))
    return {}


def _without_wrappers(weights: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return tensors by the names that the model itself gives them, without the prefixes of wrappers.

    ``module._orig_mod.head.weight``, of a compiled model in parallel training, becomes ``head.weight``. The number of
    averaged models that torch stores beside averaged weights is left out.

    Raises:
        ValueError: two tensors get the same name.
    """
    unwrapped: dict[Any, Any] = {}
    for wrapped_name, tensor in weights.items():
        if wrapped_name == _NUMBER_OF_AVERAGED:
            continue
        name = wrapped_name
        # Remove prefixes one by one, since wrappers may be nested.
        while isinstance(name, str) and name.startswith(_WRAPPERS):
            _, _, name = name.partition(".")
        if name in unwrapped:
            shown_name = repr(str(name)[:80])
            raise ValueError(f"{shown_name} is there twice")
        unwrapped[name] = tensor
    return unwrapped


def _prefix_of_all(names: Collection[str]) -> str:
    """Return the first part of the names with its dot, if all names begin with the same; else an empty text."""
    first_parts = {name.partition(".")[0] for name in names}
    if len(first_parts) > 1 or not all("." in name for name in names):
        return ""
    (part,) = first_parts
    return f"{part}."


def _check_tensors(weights: Any) -> None:
    """Raise an error unless all values are plain tensors that are fully stored.

    A tensor that repeats its numbers (a view with stride 0) could fill the memory when it is copied.

    Raises:
        ValueError: says what is wrong.
    """
    import torch

    if not isinstance(weights, dict):
        raise ValueError("it is no list of tensors")
    if not 0 < len(weights) <= MAX_TENSORS:
        raise ValueError("it is no list of tensors")
    for name, tensor in weights.items():
        shown_name = repr(str(name)[:80])
        if type(name) is not str or not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{shown_name} is no tensor")
        if tensor.layout != torch.strided:  # e.g. a sparse tensor
            raise ValueError(f"{shown_name} is no tensor")
        if tensor.device.type != "cpu":  # e.g. a meta tensor, which has no numbers
            raise ValueError(f"{shown_name} has no numbers")

        # In bytes: what the tensor takes once it is copied, and what the file has of it.
        size = tensor.numel() * tensor.element_size()
        stored = tensor.untyped_storage().nbytes()
        if size > stored:
            raise ValueError(f"{shown_name} is larger than what is stored of it")
