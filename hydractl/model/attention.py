"""The one attention module of hydractl: any number of heads per member, any number of members, side by side.

It names no library. A family reads the weights of its own attention module into
:class:`hydractl.heads.weights.HeadWeights` and puts a :class:`HeadAttention` in its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.heads.relative import Relative
from hydractl.heads.rotary import Rotary
from hydractl.model.context import QueryTokens, RunContext, apart, context_of_run
from hydractl.model.projections import HeadBank, MemberProjections, cat_parts
from hydractl.model.stacking import KeptStack, StackedProjections, StackedWeights, StackOrder

_Part = TypeVar("_Part", Tensor, Rotary, Relative)
"""A part of a :class:`_Meeting`."""


def _changed(part: _Part | None, change: Callable[[_Part], _Part]) -> _Part | None:
    """Return ``change(part)`` of a part that a meeting may be without; None for None."""
    if part is None:
        return None
    return change(part)


@dataclass(frozen=True)
class _Meeting:
    """The way queries meet keys. Each part but ``is_causal`` may be None: then it does nothing.

    Attributes:
        mask: broadcastable to ``[B, heads, q, T]``.
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
        if self.key_rotary is None and self.relative is None:
            return self
        meeting = self._with_angles(lambda angles: angles.of(member))
        relative = _changed(self.relative, lambda terms: terms.of(member))
        return replace(meeting, relative=relative)

    def for_query_tokens(self, queries: QueryTokens) -> _Meeting:
        """Return the same where only some tokens ask: their rows of the mask, their positions and distances."""
        positions = queries.positions
        mask = queries.rows_of(self.mask)
        query_rotary = _changed(self.query_rotary, lambda angles: angles.at(positions))
        relative = _changed(self.relative, lambda terms: replace(terms, positions=positions))
        return replace(self, mask=mask, query_rotary=query_rotary, relative=relative)

    def for_heads(self, heads: Mapping[int, Tensor]) -> _Meeting:
        """Return the same for some heads of members, by their original numbers."""
        return self._with_angles(lambda angles: angles.for_heads(heads))

    def for_member_major(self, members: int, context: RunContext) -> _Meeting:
        """Return the same for member-major samples: what each sample has for itself, repeated for each member.

        There are no relative terms in it: members that have some never run as one batch.
        """
        mask = _changed(self.mask, lambda mask: context.mask_for_members(mask, members))
        meeting = self._with_angles(lambda angles: angles.repeated(members))
        return replace(meeting, mask=mask, relative=None)

    def _with_angles(self, change: Callable[[Rotary], Rotary]) -> _Meeting:
        """Return the same with both rotaries changed alike."""
        query_rotary = _changed(self.query_rotary, change)
        key_rotary = _changed(self.key_rotary, change)
        return replace(self, query_rotary=query_rotary, key_rotary=key_rotary)


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
            self._all_heads = MemberProjections(members[0].bank)
        self._is_kept_apart = False
        self._read_members(list(members))
        self.attention_dropout = attention_dropout
        self.output_dropout = output_dropout
        self.head_gate: Tensor | None = None
        self.observer: Callable[[Tensor], None] | None = None
        self.drops = False

    def replace_member(self, member: int, projections: MemberProjections) -> None:
        """Give a member other projections. ``members[member] = ...`` alone would leave what is kept of them behind."""
        self._stacked.forget()  # what computes with these stacks notices it, and asks for others
        self.members[member] = projections
        replaced = list(self._projections)
        replaced[member] = projections
        self._read_members(replaced)
        if self._is_kept_apart:
            self._stacked.possible = False

    def _read_members(self, members: list[MemberProjections]) -> None:
        """Keep what every call needs of the members: a walk over a ModuleList takes long."""
        self._projections = members
        # Of each member the bank, where it has all heads of one that needs nothing but products and norms.
        self._plain_banks: list[HeadBank | None] = []
        for projections in members:
            is_plain = projections.plain and not self.pooled
            self._plain_banks.append(projections.bank if is_plain else None)
        self._stacked = StackedProjections(members, pooled=self.pooled)

    @property
    def projections(self) -> list[MemberProjections]:
        """The projections of each member."""
        return self._projections

    @property
    def only(self) -> MemberProjections:
        """The projections of a model of one member."""
        (projections,) = self._projections
        return projections

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
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch has no types there

    def stack(self, context: RunContext) -> None:
        """Stack the weights of all members now, where batched products are wanted and possible.

        Otherwise the first call without gradients does; in a graph compiled before that, every call would.
        """
        device = self.projections[0].bank.out.device
        if not self._stacked.possible or not context.batches(device):
            return
        with torch.no_grad():
            self._stacked.make()

    def stack_orders(self) -> Mapping[str, StackOrder]:
        """Return the stacks of the weights of all members, where these can run as batched products."""
        if not self._stacked.possible:
            return {}
        return self._stacked.orders()

    def computing_with(self, stacks: Mapping[str, KeptStack]) -> StackedWeights:
        """Return the weights of all members that lie in kept stacks."""
        return self._stacked.weights_of(stacks)

    def keep_apart(self) -> None:
        """Never stack the weights of members: where terms or angles belong to single heads, members run by themselves.

        So they do where weights are only there while this module runs.
        See :attr:`hydractl.model.stacking.StackedProjections.possible`.
        """
        self._is_kept_apart = True
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
        is_watched = self.head_gate is not None or self.observer is not None
        if rotary is None and relative is None and not is_watched:
            output = self._directly(x, attn_mask, is_causal, context)
            if output is not None:
                return self._dropped(output)
        meeting = _Meeting(attn_mask, is_causal, query_rotary=rotary, key_rotary=rotary, relative=relative)

        # Some tokens only.
        memory = None
        queries = context.queries
        if queries is not None:
            assert not is_causal, "a block that runs for some tokens needs its mask written out"
            memory = queries.memory
            meeting = meeting.for_query_tokens(queries)

        # One member alone, or all of them as one batch.
        members = self._projections
        member = context.member
        if member is not None and len(members) > 1:
            members = [members[member]]
            meeting = meeting.for_member(member)
        elif not is_watched:
            stacked = self._stacked_weights(context, x.device)
            if stacked is not None:
                output = self._batched(stacked, x, memory, meeting, context)
                return self._dropped(output)

        # One member after another, all heads in one attention.
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

    def _directly(self, x: Tensor, mask: Tensor | None, is_causal: bool, context: RunContext) -> Tensor | None:
        """Attend as :meth:`forward`, without what few models have: gates, shared keys, terms and angles of positions.

        It computes the same and launches the same operators; a small model waits for everything in between.

        Returns:
            None where there is more to do.
        """
        memory = None
        queries = context.queries
        if queries is not None:
            if mask is not None or is_causal:  # which belong to all tokens
                return None
            memory = queries.memory
        dropout = self.attention_dropout if self.training else 0.0

        # All members as one batch, with weights that were stacked before.
        stacked = context.stacks_of(self)
        if stacked is not None and not self.pooled:
            if mask is not None:
                mask = context.mask_for_members(mask, len(self._projections))
            q, k, v = stacked.project(x, memory)
            attended = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal)
            return stacked.output(attended)

        # The only member, or one alone.
        if len(self._plain_banks) == 1:
            bank = self._plain_banks[0]
        elif context.member is None:
            return None
        else:
            bank = self._plain_banks[context.member]
        if bank is None:
            return None
        q, k, v = bank.project_whole(x, memory)
        attended = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal)
        heads = attended.transpose(1, 2).flatten(2)  # [B, h, q, dk] -> [B, q, h * dk]
        return F.linear(heads, bank.out, bank.out_bias)

    @staticmethod
    def _show_first_member(observer: Callable[[Tensor], None], heads: Tensor | None, part: Tensor) -> None:
        """Hand the observer the heads of member 0, ``[B, T, 0]`` where it has none."""
        if heads is None:
            batch, tokens = part.shape[:2]
            heads = part.new_zeros((batch, tokens, 0))
        observer(heads)

    def _dropped(self, output: Tensor) -> Tensor:
        """Apply the dropout of the output, in training or where it always acts."""
        is_active = self.training or self.drops
        if not is_active or self.output_dropout == 0:
            return output
        return F.dropout(output, self.output_dropout)

    def _heads(
        self,
        members: Sequence[MemberProjections],
        parts: Sequence[Tensor],
        memory: Tensor | None,
        meeting: _Meeting,
    ) -> list[Tensor | None]:
        """Return the heads of each member one after another, ``[B, q, h * head_dim]``; None where it has no head.

        Args:
            members: the projections of the members that run.
            parts: the input of each member, ``[B, q, d_model]``, from which queries are made.
            memory: that of all of them, ``[M * B, T, d_model]``, from which keys and values are made; None: from
                ``parts``. Of a pool it is common to all members, ``[B, T, d_model]``.
            meeting: how queries meet keys.
        """
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
        for member, projections in enumerate(members):
            attended_heads = attended[member]
            if attended_heads is None:
                heads.append(None)
            else:
                heads.append(projections.concatenate(attended_heads, parts[member]))
        if self.head_gate is None:
            return heads
        batch = parts[0].shape[0]
        return self._gated(heads, members, self.head_gate, batch)

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
        head_dim = members[0].head_dim
        gates = head_gate.repeat_interleave(head_dim, dim=1)  # [1 or samples, sum of heads * head_dim]
        samples = gates.shape[0]
        if samples > 1:
            windows = batch // samples  # of each sample; 1 where it is not cut
            gates = gates.repeat_interleave(windows, dim=0)  # [B, sum of heads * head_dim]
        widths = [projections.heads * head_dim for projections in members]
        gates_of_members = gates.split(widths, dim=1)  # of each member [1 or B, h * head_dim]
        gated: list[Tensor | None] = []
        for heads_of_member, gate in zip(heads, gates_of_members, strict=True):
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
        runs_of_members: list[list[tuple[Tensor, Tensor, Tensor]]] = []
        for member, projections in enumerate(members):
            runs_of_members.append(projections.project(parts[member], memories[member]))
        all_runs = list(itertools.chain(*runs_of_members))
        if not all_runs:
            return [None] * len(members)
        queries, keys, values = zip(*all_runs, strict=True)  # of each run [B, n, q or T, head_dim]
        q = cat_parts(queries, dim=1)  # [B, sum of heads, q, head_dim]
        k = cat_parts(keys, dim=1)  # [B, sum of heads, T, head_dim], and so are the values
        v = cat_parts(values, dim=1)

        # The terms and the angles that single heads have.
        relative = meeting.relative
        if relative is not None:
            terms: list[Tensor] = []  # of each run [1 or B, n, q, T]
            for member, projections in enumerate(members):
                terms += projections.relative(runs_of_members[member], relative.of(member))
            terms_of_heads = cat_parts(terms, dim=1)  # [1 or B, sum of heads, q, T]
            mask = relative.masked(meeting.mask, terms_of_heads, q.shape[0])
            meeting = replace(meeting, mask=mask)
        if meeting.key_rotary is not None and meeting.key_rotary.of_heads:
            meeting = meeting.for_heads(_numbers_of_heads(members))

        attended = self._scaled_dot_products(q, k, v, meeting)
        return _split_by_member(attended, members)

    def _scaled_dot_products(self, q: Tensor, k: Tensor, v: Tensor, meeting: _Meeting) -> Tensor:
        """Return the weighted values ``[B, h, q, head_dim]``; where positions are rotary, q and k are turned before.

        Args:
            q: queries ``[B, h, q, head_dim]``.
            k, v: keys and values ``[B, h, T, head_dim]``.
            meeting: how they meet.
        """
        if meeting.query_rotary is not None:
            q = meeting.query_rotary(q)
        if meeting.key_rotary is not None:
            k = meeting.key_rotary(k)
        dropout = 0.0
        if self.training:
            dropout = self.attention_dropout
        scale = None
        if meeting.relative is not None:
            scale = meeting.relative.scale
        return F.scaled_dot_product_attention(q, k, v, meeting.mask, dropout, meeting.is_causal, scale=scale)

    def _stacked_weights(self, context: RunContext, device: torch.device) -> StackedWeights | None:
        """Return the weights of all members where their projections run as batched products, else None."""
        checked: StackedWeights | None = context.stacks_of(self)
        if checked is not None:
            return checked
        if not self._stacked.possible or not context.batches(device):
            return None
        return self._stacked.weights()

    def _batched(
        self,
        stacked: StackedWeights,
        x: Tensor,
        memory: Tensor | None,
        meeting: _Meeting,
        context: RunContext,
    ) -> Tensor:
        """Attend with the samples of all members in one batch, which costs one copy of a mask.

        Args:
            stacked: the weights of all members.
            x: what queries are made of, ``[M * B, q, d_model]``.
            memory: what keys and values are made of, ``[M * B, T, d_model]``; None: ``x``. Of a pool it is common to
                all members, ``[B, T, d_model]``.
            meeting: how queries meet keys.
            context: of the run.

        Returns:
            The output of the attention, of the shape of ``x``.
        """
        members = len(self._projections)
        if self.pooled:
            common_input = apart(x, members)[:1]
            (pool,) = self._attend([self._all_heads], common_input, [memory], meeting)
            assert pool is not None, "a pool in which members have heads has heads"
            attended = self._stacked.take(pool)
        else:
            q, k, v = stacked.project(x, memory)
            meeting_of_batch = meeting.for_member_major(members, context)
            attended = self._scaled_dot_products(q, k, v, meeting_of_batch)
        return stacked.output(attended)


def _numbers_of_heads(members: Sequence[MemberProjections]) -> dict[int, Tensor]:
    """Return the original numbers ``[h]`` of the heads of each member that has some, by member."""
    numbers = {}
    for member, projections in enumerate(members):
        if projections.heads:
            numbers[member] = projections.numbers
    return numbers


def _split_by_member(attended: Tensor, members: Sequence[MemberProjections]) -> list[Tensor | None]:
    """Split ``[B, sum of heads, q, head_dim]`` into the heads of each member; None for one without heads."""
    head_counts = [projections.heads for projections in members if projections.heads]
    parts_with_heads = iter(attended.split(head_counts, dim=1))
    parts: list[Tensor | None] = []
    for projections in members:
        if projections.heads:
            parts.append(next(parts_with_heads))
        else:
            parts.append(None)
    return parts


def _heads_from_pool(projections: MemberProjections, pool: Tensor | None) -> Tensor | None:
    """Select a member's heads from all attended heads of the bank; None where one of the two has none."""
    if pool is None or not projections.heads:
        return None
    return projections.take(pool)
