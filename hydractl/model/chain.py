"""One tower of all members as a chain of blocks on member-major activations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.families.base import FirstTokens, ModelFamily, State
from hydractl.model.attention import HeadAttention
from hydractl.model.context import QueryTokens, RepeatedMasks, RunContext, apart
from hydractl.model.laplace import with_posterior
from hydractl.model.stacking import PerMember, StackingModule, StacksOfTower

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
        return site < self.first_apart

    def pooled(self, site: int) -> bool:
        """Return whether the attention of a site runs once for all members, and each takes its heads from it."""
        if not self.pool:
            return False
        return site == self.first_apart

    @property
    def first_apart(self) -> int:
        """The site of the first block that is not the same for all members; one behind the last where all are."""
        return self.sites.start + self.blocks


class Chain:
    """The blocks of one tower, run for all members at once.

    A state is common to all members up to the block in which they part, and member-major behind it. A copied or
    unpickled chain runs the copied networks.

    Args:
        family: of the model.
        networks: of each member. The blocks of the first one run; stems and readouts are each their own.
        tower: the place of the tower in :meth:`ModelFamily.stages`.
        attentions: those of its blocks.
        start: how far the members are the same.
        merged: whether members have their MLPs in common.

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
        self.start = start
        self.sites = start.sites
        self.attentions = list(attentions)
        self.whole_last_block = False
        self.side_by_side: bool | None = None
        self.batched: bool | None = None
        self._family = family
        self._networks = list(networks)
        self._place = tower
        self._merged = merged
        self.cut()
        self.tower = self._stages[0].tower
        self.of_labels = self._stages[0].of_labels
        self._stacks = StacksOfTower(self._stacking_modules())

    def _stacking_modules(self) -> list[StackingModule]:
        """Return the modules of the blocks, and of what merges tokens before them, that stack weights of members."""
        if self.members == 1:
            return []
        stacking: list[StackingModule] = list(self.attentions)
        stages = self._stages[0]
        for path in [*stages.block_paths, *stages.merging.values()]:
            for module in self._networks[0].get_submodule(path).modules():
                if isinstance(module, PerMember):
                    stacking.append(module)
        return stacking

    def cut(self) -> None:
        """Cut the networks into stages: again after they were given a posterior."""
        self._stages = []
        for network in self._networks:
            towers = self._family.stages(network)
            stages = with_posterior(towers[self._place], network)
            self._stages.append(stages)

    def of_projection(self) -> Chain:
        """Return a copy that reads out what enters the last linear layer, ``[M, B, prompts, d]``."""
        other = copy.copy(self)
        other._stages = []
        for stages in self._stages:
            if stages.projection is not None:
                other._stages.append(replace(stages, readout=stages.projection.inputs))
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the stages, which are functions of the networks."""
        state = dict(vars(self))
        del state["_stages"]
        return state

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
        paths = self._stages[0].block_paths
        return list(paths)

    @property
    def spans(self) -> Sequence[tuple[float, int]]:
        """The spans of the blocks, see :class:`hydractl.families.base.Stages`."""
        return self._stages[0].spans

    def __call__(self, inputs: Any) -> Tensor:
        """Return what the tower reads out for every member: ``[M, B, ...]``."""
        state = self.stem(inputs)
        return self.rest(self.sites.start, state)

    def stem(self, inputs: Any) -> State:
        """Compute the state before the first block: one for all members where their stems are the same."""
        if self.start.shared_stem:
            return self._stages[0].stem(inputs)
        states = [stages.stem(inputs) for stages in self._stages]
        context = dict(states[0].context)
        for name in self._stages[0].per_member:
            values = [state.context[name] for state in states]
            context[name] = torch.stack(values)  # M times [...] -> [M, ...]
        hidden_of_members = [state.hidden for state in states]
        hidden = torch.cat(hidden_of_members)  # M times [B, T, d] -> [M * B, T, d]
        return State(hidden, context)

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
        context = replace(self._context(state.hidden, member), queries=queries, attended=attended)
        return self._run_block(site, state, context)

    def _run_block(self, site: int, state: State, context: RunContext) -> State:
        """Run the block of one site, for every member where they part."""
        blocks = self._stages[0].blocks
        block = blocks[site - self.sites.start]
        block_state = self._for_members(site, state, context.member)
        return context.run(block, block_state)

    def _context(self, hidden: Tensor, member: int | None = None) -> RunContext:
        """Return the context of a run of blocks: of one member, or of all of them.

        Stacked weights are looked at here, for all blocks of the run.
        """
        if torch.compiler.is_compiling():  # a graph knows neither addresses of weights nor which mask is which
            return RunContext(member, self.batched)
        context = RunContext(member, self.batched, masks=RepeatedMasks())
        runs_alone = member is not None or self.members == 1
        if runs_alone or torch.is_grad_enabled() or not context.batches(hidden.device):
            return context
        return replace(context, stacks=self._stacks.checked())

    def _for_members(self, site: int, state: State, member: int | None) -> State:
        """Return the state before a block, repeated for every member where they part."""
        if member is not None or self.members == 1:
            return state
        if not self._parts_at(site):
            return state
        hidden = state.hidden.repeat(self.members, 1, 1)  # [B, T, d] -> [M * B, T, d]
        return State(hidden, state.context)

    def _parts_at(self, site: int) -> bool:
        """Return whether the state before the block of a site is common to all members, and behind it no longer."""
        if not self.start.shared_stem:
            return False
        return site == self.start.first_apart

    def by_member(self, inputs: Any) -> Callable[[int, Tensor | None], Tensor]:
        """Run what is common to all members once.

        Returns:
            A function that runs one member from there on, for some rows of the batch (None: all), and gives what it
            reads out, ``[rows, ...]``.
        """
        state = self.stem(inputs)
        site = max(self.sites.start, self.start.first_apart)
        context = self._context(state.hidden)
        state = self._run_blocks(range(self.sites.start, site), state, context)
        hidden_of_members = self._for_each_member(state.hidden, common=self.start.shared_stem)

        def run(member: int, rows: Tensor | None) -> Tensor:
            member_state = State(hidden_of_members[member], state.context)
            if rows is not None:
                member_state = self._some_samples(member_state, rows)
            return self._alone(site, member_state, member)

        return run

    def _for_each_member(self, hidden: Tensor, *, common: bool) -> Sequence[Tensor]:
        """Return the tokens ``[B, T, d]`` of each member: the same for all where they are common, else their parts."""
        if common:
            return [hidden] * self.members
        return apart(hidden, self.members)

    def _some_samples(self, state: State, rows: Tensor) -> State:
        """Return some samples of a state of one member."""

        def selected(value: Tensor) -> Tensor:
            return value[rows]

        context = self._change_per_sample(state.context, selected)
        hidden = selected(state.hidden)
        return State(hidden, context)

    def rest(self, site: int, state: State) -> Tensor:
        """Run on from the state before the block of ``site`` to what is read out, ``[M, B, ...]``."""
        # What the members have in common.
        stop = self.sites.stop
        first_apart = self.start.first_apart
        if self.start.pooled(first_apart):
            first_apart += 1
        context = self._context(state.hidden)
        if site < first_apart:
            state = self._run_blocks(range(site, first_apart), state, context)
            site = first_apart

        # The blocks of all members side by side.
        nothing_to_part = self.members == 1 or site == stop
        if nothing_to_part or self._side_by_side(site, state.hidden):
            state = self._run_blocks(range(site, stop), state, context)
            return self.readout(state)

        # Or those of one member after another.
        hidden_of_members = self._for_each_member(state.hidden, common=self._parts_at(site))
        outputs = []
        for member, hidden in enumerate(hidden_of_members):
            member_state = State(hidden, state.context)
            outputs.append(self._alone(site, member_state, member))
        return torch.stack(outputs)

    def _alone(self, site: int, state: State, member: int) -> Tensor:
        """Run one member from the block of ``site`` on and return what it reads out, ``[B, ...]``."""
        context = self._context(state.hidden, member)
        state = self._run_blocks(range(site, self.sites.stop), state, context)
        stages = self._stages[member]
        return stages.readout(state)

    def _run_blocks(self, sites: range, state: State, context: RunContext) -> State:
        """Run the blocks of some sites one after another; the last of the tower for the tokens that are read only.

        A state that is common to all members is repeated for each of them before the block in which they part.
        """
        blocks = self._stages[0].blocks
        first = sites.start - self.sites.start
        stop = sites.stop - self.sites.start
        runs_whole = self.whole_last_block or self.attentions[-1].training
        shortens_last = stop == len(blocks) and stop > first and not runs_whole
        if shortens_last:
            stop -= 1
        parting = self.start.first_apart - self.sites.start
        if first <= parting < stop:
            state = context.run_all(blocks[first:parting], state)
            state = self._for_members(self.start.first_apart, state, context.member)
            first = parting
        state = context.run_all(blocks[first:stop], state)
        if shortens_last:
            return self._shortened_last_block(state, context)
        return state

    @property
    def watched(self) -> bool:
        """Whether gates or observers of heads are in place, which are about all members at once."""
        return any(attention.head_gate is not None or attention.observer is not None for attention in self.attentions)

    def _side_by_side(self, site: int, hidden: Tensor) -> bool:
        """Return whether members run in the same operations from the block of a site on.

        Args:
            site: the first block that is not the same for all.
            hidden: what enters it: ``[B, T, d]`` where it is common to all members, else ``[M * B, T, d]``.
        """
        if self.watched:
            return True
        if self.side_by_side is not None:
            return self.side_by_side
        if hidden.device.type != "cpu" or torch.compiler.is_compiling():
            return True
        # With few rows a matrix product waits for its weights, which all members then use together; with many, for
        # activations, of which one member's fit into a processor's caches better than those of all.
        rows_of_member = hidden.shape[0] * hidden.shape[1]
        if not self._parts_at(site):
            rows_of_member //= self.members
        few = _FEW_ROWS if self._merged else _FEW_ROWS // 2
        return rows_of_member <= few

    def last_block(self, state: State, member: int | None = None) -> State:
        """Run the last block for those tokens only that are read out; all tokens where all are."""
        context = self._context(state.hidden, member)
        return self._shortened_last_block(state, context)

    def _shortened_last_block(self, state: State, context: RunContext) -> State:
        """Run the last block as :meth:`last_block` does."""
        last = self.sites.stop - 1
        query_state = self.query_tokens(state, context.member)
        if query_state is state:
            return self._run_block(last, state, context)
        # Keys and values are made of all tokens.
        attended_state = state  # a pool attends to the state that is common to all members
        if not self.start.pooled(last):
            attended_state = self._for_members(last, state, context.member)
        attention_input = self._stages[0].attention_inputs[-1]
        memory = context.run(attention_input, attended_state)

        positions = query_state.context["read"]
        queries = QueryTokens(positions, memory)
        return self._run_block(last, query_state, replace(context, queries=queries))

    def query_tokens(self, state: State, member: int | None = None) -> State:
        """Return the tokens that are read out, of the state before the last block; the state itself where all are."""
        reads = self._stages[0].reads
        if reads is None:
            return state

        # Members read the same tokens, so one copy of the batch tells their positions.
        last = self.sites.stop - 1
        common = self.start.shared_stem and last <= self.start.first_apart
        copies = self.members
        if common or member is not None:
            copies = 1
        samples, _, width = state.hidden.shape  # [copies * B, T, d]
        batch = samples // copies
        first_copy = State(state.hidden[:batch], state.context)
        positions = reads(first_copy)  # [B, q]

        if isinstance(reads, FirstTokens):
            hidden = state.hidden[:, : reads.count].contiguous()
        else:
            rows = positions.repeat(copies, 1)[:, :, None]  # [copies * B, q, 1]
            index = rows.expand(-1, -1, width)  # [copies * B, q, d]
            hidden = state.hidden.gather(1, index)
        context = {**state.context, "read": positions}
        return State(hidden, context)

    def repeated(self, state: State, times: int) -> State:
        """Repeat the same samples ``times`` over, one copy behind the other, in a chain of one member."""
        if times == 1:
            return state

        def repeat(value: Tensor) -> Tensor:
            dimensions = value.dim()
            other_dimensions = [1] * (dimensions - 1)
            return value.repeat(times, *other_dimensions)

        context = self._change_per_sample(state.context, repeat)
        hidden = repeat(state.hidden)
        return State(hidden, context)

    def _change_per_sample(self, context: Mapping[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Return a copy of a context where ``change`` was applied to the entries with samples in dimension 0."""
        changed = dict(context)
        names = [*self._stages[0].per_sample, "read"]
        for name in names:
            value = changed.get(name)
            if value is not None:
                changed[name] = change(value)
        return changed

    def readout(self, state: State) -> Tensor:
        """Compute the output of every member from the state after the last block, ``[M, B, ...]``."""
        ran_once = self.start.blocks == len(self.sites)
        hidden_of_members = self._for_each_member(state.hidden, common=ran_once)
        outputs = []
        for stages, hidden in zip(self._stages, hidden_of_members, strict=True):
            member_state = State(hidden, state.context)
            outputs.append(stages.readout(member_state))
        return torch.stack(outputs)
