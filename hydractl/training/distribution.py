"""One training shared by several processes, each with its part of every batch.

Each has the whole model (torch's DistributedDataParallel), or a part of it, and of the optimizer's memory, where a
device is too small (FSDP2, torch's ``fully_shard``). What is saved is whole in either case.
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
    """Return the loss of a model as all processes compute it; their gradients become the mean over processes."""
    if team.size == 1 or isinstance(loss.model, FSDPModule):
        return loss
    if loss.device.type == "cuda":
        torch.cuda.set_device(loss.device)  # NCCL asks for it
    # A model may have parameters that are not used, and the buckets of gradients stay as they are at first: they decide
    # the rounding, and a run that is resumed begins with them.
    return DistributedDataParallel(
        loss, find_unused_parameters=True, broadcast_buffers=False, gradient_as_bucket_view=True
    )


def shard(model: HydraModel, device: torch.device) -> None:
    """Divide the parameters of a model among all processes, each block's by itself, and put them on their devices.

    Raises:
        UsageError: for a model with a parameter that is a single number.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise UsageError(f"--shard: {name} is a single number and cannot be divided", hint="leave --shard out")
    model.whole_last_block = True  # a block's parameters are there while it is called, and not for a part of it
    processes = torch.distributed.get_world_size()
    mesh = init_device_mesh(device.type, (processes,))
    for path in model.block_paths:
        block = model.networks[0].get_submodule(path)
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # what belongs to no block
    register_fsdp_forward_method(model, "member_logits")


def unshard(model: nn.Module) -> None:
    """Put whole parameters on the CPU in the place of their shards. All processes call it."""
    for module in model.modules():
        parameters = list(module.named_parameters(recurse=False))
        for name, parameter in parameters:
            if isinstance(parameter, DTensor):
                values = whole(parameter)
                whole_parameter = nn.Parameter(values, requires_grad=parameter.requires_grad)
                setattr(module, name, whole_parameter)


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor itself, or on the CPU what its shards are parts of. All processes call it."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    if not tensor.numel():  # its shards have another shape
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return tensor.full_tensor().detach().cpu()


def placed(tensor: Tensor, like: Tensor) -> Tensor:
    """Undo :func:`whole`: where ``like`` is divided among processes, return the shard of this one."""
    if not isinstance(like, DTensor):
        return tensor
    if isinstance(tensor, DTensor) or tensor.shape != like.shape:
        return tensor
    if not tensor.numel():
        return torch.zeros_like(like)
    on_device = tensor.to(like.device)
    # Every process has the whole tensor: none is sent one.
    return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)


def backward(loss: nn.Module, calls: Iterable[tuple[Any, float]], team: Processes) -> float:
    """Compute the loss of one step and its gradients, which are exchanged with all processes in the last call.

    Args:
        loss: of a model, see :func:`shared`: called with samples, it gives a scalar.
        calls: the samples of each call, and the weight of what it gives in the loss of the step.
        team: the processes.

    Returns:
        The share of this process in the loss of the step: the sum over processes is the whole.
    """
    value = 0.0
    calls = list(calls)
    for number, (samples, weight) in enumerate(calls, start=1):
        is_last = number == len(calls)
        with _gradient_exchange(loss, now=is_last):
            part = loss(samples)
            if weight != 1:
                part = part * weight
            value += float(part.detach())
            if team.size > 1:
                part = part * team.size  # gradients are averaged over processes, and are to be summed
            part.backward()
    return value


def _gradient_exchange(loss: nn.Module, *, now: bool) -> AbstractContextManager[None]:
    """Return the context of a backward pass: gradients are exchanged in it, or kept for a later one if that can be."""
    if now or not isinstance(loss, DistributedDataParallel):
        return nullcontext()
    return loss.no_sync()
