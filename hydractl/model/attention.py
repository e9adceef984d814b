"""The one attention module of hydractl: any number of members with any number of heads each, computed together.

This module names no library. A family reads the weights of its own attention module into
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
from hydractl.model.context import QueryTokens, RunContext, apart, context_of_run, mask_for_members
from hydractl.model.projections import HeadBank, MemberProjections, cat_parts
from hydractl.model.stacking import StackCache, StackedProjections, StackedWeights

_Part = TypeVar("_Part", Tensor, Rotary, Relative)
"""The type of a field of :class:`_Meeting` that can be changed."""


def _changed(part: _Part | None, change: Callable[[_Part], _Part]) -> _Part | None:
    """Return ``change(part)``, or None if the part is None."""
    return None if part is None else change(part)


@dataclass(frozen=True)
class _Meeting:
    """How queries meet keys: mask, rotary positions and relative position terms. A field that is None does nothing.

    Attributes:
        mask: broadcastable to ``[B, heads, q, T]``.
        query_rotary, key_rotary: rotate queries and keys by their positions.
        relative: adds terms to the scores that depend on the distance between query token and key token.
    """

    mask: Tensor | None
    query_rotary: Rotary | None
    key_rotary: Rotary | None
    relative: Relative | None = None

    def for_member(self, member: int) -> _Meeting:
        """Return the same meeting for the samples of one member only."""
        relative = _changed(self.relative, lambda terms: terms.of(member))
        return replace(self, relative=relative)

    def for_query_tokens(self, queries: QueryTokens) -> _Meeting:
        """Return these settings of attention where only some tokens are queries.

        The mask keeps their rows, and rotary positions and distances (None without them) are those of these tokens.
        """
        positions = queries.positions
        mask = queries.rows_of(self.mask)
        query_rotary = _changed(self.query_rotary, lambda angles: angles.at(positions))
        relative = _changed(self.relative, lambda terms: replace(terms, positions=positions))
        return replace(self, mask=mask, query_rotary=query_rotary, relative=relative)

    def for_member_major(self, members: int) -> _Meeting:
        """Return the same mask and positions for the samples of all members in one batch, ``[M * B, ...]``.

        What differs between samples is repeated for each member. Relative terms are dropped: members with such terms
        never run as one batch.
        """
        mask = _changed(self.mask, lambda mask: mask_for_members(mask, members))
        query_rotary = _changed(self.query_rotary, lambda angles: angles.repeated(members))
        key_rotary = _changed(self.key_rotary, lambda angles: angles.repeated(members))
        return replace(self, mask=mask, query_rotary=query_rotary, key_rotary=key_rotary, relative=None)


class HeadAttention(nn.Module):
    """Self-attention of M members with their own heads, as ONE scaled-dot-product attention (paper section 4.2).

    Activations are member-major: ``[M * B, T, d_model]``, all samples of member 0 first. The heads of all members
    are side by side in the head dimension, so a mask keeps the size of one batch and no member sees another.

    Members that have the same heads with the same weights may share one ``MemberProjections``.

    Attributes:
        members: the projections of each member.
        pooled: whether all members get the same input and have their heads in one bank. Then all heads of the bank
            attend once, and each member projects its own heads of the result.
        head_gate: None, or factors of the output of each head, ``[1 or B, sum of heads]``, with the heads in the order
            of the runs of each member. A factor 0 acts like zeros in the head's columns of the output projection. Used
            by the gate criterion.
        observer: None, or a function that is called with the concatenated heads of member 0 each time they are
            computed, ``[B, T, heads * head_dim]``.
        drops: whether the dropout of the output is also active outside training (MC dropout).
    """

    def __init__(
        self,
        members: Sequence[MemberProjections],
        *,
        pooled: bool = False,
        attention_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ) -> None:
        """Take the projections of each member; nothing is stacked or computed yet."""
        super().__init__()
        # The members, and for a pool (one attention for all members) all heads of their common bank.
        self.members = nn.ModuleList(members)
        self.pooled = pooled
        if pooled:
            self._all_heads = MemberProjections(members[0].bank)
        self._read_members(list(members))

        # Settings, some of which are set from outside.
        self.attention_dropout = attention_dropout
        self.output_dropout = output_dropout
        self.head_gate: Tensor | None = None
        self.observer: Callable[[Tensor], None] | None = None
        self.drops = False

    def replace_member(self, member: int, projections: MemberProjections) -> None:
        """Give a member other projections. Setting ``members[member]`` alone would leave cached stacks behind."""
        self._stacked.forget()  # a tower that uses these stacks notices this at its next run
        self.members[member] = projections
        replaced = list(self._projections)
        replaced[member] = projections
        self._read_members(replaced)

    def _read_members(self, members: list[MemberProjections]) -> None:
        """Store what every call needs of the members in plain lists, because iterating over a ModuleList is slow."""
        self._projections = members
        # The bank of each member that has all heads of a bank without shared keys; None for others.
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
        """The projections of the only member, for a model with one member."""
        (projections,) = self._projections
        return projections

    @property
    def head_counts(self) -> list[int]:
        """The number of heads of each member."""
        return [projections.heads for projections in self.projections]

    def train(self, mode: bool = True) -> HeadAttention:
        """Set the mode, as in torch, and drop stacked weights: the parameters may have changed in unseen ways."""
        self._stacked.forget()
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> HeadAttention:
        self._stacked.forget()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch has no types there

    def stack(self, context: RunContext) -> None:
        """Stack the weights of all members now, if batched products are wanted and possible.

        Otherwise the first call without gradients stacks them; in a graph that is compiled before, every call would.
        """
        device = self.projections[0].bank.out.device
        if not self._stacked.possible or not context.batches(device):
            return
        self._stacked.make()

    def stack_caches(self) -> Mapping[str, StackCache]:
        """Return the stacks of all weights by name; empty if members cannot run as batched products."""
        return self._stacked.caches if self._stacked.possible else {}

    def batched_weights(self, stacks: Mapping[str, Tensor]) -> StackedWeights:
        """Return the weights of all members from stacks that their caches hold."""
        return self._stacked.weights_of(stacks)

    def keep_apart(self) -> None:
        """Never stack the weights of members, because position terms belong to single heads; each runs by itself."""
        self._stacked.possible = False

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        rotary: Rotary | None = None,
        relative: Relative | None = None,
    ) -> Tensor:
        """Attend, in the context of the present run (:class:`hydractl.model.context.RunContext`).

        Args:
            x: ``[M * B, T, d_model]``, or ``[B, T, d_model]`` if a single member runs.
            attn_mask: broadcastable to ``[B, heads, T, T]``, boolean (True: may be seen) or additive.
            is_causal: always False: a mask says what tokens see. The blocks of timm pass it.
            rotary: rotates queries and keys by the positions of all tokens; None if only ``x`` holds positions.
            relative: adds terms to the scores that depend on the distances of tokens; ``attn_mask`` does not include
                them.

        Returns:
            A tensor of the shape of ``x``.
        """
        assert not is_causal
        context = context_of_run()

        # The caller may have set the result.
        if context.attended is not None:
            return context.attended

        # The usual case, without anything special, takes a short path. It cannot serve a caller that scales the output
        # of each head (head gates) or wants to see it (an observer).
        is_watched = self.head_gate is not None or self.observer is not None
        if rotary is None and relative is None and not is_watched:
            output = self._short_path(x, attn_mask, context)
            if output is not None:
                return self._with_dropout(output)

        # How queries meet keys: which pairs may attend, and how positions enter the scores.
        meeting = _Meeting(attn_mask, query_rotary=rotary, key_rotary=rotary, relative=relative)

        # If only some tokens are queries, `x` holds these, and `memory` holds all tokens.
        memory = None
        queries = context.queries
        if queries is not None:
            memory = queries.memory
            meeting = meeting.for_query_tokens(queries)

        # One member runs alone, or all members run as one batch.
        members = self._projections
        member = context.member
        if member is not None and len(members) > 1:
            members = [members[member]]
            meeting = meeting.for_member(member)
        elif not is_watched:
            stacked = self._stacked_weights(context, x.device)
            if stacked is not None:
                output = self._batched(stacked, x, memory, meeting)
                return self._with_dropout(output)

        # Otherwise project the members one after another; all their heads attend together.
        parts = apart(x, len(members))
        heads = self._concatenated_heads(members, parts, memory, meeting)
        if self.observer is not None:
            of_first = heads[0]
            if of_first is None:  # it has no heads
                of_first = parts[0].new_zeros((*parts[0].shape[:2], 0))
            self.observer(of_first)
        outputs = []
        for projections, part, heads_of_member in zip(members, parts, heads, strict=True):
            if heads_of_member is None:
                outputs.append(projections.bias_only(part))
            else:
                outputs.append(projections.output(heads_of_member))
        return self._with_dropout(cat_parts(outputs))

    def _short_path(self, x: Tensor, mask: Tensor | None, context: RunContext) -> Tensor | None:
        """Attend like :meth:`forward`, on a short path that covers only the usual case.

        The path handles no shared keys, position terms or rotary angles. It computes the same and launches the
        same operators, but with less Python in between, for which a small model would have to wait.

        Returns:
            The output, or None if this call needs the long path.
        """
        memory = None
        queries = context.queries
        if queries is not None:
            if mask is not None:  # the mask has rows for all tokens, not only for the queries
                return None
            memory = queries.memory
        dropout = self.attention_dropout if self.training else 0.0

        # All members as one batch, with stacks that were checked at the beginning of the run.
        stacked = context.stacks_of(self)
        if stacked is not None and not self.pooled:
            mask_of_all = None if mask is None else mask_for_members(mask, len(self._projections))
            q, k, v = stacked.project(x, memory)
            attended = F.scaled_dot_product_attention(q, k, v, mask_of_all, dropout)
            return stacked.output(attended)

        # A single member: the model's only one, or the one that runs alone. Its bank (the weights of its heads) is None
        # if the short path cannot serve it.
        if len(self._plain_banks) == 1:
            bank = self._plain_banks[0]
        elif context.member is None:
            return None
        else:
            bank = self._plain_banks[context.member]
        if bank is None:
            return None
        q, k, v = bank.project(None, x, memory)
        attended = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        heads = attended.transpose(1, 2).flatten(2)  # [B, h, q, head_dim] -> [B, q, h * head_dim]
        return F.linear(heads, bank.out, bank.out_bias)

    def _with_dropout(self, output: Tensor) -> Tensor:
        """Apply the dropout of the output, in training or if it is always active."""
        is_active = self.training or self.drops
        if not is_active or self.output_dropout == 0:
            return output
        return F.dropout(output, self.output_dropout)

    def _concatenated_heads(
        self,
        members: Sequence[MemberProjections],
        parts: Sequence[Tensor],
        memory: Tensor | None,
        meeting: _Meeting,
    ) -> list[Tensor | None]:
        """Return the concatenated heads ``[B, q, h * head_dim]`` of each member; None for a member without heads.

        Args:
            members: the projections of the members that run.
            parts: the input of each member, ``[B, q, d_model]``, from which queries are computed.
            memory: the input of all members together, ``[M * B, T, d_model]``, from which keys and values are computed;
                in a pool one input for all members, ``[B, T, d_model]``. None means that keys and values are computed
                from ``parts``.
            meeting: how queries meet keys.
        """
        # Attend: all heads of the pool once, or the heads of each member.
        attended: list[Tensor | None]
        if self.pooled:
            (pool,) = self._attend([self._all_heads], parts[:1], [memory], meeting)
            attended = [_heads_from_pool(projections, pool) for projections in members]
        else:
            memories: Sequence[Tensor | None] = [None] * len(members)
            if memory is not None:
                memories = apart(memory, len(members))
            attended = self._attend(members, parts, memories, meeting)

        # Concatenate the heads of each member.
        heads: list[Tensor | None] = []
        for of_member in attended:
            # [B, h, q, head_dim] -> [B, q, h * head_dim]
            heads.append(None if of_member is None else of_member.transpose(1, 2).flatten(2))

        # Multiply them by the head gates, if these are set.
        if self.head_gate is None:
            return heads
        head_dim = members[0].head_dim
        gates = self.head_gate.repeat_interleave(head_dim, dim=1)  # [1 or samples, sum of heads * head_dim]

        # Repeat the gates of a sample for all its windows.
        samples = gates.shape[0]
        if samples > 1:
            windows_per_sample = parts[0].shape[0] // samples
            gates = gates.repeat_interleave(windows_per_sample, dim=0)  # [B, sum of heads * head_dim]

        # Split them by member and multiply.
        widths = [projections.heads * head_dim for projections in members]
        gates_of_members = gates.split(widths, dim=1)  # for each member [1 or B, h * head_dim]
        gated: list[Tensor | None] = []
        for heads_of_member, gate in zip(heads, gates_of_members, strict=True):
            if heads_of_member is None:
                gated.append(None)
            else:
                gated.append(heads_of_member * gate[:, None])  # [B, q, h * head_dim] * [1 or B, 1, h * head_dim]
        return gated

    def _attend(
        self,
        members: Sequence[MemberProjections],
        parts: Sequence[Tensor],
        memories: Sequence[Tensor | None],
        meeting: _Meeting,
    ) -> list[Tensor | None]:
        """Attend with the heads of all members at once.

        Args:
            members: the projections of each member.
            parts: for each member the query tokens, ``[B, q, d_model]``.
            memories: for each member the key and value tokens, ``[B, T, d_model]``; None means the query tokens.
            meeting: how queries meet keys.

        Returns:
            For each member its attended heads ``[B, h, q, head_dim]``, or None if it has no heads.
        """
        # Project the tokens of each member. A run is a group of n heads that are neighbours in their bank, so that one
        # product of matrices computes them: heads 0, 1 and 4 are two runs.
        runs_of_members: list[list[tuple[Tensor, Tensor, Tensor]]] = []
        for member, projections in enumerate(members):
            runs_of_members.append(projections.project(parts[member], memories[member]))
        all_runs = list(itertools.chain(*runs_of_members))
        if not all_runs:
            return [None] * len(members)

        # Put the heads of all members side by side.
        queries, keys, values = zip(*all_runs, strict=True)  # for each run [B, n, q or T, head_dim]
        q = cat_parts(queries, dim=1)  # [B, sum of heads, q, head_dim]
        k = cat_parts(keys, dim=1)  # [B, sum of heads, T, head_dim], like the values
        v = cat_parts(values, dim=1)

        # Relative position terms differ between heads; they are added to the mask.
        relative = meeting.relative
        if relative is not None:
            terms: list[Tensor] = []  # for each run [1 or B, n, q, T]
            for member, projections in enumerate(members):
                terms += projections.relative(runs_of_members[member], relative.of(member))
            terms_of_heads = cat_parts(terms, dim=1)  # [1 or B, sum of heads, q, T]
            mask = relative.masked(meeting.mask, terms_of_heads, q.shape[0])
            meeting = replace(meeting, mask=mask)

        # Split the attended heads by member.
        attended = self._scaled_dot_products(q, k, v, meeting)
        head_counts = [projections.heads for projections in members if projections.heads]
        parts_with_heads = iter(attended.split(head_counts, dim=1))
        return [next(parts_with_heads) if projections.heads else None for projections in members]

    def _scaled_dot_products(self, q: Tensor, k: Tensor, v: Tensor, meeting: _Meeting) -> Tensor:
        """Return the attended values ``softmax(q k^T * scale + mask) v``, ``[B, h, q, head_dim]``.

        Rotary positions turn queries and keys before. The scale is 1 / sqrt(head_dim) unless relative terms name one.

        Args:
            q: queries ``[B, h, q, head_dim]``.
            k, v: keys and values ``[B, h, T, head_dim]``.
            meeting: how queries meet keys.
        """
        if meeting.query_rotary is not None:
            q = meeting.query_rotary(q)
        if meeting.key_rotary is not None:
            k = meeting.key_rotary(k)
        dropout = self.attention_dropout if self.training else 0.0
        scale = None if meeting.relative is None else meeting.relative.scale
        return F.scaled_dot_product_attention(q, k, v, meeting.mask, dropout, scale=scale)

    def _stacked_weights(self, context: RunContext, device: torch.device) -> StackedWeights | None:
        """Return the stacked weights of all members if these run as batched products now, else None."""
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
    ) -> Tensor:
        """Return the attention of all members, whose samples run as one batch; a mask that differs by sample is copied.

        Args:
            stacked: the stacked weights of all members.
            x: the query tokens, ``[M * B, q, d_model]``.
            memory: the key and value tokens, ``[M * B, T, d_model]``; None means ``x``. In a pool they are the
                same for all members, ``[B, T, d_model]``.
            meeting: how queries meet keys.

        Returns:
            The output of the attention, of the shape of ``x``.
        """
        members = len(self._projections)

        # A pool attends once to the common input; each member then takes its heads.
        if self.pooled:
            common_input = apart(x, members)[:1]
            (pool,) = self._attend([self._all_heads], common_input, [memory], meeting)
            assert pool is not None, "a pool in which members have heads has heads"
            heads_of_members = self._stacked.take(pool)  # [M, B, heads, q, head_dim]
            return stacked.output(heads_of_members).flatten(0, 1)  # [M, B, q, d_model] -> [M * B, q, d_model]

        # Otherwise each member has queries, keys and values of its own, [M * B, heads, tokens, head_dim].
        q, k, v = stacked.project(x, memory)
        meeting_of_batch = meeting.for_member_major(members)
        attended = self._scaled_dot_products(q, k, v, meeting_of_batch)
        return stacked.output(attended)


def _heads_from_pool(projections: MemberProjections, pool: Tensor | None) -> Tensor | None:
    """Select a member's heads from the attended heads of the bank; None if the member or the bank has no heads."""
    if pool is None or not projections.heads:
        return None
    return projections.take(pool)
