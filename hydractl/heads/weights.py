"""The weights of one attention block head by head, the layout that all families share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class HeadWeights:
    """The weights of one attention block, head by head: the only layout the rest of hydractl sees.

    Attributes:
        q, k, v: ``[heads, head_dim, d_model]``.
        q_bias, k_bias, v_bias: ``[heads, head_dim]`` or None.
        o: ``[heads, d_model, head_dim]``, the column blocks of the output projection.
        o_bias: ``[d_model]`` or None; it belongs to no head and survives any pruning.
        gate, gate_bias: like ``q`` and ``q_bias`` where the library gates the attention output, else None.
        table: ``[heads, R]``, what is added to the scores of tokens at each of R distances, or None.
        pos_q, pos_q_bias, pos_k, pos_k_bias: like ``q`` and ``q_bias`` where vectors of the distances have projections
            of their own, else None.
        number: of each head in the original numbering, int64 ``[heads]``; None where nobody asks.
        extra: what the block holds beside heads (query and key norms), by name relative to the block.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None
    v_bias: Tensor | None = None
    o_bias: Tensor | None = None
    gate: Tensor | None = None
    gate_bias: Tensor | None = None
    table: Tensor | None = None
    pos_q: Tensor | None = None
    pos_q_bias: Tensor | None = None
    pos_k: Tensor | None = None
    pos_k_bias: Tensor | None = None
    number: Tensor | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)

    @property
    def heads(self) -> int:
        """Number of heads present."""
        return self.q.shape[0]

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.q.shape[1]

    def select(self, positions: Sequence[int]) -> HeadWeights:
        """Only the heads at these positions (positions among the heads present, not original numbers)."""
        index = torch.tensor(list(positions), dtype=torch.long)
        return self._changed(lambda name, tensor: tensor.index_select(0, index.to(tensor.device)))

    def zeroed(self, positions: Sequence[int]) -> HeadWeights:
        """The same shapes with the output columns of these heads set to zero: ablation."""
        o = self.o.clone()
        o[list(positions)] = 0
        return replace(self, o=o)

    def expanded(self, positions: Sequence[int], heads: int) -> HeadWeights:
        """Put the heads present at ``positions`` of ``heads`` heads; all others are zero."""
        index = torch.tensor(list(positions), dtype=torch.long)

        def scatter(name: str, tensor: Tensor) -> Tensor:
            full = tensor.new_zeros((heads, *tensor.shape[1:]))
            full[index] = tensor
            return full

        return self._changed(scatter)

    @staticmethod
    def gathered(heads: Sequence[tuple[HeadWeights, int]]) -> HeadWeights:
        """Heads of several blocks as those of one; what belongs to no head is that of the first.

        Args:
            heads: block and position of each head, at least one.
        """
        first = heads[0][0]
        return first._changed(
            lambda name, _: torch.stack([getattr(weights, name)[position] for weights, position in heads])
        )

    def _changed(self, change: Callable[[str, Tensor], Tensor]) -> HeadWeights:
        """With each tensor of :data:`PER_HEAD` that is there changed, given its name and itself."""
        there = [(name, tensor) for name in PER_HEAD if (tensor := getattr(self, name)) is not None]
        changed: dict[str, Any] = {name: change(name, tensor) for name, tensor in there}
        return replace(self, **changed)


ROWS = ("gate", "gate_bias", "table", "pos_q", "pos_q_bias", "pos_k", "pos_k_bias")
PER_HEAD = ("q", "k", "v", "o", "q_bias", "k_bias", "v_bias", *ROWS, "number")
