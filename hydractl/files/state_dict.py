"""The tensors of a state dict as torch saves it (``.pth``), by torch's own reader of weights, which runs no code.

A file may hold the state dict itself, or be a checkpoint of the training script of timm (``train.py``, which writes
``.pth.tar``) or torchvision (``references/classification/train.py``): weights beside the state of the optimiser and the
script's arguments.
"""

from __future__ import annotations

import argparse
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydractl.errors import InputError
from hydractl.files.checkpoint import MappedTensors
from hydractl.files.header import MAX_TENSORS, tensor_info

STATE_DICTS = (".pth", ".pth.tar")
"""Endings of files that are read here."""

_WEIGHTS = {
    "state_dict_ema": "timm",
    "state_dict": "timm",
    "model_ema": "torchvision",
    "model": "torchvision",
}
"""Where training scripts keep weights, those averaged over training first, each with the library of the script."""

_WRAPPERS = ("_orig_mod.", "module.")
"""What ``torch.compile``, parallel training and averaged models put before the names of tensors."""

_NUMBER_OF_AVERAGED = "n_averaged"
"""A buffer of an averaged model of torch that is none of the model's own."""


class StateDict(MappedTensors):
    """The tensors of one ``.pth`` file, which is mapped: the numbers of a tensor are read when somebody asks for it.

    Attributes:
        entry: the name under which the file keeps these weights among other things; None where it holds them alone.
        script: the library whose training script wrote the file, ``timm`` or ``torchvision``; None for neither.
        arguments: what that script was started with, by name.

    Raises:
        InputError: for anything else than plain tensors by name.
    """

    def __init__(self, path: Path) -> None:
        try:
            content = _read_safely(path)
            self.entry = _entry_of_weights(content)
            self.script = None
            self.arguments = _script_arguments(content)
            weights = content
            if self.entry is not None:
                self.script = _WEIGHTS[self.entry]
                weights = _without_wrappers(content[self.entry])
            _check_tensors(weights)
            infos = {name: tensor_info(tensor) for name, tensor in weights.items()}
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        except Exception as error:  # of a damaged archive anything may come
            raise InputError(
                f"{path} is no state dict of plain tensors: {_refusal_reason(error)}",
                hint="where you trust it, load it in Python and save model.state_dict() with "
                "safetensors.torch.save_file",
            ) from error
        super().__init__(infos, lambda name: weights[name].detach().clone())


def _refusal_reason(error: Exception) -> str:
    """Return why a file is refused, in a line of 200 characters at most."""
    if isinstance(error, pickle.UnpicklingError):
        return "it asks for more than tensors"
    said = str(error) or type(error).__name__
    first_line = said.splitlines()[0]
    return first_line[:200]


def is_state_dict(path: Path) -> bool:
    """Return whether a file is one of those that are read here, by its name."""
    name = path.name.lower()
    return name.endswith(STATE_DICTS)


def _read_safely(path: Path) -> Any:
    """Read what a file holds: tensors, plain containers and numbers, and the arguments of a script."""
    import torch

    with zipfile.ZipFile(path) as archive:
        if any(part.compress_type for part in archive.infolist()):
            raise ValueError("its archive is packed")
    # A Namespace holds values by name and does nothing with them.
    with torch.serialization.safe_globals([argparse.Namespace]):
        # Mapped, a tensor of more numbers than are stored is an error; read, it would get those that it lacks.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _entry_of_weights(content: Any) -> str | None:
    """Return where a checkpoint of a training script has its weights; None for what is no such checkpoint."""
    if not isinstance(content, dict) or "args" not in content:
        return None
    for entry in _WEIGHTS:
        if isinstance(content.get(entry), dict):
            return entry
    return None


def _script_arguments(content: Any) -> Mapping[str, object]:
    """Return what a training script was started with, by name; nothing of what is no checkpoint of one."""
    arguments = None
    if isinstance(content, dict):
        arguments = content.get("args")
    if type(arguments) is argparse.Namespace:
        return dict(vars(arguments))
    return {}


def _without_wrappers(weights: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return tensors by the names that the model itself gives them.

    Raises:
        ValueError: two tensors have the same name then.
    """
    unwrapped: dict[Any, Any] = {}
    for wrapped_name, tensor in weights.items():
        if wrapped_name == _NUMBER_OF_AVERAGED:
            continue
        name = wrapped_name
        while isinstance(name, str) and name.startswith(_WRAPPERS):
            _, _, name = name.partition(".")
        if name in unwrapped:
            shown_name = repr(str(name)[:80])
            raise ValueError(f"{shown_name} is there twice")
        unwrapped[name] = tensor
    return unwrapped


def _check_tensors(weights: Any) -> None:
    """Refuse what is no list of tensors, and tensors that repeat their numbers, which would fill the memory.

    Raises:
        ValueError: saying what is wrong.
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
        if tensor.layout != torch.strided:  # of sparse and other tensors
            raise ValueError(f"{shown_name} is no tensor")
        if tensor.device.type != "cpu":  # of the meta device, which has no numbers
            raise ValueError(f"{shown_name} has no numbers")
        size = tensor.numel() * tensor.element_size()
        stored = tensor.untyped_storage().nbytes()
        if size > stored:
            raise ValueError(f"{shown_name} is larger than what is stored of it")
