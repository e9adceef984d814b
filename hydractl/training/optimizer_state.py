"""An optimizer's memory as named tensors and back, without pickles."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """``INDEX.KEY`` -> tensor, for each parameter in the order of the optimizer."""
    found = {}
    for index, entries in optimizer.state_dict()["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                found[f"{index}.{key}"] = value
    return found


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimizer of the same parameters its memory back."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
