"""Models whose weights stay in memory in 16 bits while they compute in float32: half the memory, the same numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hydractl.files.checkpoint import TensorSource, page_buffer
from hydractl.files.header import torch_dtype
from hydractl.model.attention import HeadAttention
from hydractl.model.runtime import HydraModel

_NARROW = (torch.float16, torch.bfloat16)


def storage_dtype(tensors: TensorSource) -> torch.dtype:
    """In what float32 weights can be kept without rounding: the 16-bit dtype that all of them have, else float32."""
    found = {dtype for name in tensors.names() if (dtype := torch_dtype(tensors.info(name))).is_floating_point}
    return found.pop() if len(found) == 1 and found <= set(_NARROW) else torch.float32


def compute_in_float32(model: HydraModel) -> HydraModel:
    """Let a model that was built in 16 bits compute in float32, for inference only.

    Weights inside its blocks are widened when their module runs and dropped again; tables of embeddings are looked up
    as they are, and what was found is widened; everything else, which is small, is widened for good. A weight that is
    read past its module is NaN, so that it cannot go unseen.

    Returns:
        The model itself. One that is not in 16 bits stays as it is.
    """
    if next(model.parameters()).dtype not in _NARROW:
        return model
    model.batched = False  # stacked weights would be read past their modules
    blocks = {id(m) for path in model.block_paths for m in model.networks[0].get_submodule(path).modules()}
    done: set[int] = set()
    for module in model.modules():
        # The projections of members are no modules that are called, so their attention answers for them.
        owner = module if isinstance(module, HeadAttention) else None
        weights = list(module.parameters(recurse=owner is not None))
        if not weights or id(module) in done:
            continue
        done.update(id(m) for m in (module.modules() if owner is not None else [module]))
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(lambda _module, _inputs, found: found.float())
        elif id(module) in blocks:
            _Widened(weights).around(module)
        else:
            for weight in weights:
                weight.data = weight.data.float()
    return model


def _wide(kept: Tensor) -> Tensor:
    """A copy in float32 that is gone from memory at once when it is dropped."""
    if kept.device.type != "cpu":
        return kept.float()
    return page_buffer(4 * kept.numel()).view(torch.float32).reshape(kept.shape).copy_(kept)


class _Widened:
    """The weights of one module, in float32 only while it runs."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        self.weights = weights
        self.kept: list[Tensor] = []

    def around(self, module: nn.Module) -> None:
        """Take the weights and give them back around every call."""
        self.kept = [weight.data for weight in self.weights]
        module.register_forward_pre_hook(self.give)
        module.register_forward_hook(self.take)
        self.take()

    def give(self, *_: Any) -> None:
        """Put the weights in their places, in float32."""
        for weight, kept in zip(self.weights, self.kept, strict=True):
            weight.data = _wide(kept)

    def take(self, *_: Any) -> None:
        """Leave the shape, dtype and device of the weights and not one number."""
        for weight in self.weights:
            weight.data = torch.full((), float("nan"), device=weight.device).expand(weight.shape)
