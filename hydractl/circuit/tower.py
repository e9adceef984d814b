"""One tower during a search: what its blocks gave is kept, so that a candidate re-runs only what follows its head.

What a candidate gives is a function of the removed heads and the batch alone, whatever was computed before it or
beside it: removed heads are sliced away, blocks run on whole batches, and what a head adds to the output of its
attention is taken from that output.
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
"""The positions that are present at each site of a tower."""


@dataclass(frozen=True)
class Trace:
    """One batch on its way through a tower.

    Attributes:
        kept: the heads that were present.
        before: the state before each block; before the last one only the tokens that are read out.
        last: the whole state before the last block.
        joined: the joined heads of each attention, ``[B, q, heads * head_dim]``.
        output: the output of each attention, ``[B, q, d_model]``.
        read: what the tower reads out, ``[B, ...]``.
    """

    kept: Kept
    before: list[State]
    last: State
    joined: list[Tensor]
    output: list[Tensor]
    read: Tensor


class SearchedTower:
    """A tower of a model with one member, some of its heads sliced away.

    Attributes:
        sites: as in :class:`hydractl.model.chain.Chain`.
        full: the heads of the model.
        kept: those that are present now.
        work: block evaluations of samples so far, in mult-adds as fractions of a block with all heads and tokens.
    """

    def __init__(self, model: HydraModel, chain: Chain) -> None:
        self.chain = chain
        self.sites = chain.sites
        self._unpruned = [attention.only for attention in chain.attentions]
        blocks = [model.networks[0].get_submodule(path) for path in chain.block_paths]
        spans = chain.spans or [(1.0, 1)] * len(blocks)
        self.costs = []
        for block, attention, span in zip(blocks, chain.attentions, spans, strict=True):
            self.costs.append(BlockCost.measured(block, attention, span))
        self.full: Kept = tuple(tuple(range(projections.heads)) for projections in self._unpruned)
        self.kept = self.full
        self.work = 0.0

    def remove(self, removed: Sequence[CandidateHead]) -> None:
        """Slice exactly these heads of this tower away."""
        to_remove = set(removed)
        kept = []
        for index, site in enumerate(self.sites):
            kept_here = tuple(head for head in self.full[index] if (site, head) not in to_remove)
            if kept_here != self.kept[index]:
                self._install(index, kept_here)
            kept.append(kept_here)
        self.kept = tuple(kept)

    def _install(self, index: int, kept_here: tuple[int, ...]) -> None:
        """Give one site these of its heads."""
        unpruned = self._unpruned[index]
        projections = unpruned
        if len(kept_here) < unpruned.heads:
            # A parameter that is made in inference mode could not be part of a graph of gradients.
            with torch.inference_mode(False), torch.no_grad():
                common = [getattr(unpruned.bank, name) for name in COMMON]
                weights = unpruned.weights().select(kept_here)
                projections = MemberProjections(HeadBank(weights, *common))
        self.chain.attentions[index].members[0] = projections

    def trace(self, stem: State, known: Trace | None = None) -> Trace:
        """Run one batch through the current model; leading blocks that ``known`` has already are not run again."""
        count = len(self.kept)
        first = 0
        state = stem
        last = stem
        before: list[State] = []
        joined: list[Tensor] = []
        output: list[Tensor] = []
        if known is not None:
            first = agreeing(known.kept, self.kept)
            if first == count:
                return known
            before = known.before[:first]
            joined = known.joined[:first]
            output = known.output[:first]
            if first == count - 1:  # of the state before the last block, `before` has only what is read out
                state = known.last
            else:
                state = known.before[first]

        for index in range(first, count):
            is_last = index == count - 1
            before.append(self.chain.query_tokens(state) if is_last else state)
            last = state
            state, joined_heads, attended = self._observed(index, state)
            joined.append(joined_heads)
            output.append(attended)
        read = self.chain.readout(state)[0]
        return Trace(self.kept, before, last, joined, output, read)

    def without_each(self, trace: Trace, site: int, heads: Sequence[int]) -> Tensor:
        """Return what the tower reads out with each of some heads of one site removed: ``[len(heads), B, ...]``."""
        first = site - self.sites.start
        times = len(heads)
        outputs = self._outputs_without_each(trace, first, heads)
        attended = outputs[0] if times == 1 else torch.cat(outputs)
        before = trace.before[first]
        state = self.chain.block(site, self.chain.repeated(before, times), attended=attended)

        samples = len(before.hidden)
        tokens = trace.last.hidden.shape[1] / self.costs[-1].share
        queries = before.hidden.shape[1] / self.costs[first].share
        self._add_work(times * samples * self.costs[first].without_attention(queries), tokens)

        for index in range(first + 1, len(self.kept)):
            state = self._run(index, state)
        read = self.chain.readout(state)[0]  # [len(heads) * B, ...]
        return read.unflatten(0, (times, len(read) // times))

    def _outputs_without_each(self, trace: Trace, index: int, heads: Sequence[int]) -> list[Tensor]:
        """Return the output ``[B, q, d_model]`` of one attention with each of some of its heads removed."""
        projections = self.chain.attentions[index].only
        present = self.kept[index]
        joined = trace.joined[index]
        output = trace.output[index]
        if len(present) == 1:
            # Subtracting the only head would leave its rounding, and samples that are alike would no longer tie.
            return [projections.bias_only(output)] * len(heads)
        outputs = []
        for head in heads:
            share_of_head = projections.share(joined, present.index(head))
            outputs.append(output - share_of_head)
        return outputs

    def gated(self, stem: State, gates: Sequence[Tensor]) -> Tensor:
        """Return what the tower reads out of a batch with each head's output scaled, as a function of the scales.

        Args:
            stem: not made in inference mode.
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

    def count_backward(self, rows: int, tokens: int, queries: int) -> None:
        """Count the work of one backward pass through :meth:`gated`; ``queries`` of the tokens are read out."""
        queries_by_block = self._queries_by_block(tokens, queries)
        for index, cost in enumerate(self.costs):
            macs = cost.backward(tokens, queries_by_block[index], len(self.kept[index]))
            self._add_work(rows * macs, tokens)

    def _queries_by_block(self, tokens: int, queries: int) -> list[int]:
        """Return how many tokens leave each block: all of them, and from the last block those that are read out."""
        blocks_before_last = len(self.full) - 1
        return [tokens] * blocks_before_last + [queries]

    def _observed(self, index: int, state: State) -> tuple[State, Tensor, Tensor]:
        """Run one block: the state after it, its joined heads, and the output of its attention."""
        attention = self.chain.attentions[index]
        joined: list[Tensor] = []
        outputs: list[Tensor] = []
        attention.observer = joined.append
        hook = attention.register_forward_hook(lambda module, inputs, output: outputs.append(output))
        try:
            state = self._run(index, state)
        finally:
            attention.observer = None
            hook.remove()
        return state, joined[0], outputs[0]

    def _run(self, index: int, state: State) -> State:
        """Run one block of the current model; the last one only for the tokens that are read out."""
        rows = len(state.hidden)
        cost = self.costs[index]
        tokens = state.hidden.shape[1] / cost.share
        if index < len(self.kept) - 1:
            queries = tokens
            state = self.chain.block(self.sites.start + index, state)
        else:
            state = self.chain.last_block(state)
            queries = state.hidden.shape[1] / cost.share
        macs = cost.block(tokens, queries, len(self.kept[index]))
        self._add_work(rows * macs, tokens)
        return state

    def price(self, site: int | None, tokens: int, queries: int, share: float | None) -> float:
        """Return the block evaluations of one sample for a candidate of a site.

        Args:
            site: its index; None: the whole tower runs.
            tokens: of the sample.
            queries: those of them that are read out.
            share: the share of the heads that is present at each site; None: as many as now.
        """
        queries_by_block = self._queries_by_block(tokens, queries)
        if share is None:
            heads_by_block: list[float] = [len(kept_here) for kept_here in self.kept]
        else:
            heads_by_block = [share * len(all_here) for all_here in self.full]
        first = 0
        macs = 0.0
        if site is not None:
            block_of_site = site - self.sites.start
            macs += self.costs[block_of_site].without_attention(queries_by_block[block_of_site])
            first = block_of_site + 1
        for index in range(first, len(heads_by_block)):
            macs += self.costs[index].block(tokens, queries_by_block[index], heads_by_block[index])
        return macs / self.unit(tokens)

    def _add_work(self, macs: float, tokens: float) -> None:
        """Add mult-adds to the work, for samples of so many tokens."""
        self.work += macs / self.unit(tokens)

    def unit(self, tokens: float) -> float:
        """Return the mult-adds of one sample of ``tokens`` in a block with all its heads, averaged over the blocks."""
        macs_of_blocks = []
        for cost, heads in zip(self.costs, self.full, strict=True):
            macs_of_blocks.append(cost.block(tokens, tokens, len(heads)))
        return sum(macs_of_blocks) / len(macs_of_blocks)


