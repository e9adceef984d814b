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
        q: ``[heads, head_dim, d_model]``.
        k, v: alike; ``[key heads, head_dim, d_model]`` where several heads share one of keys and values.
        q_bias, k_bias, v_bias: ``[heads, head_dim]``, ``[key heads, head_dim]``, or None.
        o: ``[heads, d_model, head_dim]``, the column blocks of the output projection.
        o_bias: ``[d_model]`` or None; it belongs to no head and survives any pruning.
        gate, gate_bias: like ``q`` and ``q_bias`` where the library gates the attention output, else None.
        table: ``[heads, R]``, what is added to the scores of tokens at each of R distances, or ``[heads, F]``, by which
            F features of a distance become that; or None.
        scale: ``[heads, 1]``, the logarithm of what each head multiplies its scores by, or None.
        pos_q, pos_q_bias, pos_k, pos_k_bias: like ``q`` and ``q_bias`` where vectors of the distances have projections
            of their own, else None.
        number: of each head in the original numbering, int64 ``[heads]``; None where nobody asks.
        extra: what the block holds beside heads, by name: of :data:`COMMON`.
        key_heads: of each head, which of the heads of keys and values it uses; None: each has its own.
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
    scale: Tensor | None = None
    pos_q: Tensor | None = None
    pos_q_bias: Tensor | None = None
    pos_k: Tensor | None = None
    pos_k_bias: Tensor | None = None
    number: Tensor | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)
    key_heads: tuple[int, ...] | None = None

    @property
    def heads(self) -> int:
        """Number of heads present."""
        return self.q.shape[0]

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.q.shape[1]

    def select(self, positions: Sequence[int]) -> HeadWeights:
        """Only the heads at these positions (positions among the heads present, not original numbers).

        A head of keys and values goes with the last head that uses it; those that stay are in the order of first use.
        """
        used = list(positions) if self.key_heads is None else [self.key_heads[position] for position in positions]
        there = list(dict.fromkeys(used))

        def pick(name: str, tensor: Tensor) -> Tensor:
            index = there if self.key_heads is not None and name in OF_KEYS else list(positions)
            return tensor.index_select(0, torch.tensor(index, dtype=torch.long, device=tensor.device))

        return self._changed(pick, None if self.key_heads is None else [there.index(key) for key in used])

    def for_each_head(self) -> HeadWeights:
        """The same with keys and values for each head, those that are shared repeated."""
        keys = self.key_heads
        return self if keys is None else self._changed(lambda name, t: t[list(keys)] if name in OF_KEYS else t, None)

    def zeroed(self, positions: Sequence[int]) -> HeadWeights:
        """The same shapes with the output columns of these heads set to zero: ablation."""
        o = self.o.clone()
        o[list(positions)] = 0
        return replace(self, o=o)

    def expanded(self, positions: Sequence[int], heads: int, key_heads: Sequence[int] | None = None) -> HeadWeights:
        """Put the heads present at ``positions`` of ``heads`` heads, which use ``key_heads``; all others are zero."""

        def scatter(name: str, tensor: Tensor) -> Tensor:
            places, count = list(positions), heads
            if self.key_heads is not None and key_heads is not None and name in OF_KEYS:
                place_of = {own: key_heads[position] for own, position in zip(self.key_heads, positions, strict=True)}
                places, count = [place_of[own] for own in range(len(place_of))], max(key_heads) + 1
            full = tensor.new_zeros((count, *tensor.shape[1:]))
            full[torch.tensor(places, dtype=torch.long)] = tensor
            return full

        return self._changed(scatter, key_heads)

    @staticmethod
    def gathered(heads: Sequence[tuple[HeadWeights, int]], key_heads: Sequence[int] | None = None) -> HeadWeights:
        """Heads of several blocks as those of one; what belongs to no head is that of the first.

        Args:
            heads: block and position of each head, at least one.
            key_heads: as of the class; those that use one head of keys and values have equal ones.
        """
        each = [heads[key_heads.index(key)] for key in range(max(key_heads) + 1)] if key_heads is not None else []
        keys = [(weights, weights.key_heads[position]) for weights, position in each if weights.key_heads is not None]

        def gather(name: str, _: Tensor) -> Tensor:
            sources = keys if name in OF_KEYS and keys else heads
            return torch.stack([getattr(weights, name)[position] for weights, position in sources])

        return heads[0][0]._changed(gather, key_heads)

    def _changed(self, change: Callable[[str, Tensor], Tensor], key_heads: Sequence[int] | None) -> HeadWeights:
        """With each tensor of :data:`PER_HEAD` that is there changed, given its name and itself."""
        there = [(name, tensor) for name in PER_HEAD if (tensor := getattr(self, name)) is not None]
        changed: dict[str, Any] = {name: change(name, tensor) for name, tensor in there}
        return replace(self, **changed, key_heads=None if key_heads is None else tuple(key_heads))


ROWS = ("gate", "gate_bias", "table", "scale", "pos_q", "pos_q_bias", "pos_k", "pos_k_bias")
OF_KEYS = ("k", "v", "k_bias", "v_bias")
PER_HEAD = ("q", "o", "q_bias", *OF_KEYS, *ROWS, "number")
COMMON = ("q_norm", "k_norm", "features")
"""The modules of a block that belong to no head: norms of queries and keys, and what makes features of distances."""
