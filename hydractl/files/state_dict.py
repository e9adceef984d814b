"""The tensors of a state dict as torch saves it (``.pth``), by torch's own reader of weights, which runs no code."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

from hydractl.errors import InputError
from hydractl.files.checkpoint import MappedTensors
from hydractl.files.header import MAX_TENSORS, tensor_info

STATE_DICT = ".pth"


class StateDict(MappedTensors):
    """The tensors of one ``.pth`` file, which is mapped: the numbers of a tensor are read when somebody asks for it.

    Raises:
        InputError: for anything else than plain tensors by name.
    """

    def __init__(self, path: Path) -> None:
        import torch

        try:
            with zipfile.ZipFile(path) as archive:
                if any(part.compress_type for part in archive.infolist()):
                    raise ValueError("its archive is packed")
            # Mapped, a tensor of more numbers than are stored is an error; read, it would get those that it lacks.
            found: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            _check(found)
            infos = {name: tensor_info(tensor) for name, tensor in found.items()}
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        except Exception as error:  # of a damaged archive anything may come
            said = (str(error) or type(error).__name__).splitlines()[0][:200]
            reason = "it asks for more than tensors" if isinstance(error, pickle.UnpicklingError) else said
            raise InputError(
                f"{path} is no state dict of plain tensors: {reason}",
                hint="where you trust it, load it in Python and save model.state_dict() with "
                "safetensors.torch.save_file",
            ) from error
        super().__init__(infos, lambda name: found[name].detach().clone())


def _check(found: Any) -> None:
    """Refuse what is no list of tensors, and tensors that repeat their numbers, which would fill the memory."""
    import torch

    if not isinstance(found, dict) or not 0 < len(found) <= MAX_TENSORS:
        raise ValueError("it is no list of tensors")
    for name, tensor in found.items():
        if type(name) is not str or not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            raise ValueError(f"{str(name)[:80]!r} is no tensor")
        if tensor.device.type != "cpu":  # of the meta device, which has no numbers
            raise ValueError(f"{name[:80]!r} has no numbers")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ValueError(f"{name[:80]!r} is larger than what is stored of it")
