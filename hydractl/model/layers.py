"""Reads what every block of a model gives, in the pass that computes its logits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from hydractl.families.base import State
from hydractl.metrics.feature_scores.layers import MOST_BYTES, bytes_of_sums
from hydractl.model.chain import Chain
from hydractl.model.context import apart, context_of_run
from hydractl.model.source import Source


class LayerReader:
    """A :data:`hydractl.model.chain.Watch` that keeps one or two vectors a sample of every block.

    The first is the mean of the tokens that the readout uses: the class token, the last token of a text, or all tokens.
    The second is the mean of all other tokens, but padding. It is left out where all are used, and of the last block,
    which need not run for tokens that are not read.

    Args:
        chain: the tower that is watched.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._of_members: list[list[Tensor]] = [[] for _ in range(chain.members)]

    def __call__(self, site: int, state: State) -> None:
        """Keep what a block gives, for each member to which the state belongs.

        Args:
            site: the index of the block's attention among those of the model.
            state: the state after the block.
        """
        members = self._chain.members
        member = context_of_run().member
        if member is not None:  # one member runs alone: [B, T, d]
            self._keep([member], site, state)
        elif self._chain.start.runs_once(site):  # the block is the same for all members and ran once: [B, T, d]
            self._keep(range(members), site, state)
        else:  # the members ran side by side: [M * B, T, d], all samples of member 0 first
            for index, hidden in enumerate(apart(state.hidden, members)):
                self._keep([index], site, State(hidden, state.context))

    def _keep(self, members: Sequence[int], site: int, state: State) -> None:
        """Keep the vectors of a state, ``[B, T, d]``, for one or several members."""
        vectors = self._means_of_tokens(site, state)
        for member in members:
            self._of_members[member] += vectors

    def _means_of_tokens(self, site: int, state: State) -> list[Tensor]:
        """Return one or two means of a state's tokens, ``[B, d]`` each, in at least float32.

        ==========================  ============================================================
        the readout uses            means
        ==========================  ============================================================
        all tokens                  of all tokens but padding
        some, in the last block     of the tokens that it uses
        some, in any other block    of the tokens that it uses, and of the others but padding
        ==========================  ============================================================
        """
        hidden = state.hidden if state.hidden.dtype == torch.float64 else state.hidden.float()  # [B, T, d]
        if "read" in state.context:  # the last block ran for the tokens that the readout uses alone
            return [hidden.mean(dim=1)]
        weights = _weights_of_tokens(state, hidden)  # [B, T]: 1, or 0 for padding
        positions = self._chain.tokens_read(state)  # [B, k]: the tokens that the readout uses
        if positions is None:  # it uses all of them
            return [_weighted_mean(hidden, weights)]
        index = positions[:, :, None].expand(-1, -1, hidden.shape[2])  # [B, k, d]
        of_read = hidden.gather(1, index).mean(dim=1)  # [B, d]
        if site == self._chain.sites[-1]:
            return [of_read]
        weights_of_others = weights.scatter(1, positions, 0.0)  # [B, T]: 0 also for the tokens that are used
        return [of_read, _weighted_mean(hidden, weights_of_others)]

    def vectors(self, member: int) -> list[Tensor]:
        """Return what each block gave to a member, ``[B, d]`` each, in the order of the blocks."""
        return self._of_members[member]


def widths_of_layers(chain: Chain, widths_of_blocks: Sequence[int]) -> list[int]:
    """Return the width of each vector that a :class:`LayerReader` keeps of a member.

    Args:
        chain: the tower.
        widths_of_blocks: the width of the tokens of each of its blocks.
    """
    *first, last = widths_of_blocks
    copies = 1 if chain.reads_all_tokens else 2
    widths = []
    for width in first:
        widths += [width] * copies
    return [*widths, last]


def layers_may_not_fit(sources: Iterable[Source]) -> bool:
    """Return whether the sums of all layers may need more than ``MOST_BYTES``, judged before weights are read.

    This is an upper bound: two vectors for every block but the last, one for the last, and features of twice its width.
    A model of two blocks of width 8 counts as vectors of 8, 8, 8 and 16 numbers.

    Args:
        sources: the models whose members make up the ensemble, with their classes.
    """
    needed = 0
    for source in sources:
        assert source.classes is not None
        widths: list[int] = []
        for site in source.sites:
            if site.tower != "text":  # of a model with two towers only the blocks for images are read
                widths += [site.d_model, site.d_model]
        widths[-1] *= 2  # the second vector of the last block stands for the features
        needed += bytes_of_sums(widths, source.classes) * len(source.description.masks)
    return needed > MOST_BYTES


def _weights_of_tokens(state: State, hidden: Tensor) -> Tensor:
    """Return 1 for each token, and 0 for padding, ``[B, T]``."""
    tokens = state.context.get("tokens")
    if tokens is None:
        return torch.ones_like(hidden[:, :, 0])
    return torch.as_tensor(tokens).to(hidden.dtype)


def _weighted_mean(hidden: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of tokens ``[B, T, d]``, ``[B, d]``; 0 for a sample whose weights are all 0."""
    total = (hidden * weights[:, :, None]).sum(dim=1)
    return total / weights.sum(dim=1, keepdim=True).clamp(min=1)
