"""One tower (e.g. the image tower) of all members, as a chain of blocks on member-major activations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.families.base import FirstTokens, ModelFamily, State
from hydractl.model.attention import HeadAttention
from hydractl.model.context import QueryTokens, RunContext, apart
from hydractl.model.laplace import with_posterior
from hydractl.model.stacking import PerMember, StackingModule, StacksOfTower

Watch = Callable[[int, State], None]
"""A function that is called after a block, with the index of its site and the state after it.

The state is that of all members, ``[M * B, T, d]``, or ``[B, T, d]`` up to where they differ; or that of one, where the
context of the run names a member. After a last block that runs for the tokens that are read out, it has these alone.
"""


def _run_and_tell(block: Callable[[State], State], watch: Watch, site: int, state: State) -> State:
    """Run a block, and call a function with the index of its site and the state after it."""
    after = block(state)
    watch(site, after)
    return after


_FEW_ROWS = 512
"""Up to this many tokens in a batch, members with merged MLPs run side by side on a CPU."""

_FEW_ROWS_UNMERGED = 64
"""Up to this many tokens in a batch, members whose MLPs are not merged run side by side on a CPU.

Measured, processor time over that of one after another, one thread, ViT widths 192 to 768: 0.92 to 1.03 with 5 to 50
tokens, 1.00 to 1.03 with 101, 1.05 to 1.21 with 197.
"""


@dataclass(frozen=True)
class Start:
    """How far the members of one tower are the same, and therefore need only run once for all of them.

    Attributes:
        sites: the indices of the tower's sites (attention blocks) among those of the model.
        shared_stem: whether everything before the first block is the same.
        blocks: the number of leading blocks that are the same, in weights and in heads.
        pool: whether the attention of the next block can also run once for all members. Its input is the same for all
            members and so are its weights, but members may have different heads of it.
    """

    sites: range
    shared_stem: bool
    blocks: int
    pool: bool

    def runs_once(self, site: int) -> bool:
        """Return whether the block of a site runs once for all members."""
        return site < self.first_apart

    def pooled(self, site: int) -> bool:
        """Return whether the attention of a site runs once for all members, each of which takes its heads of it."""
        if not self.pool:
            return False
        return site == self.first_apart

    @property
    def first_apart(self) -> int:
        """The site of the first block that differs between members; the index after the last site if none differs."""
        return self.sites.start + self.blocks


class Chain:
    """The blocks of one tower, run for all members at once.

    Up to the block from which members differ, there is one state for all members. After it the state is member-major,
    ``[M * B, T, d]``. A copied or unpickled chain runs the copied networks.

    Args:
        family: the family of the model.
        networks: the network of each member. The blocks of the first network run for all members; every member has its
            own stem and readout.
        tower: the index of the tower in :meth:`ModelFamily.stages`.
        attentions: the attention modules of the blocks.
        start: how far the members are the same.
        merged: whether all members share their MLPs.

    Attributes:
        tower: the name of the tower, see :class:`hydractl.heads.mask.Site`.
        of_labels: whether its inputs are the prompts of the classes instead of samples.
        attentions, start: the arguments.
        sites: the indices of the tower's sites among those of the model.
        whole_last_block, side_by_side, batched: see :class:`hydractl.model.runtime.HydraModel`. In training the last
            block always runs for all tokens, as in the library.
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
        """Find the stages of this tower (encoder) in each network; nothing runs yet.

        The stages are the stem (all before the first block), the blocks, and the readout (all after the last block).
        """
        # Settings, and what the chain consists of.
        self.start = start
        self.sites = start.sites
        self.attentions = list(attentions)
        self.whole_last_block = False
        self.side_by_side: bool | None = None
        self.batched: bool | None = None
        self._family = family
        self._networks = list(networks)
        self._tower_index = tower
        self._merged = merged

        # The stages of each network: stem, blocks and readout of this tower.
        self.cut_into_stages()
        self.tower = self._stages[0].tower
        self.of_labels = self._stages[0].of_labels
        self._stacks = StacksOfTower(self._stacking_modules())

    def _stacking_modules(self) -> list[StackingModule]:
        """Return the modules whose weights can be stacked: in the blocks, and in the modules that merge tokens."""
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
        """Get the stem, blocks and readout of each network. This must be repeated after a network gets a posterior."""
        self._stages = []
        for network in self._networks:
            towers = self._family.stages(network)
            self._stages.append(with_posterior(towers[self._tower_index], network))

    def of_projection(self) -> Chain:
        """Return a copy of the chain that reads out the input of the last linear layer, ``[M, B, prompts, d]``."""
        other = copy.copy(self)
        other._stages = []
        for stages in self._stages:
            if stages.projection is not None:
                other._stages.append(replace(stages, readout=stages.projection.inputs))
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the stages, because they are functions that belong to the networks."""
        state = dict(vars(self))
        del state["_stages"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.cut_into_stages()

    @property
    def members(self) -> int:
        """The number of members."""
        return len(self._stages)

    @property
    def block_paths(self) -> list[str]:
        """The module path of each block."""
        return list(self._stages[0].block_paths)

    @property
    def spans(self) -> Sequence[tuple[float, int]]:
        """The spans of the blocks, see :class:`hydractl.families.base.Stages`."""
        return self._stages[0].spans

    def __call__(self, inputs: Any, watch: Watch | None = None) -> Tensor:
        """Return what the tower reads out for every member, ``[M, B, ...]``.

        Args:
            inputs: a batch, as the model takes it.
            watch: is called after every block.
        """
        # With a watch, run a shallow copy, whose blocks call it after they have run; this chain stays as it is. Blocks
        # run in the first network for all members, so only its stages are replaced.
        chain = self
        if watch is not None:
            first, *others = self._stages
            blocks = []
            for site, block in zip(self.sites, first.blocks, strict=True):
                blocks.append(partial(_run_and_tell, block, watch, site))
            chain = copy.copy(self)
            chain._stages = [replace(first, blocks=blocks), *others]
        state = chain.stem(inputs)
        return chain.rest(self.sites.start, state)

    @property
    def reads_all_tokens(self) -> bool:
        """Whether the readout uses all tokens."""
        return self._stages[0].reads is None

    def tokens_read(self, state: State) -> Tensor | None:
        """Return the positions ``[B, k]`` of the tokens that the readout uses; None if it uses all tokens.

        Args:
            state: a state of one member.
        """
        reads = self._stages[0].reads
        return None if reads is None else reads(state)

    def stem(self, inputs: Any) -> State:
        """Return the state before the first block: the tokens, and the context, which are values that blocks also read.

        Returns:
            If the stems of all members are the same, one state for all, ``[B, T, d]``. Otherwise the states of all
            members in one, ``[M * B, T, d]``.
        """
        if self.start.shared_stem:
            return self._stages[0].stem(inputs)
        states = [stages.stem(inputs) for stages in self._stages]

        # Context that differs between members is stacked; the rest is the same for all and comes from the first.
        context = dict(states[0].context)
        for name in self._stages[0].per_member:
            values = [state.context[name] for state in states]
            context[name] = torch.stack(values)  # [M, ...]
        hidden_of_members = [state.hidden for state in states]  # M times [B, T, d]
        hidden = torch.cat(hidden_of_members)  # [M * B, T, d]
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
        """Run the block of one site.

        Args:
            site: the index of the site among those of the model.
            state: the state before the block.
            member: the only member that runs; None means all members.
            queries: the query tokens; None means all tokens.
            attended: a result to use in place of the attention's, ``[M * B, T, d]``; None means that it attends.

        Returns:
            The state after the block, of the members that ran.
        """
        context = replace(self._context_of_run(state.hidden, member), queries=queries, attended=attended)
        return self._run_block(site, state, context)

    def _run_block(self, site: int, state: State, context: RunContext) -> State:
        """Run the block of one site in a context. If members differ from this block on, first repeat the state."""
        blocks = self._stages[0].blocks
        block = blocks[site - self.sites.start]
        block_state = self._repeat_where_members_part(site, state, context.member)
        return context.run(block, block_state)

    def _context_of_run(self, hidden: Tensor, member: int | None = None) -> RunContext:
        """Return the context of a run of blocks, for one member or for all members.

        If the run uses stacked weights, this also checks that they are up to date, for all blocks at once.
        """
        context = RunContext(member, self.batched)
        runs_alone = member is not None or self.members == 1
        # A compiled graph cannot compare addresses of weights.
        if runs_alone or torch.compiler.is_compiling() or torch.is_grad_enabled():
            return context
        if not context.batches(hidden.device):
            return context
        return replace(context, stacks=self._stacks.checked())

    def _repeat_where_members_part(self, site: int, state: State, member: int | None) -> State:
        """Return the state before a block: repeated for every member if members differ from this block on."""
        if member is not None or self.members == 1:
            return state
        if not self._members_part_at(site):
            return state
        hidden = state.hidden.repeat(self.members, 1, 1)  # [M * B, T, d]
        return State(hidden, state.context)

    def _members_part_at(self, site: int) -> bool:
        """Return whether there is one state for all members before the block of a site, but not after it."""
        if not self.start.shared_stem:
            return False
        return site == self.start.first_apart

    def _hidden_of_each_member(self, hidden: Tensor, *, common: bool) -> Sequence[Tensor]:
        """Return the tokens ``[B, T, d]`` of each member.

        Args:
            hidden: the tokens of a state.
            common: whether ``hidden`` is the same for all members, ``[B, T, d]``. Otherwise it is ``[M * B, T, d]`` and
                is cut.
        """
        return [hidden] * self.members if common else apart(hidden, self.members)

    def rest(self, site: int, state: State) -> Tensor:
        """Run from the state before the block of a site to the end; return what all members read out, ``[M, B, ...]``.

        The members have the same blocks up to some site. These common blocks run once. After them the members run
        either side by side in the same operations or one after another, whichever is faster. The results are the same.
        """
        # The end of the part that runs for all members together. If the first block in which members differ has a
        # pooled attention (it computes the heads of all members once, and each member takes its own), that block still
        # runs for all members together.
        stop = self.sites.stop
        first_different = self.start.first_apart
        end_of_joint_part = first_different + 1 if self.start.pooled(first_different) else first_different

        # Run what is left of that part.
        context = self._context_of_run(state.hidden)
        if site < end_of_joint_part:
            # Reusing the name `state` frees the memory of the previous state.
            state = self._run_blocks(range(site, end_of_joint_part), state, context)
        next_site = max(site, end_of_joint_part)

        # All members side by side.
        nothing_to_part = self.members == 1 or next_site == stop
        if nothing_to_part or self._runs_side_by_side(next_site, state.hidden):
            state = self._run_blocks(range(next_site, stop), state, context)
            return self.readout(state)

        # Or one member after another. If the members part only here, they all start from the same tokens.
        is_common = self._members_part_at(next_site)
        hidden_of_members = self._hidden_of_each_member(state.hidden, common=is_common)
        outputs = []
        for member, hidden in enumerate(hidden_of_members):
            context = self._context_of_run(hidden, member)
            member_state = self._run_blocks(range(next_site, stop), State(hidden, state.context), context)
            outputs.append(self._stages[member].readout(member_state))
        return torch.stack(outputs)

    def _run_blocks(self, sites: range, state: State, context: RunContext) -> State:
        """Return the state after some blocks, which run one after another.

        The last block of the tower runs only for the tokens that are read out, if that is allowed. If members differ
        from one of the blocks on, the state is repeated for every member before that block: ``[B, T, d]`` becomes
        ``[M * B, T, d]``.

        Args:
            sites: the indices of consecutive sites (attention blocks, one in each block) among those of the model.
            state: the state before the first of these blocks.
            context: the context of the run.
        """
        # From here on, indices count the blocks of this tower: the first to run, the end, and where members part.
        blocks = self._stages[0].blocks
        first = sites.start - self.sites.start
        stop = sites.stop - self.sites.start
        parting_block = self.start.first_apart - self.sites.start

        # If the last block may run for some tokens only, it is run separately at the end.
        has_last = stop == len(blocks) and stop > first
        runs_whole = self.whole_last_block or self.attentions[-1].training
        shortens_last = has_last and not runs_whole
        stop_of_whole = stop - 1 if shortens_last else stop  # the end of the blocks that run for all tokens

        # Run these blocks, in two parts if members differ from one of them on. Reusing the name `state` frees the
        # memory of each state as soon as the next one exists.
        if first <= parting_block < stop_of_whole:
            state = context.run_all(blocks[first:parting_block], state)
            state = self._repeat_where_members_part(self.start.first_apart, state, context.member)
            state = context.run_all(blocks[parting_block:stop_of_whole], state)
        else:
            state = context.run_all(blocks[first:stop_of_whole], state)
        if shortens_last:
            return self._run_last_block_shortened(state, context)
        return state

    @property
    def watched(self) -> bool:
        """Whether head gates or observers are set. These refer to all members at once."""
        return any(attention.head_gate is not None or attention.observer is not None for attention in self.attentions)

    def _runs_side_by_side(self, site: int, hidden: Tensor) -> bool:
        """Return whether all members should run side by side in the same operations, or else one after another.

        The results are the same; this only decides which is faster.

        Args:
            site: the site of the first block that each member runs for itself.
            hidden: the tokens before that block: ``[B, T, d]`` if they are the same for all members, else
                ``[M * B, T, d]``.
        """
        # Gates and observers are used for all members at once.
        if self.watched:
            return True

        # The user has decided.
        if self.side_by_side is not None:
            return self.side_by_side

        # A GPU is faster with fewer, larger operations, and a compiled graph must not depend on sizes.
        if hidden.device.type != "cpu" or torch.compiler.is_compiling():
            return True

        # On a CPU it depends on the number of rows (one row is one token of one sample). With few rows a matrix product
        # waits for its weights, and members that run together read shared weights once. With many rows it waits for
        # the rows, and those of a single member fit better into the caches.
        rows = hidden.shape[0] * hidden.shape[1]
        is_common = self._members_part_at(site)
        rows_of_member = rows if is_common else rows // self.members

        # Members that were not merged share no weights that could be read once. Side by side, each layer still runs
        # for each of them, and its outputs are copied into one tensor.
        most_rows = _FEW_ROWS if self._merged else _FEW_ROWS_UNMERGED
        return rows_of_member <= most_rows

    def last_block(self, state: State) -> State:
        """Run the last block of all members, only for the tokens that are read out; for all if all are read out.

        Args:
            state: the state before the last block, with all tokens.

        Returns:
            The state after the block, with the tokens that are read out.
        """
        return self._run_last_block_shortened(state, self._context_of_run(state.hidden))

    def _run_last_block_shortened(self, state: State, context: RunContext) -> State:
        """Return the state after the last block, which runs only for the tokens that the readout uses, if not all.

        Args:
            state: the state before the last block, with all tokens.
            context: the context of the run.
        """
        last = self.sites.stop - 1
        query_state = self.query_tokens(state, context.member)
        reads_all_tokens = query_state is state  # it returns its argument if there is nothing to leave out
        if reads_all_tokens:
            return self._run_block(last, state, context)

        # Queries come from the tokens that are read out, keys and values from all tokens. In a pooled attention, which
        # runs once for all members, these are the common tokens [B, T, d]; in any other those of each member.
        attended_state = state
        if not self.start.pooled(last):
            attended_state = self._repeat_where_members_part(last, state, context.member)
        attention_input = self._stages[0].attention_input
        assert attention_input is not None, "a tower that reads some tokens alone has it"
        memory = context.run(attention_input, attended_state)

        positions = query_state.context["read"]
        queries = QueryTokens(positions, memory)
        return self._run_block(last, query_state, replace(context, queries=queries))

    def query_tokens(self, state: State, member: int | None = None) -> State:
        """Return the state before the last block, reduced to the tokens whose results are read out.

        Args:
            state: the state before the last block, with all tokens.
            member: the member to which the state belongs; None means that it belongs to all members.

        Returns:
            The state with ``q`` tokens of each sample. Its context has a new entry ``read``, the positions ``[B, q]``
            of these tokens. If all tokens are read out, ``state`` itself is returned.
        """
        reads = self._stages[0].reads
        if reads is None:
            return state

        # All members read the same positions, so find them from the samples of one member. `copies` is how often each
        # sample is in the state: M times if it belongs to all members and they differ before the last block, else once.
        last = self.sites.stop - 1
        is_common_to_all = self.start.shared_stem and last <= self.start.first_apart
        copies = 1 if is_common_to_all or member is not None else self.members
        samples, _, width = state.hidden.shape  # [copies * B, T, d]
        batch = samples // copies
        first_copy = State(state.hidden[:batch], state.context)
        positions = reads(first_copy)  # [B, q]

        # Select these tokens. The first tokens of each sample are a simple slice.
        if isinstance(reads, FirstTokens):
            hidden = state.hidden[:, : reads.count].contiguous()
        else:
            rows = positions.repeat(copies, 1)[:, :, None]  # [copies * B, q, 1]
            index = rows.expand(-1, -1, width)  # [copies * B, q, d]
            hidden = state.hidden.gather(1, index)  # [copies * B, q, d]
        context = {**state.context, "read": positions}
        return State(hidden, context)

    def repeated(self, state: State, times: int) -> State:
        """Return the state with all its samples ``times`` times, ``[times * B, ...]``, in a chain with one member.

        Two samples a, b repeated twice are a, b, a, b.
        """
        if times == 1:
            return state

        def repeat(value: Tensor) -> Tensor:
            """Repeat along dimension 0."""
            other_dimensions = [1] * (value.dim() - 1)
            return value.repeat(times, *other_dimensions)

        # The entries with the samples in dimension 0: those that the family lists, and the positions that are read out.
        context = dict(state.context)
        for name in [*self._stages[0].per_sample, "read"]:
            value = context.get(name)
            if value is not None:
                context[name] = repeat(value)
        return State(repeat(state.hidden), context)

    def readout(self, state: State) -> Tensor:
        """Return what each member reads out of the state after the last block, such as logits, ``[M, B, ...]``."""
        ran_once = self.start.blocks == len(self.sites)  # all blocks are the same for all members
        hidden_of_members = self._hidden_of_each_member(state.hidden, common=ran_once)
        outputs = []
        for stages, hidden in zip(self._stages, hidden_of_members, strict=True):
            outputs.append(stages.readout(State(hidden, state.context)))
        return torch.stack(outputs)
