"""A model made ready for training: adapters, which parameters are trained, by which optimizer, and speed-ups."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hydractl.errors import UsageError
from hydractl.model.runtime import HydraModel
from hydractl.training.adapters.base import remove_idle
from hydractl.training.options import OptimizerOptions, WeightOptions


def adapt(model: HydraModel, options: WeightOptions, seed: int) -> None:
    """Put on a model what is trained in the place of its weights, as far as these would be trained.

    Raises:
        UsageError: as :func:`trainable` does.
    """
    if options.adapter is not None:
        options.adapter.add(model, seed)
        trainable(model, options)
        remove_idle(model)


def trainable(model: HydraModel, options: WeightOptions) -> dict[str, nn.Parameter]:
    """Mark what is trained: everything, or the last N blocks of each tower, its final norm and the classifier.

    Args:
        model: with one member.
        options: which of its weights; of these, only what the adapter says and the classifier.

    Returns:
        The parameters that are trained, by name within the model.

    Raises:
        UsageError: when a tower has fewer blocks, the model has no such part, or nothing is left.
    """
    model.requires_grad_(True)
    network = model.networks[0]
    names = [name for name, _ in network.named_parameters()]
    frozen: tuple[str, ...] = ()
    for stages in model.family.stages(network):
        blocks, last = len(stages.block_paths), options.train_last
        if options.tower not in (None, "both", stages.tower):
            frozen += stages.prefixes
        elif last is not None:
            if not 0 <= last <= blocks:
                raise UsageError(f"--train-last {last} is outside 0..{blocks}, the blocks of the model")
            frozen += stages.stem_prefixes + tuple(f"{p}." for p in stages.block_paths[: blocks - last])
    # Sines and cosines of positions are parameters that the library itself never trains.
    left = {name for name, p in model.family.build(model.description.config).named_parameters() if not p.requires_grad}
    for part in options.freeze:
        of_part = part_names(model, part, names)
        if not of_part and not options.lenient:
            raise UsageError(f"--freeze {part}: {model.description.arch} has no such part")
        left.update(of_part)
    if options.adapter is not None:
        head, adapted = model.family.named_parts.get("head", "$."), options.adapter.trains(model)
        left |= {name for name in names if name not in adapted and not re.match(head, name)}
    for name, parameter in network.named_parameters():
        if name.startswith(frozen) or name in left:
            parameter.requires_grad_(False)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise UsageError("nothing is left to train", hint="raise --train-last, or freeze less")
    return trained


def part_names(model: HydraModel, part: str, names: Sequence[str]) -> list[str]:
    """Of the names of the parameters of a model, those of one part; none where it has no such part."""
    family = model.family
    if part == "stem":
        prefixes = tuple(p for stages in family.stages(model.networks[0]) for p in stages.stem_prefixes)
        return [name for name in names if name.startswith(prefixes)]
    if part in ("attention", "mlp", "norm"):
        return [name for name in names if _part(model, name) == part]
    pattern = family.named_parts.get(part)
    return [name for name in names if pattern is not None and re.match(pattern, name)]


def _part(model: HydraModel, name: str) -> str:
    # The projections of the heads have names of hydractl's own here, inside the path of their site.
    inside = tuple(f"{site.path}." for site in model.sites)
    if name.startswith(inside) and ".members." in name:
        return "attention"
    return model.family.part(name, model.sites)


def make_optimizer(parameters: Sequence[nn.Parameter], options: OptimizerOptions, lr: float) -> torch.optim.Optimizer:
    """AdamW or SGD; no weight decay on biases, norms and other vectors. On CUDA the fused kernels, which are faster."""
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    fused = True if parameters[0].device.type == "cuda" else None
    if options.name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=options.momentum, fused=fused)
    return torch.optim.AdamW(groups, lr=lr, betas=options.betas, eps=options.eps, fused=fused)


def speed_up(model: HydraModel, *, checkpoint_blocks: bool, compile: bool) -> None:
    """Make a model train faster or in less memory, in place; the result stays what it is.

    Args:
        model: with one member.
        checkpoint_blocks: compute the activations of each block again in the backward pass instead of keeping them:
            the same bits, a third more work, far less memory.
        compile: compile the whole network as one graph.
    """
    if checkpoint_blocks:
        for path in model.block_paths:
            block = model.networks[0].get_submodule(path)
            block.forward = partial(_checkpointed, block)  # in a copy of the model, of the copied block
    if compile:
        model.compile()


def _checkpointed(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    forward = partial(type(block).forward, block)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs) if block.training else forward(*args, **kwargs)
