"""Relative position terms, which are added to attention scores and depend on the distance between two tokens.

There are two kinds. A head may have a number for each distance (Raffel et al. 2019, https://arxiv.org/abs/1910.10683;
Liu et al. 2021, Swin, https://arxiv.org/abs/2103.14030). Or it may compare its queries and keys with vectors of the
distances (He et al. 2020, DeBERTa, https://arxiv.org/abs/2006.03654, equation 4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Relative:
    """Distances between tokens, and what all heads of a model have in common of their position terms.

    Attributes:
        index: the distance of each query token from each key token, ``[T, T]``, as a number 0..R-1.
        windows: masks ``[W, T, T]`` that are added to the scores of the W windows into which each sample was cut.
        embeddings: vectors of the distances, ``[R, d_model]``, or for each member ``[M, R, d_model]``; None if each
            head has a number for each distance instead.
        to_position: whether queries are compared with the keys of distances.
        to_content: whether keys are compared with the queries of distances.
        scale: the factor of all scores; None means ``1 / sqrt(head_dim)``.
        positions: the indices of each sample's query tokens, ``[B, q]``; None means all tokens.
    """

    index: Tensor
    windows: Tensor | None = None
    embeddings: Tensor | None = None
    to_position: bool = False
    to_content: bool = False
    scale: float | None = None
    positions: Tensor | None = None

    def of(self, member: int) -> Relative:
        """Return the terms of one member: vectors with a members axis lose it."""
        if self.embeddings is None or self.embeddings.dim() == 2:
            return self
        return replace(self, embeddings=self.embeddings[member])

    def looked_up(self, table: Tensor) -> Tensor:
        """Return the numbers that n heads of one member add to their attention scores, ``[1 or B, n, q, T]``.

        Args:
            table: the number of each head for each distance, ``[n, R]``.
        """
        numbers = table[:, self.index]  # [n, T, T]

        # Keep the rows of the query tokens. Without positions these are all tokens, the same for every sample.
        if self.positions is None:
            return numbers[None]
        at_positions = numbers[:, self.positions]  # [n, B, q, T]
        return at_positions.transpose(0, 1)  # [B, n, q, T]

    def compared(self, q: Tensor, k: Tensor, queries: Tensor | None, keys: Tensor | None) -> Tensor:
        """Return what the distances of tokens add to the attention scores of n heads, ``[B, n, q, T]``, scaled.

        The scores are those of q query tokens with all T tokens. Let token i have the query q_i, token j the key k_j,
        and their distance d the query Q_d and the key K_d. To the
        score q_i . k_j two terms are added: q_i . K_d (does the query fit the distance?) and k_j . Q_d (does the key?).

        Args:
            q, k: queries ``[B, n, q, dk]`` and keys ``[B, n, T, dk]`` of tokens.
            queries, keys: queries and keys of the R distances, ``[n, R, dk]`` each; None if the block does not have
                them.
        """
        # The distance of each query token from each key token: of all tokens [1, 1, T, T], of some [B, 1, q, T].
        if self.positions is None:
            index = self.index[None, None]
        else:
            index = self.index[self.positions][:, None]

        # Compare each token with all R distances at once, then pick the score at its distance from each other token.
        total = q.new_zeros(())
        if keys is not None:
            by_distance = q @ keys.mT  # [B, n, q, R]
            distances = index.expand(*by_distance.shape[:3], -1)  # [B, n, q, T]
            query_scores = by_distance.gather(-1, distances)  # [B, n, q, T]
            total = total + query_scores
        if queries is not None:
            by_distance = k @ queries.mT  # [B, n, T, R]
            distances = index.mT.expand(*by_distance.shape[:3], -1)  # [B, n, T, q]
            key_scores = by_distance.gather(-1, distances)  # [B, n, T, q]
            total = total + key_scores.mT
        if self.scale is not None:
            return total * self.scale
        head_dim = q.shape[-1]
        return total * head_dim**-0.5

    def masked(self, mask: Tensor | None, added: Tensor, samples: int) -> Tensor:
        """Return the terms that are added to attention scores, ``[1 or B, n, q, T]``, with both kinds of masks added.

        These are the masks of windows, into which some models cut each sample, and the attention mask of the tokens. If
        samples are cut into windows, B is the number of all windows.

        Args:
            mask: the attention mask: True where a token may be attended to, or numbers to add; None for no mask.
            added: the terms without masks, ``[1 or B, n, q, T]``.
            samples: B: the number of samples, or of all windows.
        """
        # B windows are those of B / W samples, one sample after another: repeat the masks of one sample for each.
        if self.windows is not None:
            windows = self.windows[:, None].to(added.dtype)  # [W, 1, T, T]
            added = added + windows  # [W, n, T, T]
            uncut_samples = samples // len(self.windows)
            added = added.repeat(uncut_samples, 1, 1, 1)
        if mask is None:
            return added
        if mask.dtype == torch.bool:
            lowest = torch.finfo(added.dtype).min
            return added.masked_fill(~mask, lowest)
        return added + mask.to(added.dtype)
