"""One training shared by several processes, each with its part of every batch.

Each process has the whole model (torch's DistributedDataParallel). If a device is too small for that, each has a part
of the model and of the optimizer's state (FSDP2, torch's ``fully_shard``). The saved model is whole in either case.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from hydractl.distributed import Processes
from hydractl.errors import UsageError
from hydractl.model.runtime import HydraModel
from hydractl.training.losses import Loss


def shared(loss: Loss, team: Processes) -> nn.Module:
    """Return the loss of a model for use by all processes, which averages gradients over them in the backward pass."""
    if team.size == 1 or isinstance(loss.model, FSDPModule):
        return loss
    if loss.device.type == "cuda":
        torch.cuda.set_device(loss.device)  # NCCL requires it

    # A model may have parameters that are not used. The buckets of gradients must keep their first layout, as they
    # decide the rounding: a resumed run begins with that layout.
    return DistributedDataParallel(
        loss, find_unused_parameters=True, broadcast_buffers=False, gradient_as_bucket_view=True
    )


def shard(model: HydraModel, device: torch.device) -> None:
    """Divide the parameters of a model among all processes, block by block, and put them on the devices.

    Raises:
        UsageError: the model has a parameter that is a single number.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise UsageError(f"--shard: {name} is a single number and cannot be divided", hint="leave --shard out")
    model.whole_last_block = True  # a block's parameters are gathered only while the whole block is called
    processes = torch.distributed.get_world_size()
    mesh = init_device_mesh(device.type, (processes,))
    for path in model.block_paths:
        block = model.networks[0].get_submodule(path)
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # parameters outside of blocks
    register_fsdp_forward_method(model, "member_logits")


def unshard(model: nn.Module) -> None:
    """Replace all shards by whole parameters on the CPU. All processes call it."""
    for module in model.modules():
        parameters = list(module.named_parameters(recurse=False))
        for name, parameter in parameters:
            if isinstance(parameter, DTensor):
                values = whole(parameter)
                whole_parameter = nn.Parameter(values, requires_grad=parameter.requires_grad)
                setattr(module, name, whole_parameter)


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor that is divided among processes, on the CPU; others as they are. All call it."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    if not tensor.numel():  # the shards of an empty tensor have another shape
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return tensor.full_tensor().detach().cpu()


def placed(tensor: Tensor, like: Tensor) -> Tensor:
    """Undo :func:`whole`: return this process's shard of a tensor if ``like`` is divided among processes."""
    if not isinstance(like, DTensor):
        return tensor
    if isinstance(tensor, DTensor) or tensor.shape != like.shape:
        return tensor
    if not tensor.numel():
        return torch.zeros_like(like)
    on_device = tensor.to(like.device)

    # Every process has the whole tensor already, so nothing is sent (src_data_rank=None).
    return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)


def backward(loss: nn.Module, calls: Iterable[tuple[Any, float]], team: Processes) -> float:
    """Compute the loss of one step and its gradients, which are exchanged with all processes in the last call.

    Args:
        loss: the loss of a model from :func:`shared`: called with samples, it returns a scalar.
        calls: the samples of each call, and the weight of its loss in the loss of the step.
        team: the processes.

    Returns:
        This process's share of the loss of the step: the sum over processes is the whole.
    """
    value = 0.0
    all_calls = list(calls)
    for number, (samples, weight) in enumerate(all_calls, start=1):
        is_last = number == len(all_calls)
        with _gradient_exchange(loss, now=is_last):
            weighted_loss = loss(samples)
            if weight != 1:
                weighted_loss = weighted_loss * weight
            value += float(weighted_loss.detach())
            if team.size > 1:
                weighted_loss = weighted_loss * team.size  # gradients are averaged over processes, but should be summed
            weighted_loss.backward()
    return value


def _gradient_exchange(loss: nn.Module, *, now: bool) -> AbstractContextManager[None]:
    """Return the context of a backward pass: with ``now``, gradients are exchanged in it, else later if possible."""
    if now or not isinstance(loss, DistributedDataParallel):
        return nullcontext()
    return loss.no_sync()
