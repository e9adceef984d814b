"""The one attention module of hydractl: any number of heads per member, any number of members, side by side.

It names no library. A family reads the weights of its own attention module into
:class:`hydractl.heads.weights.HeadWeights` and puts a :class:`HeadAttention` in its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.heads.relative import Relative
from hydractl.heads.rotary import Rotary
from hydractl.model.context import RunContext, apart, context_of_run
from hydractl.model.projections import MemberProjections
from hydractl.model.stacking import StackedProjections


@dataclass(frozen=True)
class _Meeting:
    """The way queries meet keys: a mask, whether they are causal, the rotary positions of both, and their distances."""

    mask: Tensor | None
    is_causal: bool
    of_queries: Rotary | None
    of_keys: Rotary | None
    relative: Relative | None = None

    def of(self, member: int) -> _Meeting:
        """Return the same for the samples of one member."""
        relative = None if self.relative is None else self.relative.of(member)
        queries, keys = (None if one is None else one.of(member) for one in (self.of_queries, self.of_keys))
        return _Meeting(self.mask, self.is_causal, queries, keys, relative)

    def for_heads(self, heads: Mapping[int, Tensor]) -> _Meeting:
        """Return the same for the heads of members, by their original numbers."""
        queries, keys = (
            None if turned is None else turned.for_heads(heads) for turned in (self.of_queries, self.of_keys)
        )
        return replace(self, of_queries=queries, of_keys=keys)

    def repeated(self, members: int) -> _Meeting:
        """Repeat for member-major samples what is of one sample alone, once for each member."""
        mask, of_queries, of_keys = self.mask, self.of_queries, self.of_keys
        if mask is not None and mask.dim() == 4 and mask.shape[0] > 1:
            mask = mask.repeat(members, 1, 1, 1)  # [B, h, q, T] -> [M * B, h, q, T]
        of_queries = None if of_queries is None else of_queries.repeated(members)
        return _Meeting(mask, self.is_causal, of_queries, None if of_keys is None else of_keys.repeated(members))


class HeadAttention(nn.Module):
    """Self-attention of M members with their own heads, as ONE scaled-dot-product attention (paper section 4.2).

    Activations are member-major: ``[M * B, T, d_model]``, all samples of member 0 first. The heads of all members
    lie side by side in the head dimension, so masks keep the size of one batch and no member sees another.

    Members with the same heads of the same weights may share one object.

    Attributes:
        members: the projections of each member.
        pooled: whether the input is the same for all members and their heads are in one bank: all heads of the bank
            then attend to it once, and each member projects its own of them.
        head_gate: None, or a tensor ``[1 or B, sum of heads]`` that scales each head's output. A zero is the same
            as a zeroed column block of the output projection. Heads are in the order of the runs of each
            member. Used by the gate criterion.
        observer: None, or a function that is given the concatenated heads of member 0, ``[B, T, heads * head_dim]``
            (none where it has no heads), each time they are computed.
        drops: whether dropout of the output acts outside training too (MC dropout).
    """

    def __init__(
        self,
        members: Sequence[MemberProjections],
        *,
        pooled: bool = False,
        attention_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.pooled = pooled
        if pooled:
            self._all_heads = MemberProjections(self.projections[0].bank)
        self._stacked = StackedProjections(self.projections, pooled=pooled)
        self.attention_dropout = attention_dropout
        self.output_dropout = output_dropout
        self.head_gate: Tensor | None = None
        self.observer: Callable[[Tensor], None] | None = None
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

    def train(self, mode: bool = True) -> HeadAttention:
        """Set the mode, as torch's, and forget stacked weights: the parameters may have changed unseen."""
        self._stacked.forget()
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> HeadAttention:
        self._stacked.forget()
        return super()._apply(fn, recurse)

    def stack(self, context: RunContext) -> None:
        """Stack the weights of all members now, where batched products are wanted and possible.

        Otherwise the first call without gradients does; in a graph compiled before that, every call would.
        """
        if self._stacked.possible and context.batches(self.projections[0].bank.out.device):
            with torch.no_grad():
                self._stacked.make(self.pooled)

    def keep_apart(self) -> None:
        """Never stack the weights of members: terms and angles of single heads are those of one after another."""
        self._stacked.possible = False

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        rotary: Rotary | None = None,
        relative: Relative | None = None,
    ) -> Tensor:
        """Attend, in the context of the run (:class:`hydractl.model.context.RunContext`).

        Args:
            x: ``[M * B, T, d_model]``, or ``[B, T, d_model]`` of one member alone.
            attn_mask: broadcastable to ``[B, heads, T, T]``, boolean (True: may be seen) or additive.
            is_causal: whether a token sees only itself and those before it.
            rotary: turns queries and keys by the positions of all tokens; None where positions are in ``x`` alone.
            relative: adds to the scores by the distances of all tokens, which a mask then says nothing of.

        Returns:
            As ``x``.
        """
        context, memory = context_of_run(), None
        if context.attended is not None:
            return context.attended
        meeting = _Meeting(attn_mask, is_causal, rotary, rotary, relative)
        if context.queries is not None:
            assert not is_causal, "a block that runs for some tokens needs its mask written out"
            memory, positions = context.queries.memory, context.queries.positions
            asking = None if rotary is None else rotary.at(positions)
            distances = None if relative is None else replace(relative, positions=positions)
            meeting = _Meeting(context.queries.rows_of(attn_mask), is_causal, asking, rotary, distances)
        members = self.projections
        if context.member is not None and len(members) > 1:
            members = [members[context.member]]
            meeting = meeting.of(context.member)
        elif self._batches(context, x.device):
            return self._dropped(self._batched(x, memory, meeting))
        parts = apart(x, len(members))
        heads = self._heads(members, parts, memory, meeting)
        if self.observer is not None:
            self.observer(x.new_zeros((*parts[0].shape[:2], 0)) if heads[0] is None else heads[0])
        each = zip(members, parts, heads, strict=True)
        outputs = [m.bias_only(part) if own is None else m.output(own) for m, part, own in each]
        return self._dropped(outputs[0] if len(outputs) == 1 else torch.cat(outputs))

    def _dropped(self, output: Tensor) -> Tensor:
        return F.dropout(output, self.output_dropout, self.training or self.drops)

    def _heads(
        self,
        members: Sequence[MemberProjections],
        parts: Sequence[Tensor],
        memory: Tensor | None,
        meeting: _Meeting,
    ) -> list[Tensor | None]:
        """Return the heads of each member one after another, ``[B, q, h * head_dim]``; None where it has no head."""
        attended: list[Tensor | None]
        if self.pooled:
            (pool,) = self._attend([self._all_heads], parts[:1], [memory], meeting)
            attended = [m.take(pool) if m.heads and pool is not None else None for m in members]
        else:
            memories = [None] * len(members) if memory is None else apart(memory, len(members))
            attended = self._attend(members, parts, memories, meeting)
        each = zip(members, attended, parts, strict=True)
        heads = [None if own is None else m.concatenate(own, part) for m, own, part in each]
        if self.head_gate is None:
            return heads
        gates = self.head_gate.repeat_interleave(members[0].head_dim, dim=1)
        if len(gates) > 1:  # of each sample, which may have been cut into windows
            gates = gates.repeat_interleave(len(parts[0]) // len(gates), dim=0)
        split = gates.split([m.heads * m.head_dim for m in members], dim=1)
        return [None if own is None else own * gate[:, None] for own, gate in zip(heads, split, strict=True)]

    def _attend(
        self,
        members: Sequence[MemberProjections],
        parts: Sequence[Tensor],
        memories: Sequence[Tensor | None],
        meeting: _Meeting,
    ) -> list[Tensor | None]:
        """Return the attended heads ``[B, h, q, head_dim]`` of each member; None where it has no head."""
        each = zip(members, parts, memories, strict=True)
        runs = [member.project(part, memory) for member, part, memory in each]
        if not any(runs):
            return [None] * len(members)
        # M times [B, h, q, head_dim] -> [B, sum of h, q, head_dim]
        q, k, v = (_side_by_side(p) for p in zip(*itertools.chain(*runs), strict=True))
        if meeting.relative is not None:
            owners = zip(members, runs, map(meeting.relative.of, range(len(members))), strict=True)
            added = [bias for member, own, relative in owners for bias in member.relative(own, relative)]
            mask = meeting.relative.masked(meeting.mask, _side_by_side(added), q.shape[0])
            meeting = replace(meeting, mask=mask)
        if meeting.of_keys is not None and meeting.of_keys.of_heads:
            meeting = meeting.for_heads({m: member.numbers for m, member in enumerate(members) if member.heads})
        attended = self._scaled_dot_products(q, k, v, meeting)
        split = iter(attended.split([m.heads for m in members if m.heads], dim=1))
        return [next(split) if m.heads else None for m in members]

    def _scaled_dot_products(self, q: Tensor, k: Tensor, v: Tensor, meeting: _Meeting) -> Tensor:
        q = q if meeting.of_queries is None else meeting.of_queries(q)
        k = k if meeting.of_keys is None else meeting.of_keys(k)
        dropout = self.attention_dropout if self.training else 0.0
        scale = None if meeting.relative is None else meeting.relative.scale
        return F.scaled_dot_product_attention(q, k, v, meeting.mask, dropout, meeting.is_causal, scale=scale)

    def _batches(self, context: RunContext, device: torch.device) -> bool:
        """Return whether the projections of all members are batched products: never while single heads are observed."""
        free = self.head_gate is None and self.observer is None
        return free and self._stacked.possible and context.batches(device)

    def _batched(self, x: Tensor, memory: Tensor | None, meeting: _Meeting) -> Tensor:
        """Attend as :meth:`forward`, with all members' samples in one batch, which costs one copy of a mask."""
        members = len(self.members)
        if self.pooled:
            (pool,) = self._attend([self._all_heads], apart(x, members)[:1], [memory], meeting)
            assert pool is not None, "a pool in which members have heads has heads"
            return self._stacked.output(self._stacked.take(pool))
        q, k, v = self._stacked.project(x, memory)
        return self._stacked.output(self._scaled_dot_products(q, k, v, meeting.repeated(members)))


def _side_by_side(heads: Sequence[Tensor]) -> Tensor:
    """Concatenate ``[B, h, ...]`` of several members or runs to ``[B, sum of h, ...]``."""
    return heads[0] if len(heads) == 1 else torch.cat(list(heads), dim=1)
