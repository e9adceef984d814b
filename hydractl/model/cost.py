"""What a model costs, exactly and without its weights: stored parameters, bytes, and multiply-adds of one sample.

Multiply-adds are counted, not estimated: the model that would run is built on torch's meta device, which has shapes
and no numbers, and torch's own counter adds up its matrix products. Counted are linear layers, convolutions and the
two products of attention; not counted are norms, activations, softmax, additions and biases. Paper Appendix B.4.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from hydractl.families import get_family
from hydractl.files.checkpoint import MappedTensors, TensorSource, shapes_only
from hydractl.files.description import Description
from hydractl.files.header import tensor_info
from hydractl.heads.mask import HeadMask
from hydractl.model.runtime import HydraModel

COUNTED = (
    "matrix products of one sample: linear layers, convolutions, and both products of attention; "
    "not the prompts of a zero-shot model, which are read once"
)

_TRACES = ("provenance", "seen", "origin")
"""What a description says of the past of a model, which decides nothing about its cost."""

_counted_before: dict[str, int] = {}
"""Multiply-adds by the digest of all that decides them. Commands state the cost of one model several times."""

_staged_before: dict[str, list[tuple[int, int]]] = {}
"""The same for the parts of cascades."""


def parameters(tensors: TensorSource) -> int:
    """Elements of all stored tensors, position embedding and class token included."""
    return sum(tensors.info(name).numel for name in tensors.names())


def nonzero_parameters(tensors: TensorSource) -> int:
    """Elements of all stored tensors that are not zero; reads them."""
    return sum(int(tensors.read(name).count_nonzero()) for name in tensors.names())


def weight_bytes(tensors: TensorSource) -> int:
    """Bytes of all stored tensors in their stored dtypes, without the header of a file."""
    return sum(tensors.info(name).nbytes for name in tensors.names())


def macs(description: Description, tensors: TensorSource, batch: int = 1, *, whole_last_block: bool = False) -> int:
    """Multiply-adds of one call on ``batch`` samples.

    Args:
        description: of the model; a fused model counts all its members.
        tensors: its weights with removed heads sliced away; only names, dtypes and shapes are used.
        batch: samples of the call.
        whole_last_block: as of :class:`hydractl.model.runtime.HydraModel`.
    """
    call = _digest_of_call(description, tensors, batch, whole_last_block)
    if call not in _counted_before:
        model = _counted(description, tensors, whole_last_block)
        _counted_before[call] = _count(lambda: model.member_logits(model.example_inputs(batch)))
    return _counted_before[call]


def _digest_of_call(description: Description, tensors: TensorSource, batch: int, whole_last_block: bool) -> str:
    """Return one text for all calls of :func:`macs` that run the same operators on the same shapes."""
    document = description.to_json()
    for name in _TRACES:
        document.pop(name, None)
    # Of stored results, which there are: a Laplace posterior adds products of the shapes of its tensors.
    document["extra"] = sorted(document["extra"])
    # Of the members, their heads and not where they came from.
    document["members"] = [mask.kept for mask in description.masks]
    shapes = [(name, str(tensors.info(name).dtype), *tensors.info(name).shape) for name in tensors.names()]
    text = json.dumps([document, shapes, batch, whole_last_block], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def staged_macs(
    description: Description, tensors: TensorSource, *, whole_last_block: bool = False
) -> list[tuple[int, int]]:
    """Multiply-adds of one sample, when one member runs first and the others behind it: of either part, for each member
    as the first one.

    Args:
        description, tensors, whole_last_block: as of :func:`macs`.
    """
    call = _digest_of_call(description, tensors, 1, whole_last_block)
    if call not in _staged_before:
        _staged_before[call] = _count_stages(_counted(description, tensors, whole_last_block))
    return _staged_before[call]


def _count_stages(model: HydraModel) -> list[tuple[int, int]]:
    inputs, found = model.example_inputs(1), []
    for member in range(model.members):
        rows = [torch.arange(count, device="meta") for count in (0, 1)]
        none, all_ = (_count(lambda: model.staged_logits(inputs, member, lambda _: which)) for which in rows)  # noqa: B023
        found.append((none, all_ - none))
    return found


def _counted(description: Description, tensors: TensorSource, whole_last_block: bool) -> HydraModel:
    """The model on the meta device, all of its members running."""
    # On the CPU torch runs attention as one operator that the counter does not know and counts as zero; on the meta
    # device attention is taken apart into its two matrix products.
    model = HydraModel(description, shapes_only(tensors), torch.device("meta")).with_classes()
    model.whole_last_block, model.cascade = whole_last_block, None
    # The counter follows gradients through every module it enters; a view of a parameter (the query of a pooling by
    # attention) has none here and would end in an error.
    model.requires_grad_(False)
    with torch.no_grad():
        if model.prompted is not None:
            model.label_features()  # once for all samples, so no part of the cost of one
    return model


def _count(run: Callable[[], Any]) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops()) // 2


def dense_macs(description: Description, *, whole_last_block: bool = False) -> int:
    """Multiply-adds of one sample through the model with all its heads: what ratios of a fused model refer to."""
    return macs(*_dense(description), whole_last_block=whole_last_block)


def dense_parameters(description: Description) -> int:
    """Elements of all tensors of the model with all its heads."""
    return parameters(_dense(description)[1])


def _dense(description: Description) -> tuple[Description, TensorSource]:
    family = get_family(description.family)
    whole = [HeadMask.full(family.sites(description.config))]
    dense = replace(description, kind="dense", masks=whole, merge=None, members=(), extra={})
    stock = family.build(description.config).state_dict()
    return dense, MappedTensors({name: tensor_info(t) for name, t in stock.items()}, stock.__getitem__)


def cost_of(description: Description, tensors: TensorSource, *, whole_last_block: bool = False) -> dict[str, int]:
    """The cost of one model.

    Returns:
        ``params``: stored elements; ``macs``: multiply-adds of one sample; ``bytes``: stored weights; where single
        weights were pruned ``params_nonzero``: stored elements that are not zero, which are multiplied like others.
    """
    multiplied = macs(description, tensors, whole_last_block=whole_last_block)
    count = description.params_nonzero
    found = {"params": parameters(tensors), "macs": multiplied, "bytes": weight_bytes(tensors)}
    return found if count is None else {**found, "params_nonzero": count}


def total_cost(costs: Iterable[dict[str, int]]) -> dict[str, int]:
    """The cost of models that run one after another: the sums."""
    each = list(costs)
    total = {key: sum(cost[key] for cost in each) for key in ("params", "macs", "bytes")}
    return {**total, **total_nonzero((cost["params"], cost.get("params_nonzero")) for cost in each)}


def total_nonzero(counts: Iterable[tuple[int, int | None]]) -> dict[str, int]:
    """``params_nonzero`` of several models, of pairs of their parameters and those other than zero, where one counts
    these; else nothing."""
    each = list(counts)
    if all(count is None for _, count in each):
        return {}
    return {"params_nonzero": sum(params if count is None else count for params, count in each)}
