"""Rotary positions: queries and keys are rotated by the angles of their tokens before they are compared.

Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021), https://arxiv.org/abs/2104.09864,
equation 34.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotary:
    """The rotation angles of tokens.

    Attributes:
        cos, sin: ``[1, 1, T, width]``, or ``[B, 1, T, width]`` if samples differ; 1 and 0 rotate nothing. Only the
            first ``width`` dimensions of a head are rotated.
        neighbours: whether two neighbouring dimensions of a head are rotated together; otherwise a dimension of the
            first half is rotated with one of the second half.
    """

    cos: Tensor
    sin: Tensor
    neighbours: bool

    def __call__(self, heads: Tensor) -> Tensor:
        """Return queries or keys rotated by the angles of their tokens, in the same shape and dtype.

        Dimensions rotate in pairs: (a, b) with the angle t becomes (a cos t - b sin t, b cos t + a sin t). Only the
        first ``width`` dimensions of a head rotate, as many as there are angles; the others stay as they are.

        Args:
            heads: queries or keys, ``[B, h, T, head_dim]``.
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

        # Rotate by the angle: (a, b) cos t + (-b, a) sin t. Put the other dimensions back behind.
        rotated = to_rotate * self.cos + perpendicular * self.sin
        rotated = rotated.to(heads.dtype)
        if not other_dims:
            return rotated
        return torch.cat([rotated, others], dim=-1)

    def at(self, positions: Tensor) -> Rotary:
        """Return the angles of some tokens only, which may be other ones in each sample.

        Args:
            positions: the indices of q tokens for each of the B samples, ``[B, q]``.
        """
        samples = positions.shape[0]  # not len(): during an export, the batch size is a symbol
        width = self.cos.shape[-1]
        index = positions[:, None, :, None].expand(-1, -1, -1, width)  # [B, 1, q, width]

        def picked(angles: Tensor) -> Tensor:
            """Return ``[B, 1, q, width]``, picked from the angles ``[1 or B, 1, T, width]``."""
            return angles.expand(samples, -1, -1, -1).gather(-2, index)

        return Rotary(picked(self.cos), picked(self.sin), self.neighbours)

    def repeated(self, members: int) -> Rotary:
        """Return angles ``[M * B, ...]`` for the samples of all members, one member after another."""
        same_for_all_samples = self.cos.shape[0] == 1
        if same_for_all_samples:
            return self
        cos = self.cos.repeat(members, 1, 1, 1)
        sin = self.sin.repeat(members, 1, 1, 1)
        return Rotary(cos, sin, self.neighbours)
