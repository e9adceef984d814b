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
    """Return this process's share of the loss of one step, after adding its gradients to the parameters' ``grad``.

    A step may call the loss several times; its loss is the weighted sum over the calls of all processes. The sum of
    what the processes return is the whole. In the last call the processes exchange their gradients.

    Args:
        loss: the loss of a model from :func:`shared`: called with samples, it returns a scalar.
        calls: the samples of each call of this process, and the weight of its loss in the loss of the step.
        team: the processes.
    """
    # Let a call have the weight w and the loss L. The exchange averages gradients over the n processes, but the step
    # needs the sum of w * L over all calls of all processes: so each call adds the gradient of n * w * L.
    value = 0.0
    all_calls = list(calls)
    for number, (samples, weight) in enumerate(all_calls, start=1):
        # All calls but the last leave out the exchange, which is needed only once.
        exchange: AbstractContextManager[None] = nullcontext()
        if isinstance(loss, DistributedDataParallel) and number < len(all_calls):
            exchange = loss.no_sync()
        with exchange:
            weighted_loss = loss(samples)
            if weight != 1:
                weighted_loss = weighted_loss * weight
            value += float(weighted_loss.detach())
            if team.size > 1:
                weighted_loss = weighted_loss * team.size
            weighted_loss.backward()
    return value
