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
        """Return only the heads at these positions (positions among the heads present, not original numbers).

        A head of keys and values goes with the last head that uses it; those that stay are in the order of first use.
        """
        heads = list(positions)
        keys = heads
        key_heads = None
        if self.key_heads is not None:
            used_keys = [self.key_heads[position] for position in heads]
            keys = list(dict.fromkeys(used_keys))
            key_heads = [keys.index(key) for key in used_keys]

        def pick(name: str, tensor: Tensor) -> Tensor:
            chosen = keys if name in OF_KEYS else heads
            index = torch.tensor(chosen, dtype=torch.long, device=tensor.device)
            return tensor.index_select(0, index)

        return self._changed(pick, key_heads)

    def for_each_head(self) -> HeadWeights:
        """Return the same with keys and values for each head, those that are shared repeated."""
        if self.key_heads is None:
            return self
        key_of_head = list(self.key_heads)

        def repeat(name: str, tensor: Tensor) -> Tensor:
            if name in OF_KEYS:
                return tensor[key_of_head]
            return tensor

        return self._changed(repeat, None)

    def zeroed(self, positions: Sequence[int]) -> HeadWeights:
        """Return the same shapes with the output columns of these heads set to zero: ablation."""
        o = self.o.clone()
        o[list(positions)] = 0
        return replace(self, o=o)

    def expanded(self, positions: Sequence[int], heads: int, key_heads: Sequence[int] | None = None) -> HeadWeights:
        """Put the heads present at ``positions`` of ``heads`` heads, which use ``key_heads``; all others are zero."""
        head_places = list(positions)
        key_places = head_places
        keys = heads
        if self.key_heads is not None and key_heads is not None:
            place_of_key = {}
            for key, position in zip(self.key_heads, positions, strict=True):
                place_of_key[key] = key_heads[position]
            key_places = [place_of_key[key] for key in range(len(place_of_key))]
            keys = max(key_heads) + 1

        def scatter(name: str, tensor: Tensor) -> Tensor:
            is_of_keys = name in OF_KEYS
            count = keys if is_of_keys else heads
            places = key_places if is_of_keys else head_places
            index = torch.tensor(places, dtype=torch.long)
            expanded = tensor.new_zeros((count, *tensor.shape[1:]))
            expanded[index] = tensor
            return expanded

        return self._changed(scatter, key_heads)

    @staticmethod
    def gathered(heads: Sequence[tuple[HeadWeights, int]], key_heads: Sequence[int] | None = None) -> HeadWeights:
        """Return heads of several blocks as those of one; what belongs to no head is that of the first.

        Args:
            heads: block and position of each head, at least one.
            key_heads: as of the class; those that use one head of keys and values have equal ones.
        """
        sources_of_keys = list(heads)
        if key_heads is not None:
            sources_of_keys = _first_users(heads, key_heads)

        def gather(name: str, _: Tensor) -> Tensor:
            sources = sources_of_keys if name in OF_KEYS else heads
            tensors_of_heads = [getattr(weights, name)[position] for weights, position in sources]
            return torch.stack(tensors_of_heads)

        first_block, _ = heads[0]
        return first_block._changed(gather, key_heads)

    def _changed(self, change: Callable[[str, Tensor], Tensor], key_heads: Sequence[int] | None) -> HeadWeights:
        """Return this with each tensor of :data:`PER_HEAD` that is there changed, given its name and itself."""
        changed: dict[str, Any] = {}
        for name in PER_HEAD:
            tensor = getattr(self, name)
            if tensor is not None:
                changed[name] = change(name, tensor)
        changed["key_heads"] = None if key_heads is None else tuple(key_heads)
        return replace(self, **changed)


def _first_users(heads: Sequence[tuple[HeadWeights, int]], key_heads: Sequence[int]) -> list[tuple[HeadWeights, int]]:
    """Return the block and the place of each head of keys and values, taken from the first head that uses it."""
    sources = []
    for key in range(max(key_heads) + 1):
        weights, position = heads[key_heads.index(key)]
        if weights.key_heads is not None:
            sources.append((weights, weights.key_heads[position]))
    # Where no block shares keys and values, each head has its own.
    return sources or list(heads)


HEAD_ROWS = ("gate", "gate_bias", "table", "scale", "pos_q", "pos_q_bias", "pos_k", "pos_k_bias")
OF_KEYS = ("k", "v", "k_bias", "v_bias")
PER_HEAD = ("q", "o", "q_bias", *OF_KEYS, *HEAD_ROWS, "number")
COMMON = ("q_norm", "k_norm", "features")
"""The modules of a block that belong to no head: norms of queries and keys, and what makes features of distances."""
