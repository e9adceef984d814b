"""One tower of all members as a chain of blocks on member-major activations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.families.base import ModelFamily, State
from hydractl.model.attention import HeadAttention
from hydractl.model.context import QueryTokens, RunContext, apart
from hydractl.model.laplace import with_posterior

_FEW_ROWS = 512
"""Tokens of a batch up to which members run side by side on a CPU, half as many where each has weights of its own."""


@dataclass(frozen=True)
class Start:
    """The extent to which the members of one tower are the same, so that one run of it serves all of them.

    Attributes:
        sites: the indices of the tower's sites among those of the model.
        shared_stem: whether everything before the first block is the same.
        blocks: how many leading blocks are the same, in weights and in heads.
        pool: whether members have equal weights, if not the same heads, in the attention of the block behind these,
            whose input is the same for all of them.
    """

    sites: range
    shared_stem: bool
    blocks: int
    pool: bool

    def once(self, site: int) -> bool:
        """Return whether the block of a site runs once for all members."""
        return site - self.sites.start < self.blocks

    def pooled(self, site: int) -> bool:
        """Return whether the attention of a site runs once for all members, and each takes its heads from it."""
        return self.pool and site - self.sites.start == self.blocks


class Chain:
    """The blocks of one tower, run for all members at once.

    A state is common to all members up to the block in which they part, and member-major behind it. A copy, or what a
    pickle gives back, is one of the copied networks.

    Args:
        family: of the model.
        networks: of each member. The blocks of the first one run; stems and readouts are each their own.
        tower: the place of the tower in :meth:`ModelFamily.stages`.
        attentions: those of its blocks.
        start: how far the members are the same.
        merged: whether members have one MLP in each block.

    Attributes:
        tower: as in :class:`hydractl.heads.mask.Site`.
        of_labels: whether its inputs are the prompts of the classes instead of samples.
        attentions, start: as given.
        sites: the indices of its sites among those of the model.
        whole_last_block, side_by_side, batched: as of :class:`hydractl.model.runtime.HydraModel`. In training the last
            block always runs whole, as the library's own.
    """

    def __init__(
        self,
        family: ModelFamily,
        networks: Sequence[nn.Module],
        tower: int,
        attentions: Sequence[HeadAttention],
        start: Start,
        merged: bool,
    ) -> None:
        self.start, self.sites = start, start.sites
        self.attentions = list(attentions)
        self.whole_last_block = False
        self.side_by_side: bool | None = None
        self.batched: bool | None = None
        self._family, self._networks, self._place, self._merged = family, list(networks), tower, merged
        self.cut()
        self.tower, self.of_labels = self._stages[0].tower, self._stages[0].of_labels

    def cut(self) -> None:
        """Take the networks apart: anew where they were given a posterior."""
        cut = [(self._family.stages(network)[self._place], network) for network in self._networks]
        self._stages = [with_posterior(stages, network) for stages, network in cut]

    def of_projection(self) -> Chain:
        """Return a copy that reads out what enters the last linear layer, ``[M, B, prompts, d]``."""
        other = copy.copy(self)
        other._stages = [replace(s, readout=s.projection.inputs) for s in self._stages if s.projection is not None]
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_stages"}  # functions of the networks

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.cut()

    @property
    def members(self) -> int:
        """Number of members."""
        return len(self._stages)

    @property
    def block_paths(self) -> list[str]:
        """The module path of each block."""
        return list(self._stages[0].block_paths)

    @property
    def spans(self) -> Sequence[tuple[float, int]]:
        """The spans of the blocks, see :class:`hydractl.families.base.Stages`."""
        return self._stages[0].spans

    def __call__(self, inputs: Any) -> Tensor:
        """Return what the tower reads out for every member: ``[M, B, ...]``."""
        return self.rest(self.sites.start, self.stem(inputs))

    def stem(self, inputs: Any) -> State:
        """Compute the state before the first block: one for all members where their stems are the same."""
        if self.start.shared_stem:
            return self._stages[0].stem(inputs)
        states = [stages.stem(inputs) for stages in self._stages]
        own = {name: torch.stack([s.context[name] for s in states]) for name in self._stages[0].per_member}
        hidden = torch.cat([s.hidden for s in states])  # M times [B, T, d] -> [M * B, T, d]
        return State(hidden, states[0].context | own)

    def block(
        self,
        site: int,
        state: State,
        *,
        member: int | None = None,
        queries: QueryTokens | None = None,
        attended: Tensor | None = None,
    ) -> State:
        """Run the block of one site (its index among those of the model).

        Args:
            site: its index.
            state: before it.
            member, queries, attended: as of :class:`hydractl.model.context.RunContext`.
        """
        context = RunContext(member, self.batched, queries, attended)
        return context.run(self._stages[0].blocks[site - self.sites.start], self._for_members(site, state, member))

    def _for_members(self, site: int, state: State, member: int | None) -> State:
        """Return the state before a block, repeated for every member where they part."""
        if self.members > 1 and self._parts_at(site) and member is None:
            return State(state.hidden.repeat(self.members, 1, 1), state.context)  # [B, T, d] -> [M * B, T, d]
        return state

    def _parts_at(self, site: int) -> bool:
        """Return whether the state before the block of a site is common to all members, and behind it no longer."""
        return self.start.shared_stem and site - self.sites.start == self.start.blocks

    def by_member(self, inputs: Any) -> Callable[[int, Tensor | None], Tensor]:
        """Run what is common to all members once.

        Returns:
            A function that runs one member from there on, for some rows of the batch (None: all), and gives what it
            reads out, ``[rows, ...]``.
        """
        site, state = self.sites.start, self.stem(inputs)
        while site < self.sites.stop and self.start.once(site):
            state, site = self._block_for_rest(site, state), site + 1
        parts = [state.hidden] * self.members if self.start.shared_stem else apart(state.hidden, self.members)

        def run(member: int, rows: Tensor | None) -> Tensor:
            own = State(parts[member], state.context)
            return self._alone(site, own if rows is None else self._of_rows(own, rows), member)

        return run

    def _of_rows(self, state: State, rows: Tensor) -> State:
        """Return some samples of a state of one member."""
        return State(state.hidden[rows], self._per_sample(state.context, lambda value: value[rows]))

    def rest(self, site: int, state: State) -> Tensor:
        """Run on from the state before the block of ``site`` to what is read out, ``[M, B, ...]``."""
        while site < self.sites.stop and (self.start.once(site) or self.start.pooled(site)):
            state, site = self._block_for_rest(site, state), site + 1
        common = self._parts_at(site)
        rows = state.hidden.shape[0] * state.hidden.shape[1] // (1 if common else self.members)
        if self.members == 1 or site == self.sites.stop or self._side_by_side(state.hidden.device, rows):
            for index in range(site, self.sites.stop):
                state = self._block_for_rest(index, state)
            return self.readout(state)
        parts = [state.hidden] * self.members if common else apart(state.hidden, self.members)
        return torch.stack([self._alone(site, State(part, state.context), m) for m, part in enumerate(parts)])

    def _alone(self, site: int, state: State, member: int) -> Tensor:
        """Run one member from the block of ``site`` on: what it reads out, ``[B, ...]``."""
        for index in range(site, self.sites.stop):
            state = self._block_for_rest(index, state, member)
        return self._stages[member].readout(state)

    @property
    def watched(self) -> bool:
        """Whether gates or observers of heads are in place, which are about all members at once."""
        return any(one.head_gate is not None or one.observer is not None for one in self.attentions)

    def _side_by_side(self, device: torch.device, rows: int) -> bool:
        """Return whether members run in the same operations, with so many tokens of each."""
        if self.watched:
            return True
        if self.side_by_side is not None:
            return self.side_by_side
        # With few rows a matrix product waits for its weights, which all members then use together; with many, for
        # activations, of which one member's fit into a processor's caches better than those of all.
        few = _FEW_ROWS if self._merged else _FEW_ROWS // 2
        return device.type != "cpu" or torch.compiler.is_compiling() or rows <= few

    def _block_for_rest(self, site: int, state: State, member: int | None = None) -> State:
        """Run a block as :meth:`block` does; the last one only for the tokens that are read out."""
        if site < self.sites.stop - 1 or self.whole_last_block or self.attentions[-1].training:
            return self.block(site, state, member=member)
        return self.last_block(state, member)

    def last_block(self, state: State, member: int | None = None) -> State:
        """Run the last block for those tokens only that are read out; all tokens where all are."""
        last, short = self.sites.stop - 1, self.query_tokens(state, member)
        if short is state:
            return self.block(last, state, member=member)
        # A pool attends to the state that is common to all members, everyone else to the state of each.
        source = state if self.start.pooled(last) else self._for_members(last, state, member)
        memory = RunContext(member, self.batched).run(self._stages[0].attention_inputs[-1], source)
        return self.block(last, short, member=member, queries=QueryTokens(short.context["read"], memory))

    def query_tokens(self, state: State, member: int | None = None) -> State:
        """Return the tokens that are read out, of the state before the last block; the state itself where all are."""
        reads = self._stages[0].reads
        if reads is None:
            return state
        common = self.start.shared_stem and self.start.blocks >= len(self.sites) - 1
        copies = 1 if common or member is not None else self.members
        positions = reads(State(state.hidden[: state.hidden.shape[0] // copies], state.context))
        index = positions.repeat(copies, 1)[:, :, None].expand(-1, -1, state.hidden.shape[2])  # -> [M * B, q, d]
        return State(state.hidden.gather(1, index), {**state.context, "read": positions})

    def repeated(self, state: State, times: int) -> State:
        """Repeat the same samples ``times`` over, one copy behind the other, in a chain of one member."""
        if times == 1:
            return state
        context = self._per_sample(state.context, lambda value: value.repeat(times, *[1] * (value.dim() - 1)))
        return State(state.hidden.repeat(times, 1, 1), context)

    def _per_sample(self, context: Mapping[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Return a context whose entries that have the samples in dimension 0 are changed."""
        names = (*self._stages[0].per_sample, "read")
        return {n: change(v) if n in names and v is not None else v for n, v in context.items()}

    def readout(self, state: State) -> Tensor:
        """Compute the output of every member from the state after the last block, ``[M, B, ...]``."""
        once = self.start.blocks == len(self.sites)
        parts = [state.hidden] * self.members if once else apart(state.hidden, self.members)
        return torch.stack(
            [stages.readout(State(p, state.context)) for stages, p in zip(self._stages, parts, strict=True)]
        )
