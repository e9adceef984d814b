"""Rotary positions: queries and keys are turned by the angles of their tokens before they meet.

Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021), https://arxiv.org/abs/2104.09864,
equation 34.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotary:
    """Angles of tokens.

    Attributes:
        cos, sin: ``[1, 1, T, head_dim]``, or ``[B, 1, T, head_dim]`` where samples differ; 1 and 0 turn nothing. Where
            each head has angles of its own, those of every head of the original numbering, ``[1, H, T, head_dim]``, or
            of each member ``[M, 1, H, T, head_dim]``. Where they are of fewer dimensions, the others are not turned.
        neighbours: whether neighbouring dimensions of a head turn together, or else those of its two halves.
        of_heads: whether each head has angles of its own.
    """

    cos: Tensor
    sin: Tensor
    neighbours: bool
    of_heads: bool = False

    def __call__(self, heads: Tensor) -> Tensor:
        """Turn queries or keys ``[B, h, T, head_dim]``; in their own dtype, computed in that of the angles."""
        turning_dims = self.cos.shape[-1]
        still_dims = heads.shape[-1] - turning_dims
        turning, still = heads.split([turning_dims, still_dims], dim=-1)
        if self.neighbours:
            across = torch.stack([-turning[..., 1::2], turning[..., ::2]], dim=-1).flatten(-2)
        else:
            first, second = turning.chunk(2, dim=-1)
            across = torch.cat([-second, first], dim=-1)
        turned = (turning * self.cos + across * self.sin).to(heads.dtype)
        if not still_dims:
            return turned
        return torch.cat([turned, still], dim=-1)

    def at(self, positions: Tensor) -> Rotary:
        """Return the angles of some tokens of every sample, ``[B, q]``."""
        rows = positions[:, None, :, None]  # [B, q] -> [B, 1, q, 1]

        def picked(angles: Tensor) -> Tensor:
            leading = (*angles.shape[:-4], positions.shape[0], angles.shape[-3])  # [M,] B, 1 or H
            index = rows.expand(*leading, -1, angles.shape[-1])
            return angles.expand(*leading, -1, -1).gather(-2, index)

        return Rotary(picked(self.cos), picked(self.sin), self.neighbours, self.of_heads)

    def of(self, member: int) -> Rotary:
        """Return the angles of one member."""
        if self.cos.dim() == 4:
            return self
        return Rotary(self.cos[member], self.sin[member], self.neighbours, self.of_heads)

    def for_heads(self, members: Mapping[int, Tensor]) -> Rotary:
        """Return the angles for the heads of members that have some, side by side.

        Args:
            members: the original numbers of each member's heads, ``[h]``.
        """
        if not self.of_heads:
            return self
        cos = []
        sin = []
        for member, heads in members.items():
            of_member = self.of(member)
            cos.append(of_member.cos.index_select(1, heads))
            sin.append(of_member.sin.index_select(1, heads))
        return Rotary(torch.cat(cos, dim=1), torch.cat(sin, dim=1), self.neighbours)

    def repeated(self, members: int) -> Rotary:
        """Repeat the angles for member-major samples ``[M * B, ...]``."""
        if self.cos.shape[0] == 1:
            return self
        return Rotary(self.cos.repeat(members, 1, 1, 1), self.sin.repeat(members, 1, 1, 1), self.neighbours)
