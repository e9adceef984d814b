"""One tower of all members as a chain of blocks on member-major activations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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

    def runs_once(self, site: int) -> bool:
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


class CommonRun(NamedTuple):
    """A batch behind the blocks that are the same for all members.

    Attributes:
        next_site: the site of the first block that has not run.
        hidden_of_members: the tokens ``[B, T, d]`` of each member; one tensor for all where their stems are the same.
        context: what the blocks read beside them.
    """

    next_site: int
    hidden_of_members: Sequence[Tensor]
    context: dict[str, Any]


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
        self.cut_into_stages()
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

    def cut_into_stages(self) -> None:
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
        self.cut_into_stages()

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
        """Compute the state before the first block: its tokens, and the context that blocks read beside them.

        Returns:
            One state for all members where their stems are the same, ``[B, T, d]``; else those of the members one
            behind the other, ``[M * B, T, d]``.
        """
        if self.start.shared_stem:
            return self._stages[0].stem(inputs)
        states = [stages.stem(inputs) for stages in self._stages]

        # What a family computes for each member is stacked; the rest of the context is the same for all.
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
            member: the only member that runs; None: all of them.
            queries: the tokens that the block runs for; None: all of them.
            attended: what the attention gives in the place of attending, ``[M * B, T, d]``; None: it attends.

        Returns:
            The state behind it, of the members that ran.
        """
        context = replace(self._context_of_run(state.hidden, member), queries=queries, attended=attended)
        return self._run_block(site, state, context)

    def _run_block(self, site: int, state: State, context: RunContext) -> State:
        """Run the block of one site; at the block from which members differ, its state is repeated for each of them."""
        blocks = self._stages[0].blocks
        block = blocks[site - self.sites.start]
        block_state = self._repeat_where_members_part(site, state, context.member)
        return context.run(block, block_state)

    def _context_of_run(self, hidden: Tensor, member: int | None = None) -> RunContext:
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

    def _repeat_where_members_part(self, site: int, state: State, member: int | None) -> State:
        """Return the state before a block, repeated for every member at the block from which they differ."""
        if member is not None or self.members == 1:
            return state
        if not self._members_part_at(site):
            return state
        hidden = state.hidden.repeat(self.members, 1, 1)  # [B, T, d] -> [M * B, T, d]
        return State(hidden, state.context)

    def _members_part_at(self, site: int) -> bool:
        """Return whether the state before the block of a site is common to all members, and behind it is not."""
        if not self.start.shared_stem:
            return False
        return site == self.start.first_apart

    def run_common_blocks(self, inputs: Any) -> CommonRun:
        """Run the stem and the leading blocks that are the same for all members, once; see :meth:`run_member`."""
        state = self.stem(inputs)
        site = max(self.sites.start, self.start.first_apart)
        context = self._context_of_run(state.hidden)
        state = self._run_blocks(range(self.sites.start, site), state, context)
        hidden_of_members = self._hidden_of_each_member(state.hidden, common=self.start.shared_stem)
        return CommonRun(site, hidden_of_members, state.context)

    def run_member(self, common: CommonRun, member: int, samples: Tensor | None = None) -> Tensor:
        """Run one member on from the blocks that all members have in common.

        Args:
            common: what :meth:`run_common_blocks` returned.
            member: its number.
            samples: the samples of the batch that it runs for, int64 ``[rows]``; None: all.

        Returns:
            What the tower reads out, ``[rows, ...]``.
        """
        state = State(common.hidden_of_members[member], common.context)
        if samples is not None:
            state = self._select_samples(state, samples)
        return self._finish_member(common.next_site, state, member)

    def _hidden_of_each_member(self, hidden: Tensor, *, common: bool) -> Sequence[Tensor]:
        """Return the tokens ``[B, T, d]`` of each member.

        Args:
            hidden: those of a state.
            common: whether they are common to all members, ``[B, T, d]``; else they are ``[M * B, T, d]``, and cut.
        """
        if common:
            return [hidden] * self.members
        return apart(hidden, self.members)

    def _select_samples(self, state: State, samples: Tensor) -> State:
        """Return the state of one member for some samples only, whose numbers are int64 ``[rows]``."""

        def selected(value: Tensor) -> Tensor:
            return value[samples]

        context = self._change_values_of_samples(state.context, selected)
        hidden = selected(state.hidden)
        return State(hidden, context)

    def rest(self, site: int, state: State) -> Tensor:
        """Run on from the state before the block of a site, to what is read out of every member: ``[M, B, ...]``.

        Blocks that all members have in common run once. Behind them the members run side by side, in the same
        operations, or one after another, whichever is faster: with the same results.
        """
        # A pooled attention is common to all members, though their heads differ.
        stop = self.sites.stop
        first_apart = self.start.first_apart
        if self.start.pooled(first_apart):
            first_apart += 1
        context = self._context_of_run(state.hidden)
        if site < first_apart:
            state = self._run_blocks(range(site, first_apart), state, context)
            site = first_apart

        # Side by side.
        nothing_to_part = self.members == 1 or site == stop
        if nothing_to_part or self._runs_side_by_side(site, state.hidden):
            state = self._run_blocks(range(site, stop), state, context)
            return self.readout(state)

        # One member after another.
        hidden_of_members = self._hidden_of_each_member(state.hidden, common=self._members_part_at(site))
        outputs = []
        for member, hidden in enumerate(hidden_of_members):
            member_state = State(hidden, state.context)
            outputs.append(self._finish_member(site, member_state, member))
        return torch.stack(outputs)

    def _finish_member(self, site: int, state: State, member: int) -> Tensor:
        """Run one member from the block of a site to the last one, and return what it reads out, ``[B, ...]``."""
        context = self._context_of_run(state.hidden, member)
        state = self._run_blocks(range(site, self.sites.stop), state, context)
        stages = self._stages[member]
        return stages.readout(state)

    def _run_blocks(self, sites: range, state: State, context: RunContext) -> State:
        """Run the blocks of some sites one after another; the last of the tower for the tokens that are read only.

        A state that is common to all members is repeated for each of them before the block in which they part.

        Args:
            sites: the indices of neighbouring sites among those of the model.
            state: before the first of their blocks.
            context: of this run.
        """
        # From here on the numbers of blocks in the tower: first, the one in which members part, and the end.
        blocks = self._stages[0].blocks
        first = sites.start - self.sites.start
        stop = sites.stop - self.sites.start
        parting = self.start.first_apart - self.sites.start

        # The last block runs by itself where it runs for some tokens only.
        has_last = stop == len(blocks) and stop > first
        runs_whole = self.whole_last_block or self.attentions[-1].training
        shortens_last = has_last and not runs_whole
        if shortens_last:
            stop -= 1

        if first <= parting < stop:
            state = context.run_all(blocks[first:parting], state)
            state = self._repeat_where_members_part(self.start.first_apart, state, context.member)
            first = parting
        state = context.run_all(blocks[first:stop], state)
        if shortens_last:
            return self._run_last_block_shortened(state, context)
        return state

    @property
    def watched(self) -> bool:
        """Whether gates or observers of heads are in place, which are about all members at once."""
        return any(attention.head_gate is not None or attention.observer is not None for attention in self.attentions)

    def _runs_side_by_side(self, site: int, hidden: Tensor) -> bool:
        """Return whether members run in the same operations from the block of a site on.

        Args:
            site: the first block that is not the same for all.
            hidden: what enters it: ``[B, T, d]`` where it is common to all members, else ``[M * B, T, d]``.
        """
        # Gates and observers of heads are called for all members at once.
        if self.watched:
            return True
        if self.side_by_side is not None:
            return self.side_by_side
        if hidden.device.type != "cpu" or torch.compiler.is_compiling():
            return True

        # With few rows a matrix product waits for its weights, which all members then use together; with many, for
        # activations, of which one member's fit into a processor's caches better than those of all.
        rows_of_member = hidden.shape[0] * hidden.shape[1]
        has_rows_of_all_members = not self._members_part_at(site)
        if has_rows_of_all_members:
            rows_of_member //= self.members
        few_rows = _FEW_ROWS
        if not self._merged:
            few_rows //= 2
        return rows_of_member <= few_rows

    def last_block(self, state: State, member: int | None = None) -> State:
        """Run the last block for those tokens only that are read out; for all tokens where all are.

        Args:
            state: before the last block, with all tokens.
            member: the only member that runs; None: all of them.

        Returns:
            The state behind it: its tokens are those that are read out.
        """
        context = self._context_of_run(state.hidden, member)
        return self._run_last_block_shortened(state, context)

    def _run_last_block_shortened(self, state: State, context: RunContext) -> State:
        """Run the last block for those tokens only that are read out; for all tokens where all are.

        Args:
            state: before the last block, with all tokens.
            context: of the run that the block belongs to.
        """
        last = self.sites.stop - 1
        query_state = self.query_tokens(state, context.member)
        reads_all_tokens = query_state is state
        if reads_all_tokens:
            return self._run_block(last, state, context)

        # Queries are of the tokens that are read out; keys and values are made of all tokens.
        attended_state = state  # a pool attends to the state that is common to all members
        if not self.start.pooled(last):
            attended_state = self._repeat_where_members_part(last, state, context.member)
        attention_input = self._stages[0].attention_inputs[-1]
        memory = context.run(attention_input, attended_state)

        positions = query_state.context["read"]
        queries = QueryTokens(positions, memory)
        return self._run_block(last, query_state, replace(context, queries=queries))

    def query_tokens(self, state: State, member: int | None = None) -> State:
        """Return the state before the last block with those tokens only that are read out.

        Args:
            state: before the last block, with all tokens.
            member: the only member that it is of; None: it is of all members.

        Returns:
            The state with ``q`` tokens of each sample, whose positions ``[B, q]`` its context has as ``read``. Where
            all tokens are read out, the same object as ``state``.
        """
        reads = self._stages[0].reads
        if reads is None:
            return state

        # Members read the same tokens, so one copy of the batch tells their positions.
        last = self.sites.stop - 1
        is_common_to_all = self.start.shared_stem and last <= self.start.first_apart
        copies = self.members
        if is_common_to_all or member is not None:
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

        context = self._change_values_of_samples(state.context, repeat)
        hidden = repeat(state.hidden)
        return State(hidden, context)

    def _change_values_of_samples(
        self, context: Mapping[str, Any], change: Callable[[Tensor], Tensor]
    ) -> dict[str, Any]:
        """Return a copy of a context where ``change`` was applied to the entries with samples in dimension 0.

        A family lists these entries; the positions of the tokens that are read out are one more.
        """
        changed = dict(context)
        names = [*self._stages[0].per_sample, "read"]
        for name in names:
            value = changed.get(name)
            if value is not None:
                changed[name] = change(value)
        return changed

    def readout(self, state: State) -> Tensor:
        """Compute what each member reads out of the state after the last block: ``[M, B, ...]``."""
        ran_once = self.start.blocks == len(self.sites)
        hidden_of_members = self._hidden_of_each_member(state.hidden, common=ran_once)
        outputs = []
        for stages, hidden in zip(self._stages, hidden_of_members, strict=True):
            member_state = State(hidden, state.context)
            outputs.append(stages.readout(member_state))
        return torch.stack(outputs)
