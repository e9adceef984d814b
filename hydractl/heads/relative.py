"""Relative terms: what is added to the scores of queries and keys by how far their tokens are from each other.

A head has a number for each distance (Raffel et al. 2019, https://arxiv.org/abs/1910.10683; Liu et al. 2021, Swin,
https://arxiv.org/abs/2103.14030), or compares its queries and keys with vectors of the distances (He et al. 2020,
DeBERTa, https://arxiv.org/abs/2006.03654, equation 4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Relative:
    """Distances of tokens, which are those of every head.

    Attributes:
        index: the distance of each query and key token, 0..R-1: ``[T, T]``, or of some query tokens ``[B, q, T]``.
        windows: ``[W, T, T]``, added to the scores of the W windows that each sample was cut into, ``[B * W, T, d]``.
        embeddings: vectors of the distances, ``[M, R, d_model]`` or ``[1, R, d_model]`` for all members; None where a
            head has a number for each.
        to_position, to_content: whether queries meet the keys of distances, and keys their queries.
        scale: of all scores; None: ``1 / sqrt(head_dim)``.
    """

    index: Tensor
    windows: Tensor | None = None
    embeddings: Tensor | None = None
    to_position: bool = False
    to_content: bool = False
    scale: float | None = None

    def at(self, positions: Tensor) -> Relative:
        """Of some query tokens of every sample, ``[B, q]``."""
        return replace(self, index=self.index[positions])  # [T, T] -> [B, q, T]

    def of(self, member: int) -> Relative:
        """Of one member."""
        if self.embeddings is None or len(self.embeddings) == 1:
            return self
        return replace(self, embeddings=self.embeddings[member : member + 1])

    def looked_up(self, table: Tensor) -> Tensor:
        """What heads with a number for each distance, ``[n, R]``, add to the scores: ``[1 or B, n, q, T]``."""
        numbers = table[:, self.index]
        return numbers[None] if self.index.dim() == 2 else numbers.transpose(0, 1)

    def compared(self, q: Tensor, k: Tensor, queries: Tensor | None, keys: Tensor | None) -> Tensor:
        """Scores of queries ``[B, n, q, dk]`` and keys ``[B, n, T, dk]`` with those of distances ``[n, R, dk]``.

        Returns:
            ``[B, n, q, T]``.
        """
        index = (self.index[None] if self.index.dim() == 2 else self.index)[:, None]  # [1 or B, 1, q, T]
        total = q.new_zeros(())
        if keys is not None:
            scores = q @ keys.mT  # [B, n, q, R]
            total = total + scores.gather(-1, index.expand(*scores.shape[:3], -1))
        if queries is not None:
            scores = k @ queries.mT  # [B, n, T, R]
            total = total + scores.gather(-1, index.mT.expand(*scores.shape[:3], -1)).mT
        return total

    def masked(self, mask: Tensor | None, added: Tensor, samples: int) -> Tensor:
        """What is added to the scores with what a mask says, of so many samples or windows."""
        if self.windows is not None:
            added = added + self.windows[:, None].to(added.dtype)  # [W, n, T, T]
            added = added.repeat(samples // len(self.windows), 1, 1, 1)
        if mask is None:
            return added
        if mask.dtype == torch.bool:
            return added.masked_fill(~mask, torch.finfo(added.dtype).min)
        return added + mask.to(added.dtype)