@dataclass(frozen=True)
class BlockCost:
    """Mult-adds of one block for one sample, by formula (matrix products only), from tokens of the stem.

    Attributes:
        d_model, head_dim: widths of a token and of a head.
        keys: heads of keys and values in all.
        gated: whether attention has a gate.
        per_token: of all linear layers outside attention.
        share: tokens of the block for each token of the stem.
        windows: how many windows the tokens attend in.
    """

    d_model: int
    head_dim: int
    keys: int
    gated: bool
    per_token: int
    share: float
    windows: int

    @classmethod
    def measured(cls, block: nn.Module, attention: HeadAttention, span: tuple[float, int]) -> BlockCost:
        """Read the sizes off a block of a model.

        Args:
            block: the block.
            attention: the attention in it.
            span: its share of the stem's tokens, and the windows that they attend in.
        """
        bank = attention.only.bank
        per_token = 0
        for module in block.modules():
            if is_linear(module) and module is not bank.features:
                weight: Any = module.weight
                per_token += weight.numel()
        share, windows = span
        return cls(
            d_model=bank.out.shape[0],
            head_dim=bank.head_dim,
            keys=bank.heads if bank.packing.keys is None else bank.packing.keys,
            gated=bank.gate is not None,
            per_token=per_token,
            share=share,
            windows=windows,
        )

    def block(self, tokens: float, queries: float, heads: float) -> float:
        """Return the mult-adds with keys and values of all ``tokens``, where ``queries`` of them ask and leave."""
        tokens = tokens * self.share
        queries = queries * self.share
        width = heads * self.head_dim
        key_width = min(heads, self.keys) * self.head_dim  # heads that share keys have no more than there are
        query_projections = (2 + self.gated) * queries * self.d_model * width  # queries, outputs and gates
        key_projections = 2 * tokens * self.d_model * key_width  # keys and values
        attention_products = 2 * queries * tokens / self.windows * width
        return query_projections + key_projections + attention_products + queries * self.per_token

    def backward(self, tokens: float, queries: float, heads: float) -> float:
        """Return the mult-adds of the gradients of activations only.

        That is one product for each product with weights, and two for each product of two activations.
        """
        products = 2 * self.share**2 * queries * tokens / self.windows * heads * self.head_dim
        return self.block(tokens, queries, heads) + products

    def without_attention(self, queries: float) -> float:
        """Return the mult-adds of the output of one head and of all that follows attention."""
        return queries * self.share * (self.d_model * self.head_dim + self.per_token)


def agreeing(a: Kept, b: Kept) -> int:
    """Return how many leading sites have the same heads."""
    for index, (heads, other_heads) in enumerate(zip(a, b, strict=True)):
        if heads != other_heads:
            return index
    return len(a)
