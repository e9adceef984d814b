"""The weights of one attention block, head by head, in a layout that all families share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class HeadWeights:
    """The weights of one attention block, head by head: the only layout that the rest of hydractl sees.

    With grouped-query attention, several heads share one head of keys and values (a key head).

    Attributes:
        q: ``[heads, head_dim, d_model]``.
        k, v: like ``q``, but ``[key heads, head_dim, d_model]`` if heads share keys and values.
        q_bias, k_bias, v_bias: ``[heads, head_dim]``, ``[key heads, head_dim]``, or None.
        o: ``[heads, d_model, head_dim]``, the column blocks of the output projection.
        o_bias: ``[d_model]`` or None; it belongs to no head and survives any pruning.
        table: ``[heads, R]``, the numbers that are added to attention scores at each of R distances, or None.
        pos_q, pos_q_bias, pos_k, pos_k_bias: like ``q`` and ``q_bias`` if vectors of the distances have their own
            projections, else None.
        extra: tensors of the block that belong to no head, by the names of :data:`COMMON`.
        key_heads: for each head, the index of the key head that it uses; None if each head has its own.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None
    v_bias: Tensor | None = None
    o_bias: Tensor | None = None
    table: Tensor | None = None
    pos_q: Tensor | None = None
    pos_q_bias: Tensor | None = None
    pos_k: Tensor | None = None
    pos_k_bias: Tensor | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)
    key_heads: tuple[int, ...] | None = None

    @property
    def heads(self) -> int:
        """The number of heads present."""
        return self.q.shape[0]

    @property
    def head_dim(self) -> int:
        """The width of one head."""
        return self.q.shape[1]

    def select(self, positions: Sequence[int]) -> HeadWeights:
        """Return a block of only these heads, in their order.

        With grouped-query attention, several heads share one head of keys and values (a key head): ``key_heads`` of
        [0, 0, 1, 1] means that heads 0 and 1 share the first. A key head stays as long as some head uses it; the key
        heads that stay are in the order of first use. Of these four heads, heads 2 and 3 have ``key_heads`` [0, 0].

        Args:
            positions: the indices of the heads to keep, among the heads present (not their original numbers).
        """
        heads = list(positions)
        kept_key_heads = heads
        key_heads = None
        if self.key_heads is not None:
            key_head_of_each = [self.key_heads[position] for position in heads]
            kept_key_heads = list(dict.fromkeys(key_head_of_each))  # each key head once
            # The indices of the key heads change: count only those that stay.
            key_heads = [kept_key_heads.index(key) for key in key_head_of_each]

        def pick(name: str, tensor: Tensor) -> Tensor:
            picked = kept_key_heads if name in OF_KEYS else heads
            index = torch.tensor(picked, dtype=torch.long, device=tensor.device)
            return tensor.index_select(0, index)

        return self._with_each_tensor_changed(pick, key_heads)

    def for_each_head(self) -> HeadWeights:
        """Return the block with its own keys and values for each head: shared ones are repeated."""
        if self.key_heads is None:
            return self
        key_of_head = list(self.key_heads)

        def repeat(name: str, tensor: Tensor) -> Tensor:
            return tensor[key_of_head] if name in OF_KEYS else tensor

        return self._with_each_tensor_changed(repeat, None)

    def zeroed(self, positions: Sequence[int]) -> HeadWeights:
        """Return the block with the output columns of these heads set to zero, in the same shapes: ablation."""
        o = self.o.clone()
        o[list(positions)] = 0
        return replace(self, o=o)

    def expanded(self, positions: Sequence[int], heads: int, key_heads: Sequence[int] | None) -> HeadWeights:
        """Return a block of more heads, with the heads present at given positions and zeros for all others.

        This undoes :meth:`select`, but for the weights of the missing heads. With grouped-query attention, several
        heads share one head of keys and values (a key head).

        Args:
            positions: for each head that is present, its position in the new block.
            heads: the number of heads of the new block.
            key_heads: for each head of the new block, the index of the key head that it uses; None if each has its own.
        """
        head_positions = list(positions)
        key_positions = head_positions
        key_head_count = heads
        if self.key_heads is not None and key_heads is not None:
            # A key head goes to the index where the new block's heads look for it. Later heads that use the same key
            # head write the same index again.
            position_of_key = {}
            for key, position in zip(self.key_heads, positions, strict=True):
                position_of_key[key] = key_heads[position]
            key_positions = [position_of_key[key] for key in range(len(position_of_key))]
            key_head_count = max(key_heads) + 1

        # Each tensor becomes zeros with more rows, into which its rows are copied: those of keys and values to the
        # positions of key heads, all others to those of heads.
        def scatter(name: str, tensor: Tensor) -> Tensor:
            if name in OF_KEYS:
                count = key_head_count
                row_positions = key_positions
            else:
                count = heads
                row_positions = head_positions
            scattered = tensor.new_zeros((count, *tensor.shape[1:]))
            scattered[torch.tensor(row_positions, dtype=torch.long)] = tensor
            return scattered

        return self._with_each_tensor_changed(scatter, key_heads)

    @staticmethod
    def gathered(heads: Sequence[tuple[HeadWeights, int]], key_heads: Sequence[int] | None = None) -> HeadWeights:
        """Return heads of several blocks as one block. Tensors that belong to no head are taken from the first block.

        With grouped-query attention, several heads share one head of keys and values (a key head).

        Args:
            heads: the block and position of each head, at least one.
            key_heads: for each head of the new block, the index of the key head that it uses; None if each has its own.
                Heads that have the same index must have equal keys and values.
        """
        # Where to take each key head of the new block from: the first head that uses it tells the block, and the index
        # of the key head there. E.g. for `key_heads` [0, 0, 1] these are the heads 0 and 2.
        key_of_each_head = key_heads or ()
        sources_of_keys = []
        for key in sorted(set(key_of_each_head)):
            first_user = key_of_each_head.index(key)
            weights, position = heads[first_user]
            if weights.key_heads is not None:
                sources_of_keys.append((weights, weights.key_heads[position]))
        if not sources_of_keys:  # no block shares keys and values, so each head has its own
            sources_of_keys = list(heads)

        def gather(name: str, _: Tensor) -> Tensor:
            sources = sources_of_keys if name in OF_KEYS else heads
            return torch.stack([getattr(block, name)[position] for block, position in sources])

        first_block, _ = heads[0]
        return first_block._with_each_tensor_changed(gather, key_heads)

    def _with_each_tensor_changed(
        self, change: Callable[[str, Tensor], Tensor], key_heads: Sequence[int] | None
    ) -> HeadWeights:
        """Return a copy in which each tensor with a row for each head is changed, with other ``key_heads``.

        Args:
            change: returns the new tensor from the name and the old one; it is not called for tensors that are None.
            key_heads: for each head of the copy, the index of the key head that it uses, or None.
        """
        changed: dict[str, Any] = {"key_heads": None if key_heads is None else tuple(key_heads)}
        for name in PER_HEAD:
            tensor = getattr(self, name)
            if tensor is not None:
                changed[name] = change(name, tensor)
        return replace(self, **changed)


HEAD_ROWS = ("table", "pos_q", "pos_q_bias", "pos_k", "pos_k_bias")
OF_KEYS = ("k", "v", "k_bias", "v_bias")
"""The tensors with a row for each key head; all others of PER_HEAD have a row for each head."""

PER_HEAD = ("q", "o", "q_bias", *OF_KEYS, *HEAD_ROWS)
COMMON = ("q_norm", "k_norm")
"""The modules of a block that belong to no head: norms of queries and keys."""
