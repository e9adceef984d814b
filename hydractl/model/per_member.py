"""Modules that each member has for itself, on the activations of all members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.model.attention import Turn, apart
from hydractl.model.stacking import Stack, members_layer_norm, members_linear


class PerMember(nn.Module):
    """One module per member on member-major activations ``[M * B, ...]``: what is not merged.

    Linear layers, and layer norms over the last dimension, can run for all members at once.

    Args:
        modules: one for each member.
        turn: whose activations come.
    """

    def __init__(self, modules: Sequence[nn.Module], turn: Turn | None = None) -> None:
        super().__init__()
        self.members = nn.ModuleList(modules)
        self.turn = turn or Turn()
        self._weight, self._bias = Stack(), Stack()
        first = modules[0]
        one_dimension = isinstance(first, nn.LayerNorm) and len(first.normalized_shape) == 1
        self._possible = len(modules) > 1 and (
            type(first) is nn.Linear or (one_dimension and first.weight is not None)  # any library's layer norm
        )

    def _apply(self, fn: Any, recurse: bool = True) -> PerMember:
        self._weight.forget()
        self._bias.forget()
        return super()._apply(fn, recurse)

    def stack(self) -> None:
        """As :meth:`HeadAttention.stack`."""
        if self._possible and self.turn.batches(next(self.parameters()).device):
            with torch.no_grad():
                self._weights()

    def forward(self, x: Tensor) -> Tensor:
        """Apply module m to the samples of member m."""
        if self.turn.member is not None:
            return self.members[self.turn.member](x)
        if self._possible and self.turn.batches(x.device):
            weight, bias = self._weights()
            first = self.members[0]
            if isinstance(first, nn.LayerNorm):
                return members_layer_norm(x, weight, bias, first.eps)
            return members_linear(x, weight, bias)
        parts = apart(x, len(self.members))
        return torch.cat([module(part) for module, part in zip(self.members, parts, strict=True)])

    def _weights(self) -> tuple[Tensor, Tensor | None]:
        each: list[Any] = list(self.members)
        bias = None if each[0].bias is None else self._bias.of([module.bias for module in each])
        return self._weight.of([module.weight for module in each]), bias
