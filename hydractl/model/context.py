"""The context of a run: what the modules of a block know beside their inputs, such as whose activations come.

Blocks are the library's own and hand nothing on, so the context stands beside them, for each thread its own and only
while a block runs. No module holds anything of a call: calls of one model from several threads never meet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from hydractl.families.base import State

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class QueryTokens:
    """The tokens that a block runs for, where it does not run for all: only they ask, all tokens can be attended to.

    Attributes:
        positions: which tokens they are, ``[B, q]``.
        memory: what keys and values are made of, the input of the attention for all tokens: ``[M * B, T, d_model]``;
            ``[B, T, d_model]`` for a pool and for one member alone.
    """

    positions: Tensor
    memory: Tensor

    def rows_of(self, attn_mask: Tensor | None) -> Tensor | None:
        """Return the rows of an attention mask that belong to the query tokens.

        Args:
            attn_mask: one row for each of all tokens, ``[T, T]`` or ``[1 or B, h, T, T]``; with one row for all of
                them ``[..., 1, T]``; or None.

        Returns:
            ``[B, 1 or h, q, T]``; a mask of one row as it is; None for None.
        """
        if attn_mask is None:
            return None
        same_for_every_query = attn_mask.shape[-2] == 1
        if same_for_every_query:
            return attn_mask
        same_for_every_sample = attn_mask.dim() == 2
        if same_for_every_sample:
            rows_of_samples = attn_mask[self.positions]  # [T, T] -> [B, q, T]
            return rows_of_samples[:, None]  # [B, 1, q, T]

        # Each sample has its own positions: its rows are gathered from its own mask, the same for each head.
        batch = self.positions.shape[0]
        _, heads, _, tokens = attn_mask.shape  # [1 or B, h, T, T]
        positions = self.positions[:, None, :, None]  # [B, 1, q, 1]
        rows = positions.expand(-1, heads, -1, tokens)  # [B, h, q, T]
        masks_of_samples = attn_mask.expand(batch, -1, -1, -1)  # [B, h, T, T]
        return masks_of_samples.gather(2, rows)  # [B, h, q, T]


class RepeatedMasks:
    """The masks of one run, each repeated once for the samples of all members and not once in every block."""

    def __init__(self) -> None:
        # By the id of a mask, which is kept too: the id of one that is gone may become that of another.
        self._by_id: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, mask: Tensor, members: int) -> Tensor:
        """Return a mask for member-major samples, see :func:`mask_for_members`."""
        known = self._by_id.get(id(mask))
        if known is None:
            known = (mask, mask_for_members(mask, members))
            self._by_id[id(mask)] = known
        return known[1]


def mask_for_members(mask: Tensor, members: int) -> Tensor:
    """Return a mask ``[B, h, q, T]`` for member-major samples, ``[M * B, h, q, T]``; one for all samples as it is."""
    differs_by_sample = mask.dim() == 4 and mask.shape[0] > 1
    if not differs_by_sample:
        return mask
    return mask.repeat(members, 1, 1, 1)


@dataclass(frozen=True)
class RunContext:
    """One run of one block, or of several blocks one after another.

    Attributes:
        member: the activations are those of this member, ``[B, T, d_model]``; None: of all, ``[M * B, T, d_model]``.
        batched: whether what every member has for itself runs as one batched product where that is possible, or else
            as one product after another. None: whichever is faster, which on a CPU is one after another.
        queries: None, or that the inputs are those of some tokens only.
        attended: None, or what the attention gives in the place of attending, ``[M * B, T, d_model]``.
        stacks: the stacked weights of modules, by module, as they were checked at the beginning of the run
            (:class:`hydractl.model.stacking.StacksOfTower`). A module that is not in it sees to its weights itself.
        masks: the masks that this run has repeated; None: each block repeats its own.
    """

    member: int | None = None
    batched: bool | None = None
    queries: QueryTokens | None = None
    attended: Tensor | None = None
    stacks: Mapping[Any, Any] | None = None
    masks: RepeatedMasks | None = None

    def batches(self, device: torch.device) -> bool:
        """Return whether batched products are wanted on a device.

        Not on the meta device: costs are counted there, and padding must not be part of them.
        """
        if self.batched is not None:
            return self.batched
        return device.type not in ("cpu", "meta")

    def mask_for_members(self, mask: Tensor, members: int) -> Tensor:
        """Return a mask for member-major samples, see :func:`mask_for_members`."""
        if self.masks is None:
            return mask_for_members(mask, members)
        return self.masks.of(mask, members)

    def stacks_of(self, module: Any) -> Any:
        """Return what a module computes with that was checked at the beginning of the run; None where nothing was."""
        if self.stacks is None:
            return None
        return self.stacks.get(module)

    def run(self, function: Callable[[State], _Result], state: State) -> _Result:
        """Call a function of a state; the modules that it calls find this context."""
        before = _thread.context
        _thread.context = self
        try:
            return function(state)
        finally:
            _thread.context = before

    def run_all(self, blocks: Iterable[Callable[[State], State]], state: State) -> State:
        """Run blocks one after another, each from the state that the one before gave; their modules find this."""
        before = _thread.context
        _thread.context = self
        try:
            for block in blocks:
                state = block(state)
        finally:
            _thread.context = before
        return state


class _Thread(threading.local):
    # No ContextVar: torch.compile cannot trace one that is set.
    context = RunContext()


_thread = _Thread()


def context_of_run() -> RunContext:
    """Return the context of the block that runs in this thread; outside of any block all members are meant."""
    return _thread.context


def apart(x: Tensor, members: int) -> tuple[Tensor, ...]:
    """Cut member-major activations ``[M * B, ...]`` into those of each member, ``[B, ...]``."""
    if members == 1:
        return (x,)
    # Not chunk: while a graph is exported the size of the batch is a symbol, and it could not say how many parts come.
    return x.unflatten(0, (members, -1)).unbind(0)
