"""One training shared by several processes, each with its part of every batch: torch's DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hydractl.distributed import Processes
from hydractl.training.losses import Loss


def shared(loss: Loss, team: Processes) -> nn.Module:
    """The loss of a model as all processes compute it; their gradients become the mean over processes."""
    if team.size == 1:
        return loss
    if loss.device.type == "cuda":
        torch.cuda.set_device(loss.device)  # NCCL asks for it
    # A model may have parameters that are not used, and the buckets of gradients stay as they are at first: they decide
    # the rounding, and a run that is resumed begins with them.
    return DistributedDataParallel(
        loss, find_unused_parameters=True, broadcast_buffers=False, gradient_as_bucket_view=True
    )


def backward(loss: nn.Module, calls: Iterable[tuple[Any, float]], team: Processes) -> float:
    """Add the gradients of one step to those of the parameters; those of all processes are exchanged in the last call.

    Args:
        loss: of :func:`shared`.
        calls: of :meth:`Loss.calls`.
        team: the processes.

    Returns:
        The loss before the step, as far as this process has a share in it: the sum over processes is the whole.
    """
    value, calls = 0.0, list(calls)
    for index, (samples, weight) in enumerate(calls, start=1):
        last = index == len(calls)
        with nullcontext() if last or not isinstance(loss, DistributedDataParallel) else loss.no_sync():
            part = loss(samples)
            if weight != 1:
                part = part * weight
            value += float(part.detach())
            # Of gradients the mean over processes is taken.
            (part if team.size == 1 else part * team.size).backward()
    return value
