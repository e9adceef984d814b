"""The one attention module of hydractl: any number of heads per member, any number of members, side by side.

It names no library. A family reads the weights of its own attention module into
:class:`hydractl.heads.weights.HeadWeights` and puts a :class:`HeadAttention` in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.model.projections import MemberProjections
from hydractl.model.stacking import StackedProjections


@dataclass
class Turn:
    """Whose activations a block is given, and how it computes those of all members.

    Attributes:
        member: of this member only, ``[B, T, d_model]``; None: of all members, ``[M * B, T, d_model]``.
        batched: whether what every member has for itself runs as one batched product where that is possible, or else
            as one product after another. None: as is faster, which on a CPU is one after another.
    """

    member: int | None = None
    batched: bool | None = None

    def batches(self, device: torch.device) -> bool:
        """Whether batched products are wanted there. The meta device counts work, of which padding is none."""
        return device.type not in ("cpu", "meta") if self.batched is None else self.batched


@dataclass(frozen=True)
class Cut:
    """A block that runs for some tokens only: they ask, all tokens answer.

    Attributes:
        memory: what the attention reads of all tokens, ``[M * B, T, d_model]``; ``[B, T, d_model]`` for a pool, and of
            the member whose turn it is.
        positions: which tokens ask, ``[B, q]``.
    """

    memory: Tensor
    positions: Tensor

    def mask(self, attn_mask: Tensor | None) -> Tensor | None:
        """The rows of a mask that belong to the tokens that ask."""
        if attn_mask is None or attn_mask.shape[-2] == 1:
            return attn_mask
        if attn_mask.dim() == 2:  # the same for every sample
            return attn_mask[self.positions][:, None]
        rows = self.positions[:, None, :, None].expand(-1, attn_mask.shape[1], -1, attn_mask.shape[-1])
        return attn_mask.expand(self.positions.shape[0], -1, -1, -1).gather(2, rows)


class HeadAttention(nn.Module):
    """Self-attention of M members with their own heads, as ONE scaled-dot-product attention (paper section 4.2).

    Activations are member-major: ``[M * B, T, d_model]``, all samples of member 0 first. The heads of all members
    lie side by side in the head dimension, so masks keep the size of one batch and no member sees another.

    Members with the same heads of the same weights may share one object.

    Attributes:
        members: the projections of each member.
        pooled: whether the input is the same for all members and their heads are in one bank: all heads of the bank
            then attend to it once, and each member projects its own of them.
        turn: whose activations come.
        head_gate: None, or a tensor ``[1 or B, sum of heads]`` that scales each head's output. A zero is the same
            as a zeroed column block of the output projection. Heads are in the order of the runs of each
            member. Used by the gate criterion.
        observer: None, or a function that is given the joined heads of member 0, ``[B, T, heads * head_dim]`` (none
            where it has no heads), each time they are computed.
        given: None, or what :meth:`forward` answers in the place of attending, ``[M * B, T, d_model]``.
        cut: None, or that the inputs are those of some tokens only.
        drops: whether dropout of the output acts outside training too (MC dropout).
    """

    def __init__(
        self,
        members: Sequence[MemberProjections],
        *,
        pooled: bool = False,
        turn: Turn | None = None,
        scale: float | None = None,
        attention_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.pooled = pooled
        if pooled:
            self._all_heads = MemberProjections(self.projections[0].bank)
        self._stacked = StackedProjections(self.projections, pooled=pooled)
        self.turn = turn or Turn()
        self.scale = scale
        self.attention_dropout = attention_dropout
        self.output_dropout = output_dropout
        self.head_gate: Tensor | None = None
        self.observer: Callable[[Tensor], None] | None = None
        self.given: Tensor | None = None
        self.cut: Cut | None = None
        self.drops = False

    @property
    def projections(self) -> list[MemberProjections]:
        """The projections of each member."""
        return list(self.members)  # type: ignore[arg-type]

    @property
    def only(self) -> MemberProjections:
        """The projections of a model of one member."""
        (projections,) = self.members
        return projections  # type: ignore[return-value]

    @property
    def head_counts(self) -> list[int]:
        """Heads of each member."""
        return [m.heads for m in self.projections]

    def _apply(self, fn: Any, recurse: bool = True) -> HeadAttention:
        self._stacked.forget()
        return super()._apply(fn, recurse)

    def stack(self) -> None:
        """Stack the weights of all members now, where batched products are wanted and possible.

        Else the first call without gradients does; a graph that is compiled before that would do so in every call.
        """
        if self._stacked.possible and self.turn.batches(self.projections[0].bank.out.device):
            with torch.no_grad():
                self._stacked.make(self.pooled)

    def forget(self) -> None:
        """The weights may have changed: stack them anew."""
        self._stacked.forget()

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Attend.

        Args:
            x: ``[M * B, T, d_model]``, or ``[B, T, d_model]`` of the member whose turn it is.
            attn_mask: broadcastable to ``[B, heads, T, T]``, boolean (True: may be seen) or additive.
            is_causal: whether a token sees only itself and those before it.

        Returns:
            As ``x``.
        """
        if self.given is not None:
            return self.given
        members = self.projections
        if self.turn.member is not None and len(members) > 1:
            members = [members[self.turn.member]]
        elif self._at_once(x.device):
            return self._dropped(self._together(x, attn_mask, is_causal))
        parts = apart(x, len(members))
        outputs: list[Tensor] = []
        each = zip(members, parts, self._joined(members, parts, attn_mask, is_causal), strict=True)
        for index, (member, part, joined) in enumerate(each):
            if self.observer is not None and index == 0:
                self.observer(part.new_zeros((*part.shape[:2], 0)) if joined is None else joined)
            outputs.append(member.bias_only(part) if joined is None else member.output(joined))
        together = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return self._dropped(together)

    def _dropped(self, output: Tensor) -> Tensor:
        return F.dropout(output, self.output_dropout, self.training or self.drops)

    def _joined(
        self, members: Sequence[MemberProjections], parts: Sequence[Tensor], attn_mask: Tensor | None, is_causal: bool
    ) -> list[Tensor | None]:
        """The heads of each member side by side, ``[B, q, h * head_dim]``; None where it has no head."""
        memories: Sequence[Tensor | None] = [None] * len(members)
        if self.cut is not None:
            assert not is_causal, "a block that is cut needs its mask written out"
            memories = [self.cut.memory] if self.pooled else apart(self.cut.memory, len(members))
            attn_mask = self.cut.mask(attn_mask)
        each: list[Tensor | None]
        if self.pooled:
            (pool,) = self._attend([self._all_heads], parts, memories, attn_mask, is_causal)
            each = [m.take(pool) if m.heads and pool is not None else None for m in members]
        else:
            each = self._attend(members, parts, memories, attn_mask, is_causal)
        joined = [None if h is None else m.join(h, part) for m, h, part in zip(members, each, parts, strict=True)]
        if self.head_gate is None:
            return joined
        gates = self.head_gate.repeat_interleave(members[0].head_dim, dim=1)
        split = gates.split([m.heads * m.head_dim for m in members], dim=1)
        return [None if j is None else j * gate[:, None] for j, gate in zip(joined, split, strict=True)]

    def _attend(
        self,
        members: Sequence[MemberProjections],
        parts: Sequence[Tensor],
        memories: Sequence[Tensor | None],
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> list[Tensor | None]:
        """The attended heads ``[B, h, q, head_dim]`` of each member; None where it has no head."""
        each = zip(members, parts, memories, strict=False)
        projected = [run for member, part, memory in each for run in member.project(part, memory)]
        if not projected:
            return [None] * len(members)
        q, k, v = (p[0] if len(p) == 1 else torch.cat(p, dim=1) for p in zip(*projected, strict=True))
        attended = self._scaled_dot_products(q, k, v, attn_mask, is_causal)
        split = iter(attended.split([m.heads for m in members if m.heads], dim=1))
        return [next(split) if m.heads else None for m in members]

    def _scaled_dot_products(
        self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=attn_mask,
            dropout_p=self.attention_dropout if self.training else 0.0,
            is_causal=is_causal,
            scale=self.scale,
        )

    def _at_once(self, device: torch.device) -> bool:
        """Whether the projections of all members are batched products: never while somebody looks at single heads."""
        free = self.head_gate is None and self.observer is None
        return free and self._stacked.possible and self.turn.batches(device)

    def _together(self, x: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        """As :meth:`forward`; the samples of all members are those of one batch, which costs one copy of a mask."""
        members, memory = len(self.members), None
        if self.cut is not None:
            assert not is_causal, "a block that is cut needs its mask written out"
            memory, attn_mask = self.cut.memory, self.cut.mask(attn_mask)
        if self.pooled:
            (pool,) = self._attend([self._all_heads], apart(x, members)[:1], [memory], attn_mask, is_causal)
            assert pool is not None, "a pool in which members have heads has heads"
            return self._stacked.output(self._stacked.take(pool))
        if attn_mask is not None and attn_mask.dim() == 4 and attn_mask.shape[0] > 1:
            attn_mask = attn_mask.repeat(members, 1, 1, 1)
        q, k, v = self._stacked.project(x, memory)
        return self._stacked.output(self._scaled_dot_products(q, k, v, attn_mask, is_causal))


def apart(x: Tensor, members: int) -> tuple[Tensor, ...]:
    """Member-major activations ``[M * B, ...]`` cut into those of each member."""
    if members == 1:
        return (x,)
    # Not chunk: of a batch that is only a name while a graph is exported, it cannot know how many pieces it makes.
    return x.unflatten(0, (members, -1)).unbind(0)
