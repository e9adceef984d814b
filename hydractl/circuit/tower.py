"""One tower during a search: it keeps the results of its blocks, so that a candidate runs only what follows its head.

The result of a candidate depends only on the removed heads and the batch, not on what was computed before or together
with it: removed heads are sliced away, blocks run on whole batches, and the share of a candidate head in the output of
its attention is subtracted from that output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.circuit.winners import CandidateHead
from hydractl.families.base import State
from hydractl.heads.weights import COMMON
from hydractl.model.attention import HeadAttention
from hydractl.model.chain import Chain
from hydractl.model.projections import HeadBank, MemberProjections, is_linear
from hydractl.model.runtime import HydraModel

Kept = tuple[tuple[int, ...], ...]
"""For each site of a tower, the positions of the heads that are present."""


@dataclass(frozen=True)
class Trace:
    """All intermediate results of one batch in a tower.

    Attributes:
        kept: the heads that were present.
        before: the state before each block; before the last block only the tokens that are read out.
        last: the whole state before the last block.
        joined: the concatenated outputs of the heads of each attention, ``[B, queries, heads * head_dim]``.
        output: the output of each attention, ``[B, queries, d_model]``.
        read: what the tower reads out, ``[B, ...]``.
    """

    kept: Kept
    before: list[State]
    last: State
    joined: list[Tensor]
    output: list[Tensor]
    read: Tensor


class SearchedTower:
    """A tower of a model with one member, from which heads can be sliced away.

    Attributes:
        sites: the indices of its sites (attention blocks), as in :class:`hydractl.model.chain.Chain`.
        full: for each site the positions of all its heads.
        kept: for each site the positions of the heads that are present now.
        work: the work so far, in evaluations of one block on one sample. A block evaluation with fewer heads or tokens
            counts in proportion to its mult-adds.
    """

    def __init__(self, model: HydraModel, chain: Chain) -> None:
        """Begin with all heads of the model present, and store the cost of each block.

        Args:
            model: a model with one member.
            chain: the blocks of the tower, whose attentions are changed when heads are removed.
        """
        self.chain = chain
        self.sites = chain.sites
        self._unpruned = [attention.only for attention in chain.attentions]
        all_positions = [tuple(range(projections.heads)) for projections in self._unpruned]
        self.full: Kept = tuple(all_positions)
        self.kept = self.full
        self.work = 0.0

        # The cost of each block. In some models tokens attend only within windows: `spans[block][1]` is their number.
        network = model.networks[0]
        self.costs = []
        for index, path in enumerate(chain.block_paths):
            windows = chain.spans[index][1] if chain.spans else 1
            cost = BlockCost.measured(network.get_submodule(path), chain.attentions[index], windows)
            self.costs.append(cost)

    def remove(self, removed: Sequence[CandidateHead]) -> None:
        """Slice exactly these heads away from the weights, and restore all others; heads of other towers are ignored.

        The weights of a site (attention block) are replaced only if its heads change. They are always taken from the
        unpruned weights, so heads that were removed before and are not named come back.
        """
        to_remove = set(removed)
        kept = []
        for index, site in enumerate(self.sites):
            heads_left = [head for head in self.full[index] if (site, head) not in to_remove]
            kept_here = tuple(heads_left)
            kept.append(kept_here)
            if kept_here != self.kept[index]:
                # With all heads the unpruned weights themselves are used, else a selection of them.
                unpruned = self._unpruned[index]
                projections = unpruned
                if len(kept_here) < unpruned.heads:
                    # Select the rows of the kept heads; norms and the like, which belong to no head, stay the same.
                    # A parameter created in inference mode could not take part in a graph of gradients.
                    with torch.inference_mode(False), torch.no_grad():
                        common = [getattr(unpruned.bank, name) for name in COMMON]
                        weights = unpruned.weights().select(kept_here)
                        projections = MemberProjections(HeadBank(weights, *common))
                self.chain.attentions[index].replace_member(0, projections)
        self.kept = tuple(kept)

    def trace(self, stem: State, known: Trace | None = None) -> Trace:
        """Return all intermediate results (the trace) of one batch in the current model, which is run on it.

        Args:
            stem: the state of the batch before the first block.
            known: a trace of the same batch with other heads; its results are reused up to the first site where the
                heads differ. A trace of exactly the current model is returned as it is.
        """
        block_count = len(self.kept)
        first_to_run = 0
        state = stem
        last = stem
        before: list[State] = []
        joined: list[Tensor] = []  # the outputs of the heads of each attention
        output: list[Tensor] = []  # the output of each attention

        # Reuse the leading blocks of the known trace, and start from the state before the first other block.
        if known is not None:
            first_to_run = agreeing(known.kept, self.kept)
            if first_to_run == block_count:
                return known
            before = known.before[:first_to_run]
            joined = known.joined[:first_to_run]
            output = known.output[:first_to_run]
            if first_to_run == block_count - 1:  # before the last block, `before` has only the tokens read out
                state = known.last
            else:
                state = known.before[first_to_run]

        # Run the other blocks. Before the last one, keep the whole state apart: a later trace may start from it.
        for index in range(first_to_run, block_count):
            is_last = index == block_count - 1
            before.append(self.chain.query_tokens(state) if is_last else state)
            last = state
            state, joined_heads, attended = self._observed(index, state)
            joined.append(joined_heads)
            output.append(attended)
        read = self.chain.readout(state)[0]
        return Trace(self.kept, before, last, joined, output, read)

    def without_each(self, trace: Trace, site: int, heads: Sequence[int]) -> Tensor:
        """Return the output of the tower without each of these heads of one site, e.g. features of the class token.

        All candidates run as one batch: the state is repeated, once for each candidate.

        Args:
            trace: all intermediate results of the batch under the current model.
            site: the index of the site (attention block).
            heads: the positions of the heads at the site.

        Returns:
            ``[len(heads), B, ...]``.
        """
        # The block of the site: compute only what follows its attention, from the attention output without the head.
        block_of_site = site - self.sites.start
        candidates = len(heads)
        outputs = self._outputs_without_each(trace, block_of_site, heads)
        attended = outputs[0] if candidates == 1 else torch.cat(outputs)  # [len(heads) * B, queries, d_model]
        before = trace.before[block_of_site]
        repeated = self.chain.repeated(before, candidates)
        state = self.chain.block(site, repeated, attended=attended)

        # Count the work of this block; before the last one, `before` has only the tokens that are read out.
        whole = trace.last if block_of_site == len(self.kept) - 1 else before
        share = self.costs[block_of_site].share_without_attention(whole.hidden.shape[1], before.hidden.shape[1])
        self.work += candidates * len(before.hidden) * share

        # Run the blocks that follow.
        for index in range(block_of_site + 1, len(self.kept)):
            state = self._run(index, state)
        read = self.chain.readout(state)[0]  # [len(heads) * B, ...]
        batch_size = len(read) // candidates
        return read.unflatten(0, (candidates, batch_size))  # [len(heads), B, ...]

    def _outputs_without_each(self, trace: Trace, index: int, heads: Sequence[int]) -> list[Tensor]:
        """Return the output of one attention without each of these heads, ``[B, queries, d_model]`` for each head.

        The output of an attention is a bias plus a part of each head, so the part of the head is subtracted from it.

        Args:
            trace: all intermediate results of the batch under the current model.
            index: the index of the block in this tower.
            heads: the positions of the heads to remove, which are present.
        """
        projections = self.chain.attentions[index].only
        present = self.kept[index]
        joined = trace.joined[index]  # the outputs of the present heads side by side, [B, queries, heads * head_dim]
        output = trace.output[index]  # [B, queries, d_model]
        if len(present) == 1:
            # The only head leaves the bias alone. Subtracting the head would leave rounding errors, and equal samples
            # would no longer tie.
            return [projections.bias_only(output)] * len(heads)
        outputs = []
        for head in heads:
            position = present.index(head)
            part_of_head = projections.share(joined, position)
            outputs.append(output - part_of_head)
        return outputs

    def gated(self, stem: State, gates: Sequence[Tensor]) -> Tensor:
        """Return what the tower reads out of a batch when the output of each head is multiplied by a gate.

        Gradients flow to the gates.

        Args:
            stem: the state before the first block, not created in inference mode.
            gates: for each site ``[1 or B, heads present]``.
        """
        state = stem
        try:
            for index, gate in enumerate(gates):
                self.chain.attentions[index].head_gate = gate
                state = self._run(index, state)
        finally:
            for attention in self.chain.attentions:
                attention.head_gate = None
        return self.chain.readout(state)[0]

    def _observed(self, index: int, state: State) -> tuple[State, Tensor, Tensor]:
        """Run one block of the current model, and return the state after it with what its attention computes.

        Args:
            index: the index of the block in this tower.
            state: the state before the block.

        Returns:
            The state after the block; the concatenated outputs of the heads, ``[B, queries, heads * head_dim]``; and
            the output of the attention, ``[B, queries, d_model]``.
        """
        attention = self.chain.attentions[index]
        joined: list[Tensor] = []
        outputs: list[Tensor] = []

        def keep_output(module: nn.Module, inputs: Any, output: Tensor) -> None:
            outputs.append(output)

        # The observer receives the outputs of the heads, the hook the output of the attention.
        attention.observer = joined.append
        hook = attention.register_forward_hook(keep_output)
        try:
            state_after = self._run(index, state)
        finally:
            attention.observer = None
            hook.remove()
        return state_after, joined[0], outputs[0]

    def _run(self, index: int, state: State) -> State:
        """Run one block of the current model, and add its work; the last block runs only for the tokens read out.

        Args:
            index: the index of the block in this tower.
            state: the state before the block.

        Returns:
            The state after the block.
        """
        is_last = index == len(self.kept) - 1
        if is_last:
            state_after = self.chain.last_block(state)
        else:
            state_after = self.chain.block(self.sites.start + index, state)
        samples, tokens = state.hidden.shape[:2]
        queries = state_after.hidden.shape[1] if is_last else tokens
        self.work += samples * self.costs[index].share(tokens, queries, len(self.kept[index]))
        return state_after


@dataclass(frozen=True)
class BlockCost:
    """The sizes of one block, from which formulas compute its mult-adds for one sample (matrix products only).

    Attributes:
        d_model, head_dim: the widths of a token and of a head.
        heads, keys: how many heads, and how many key and value heads, the unpruned block has.
        per_token: the mult-adds of all linear layers outside attention, for each token.
        windows: how many windows the tokens are divided into; tokens attend only within their window.
    """

    d_model: int
    head_dim: int
    heads: int
    keys: int
    per_token: int
    windows: int

    @classmethod
    def measured(cls, block: nn.Module, attention: HeadAttention, windows: int) -> BlockCost:
        """Return the sizes of a block of a model that its cost is computed from, read from its layers.

        Args:
            block: the block.
            attention: the attention in it.
            windows: the number of windows that its tokens attend in.
        """
        # The weights of all heads of the attention.
        bank = attention.only.bank
        keys = bank.packing.keys
        if keys is None:  # each head has its own keys
            keys = bank.heads

        # Linear layers outside attention.
        per_token = 0
        for module in block.modules():
            if is_linear(module):
                weight: Any = module.weight
                per_token += weight.numel()
        return cls(
            d_model=bank.out.shape[0],
            head_dim=bank.head_dim,
            heads=bank.heads,
            keys=keys,
            per_token=per_token,
            windows=windows,
        )

    def mult_adds(self, tokens: int, queries: int, heads: int) -> float:
        """Return the mult-adds (multiplications with an addition) of the whole block for one sample.

        With t tokens, q queries, width w = heads * head_dim, key width k, d = d_model and W windows, they are 2 q d w
        (queries and outputs) + 2 t d k (keys and values) + 2 q t w / W (attention), and those of all other layers.

        Args:
            tokens: how many tokens have keys and values.
            queries: how many of these tokens are queries, and leave the block.
            heads: how many heads are present.
        """
        width = heads * self.head_dim
        key_heads = min(heads, self.keys)  # heads may share keys (grouped-query attention)
        key_width = key_heads * self.head_dim
        query_projections = 2 * queries * self.d_model * width  # queries and outputs
        key_projections = 2 * tokens * self.d_model * key_width  # keys and values

        # Scores, and weighted sums of values; a query attends only to the tokens of its window.
        attention_products = 2 * queries * tokens / self.windows * width
        other_layers = queries * self.per_token
        return query_projections + key_projections + attention_products + other_layers

    def share(self, tokens: int, queries: int, heads: int) -> float:
        """Return :meth:`mult_adds` as a share of those of the block with all its heads, of which all tokens leave."""
        return self.mult_adds(tokens, queries, heads) / self.mult_adds(tokens, tokens, self.heads)

    def share_without_attention(self, tokens: int, queries: int) -> float:
        """Return the same share of the output projection of one head, and of all layers that follow attention."""
        output_projection = self.d_model * self.head_dim
        return queries * (output_projection + self.per_token) / self.mult_adds(tokens, tokens, self.heads)


def agreeing(kept: Kept, other: Kept) -> int:
    """Return the number of leading sites at which two towers have the same heads."""
    for index, heads in enumerate(kept):
        if heads != other[index]:
            return index
    return len(kept)
