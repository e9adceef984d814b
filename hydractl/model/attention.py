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
    """The way queries meet keys.

    Attributes:
        mask: broadcastable to ``[B, heads, q, T]``, or None.
        is_causal: whether a token sees only itself and those before it.
        query_rotary, key_rotary: turn queries and keys by their positions.
        relative: adds to the scores by the distances of query and key tokens.
    """

    mask: Tensor | None
    is_causal: bool
    query_rotary: Rotary | None
    key_rotary: Rotary | None
    relative: Relative | None = None

    def for_member(self, member: int) -> _Meeting:
        """Return the same for the samples of one member."""
        query_rotary = self.query_rotary
        if query_rotary is not None:
            query_rotary = query_rotary.of(member)
        key_rotary = self.key_rotary
        if key_rotary is not None:
            key_rotary = key_rotary.of(member)
        relative = self.relative
        if relative is not None:
            relative = relative.of(member)
        return _Meeting(self.mask, self.is_causal, query_rotary, key_rotary, relative)

    def for_query_tokens(self, queries: QueryTokens) -> _Meeting:
        """Return the same where only some tokens ask: their rows of the mask, their positions and distances."""
        query_rotary = self.query_rotary
        if query_rotary is not None:
            query_rotary = query_rotary.at(queries.positions)
        relative = self.relative
        if relative is not None:
            relative = replace(relative, positions=queries.positions)
        return _Meeting(queries.rows_of(self.mask), self.is_causal, query_rotary, self.key_rotary, relative)

    def for_heads(self, heads: Mapping[int, Tensor]) -> _Meeting:
        """Return the same for some heads of members, by their original numbers."""
        query_rotary = self.query_rotary
        if query_rotary is not None:
            query_rotary = query_rotary.for_heads(heads)
        key_rotary = self.key_rotary
        if key_rotary is not None:
            key_rotary = key_rotary.for_heads(heads)
        return replace(self, query_rotary=query_rotary, key_rotary=key_rotary)

    def for_member_major(self, members: int) -> _Meeting:
        """Return the same for member-major samples: what each sample has for itself, repeated for each member."""
        mask = self.mask
        if mask is not None and mask.dim() == 4 and mask.shape[0] > 1:
            mask = mask.repeat(members, 1, 1, 1)  # [B, h, q, T] -> [M * B, h, q, T]
        query_rotary = self.query_rotary
        if query_rotary is not None:
            query_rotary = query_rotary.repeated(members)
        key_rotary = self.key_rotary
        if key_rotary is not None:
            key_rotary = key_rotary.repeated(members)
        return _Meeting(mask, self.is_causal, query_rotary, key_rotary)


class HeadAttention(nn.Module):
    """Self-attention of M members with their own heads, as ONE scaled-dot-product attention (paper section 4.2).

    Activations are member-major: ``[M * B, T, d_model]``, all samples of member 0 first. The heads of all members
    lie side by side in the head dimension, so masks keep the size of one batch and no member sees another.

    Members with the same heads of the same weights may share one object.

    Attributes:
        members: the projections of each member.
        pooled: whether the input is the same for all members and their heads are in one bank: all heads of the bank
            then attend to it once, and each member projects its own of them.
        head_gate: None, or a tensor ``[1 or B, sum of heads]`` that scales each head's output. A zero is the same as
            zeros in the columns that the head has in the output projection. Heads are in the order of the runs of each
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
        return [projections.heads for projections in self.projections]

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
        """Never stack the weights of members: where terms or angles belong to single heads, members run by themselves.

        See :attr:`hydractl.model.stacking.StackedProjections.possible`.
        """
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
            relative: adds to the scores by the distances of all tokens; the mask is then without these.

        Returns:
            As ``x``.
        """
        context = context_of_run()
        if context.attended is not None:
            return context.attended
        meeting = _Meeting(attn_mask, is_causal, query_rotary=rotary, key_rotary=rotary, relative=relative)
        memory = None
        if context.queries is not None:
            assert not is_causal, "a block that runs for some tokens needs its mask written out"
            memory = context.queries.memory
            meeting = meeting.for_query_tokens(context.queries)
        members = self.projections
        if context.member is not None and len(members) > 1:
            members = [members[context.member]]
            meeting = meeting.for_member(context.member)
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
            attended = [_heads_from_pool(projections, pool) for projections in members]
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
        gates = head_gate.repeat_interleave(members[0].head_dim, dim=1)  # [1 or samples, sum of heads * head_dim]
        if len(gates) > 1:
            windows = batch // len(gates)
            gates = gates.repeat_interleave(windows, dim=0)
        widths = [projections.heads * projections.head_dim for projections in members]
        gated: list[Tensor | None] = []
        for heads_of_member, gate in zip(heads, gates.split(widths, dim=1), strict=True):
            if heads_of_member is None:
                gated.append(None)
            else:
                gated.append(heads_of_member * gate[:, None])  # [B, q, h * dk] * [1 or B, 1, h * dk]
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
        queries, keys, values = zip(*all_runs, strict=True)  # of each run [B, n, q or T, head_dim]
        q = cat_parts(queries, dim=1)  # [B, sum of heads, q, head_dim]
        k = cat_parts(keys, dim=1)  # [B, sum of heads, T, head_dim], and so are the values
        v = cat_parts(values, dim=1)
        if meeting.relative is not None:
            terms: list[Tensor] = []  # of each run [1 or B, n, q, T]
            for member, projections in enumerate(members):
                relative = meeting.relative.of(member)
                terms += projections.relative(runs_of_members[member], relative)
            mask = meeting.relative.masked(meeting.mask, cat_parts(terms, dim=1), q.shape[0])
            meeting = replace(meeting, mask=mask)
        if meeting.key_rotary is not None and meeting.key_rotary.of_heads:
            numbers = {member: projections.numbers for member, projections in enumerate(members) if projections.heads}
            meeting = meeting.for_heads(numbers)
        attended = self._scaled_dot_products(q, k, v, meeting)
        head_counts = [projections.heads for projections in members if projections.heads]
        parts_with_heads = iter(attended.split(head_counts, dim=1))
        attended_of_members: list[Tensor | None] = []
        for projections in members:
            attended_of_members.append(next(parts_with_heads) if projections.heads else None)
        return attended_of_members

    def _scaled_dot_products(self, q: Tensor, k: Tensor, v: Tensor, meeting: _Meeting) -> Tensor:
        """Return the weighted values ``[B, h, q, head_dim]``, queries and keys turned by their positions before."""
        if meeting.query_rotary is not None:
            q = meeting.query_rotary(q)
        if meeting.key_rotary is not None:
            k = meeting.key_rotary(k)
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
            common_input = apart(x, members)[:1]
            (pool,) = self._attend([self._all_heads], common_input, [memory], meeting)
            assert pool is not None, "a pool in which members have heads has heads"
            return self._stacked.output(self._stacked.take(pool))
        q, k, v = self._stacked.project(x, memory)
        attended = self._scaled_dot_products(q, k, v, meeting.for_member_major(members))
        return self._stacked.output(attended)


def _heads_from_pool(projections: MemberProjections, pool: Tensor | None) -> Tensor | None:
    """Select a member's heads from all attended heads of the bank; None where one of the two has none."""
    if pool is None or not projections.heads:
        return None
    return projections.take(pool)
