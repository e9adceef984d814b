"""One training shared by several processes, each with its part of every batch.

Each process has the whole model (torch's DistributedDataParallel).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hydractl.distributed import Processes
from hydractl.training.losses import Loss


def shared(loss: Loss, team: Processes) -> nn.Module:
    """Return the loss of a model for use by all processes, which averages gradients over them in the backward pass."""
    if team.size == 1:
        return loss
    if loss.device.type == "cuda":
        torch.cuda.set_device(loss.device)  # NCCL requires it

    # A model may have parameters that are not used. The buckets of gradients must keep their first layout, as they
    # decide the rounding: a resumed run begins with that layout.
    return DistributedDataParallel(
        loss, find_unused_parameters=True, broadcast_buffers=False, gradient_as_bucket_view=True
    )


def backward(loss: nn.Module, calls: Iterable[tuple[Any, float]], team: Processes) -> float:
    """Compute the loss of one step and its gradients, which are exchanged with all processes in the last call.

    Args:
        loss: the loss of a model from :func:`shared`: called with samples, it returns a scalar.
        calls: the samples of each call, and the weight of its loss in the loss of the step.
        team: the processes.

    Returns:
        This process's share of the loss of the step: the sum over processes is the whole.
    """
    # With n processes, weight w and loss L of a call, this process adds the gradient of n * w * L. The exchange
    # averages over the processes, which leaves the sum of w * L over all calls of all processes.
    value = 0.0
    all_calls = list(calls)
    for number, (samples, weight) in enumerate(all_calls, start=1):
        exchange: AbstractContextManager[None] = nullcontext()
        if isinstance(loss, DistributedDataParallel) and number < len(all_calls):
            exchange = loss.no_sync()  # gradients are exchanged in the last backward pass
        with exchange:
            weighted_loss = loss(samples)
            if weight != 1:
                weighted_loss = weighted_loss * weight
            value += float(weighted_loss.detach())
            if team.size > 1:
                weighted_loss = weighted_loss * team.size
            weighted_loss.backward()
    return value
