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
        k, v: like ``q``; ``[key heads, head_dim, d_model]`` where several heads share one head of keys and values.
        q_bias, k_bias, v_bias: ``[heads, head_dim]``, ``[key heads, head_dim]``, or None.
        o: ``[heads, d_model, head_dim]``, the column blocks of the output projection.
        o_bias: ``[d_model]`` or None; it belongs to no head and survives any pruning.
        gate, gate_bias: like ``q`` and ``q_bias`` where the library gates the attention output, else None.
        table: ``[heads, R]``, the numbers that are added to attention scores at each of R distances; or ``[heads, F]``,
            the weights that compute such a number from F features of a distance; or None.
        scale: ``[heads, 1]``, the logarithm of the factor of each head's attention scores, or None.
        pos_q, pos_q_bias, pos_k, pos_k_bias: like ``q`` and ``q_bias`` where vectors of the distances have projections
            of their own, else None.
        number: the original number of each head, int64 ``[heads]``; None where it is not needed.
        extra: tensors of the block that belong to no head, by the names of :data:`COMMON`.
        key_heads: for each head, the number of the head of keys and values that it uses; None where each has its own.
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

        A head of keys and values stays as long as some head uses it; those that stay are in the order of first use.
        """
        heads = list(positions)
        keys = heads
        key_heads = None
        if self.key_heads is not None:
            used_keys = [self.key_heads[position] for position in heads]
            keys = list(dict.fromkeys(used_keys))  # each once
            key_heads = [keys.index(key) for key in used_keys]

        def pick(name: str, tensor: Tensor) -> Tensor:
            picked = heads
            if name in OF_KEYS:
                picked = keys
            index = torch.tensor(picked, dtype=torch.long, device=tensor.device)
            return tensor.index_select(0, index)

        return self._with_each_tensor_changed(pick, key_heads)

    def for_each_head(self) -> HeadWeights:
        """Return the same block with keys and values of its own for each head: those that heads share are repeated."""
        if self.key_heads is None:
            return self
        key_of_head = list(self.key_heads)

        def repeat(name: str, tensor: Tensor) -> Tensor:
            if name in OF_KEYS:
                return tensor[key_of_head]
            return tensor

        return self._with_each_tensor_changed(repeat, None)

    def zeroed(self, positions: Sequence[int]) -> HeadWeights:
        """Return the same shapes with the output columns of these heads set to zero: ablation."""
        o = self.o.clone()
        o[list(positions)] = 0
        return replace(self, o=o)

    def expanded(self, positions: Sequence[int], heads: int, key_heads: Sequence[int] | None = None) -> HeadWeights:
        """Return a block of more heads, in which the heads present have some places and all others are zero.

        Args:
            positions: the place of each head that is present.
            heads: the number of heads of the block that comes back.
            key_heads: for each head of that block, the number of the head of keys and values that it uses; None where
                each has its own.
        """
        head_places = list(positions)
        key_places = head_places
        keys = heads
        if self.key_heads is not None and key_heads is not None:
            # A head of keys and values goes where those heads look for it that use it.
            place_of_key = {}
            for key, position in zip(self.key_heads, positions, strict=True):
                place_of_key[key] = key_heads[position]
            key_places = [place_of_key[key] for key in range(len(place_of_key))]
            keys = max(key_heads) + 1

        def scatter(name: str, tensor: Tensor) -> Tensor:
            count = heads
            places = head_places
            if name in OF_KEYS:
                count = keys
                places = key_places
            index = torch.tensor(places, dtype=torch.long)
            scattered = tensor.new_zeros((count, *tensor.shape[1:]))
            scattered[index] = tensor
            return scattered

        return self._with_each_tensor_changed(scatter, key_heads)

    @staticmethod
    def gathered(heads: Sequence[tuple[HeadWeights, int]], key_heads: Sequence[int] | None = None) -> HeadWeights:
        """Return heads of several blocks as those of one block; tensors that belong to no head are those of the first.

        Args:
            heads: block and position of each head, at least one.
            key_heads: for each head of the block that comes back, the number of the head of keys and values that it
                uses; None where each has its own. Heads that are to share one must have equal ones.
        """
        # Heads of keys and values may be fewer: each is taken from the first head that uses it.
        sources_of_keys = list(heads)
        if key_heads is not None:
            sources_of_keys = _sources_of_keys(heads, key_heads)

        def gather(name: str, _: Tensor) -> Tensor:
            sources = heads
            if name in OF_KEYS:
                sources = sources_of_keys
            tensors_of_heads = []
            for block, position in sources:
                tensor = getattr(block, name)
                tensors_of_heads.append(tensor[position])
            return torch.stack(tensors_of_heads)

        first_block, _ = heads[0]
        return first_block._with_each_tensor_changed(gather, key_heads)

    def _with_each_tensor_changed(
        self, change: Callable[[str, Tensor], Tensor], key_heads: Sequence[int] | None
    ) -> HeadWeights:
        """Return a copy with other ``key_heads`` in which each tensor that has a row for each head is changed.

        Args:
            change: returns the new tensor, from the name and the old one; tensors that are None stay so.
            key_heads: for each head of the copy, the number of the head of keys and values that it uses, or None.
        """
        changed: dict[str, Any] = {"key_heads": None}
        if key_heads is not None:
            changed["key_heads"] = tuple(key_heads)
        for name in PER_HEAD:
            tensor = getattr(self, name)
            if tensor is not None:
                changed[name] = change(name, tensor)
        return replace(self, **changed)


def _sources_of_keys(
    heads: Sequence[tuple[HeadWeights, int]], key_heads: Sequence[int]
) -> list[tuple[HeadWeights, int]]:
    """Return the block and the place of each head of keys and values, taken from the first head that uses it."""
    sources = []
    for key in range(max(key_heads) + 1):
        first_user = key_heads.index(key)
        weights, position = heads[first_user]
        if weights.key_heads is not None:
            sources.append((weights, weights.key_heads[position]))
    if not sources:  # no block shares keys and values, so that each head has its own
        return list(heads)
    return sources


HEAD_ROWS = ("gate", "gate_bias", "table", "scale", "pos_q", "pos_q_bias", "pos_k", "pos_k_bias")
OF_KEYS = ("k", "v", "k_bias", "v_bias")
PER_HEAD = ("q", "o", "q_bias", *OF_KEYS, *HEAD_ROWS, "number")
COMMON = ("q_norm", "k_norm", "features")
"""The modules of a block that belong to no head: norms of queries and keys, and what makes features of distances."""
