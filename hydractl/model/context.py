"""The context of a run: what the modules of a block must know besides their inputs, e.g. which member runs.

Blocks belong to a library and pass nothing on to their modules. So the context is stored outside the modules, for each
thread separately, and only while a block runs. No module stores anything about a call, so several threads may call one
model at once.
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
    """The query tokens of a block that runs only for some tokens. They can still attend to all tokens.

    Attributes:
        positions: the indices of these tokens, ``[B, q]``.
        memory: the input of the attention for all tokens, from which keys and values are computed:
            ``[M * B, T, d_model]``, or ``[B, T, d_model]`` for a pool and for a single member.
    """

    positions: Tensor
    memory: Tensor

    def rows_of(self, attn_mask: Tensor | None) -> Tensor | None:
        """Return the rows of an attention mask that belong to the query tokens, of which each sample has its own.

        Args:
            attn_mask: ``[T, T]`` or ``[1 or B, h, T, T]``, with a row for each token; or ``[..., 1, T]``, with one row
                for all tokens; or None.

        Returns:
            ``[B, 1 or h, q, T]``. A mask with one row is returned unchanged, and None for None.
        """
        if attn_mask is None:
            return None
        same_for_every_query = attn_mask.shape[-2] == 1
        if same_for_every_query:
            return attn_mask
        same_for_every_sample = attn_mask.dim() == 2
        if same_for_every_sample:
            rows_of_samples = attn_mask[self.positions]  # [B, q, T]
            return rows_of_samples[:, None]  # [B, 1, q, T]

        # Each sample has its own positions, so gather its rows from its own mask, the same rows for each head.
        batch = self.positions.shape[0]
        _, heads, _, tokens = attn_mask.shape  # [1 or B, h, T, T]
        positions = self.positions[:, None, :, None]  # [B, 1, q, 1]
        row_indices = positions.expand(-1, heads, -1, tokens)  # [B, h, q, T]
        masks_of_samples = attn_mask.expand(batch, -1, -1, -1)  # [B, h, T, T]
        return masks_of_samples.gather(2, row_indices)  # [B, h, q, T]


def mask_for_members(mask: Tensor, members: int) -> Tensor:
    """Repeat a mask for member-major samples: ``[B, h, q, T]`` gives ``[M * B, h, q, T]``.

    A mask that is the same for all samples is returned unchanged, because it broadcasts.
    """
    differs_by_sample = mask.dim() == 4 and mask.shape[0] > 1
    if not differs_by_sample:
        return mask
    return mask.repeat(members, 1, 1, 1)


@dataclass(frozen=True)
class RunContext:
    """The context of one run of a block, or of several blocks one after another.

    Attributes:
        member: the index of the member that runs alone, on activations ``[B, T, d_model]``; None means that all members
            run, on ``[M * B, T, d_model]``.
        batched: whether modules that every member has for itself run as one batched product if possible, or one after
            another. None means whichever is faster: one after another on a CPU, batched elsewhere.
        queries: the query tokens, if the block runs only for some tokens; else None.
        attended: a result to return in place of attending, ``[M * B, T, d_model]``; else None.
        stacks: the stacked weights of modules, by module, checked at the beginning of the run
            (:class:`hydractl.model.stacking.StacksOfTower`). A module that is not listed checks its weights itself.
    """

    member: int | None = None
    batched: bool | None = None
    queries: QueryTokens | None = None
    attended: Tensor | None = None
    stacks: Mapping[Any, Any] | None = None

    def batches(self, device: torch.device) -> bool:
        """Return whether batched products are wanted on a device.

        They are not on the meta device, because costs are counted there and must not include padding.
        """
        if self.batched is not None:
            return self.batched
        return device.type not in ("cpu", "meta")

    def stacks_of(self, module: Any) -> Any:
        """Return the stacked weights of a module, as checked at the beginning of the run; None if there are none."""
        return None if self.stacks is None else self.stacks.get(module)

    def run(self, function: Callable[[State], _Result], state: State) -> _Result:
        """Call a function with a state; while it runs, modules find this context by :func:`context_of_run`."""
        previous_context = _thread.context
        _thread.context = self
        try:
            return function(state)
        finally:
            _thread.context = previous_context

    def run_all(self, blocks: Iterable[Callable[[State], State]], state: State) -> State:
        """Run blocks one after another, each on the state that the previous one returned, all in this context."""
        previous_context = _thread.context
        _thread.context = self
        try:
            for block in blocks:
                state = block(state)
        finally:
            _thread.context = previous_context
        return state


class _Thread(threading.local):
    # Not a ContextVar, because torch.compile cannot trace code that sets one.
    context = RunContext()


_thread = _Thread()


def context_of_run() -> RunContext:
    """Return the context of the block that runs in this thread. Outside any block it is that of all members."""
    return _thread.context


def apart(x: Tensor, members: int) -> tuple[Tensor, ...]:
    """Cut member-major activations ``[M * B, ...]`` into one tensor ``[B, ...]`` for each member."""
    if members == 1:
        return (x,)
    # Not chunk(): while a graph is exported the batch size is symbolic, and the number of chunks would be unknown.
    return x.unflatten(0, (members, -1)).unbind(0)
