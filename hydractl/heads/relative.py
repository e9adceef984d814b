"""Relative terms: what is added to the scores of queries and keys by how far their tokens are from each other.

A head has a number for each distance (Raffel et al. 2019, https://arxiv.org/abs/1910.10683; Liu et al. 2021, Swin,
https://arxiv.org/abs/2103.14030), or compares its queries and keys with vectors of the distances (He et al. 2020,
DeBERTa, https://arxiv.org/abs/2006.03654, equation 4), or makes its number of features of the distance (Liu et al.
2021, Swin v2, https://arxiv.org/abs/2111.09883, equation 3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Relative:
    """Distances of tokens, which are those of every head.

    Attributes:
        index: the distance of each query and key token, ``[T, T]``, 0..R-1; None where there are shared numbers only.
        windows: ``[W, T, T]``, added to the scores of the W windows that each sample was cut into, ``[B * W, T, d]``.
        shared: numbers that all blocks share, of each head of the original numbering: ``[H, T, T]``, or of each member
            ``[M, H, T, T]``.
        embeddings: vectors of the distances, ``[R, d_model]``, or of each member ``[M, R, d_model]``; None where a head
            has a number for each.
        coordinates: of the distances, ``[R, 2]``, where heads make their numbers of features of these; else None.
        to_position, to_content: whether queries meet the keys of distances, and keys their queries.
        scale: of all scores; None: ``1 / sqrt(head_dim)``.
        positions: of the query tokens of every sample, ``[B, q]``; None: all tokens.
    """

    index: Tensor | None
    windows: Tensor | None = None
    shared: Tensor | None = None
    embeddings: Tensor | None = None
    coordinates: Tensor | None = None
    to_position: bool = False
    to_content: bool = False
    scale: float | None = None
    positions: Tensor | None = None

    def of(self, member: int) -> Relative:
        """Return the terms of one member."""
        shared = self.shared
        if shared is not None and shared.dim() == 4:
            shared = shared[member]
        embeddings = self.embeddings
        if embeddings is not None and embeddings.dim() == 3:
            embeddings = embeddings[member]
        return replace(self, shared=shared, embeddings=embeddings)

    def table_of(self, features: nn.Module, weight: Tensor) -> Tensor:
        """Compute the numbers ``[n, R]`` that n heads make of features of the distances by their weights ``[n, F]``."""
        assert self.coordinates is not None, "features are those of coordinates"
        hidden = features(self.coordinates.to(weight.dtype)).relu()  # [R, F]
        return 16 * (hidden @ weight.T).T.sigmoid()

    def looked_up(self, table: Tensor | None, heads: Tensor | None) -> Tensor:
        """Return what n heads with a number for each distance add to the scores; of one member.

        Args:
            table: ``[n, R]``; None where there are shared numbers only.
            heads: which they are in the original numbering, ``[n]``.

        Returns:
            ``[1 or B, n, q, T]``.
        """
        numbers = None
        if table is not None and self.index is not None:
            numbers = table[:, self.index]  # [n, T, T]
        if self.shared is not None:
            assert heads is not None, "heads that share numbers are known by their original numbers"
            common = self.shared.index_select(0, heads)
            if numbers is None:
                numbers = common
            else:
                numbers = numbers + common
        assert numbers is not None, "heads without vectors of distances have a number for each"
        if self.positions is None:
            return numbers[None]
        return numbers[:, self.positions].transpose(0, 1)  # [n, T, T] -> [n, B, q, T] -> [B, n, q, T]

    def compared(self, q: Tensor, k: Tensor, queries: Tensor | None, keys: Tensor | None) -> Tensor:
        """Score queries ``[B, n, q, dk]`` and keys ``[B, n, T, dk]`` against those of distances ``[n, R, dk]``.

        Returns:
            ``[B, n, q, T]``.
        """
        assert self.index is not None, "vectors are those of distances"
        if self.positions is None:
            index = self.index[None, None]  # [1, 1, T, T]
        else:
            index = self.index[self.positions][:, None]  # [B, 1, q, T]
        total = q.new_zeros(())
        if keys is not None:
            by_distance = q @ keys.mT  # [B, n, q, R]
            distances = index.expand(*by_distance.shape[:3], -1)  # [B, n, q, T]
            total = total + by_distance.gather(-1, distances)
        if queries is not None:
            by_distance = k @ queries.mT  # [B, n, T, R]
            distances = index.mT.expand(*by_distance.shape[:3], -1)  # [B, n, T, q]
            total = total + by_distance.gather(-1, distances).mT
        if self.scale is None:
            return total * q.shape[-1] ** -0.5
        return total * self.scale

    def masked(self, mask: Tensor | None, added: Tensor, samples: int) -> Tensor:
        """Return ``added`` with the masks of windows and the attention mask added, for so many samples or windows."""
        if self.windows is not None:
            added = added + self.windows[:, None].to(added.dtype)  # [W, n, T, T]
            added = added.repeat(samples // len(self.windows), 1, 1, 1)
        if mask is None:
            return added
        if mask.dtype == torch.bool:
            return added.masked_fill(~mask, torch.finfo(added.dtype).min)
        return added + mask.to(added.dtype)
