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
        turned = turning * self.cos + across * self.sin
        turned = turned.to(heads.dtype)
        if not still_dims:
            return turned
        return torch.cat([turned, still], dim=-1)

    def at(self, positions: Tensor) -> Rotary:
        """Return the angles of some tokens of every sample.

        Args:
            positions: the numbers of the tokens ``[B, q]``.
        """
        rows = positions[:, None, :, None]  # [B, 1, q, 1]
        samples = positions.shape[0]  # not len(): while a graph is exported the size of the batch is a symbol

        def picked(angles: Tensor) -> Tensor:
            """Return ``[(M,) B, 1 or H, q, width]`` of ``[(M,) 1 or B, 1 or H, T, width]``."""
            *members, _, heads, _, width = angles.shape
            index = rows.expand(*members, samples, heads, -1, width)
            angles_of_samples = angles.expand(*members, samples, heads, -1, -1)
            return angles_of_samples.gather(-2, index)

        cos = picked(self.cos)
        sin = picked(self.sin)
        return Rotary(cos, sin, self.neighbours, self.of_heads)

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
        side_by_side_cos = torch.cat(cos, dim=1)
        side_by_side_sin = torch.cat(sin, dim=1)
        return Rotary(side_by_side_cos, side_by_side_sin, self.neighbours)

    def repeated(self, members: int) -> Rotary:
        """Repeat the angles for member-major samples ``[M * B, ...]``."""
        if self.cos.shape[0] == 1:
            return self
        cos = self.cos.repeat(members, 1, 1, 1)
        sin = self.sin.repeat(members, 1, 1, 1)
        return Rotary(cos, sin, self.neighbours)
