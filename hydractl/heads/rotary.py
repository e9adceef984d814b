"""Rotary positions: queries and keys are rotated by the angles of their tokens before they are compared.

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
    """The rotation angles of tokens.

    Attributes:
        cos, sin: ``[1, 1, T, width]``, or ``[B, 1, T, width]`` if samples differ; 1 and 0 rotate nothing. If each head
            has its own angles, those of every head of the original numbering, ``[1, H, T, width]``, or for each member
            ``[M, 1, H, T, width]``. Only the first ``width`` dimensions of a head are rotated.
        neighbours: whether two neighbouring dimensions of a head are rotated together; otherwise a dimension of the
            first half is rotated with one of the second half.
        of_heads: whether each head has its own angles.
    """

    cos: Tensor
    sin: Tensor
    neighbours: bool
    of_heads: bool = False

    def __call__(self, heads: Tensor) -> Tensor:
        """Rotate queries or keys by the angles of their tokens.

        Args:
            heads: queries or keys, ``[B, h, T, head_dim]``; of each head only the first ``width`` dimensions rotate.

        Returns:
            The same shape and dtype; computed in the dtype of the angles.
        """
        rotated_dims = self.cos.shape[-1]
        other_dims = heads.shape[-1] - rotated_dims
        to_rotate, others = heads.split([rotated_dims, other_dims], dim=-1)

        # Rotate by 90 degrees: each pair of dimensions (a, b) becomes (-b, a).
        if self.neighbours:
            minus_second = -to_rotate[..., 1::2]  # pairs are (0, 1), (2, 3), ...
            first = to_rotate[..., ::2]
            perpendicular = torch.stack([minus_second, first], dim=-1).flatten(-2)
        else:
            first, second = to_rotate.chunk(2, dim=-1)
            perpendicular = torch.cat([-second, first], dim=-1)

        # Rotate by the angle, and put the other dimensions back behind.
        rotated = to_rotate * self.cos + perpendicular * self.sin
        rotated = rotated.to(heads.dtype)
        if not other_dims:
            return rotated
        return torch.cat([rotated, others], dim=-1)

    def at(self, positions: Tensor) -> Rotary:
        """Return the angles of some tokens of every sample.

        Args:
            positions: the indices of the tokens, ``[B, q]``.

        Returns:
            Angles of q tokens for each of the B samples, for all heads or members that have their own angles.
        """
        positions_by_head = positions[:, None, :, None]  # [B, 1, q, 1]
        samples = positions.shape[0]  # not len(): during an export, the batch size is a symbol

        def picked(angles: Tensor) -> Tensor:
            """Return ``[(M,) B, 1 or H, q, width]``, picked from the angles ``[(M,) 1 or B, 1 or H, T, width]``."""
            # Repeat index and angles for all samples and heads, as gather needs equal leading axes.
            *members, _, heads, _, width = angles.shape
            leading_axes = (*members, samples, heads)
            index = positions_by_head.expand(*leading_axes, -1, width)  # [(M,) B, 1 or H, q, width]
            angles_of_samples = angles.expand(*leading_axes, -1, -1)  # [(M,) B, 1 or H, T, width]
            return angles_of_samples.gather(-2, index)  # [(M,) B, 1 or H, q, width]

        return Rotary(picked(self.cos), picked(self.sin), self.neighbours, self.of_heads)

    def of(self, member: int) -> Rotary:
        """Return the angles of one member, without an axis of members."""
        if self.cos.dim() == 4:
            return self
        return Rotary(self.cos[member], self.sin[member], self.neighbours, self.of_heads)

    def for_heads(self, members: Mapping[int, Tensor]) -> Rotary:
        """Return the angles for the heads of several members, side by side.

        Args:
            members: for each member, by its index, the original numbers of its heads, ``[h]``.

        Returns:
            Angles ``[1, sum of h, T, width]`` in the order of the members; if all heads share their angles, these.
        """
        if not self.of_heads:
            return self
        cos_of_members = []
        sin_of_members = []
        for member, heads in members.items():
            angles = self.of(member)
            cos_of_members.append(angles.cos.index_select(1, heads))
            sin_of_members.append(angles.sin.index_select(1, heads))
        cos = torch.cat(cos_of_members, dim=1)
        sin = torch.cat(sin_of_members, dim=1)
        return Rotary(cos, sin, self.neighbours)

    def repeated(self, members: int) -> Rotary:
        """Return angles ``[M * B, ...]`` for the samples of all members, one member after another."""
        same_for_all_samples = self.cos.shape[0] == 1
        if same_for_all_samples:
            return self
        cos = self.cos.repeat(members, 1, 1, 1)
        sin = self.sin.repeat(members, 1, 1, 1)
        return Rotary(cos, sin, self.neighbours)
