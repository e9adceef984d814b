"""Rotary positions: queries and keys are turned by the angles of their tokens before they meet.

Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021), https://arxiv.org/abs/2104.09864,
equation 34.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotary:
    """Angles of tokens, which are those of every head.

    Attributes:
        cos, sin: ``[1, 1, T, head_dim]``, or ``[B, 1, T, head_dim]`` where samples differ; 1 and 0 turn nothing.
        neighbours: whether neighbouring dimensions of a head turn together, or else those of its two halves.
    """

    cos: Tensor
    sin: Tensor
    neighbours: bool

    def __call__(self, heads: Tensor) -> Tensor:
        """Queries or keys ``[B, h, T, head_dim]``, turned; in their own dtype, computed in that of the angles."""
        if self.neighbours:
            across = torch.stack([-heads[..., 1::2], heads[..., ::2]], dim=-1).flatten(-2)
        else:
            first, second = heads.chunk(2, dim=-1)
            across = torch.cat([-second, first], dim=-1)
        return (heads * self.cos + across * self.sin).to(heads.dtype)

    def at(self, positions: Tensor) -> Rotary:
        """Of some tokens of every sample, ``[B, q]``."""
        rows = positions[:, None, :, None].expand(-1, -1, -1, self.cos.shape[-1])  # [B, q] -> [B, 1, q, head_dim]
        cos, sin = (angles.expand(rows.shape[0], -1, -1, -1).gather(2, rows) for angles in (self.cos, self.sin))
        return Rotary(cos, sin, self.neighbours)

    def repeated(self, members: int) -> Rotary:
        """For member-major samples ``[M * B, ...]``."""
        if self.cos.shape[0] == 1:
            return self
        return Rotary(self.cos.repeat(members, 1, 1, 1), self.sin.repeat(members, 1, 1, 1), self.neighbours)
