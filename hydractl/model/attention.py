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
from hydractl.model.context import QueryTokens, RunContext, apart, context_of_run
from hydractl.model.projections import MemberProjections, cat_parts
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
        of_queries = None if self.of_queries is None else self.of_queries.of(member)
        of_keys = None if self.of_keys is None else self.of_keys.of(member)
        return _Meeting(self.mask, self.is_causal, of_queries, of_keys, relative)

    def of_query_tokens(self, queries: QueryTokens) -> _Meeting:
        """Return the same where only some tokens ask: their rows of the mask, their positions and distances."""
        mask = queries.rows_of(self.mask)
        of_queries = None if self.of_queries is None else self.of_queries.at(queries.positions)
        relative = None if self.relative is None else replace(self.relative, positions=queries.positions)
        return _Meeting(mask, self.is_causal, of_queries, self.of_keys, relative)

    def for_heads(self, heads: Mapping[int, Tensor]) -> _Meeting:
        """Return the same for the heads of members, by their original numbers."""
        of_queries = None if self.of_queries is None else self.of_queries.for_heads(heads)
        of_keys = None if self.of_keys is None else self.of_keys.for_heads(heads)
        return replace(self, of_queries=of_queries, of_keys=of_keys)

    def repeated(self, members: int) -> _Meeting:
        """Repeat for member-major samples what is of one sample alone, once for each member."""
        mask = self.mask
        if mask is not None and mask.dim() == 4 and mask.shape[0] > 1:
            mask = mask.repeat(members, 1, 1, 1)  # [B, h, q, T] -> [M * B, h, q, T]
        of_queries = None if self.of_queries is None else self.of_queries.repeated(members)
        of_keys = None if self.of_keys is None else self.of_keys.repeated(members)
        return _Meeting(mask, self.is_causal, of_queries, of_keys)


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
        context = context_of_run()
        if context.attended is not None:
            return context.attended
        meeting = _Meeting(attn_mask, is_causal, rotary, rotary, relative)
        memory = None
        if context.queries is not None:
            assert not is_causal, "a block that runs for some tokens needs its mask written out"
            memory = context.queries.memory
            meeting = meeting.of_query_tokens(context.queries)
        members = self.projections
        if context.member is not None and len(members) > 1:
            members = [members[context.member]]
            meeting = meeting.of(context.member)
        elif self._batches(context, x.device):
            return self._dropped(self._batched(x, memory, meeting))
        parts = apart(x, len(members))
        heads = self._heads(members, parts, memory, meeting)
        if self.observer is not None:
            self._show_first_member(self.observer, heads[0], parts[0])
        outputs = []
        for projections, part, heads_of_member in zip(members, parts, heads, strict=True):
            if heads_of_member is None:
                outputs.append(projections.bias_only(part))
            else:
                outputs.append(projections.output(heads_of_member))
        return self._dropped(cat_parts(outputs))

    @staticmethod
    def _show_first_member(observer: Callable[[Tensor], None], heads: Tensor | None, part: Tensor) -> None:
        """Hand the observer the heads of member 0, ``[B, T, 0]`` where it has none."""
        if heads is None:
            heads = part.new_zeros((*part.shape[:2], 0))
        observer(heads)

    def _dropped(self, output: Tensor) -> Tensor:
        """Apply the dropout of the output, in training or where it always acts."""
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
            attended = [_taken(projections, pool) for projections in members]
        else:
            memories: Sequence[Tensor | None] = [None] * len(members)
            if memory is not None:
                memories = apart(memory, len(members))
            attended = self._attend(members, parts, memories, meeting)
        heads: list[Tensor | None] = []
        for projections, attended_heads, part in zip(members, attended, parts, strict=True):
            if attended_heads is None:
                heads.append(None)
            else:
                heads.append(projections.concatenate(attended_heads, part))
        if self.head_gate is None:
            return heads
        return self._gated(heads, members, self.head_gate, len(parts[0]))

    @staticmethod
    def _gated(
        heads: Sequence[Tensor | None], members: Sequence[MemberProjections], head_gate: Tensor, batch: int
    ) -> list[Tensor | None]:
        """Scale each head of each member by its gate.

        Args:
            heads: of each member ``[B, q, h * head_dim]`` or None.
            members: their projections.
            head_gate: ``[1 or samples, sum of heads]``.
            batch: B, a multiple of the samples where each was cut into windows.
        """
        gates = head_gate.repeat_interleave(members[0].head_dim, dim=1)
        if len(gates) > 1:
            windows = batch // len(gates)
            gates = gates.repeat_interleave(windows, dim=0)
        gates_of_members = gates.split([projections.heads * projections.head_dim for projections in members], dim=1)
        gated: list[Tensor | None] = []
        for heads_of_member, gate in zip(heads, gates_of_members, strict=True):
            gated.append(None if heads_of_member is None else heads_of_member * gate[:, None])
        return gated

    def _attend(
        self,
        members: Sequence[MemberProjections],
        parts: Sequence[Tensor],
        memories: Sequence[Tensor | None],
        meeting: _Meeting,
    ) -> list[Tensor | None]:
        """Return the attended heads ``[B, h, q, head_dim]`` of each member; None where it has no head."""
        runs_of_members = []
        for projections, part, memory in zip(members, parts, memories, strict=True):
            runs_of_members.append(projections.project(part, memory))
        all_runs = list(itertools.chain(*runs_of_members))
        if not all_runs:
            return [None] * len(members)
        # q, k and v of each run [B, n, q, head_dim] -> [B, sum of heads, q, head_dim]
        queries, keys, values = zip(*all_runs, strict=True)
        q = cat_parts(queries, dim=1)
        k = cat_parts(keys, dim=1)
        v = cat_parts(values, dim=1)
        if meeting.relative is not None:
            added: list[Tensor] = []
            for member, projections in enumerate(members):
                terms = meeting.relative.of(member)
                added += projections.relative(runs_of_members[member], terms)
            mask = meeting.relative.masked(meeting.mask, cat_parts(added, dim=1), q.shape[0])
            meeting = replace(meeting, mask=mask)
        if meeting.of_keys is not None and meeting.of_keys.of_heads:
            numbers = {member: projections.numbers for member, projections in enumerate(members) if projections.heads}
            meeting = meeting.for_heads(numbers)
        attended = self._scaled_dot_products(q, k, v, meeting)
        with_heads = iter(attended.split([projections.heads for projections in members if projections.heads], dim=1))
        return [next(with_heads) if projections.heads else None for projections in members]

    def _scaled_dot_products(self, q: Tensor, k: Tensor, v: Tensor, meeting: _Meeting) -> Tensor:
        """Attend ``[B, h, q, head_dim]``: turn queries and keys by their positions, and weigh the values."""
        if meeting.of_queries is not None:
            q = meeting.of_queries(q)
        if meeting.of_keys is not None:
            k = meeting.of_keys(k)
        dropout = self.attention_dropout if self.training else 0.0
        scale = None if meeting.relative is None else meeting.relative.scale
        return F.scaled_dot_product_attention(q, k, v, meeting.mask, dropout, meeting.is_causal, scale=scale)

    def _batches(self, context: RunContext, device: torch.device) -> bool:
        """Return whether the projections of all members are batched products: never while single heads are observed."""
        if self.head_gate is not None or self.observer is not None:
            return False
        return self._stacked.possible and context.batches(device)

    def _batched(self, x: Tensor, memory: Tensor | None, meeting: _Meeting) -> Tensor:
        """Attend as :meth:`forward`, with all members' samples in one batch, which costs one copy of a mask."""
        members = len(self.members)
        if self.pooled:
            (pool,) = self._attend([self._all_heads], apart(x, members)[:1], [memory], meeting)
            assert pool is not None, "a pool in which members have heads has heads"
            return self._stacked.output(self._stacked.take(pool))
        q, k, v = self._stacked.project(x, memory)
        attended = self._scaled_dot_products(q, k, v, meeting.repeated(members))
        return self._stacked.output(attended)


def _taken(projections: MemberProjections, pool: Tensor | None) -> Tensor | None:
    """Select a member's heads from all attended heads of the bank; None where one of the two has none."""
    if pool is None or not projections.heads:
        return None
    return projections.take(pool)
