"""The exact cost of a model, found without its weights: stored parameters, bytes, and multiply-adds of one sample.

Multiply-adds are counted, not estimated. The model that would run is built on torch's meta device, where tensors have
shapes but no numbers, and torch's own counter adds up its matrix products. It counts linear layers, convolutions and
the two products of attention. It does not count norms, activations, softmax, additions and biases. Paper Appendix B.4.
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
from hydractl.families.meta_device import plain_sizes
from hydractl.files.checkpoint import MappedTensors, TensorSource, shapes_only
from hydractl.files.description import Description
from hydractl.files.header import tensor_info
from hydractl.files.model_records import ModelSize
from hydractl.heads.mask import HeadMask
from hydractl.model.runtime import HydraModel
from hydractl.model.stored import stock_tensors

COUNTED_PRODUCTS = (
    "matrix products of one sample: linear layers, convolutions, and both products of attention; "
    "not the prompts of a zero-shot model, which are read once"
)

_KEYS_OF_THE_PAST = ("provenance", "seen", "origin")
"""Keys of a description that record the history of a model and do not influence its cost."""

_macs_of_call: dict[str, int] = {}
"""A cache of multiply-adds, by the digest of everything they depend on: commands need a model's cost several times."""


def parameters(tensors: TensorSource) -> int:
    """Count the elements of all stored tensors, including position embedding and class token."""
    return sum(tensors.info(name).numel for name in tensors.names())


def nonzero_parameters(tensors: TensorSource) -> int:
    """Count the nonzero elements of all stored tensors, which are read for this."""
    return sum(int(tensors.read(name).count_nonzero()) for name in tensors.names())


def weight_bytes(tensors: TensorSource) -> int:
    """Count the bytes of all stored tensors in their stored dtypes, without the header of the file."""
    return sum(tensors.info(name).nbytes for name in tensors.names())


@plain_sizes()
def macs(description: Description, tensors: TensorSource, *, whole_last_block: bool = False) -> int:
    """Return the number of multiply-adds of one sample. A count is kept, and returned again for an equal model.

    Args:
        description: the description of the model; all members of a fused model are counted.
        tensors: its weights without removed heads; only names, dtypes and shapes are used.
        whole_last_block: whether the last block runs for all tokens, even those from which nothing is read.
    """
    # The key under which the count is kept is a hash of all that decides it. First what the model says about itself,
    # without what does not influence its cost.
    document = description.to_json()
    for key in _KEYS_OF_THE_PAST:
        document.pop(key, None)

    # Of the results stored with a model only the names matter, e.g. that there is a Laplace posterior.
    document["extra"] = sorted(document["extra"])

    # Of members only the heads matter, and not where they came from. Of a single one it matters how many there are, of
    # several also which ones, because sites with the same heads in all members run once.
    heads_of_members: list[Any] = [mask.kept for mask in description.masks]
    if len(heads_of_members) == 1:
        heads_of_members = [description.mask.counts()]
    document["members"] = heads_of_members

    # Then the names, dtypes and shapes of the tensors.
    shapes = []
    for name in tensors.names():
        info = tensors.info(name)
        shapes.append((name, str(info.dtype), info.shape))
    all_that_decides = [document, shapes, whole_last_block]
    text = json.dumps(all_that_decides, sort_keys=True, default=repr)
    key_of_count = hashlib.sha256(text.encode()).hexdigest()

    # Count by running the model without numbers, only with shapes.
    if key_of_count not in _macs_of_call:
        # On a CPU torch runs attention as one operator, which the counter does not know and counts as zero. On the meta
        # device attention is taken apart into its two matrix products.
        model = HydraModel(description, shapes_only(tensors), torch.device("meta"))
        model = model.with_classes()
        model.whole_last_block = whole_last_block
        # The counter adds gradient hooks to every module it enters, which fails for a view of a parameter (such as the
        # query of attention pooling).
        model.requires_grad_(False)
        with torch.no_grad():
            if model.prompted is not None:
                model.label_features()  # computed here, outside the count, because prompts run once for all samples
        inputs = model.example_inputs(1)
        _macs_of_call[key_of_count] = _count_macs(lambda: model.member_logits(inputs))
    return _macs_of_call[key_of_count]


def _count_macs(run: Callable[[], Any]) -> int:
    """Return the multiply-adds of a call."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops()) // 2  # torch counts a multiplication and an addition as two operations


def dense_macs(description: Description, *, whole_last_block: bool = False) -> int:
    """Count the multiply-adds of one sample in the model with all its heads, with which a fused one is compared."""
    family = get_family(description.family)
    sites = family.sites(description.config)
    all_heads = HeadMask.full(sites)
    dense = replace(
        description,
        kind="dense",
        masks=[all_heads],
        merge=None,
        members=(),
        extra={},
    )
    return macs(dense, _dense_tensors(description), whole_last_block=whole_last_block)


def dense_parameters(description: Description) -> int:
    """Count the elements of all tensors of the model with all its heads."""
    return parameters(_dense_tensors(description))


def _dense_tensors(description: Description) -> TensorSource:
    """Return the tensors of the library's own model; only their shapes and dtypes are meant to be used."""
    family = get_family(description.family)
    stock = stock_tensors(family, description.config)
    infos = {name: tensor_info(tensor) for name, tensor in stock.items()}
    return MappedTensors(infos, stock.__getitem__)


def cost_of(description: Description, tensors: TensorSource, *, whole_last_block: bool = False) -> dict[str, int]:
    """Return the cost of one model.

    Returns:
        ``params``: the number of stored elements. ``macs``: the multiply-adds of one sample. ``bytes``: the size of the
        stored weights. If single weights were pruned, also ``params_nonzero``: the number of nonzero stored elements;
        zeros are multiplied like other numbers, so ``macs`` does not depend on it.
    """
    cost = {
        "params": parameters(tensors),
        "macs": macs(description, tensors, whole_last_block=whole_last_block),
        "bytes": weight_bytes(tensors),
    }
    if description.params_nonzero is not None:
        cost["params_nonzero"] = description.params_nonzero
    return cost


def size_of(description: Description, tensors: TensorSource) -> ModelSize:
    """Return the cost of one model as a record of answers, see :func:`cost_of`."""
    return ModelSize(**cost_of(description, tensors))


def total_cost(costs: Iterable[dict[str, int]]) -> dict[str, int]:
    """Return the cost of models that run one after another, which is the sum of their costs."""
    total = {"params": 0, "macs": 0, "bytes": 0}
    counts: list[tuple[int, int | None]] = []
    for cost in costs:
        for key in total:
            total[key] += cost[key]
        counts.append((cost["params"], cost.get("params_nonzero")))
    return {**total, **total_nonzero(counts)}


def total_nonzero(counts: Iterable[tuple[int, int | None]]) -> dict[str, int]:
    """Return ``params_nonzero`` of several models together; an empty dict if no model counts nonzero elements.

    E.g. (10, None) and (8, 3) give 13.

    Args:
        counts: for each model its number of parameters, and that of nonzero ones or None if it does not count them (all
            of them then count as nonzero).
    """
    total = 0
    any_counted = False
    for params, nonzero in counts:
        if nonzero is None:
            total += params
        else:
            total += nonzero
            any_counted = True
    return {"params_nonzero": total} if any_counted else {}
