"""Torch's count of multiply-adds against a closed formula, block by block, for every family.

One block with h heads of width dk, d-wide tokens of which q ask and T answer:

    Q and O           2 q d h dk        (and q d h dk more where the library gates the heads)
    K and V           2 T d h dk        (h of keys and values, where heads share them)
    both products     2 q T h dk
    MLP               q times the elements of its matrices: 2 q d d_ff, or 3 q d d_ff for a gated one

summed over blocks and over the members that run them; where the heads of all members attend together, each member runs
only O, its gates and its MLP. Stem and readout are linear layers and convolutions: the elements of the weight times the
tokens it is applied to. Nothing here runs attention or an MLP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hydractl.families.base import attention_names
from hydractl.files.checkpoint import shapes_only
from hydractl.fusion.plan import plan_fusion
from hydractl.model.cost import dense_macs, macs
from hydractl.model.prompted import STAND_INS
from hydractl.model.runtime import HydraModel, move
from hydractl.model.source import Source
from hydractl.model.stored import union
from tests.pico import VARIANTS, mask_of, prune_source, shared_stock, source_of
from tests.spread import ONE_OF_EACH, marked_long, spread

KEPT = [[[0, 2], [1], [0, 1, 2]], [[1], [0, 1, 2], []], [[], [], []]]
# Readouts that attend over all tokens; windows; vectors of distances.
UNKNOWN = {"map-pooling", "hf-siglip", "hf-siglip-images", "swin", "swinv2", "deberta-v3"}


@dataclass(frozen=True)
class Run:
    """What one block runs: the heads of each run, how many attend once for all (None: each its own), and who asks.

    Of heads that share keys and values, also how many of those all runs have (None: as many as heads).
    """

    heads: Sequence[int]
    pool: int | None = None
    last_only: bool = False
    keys: int | None = None

    def macs(self, d: int, dk: int, mlp: int, gated: bool, asking: int, tokens: int) -> int:
        attending = sum(self.heads) if self.pool is None else self.pool
        keys = attending if self.keys is None else self.keys
        attention = attending * dk * (asking * d + 2 * asking * tokens) + keys * dk * 2 * tokens * d
        outputs = (2 if gated else 1) * sum(self.heads) * dk * asking * d
        return attention + outputs + len(self.heads) * asking * mlp


def runs_of(source: Source) -> tuple[int, list[Run]]:
    """How often the stem of a source runs, and what its blocks run."""
    model = HydraModel(source.description, shapes_only(source.tensors), torch.device("meta"))
    chain, masks, runs = model.chain_of_samples, source.description.masks, []
    for index in chain.sites:
        path, last = model.sites[index].path, index == chain.sites.stop - 1
        kept = [mask.kept[path] for mask in (masks[:1] if chain.start.once(index) else masks)]
        pool = union(masks, path) if chain.start.pooled(index) else None
        attending = kept if pool is None else [pool]
        keys = sum(len({head // source.sites[index].sharing for head in heads}) for heads in attending)
        runs.append(Run([len(heads) for heads in kept], None if pool is None else len(pool), last, keys))
    return 1 if chain.start.shared_stem else len(masks), runs


def formula(source: Source, stems: int, runs: Sequence[Run]) -> int:
    """Multiply-adds of one call on one sample."""
    description, family = source.description, source.family
    model = family.build(description.config).to("meta")
    stages = next(stages for stages in family.stages(model) if not stages.of_labels)
    inside = tuple(f"{path}." for path in stages.block_paths)

    def is_outside(name: str) -> bool:
        return name.startswith(stages.prefixes) and not name.startswith(inside)

    outside = [module for name, module in model.named_modules() if name and is_outside(f"{name}.")]
    inputs = move(family.example_inputs(description.preprocess, 1, 0), torch.device("meta"), torch.float32)
    with torch.no_grad(), counted(outside) as stem:
        state = stages.stem(inputs)
    with torch.no_grad(), counted(outside) as readout:
        output = stages.readout(state)
    parameters = dict(model.named_parameters())
    readout += [  # matrices that no layer holds, applied to the one feature that is read out
        tensor.numel()
        for name, tensor in parameters.items()
        if tensor.dim() == 2 and is_outside(name) and family.part(name, source.sites) == "own"
        if not isinstance(model.get_submodule(name.rpartition(".")[0]), nn.Linear)
    ]
    if family.classes(description.config) is None:  # features of the sample against those of the classes
        readout.append(int(output.shape[-1]) * len(description.labels or STAND_INS))
    tokens = int(state.hidden.shape[1])
    asking = tokens if stages.reads is None else int(stages.reads(state).shape[1])
    total = stems * sum(stem) + len(description.masks) * sum(readout)
    sites = [site for site in source.sites if site.tower == stages.tower]
    for site, path, run in zip(sites, stages.block_paths, runs, strict=True):
        names = [name for name in parameters if name.startswith(f"{path}.") and parameters[name].dim() == 2]
        mlp = sum(parameters[name].numel() for name in names if family.part(name, source.sites) == "mlp")
        own = attention_names(family, parameters, source.sites, site)
        gated = family.read({name: parameters[name] for name in own}, site).gate is not None
        total += run.macs(site.d_model, site.head_dim, mlp, gated, asking if run.last_only else tokens, tokens)
    return total


@contextmanager
def counted(modules: Sequence[nn.Module]) -> Iterator[list[int]]:
    """The multiply-adds of every linear layer and convolution that runs in the meantime."""
    found: list[int] = []

    def count(module: Any, _: Any, output: Tensor) -> None:
        found.append(output.numel() * module.weight[0].numel())  # each output is a product with one row of weights

    hooks = [m.register_forward_hook(count) for m in modules if isinstance(m, (nn.Linear, nn.Conv2d))]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def test_gates_and_gated_mlps_are_counted() -> None:
    # One head of 2, 3 tokens of 4: Q, K, V, O 3 * 4 * 2 each, two products 3 * 3 * 2, and the matrices of the MLP.
    assert Run([1]).macs(4, 2, 40, False, 3, 3) == 4 * 24 + 2 * 18 + 3 * 40
    assert Run([1]).macs(4, 2, 40, True, 3, 3) == 5 * 24 + 2 * 18 + 3 * 40
    assert Run([0]).macs(4, 2, 40, False, 3, 3) == 3 * 40
    # Two members draw one head and none from a pool of two: it runs Q, K, V and the products, they run O and MLP.
    assert Run([1, 0], pool=2).macs(4, 2, 40, False, 3, 3) == 2 * (3 * 24 + 2 * 18) + 24 + 2 * 3 * 40


# Members of their own weights, with everything merged and with nothing, and members of one checkpoint.
FUSED = [((0, 1, 2), ["mlp", "norm", "embed"]), ((0, 1, 2), []), ((0, 0, 0), [])]


FEW = [variant for variant in ONE_OF_EACH if variant not in UNKNOWN]
REST = sorted({*VARIANTS} - {*FEW} - UNKNOWN)


@pytest.mark.parametrize(("variant", "fused"), spread(FEW, FUSED) + marked_long(spread(REST, FUSED)))
def test_the_counter_agrees_with_the_formula(variant: str, fused: tuple[Sequence[int], Sequence[str]]) -> None:
    source = source_of(shared_stock(variant), variant)
    sites = [site for site in source.sites if site.tower == tower_of_samples(source)]
    whole = [Run([site.heads], keys=site.heads // site.sharing) for site in sites]
    assert macs(source.description, source.tensors, whole_last_block=True) == formula(source, 1, whole)
    assert macs(source.description, source.tensors) == formula(source, *runs_of(source))
    seeds, merge = fused
    members = [source_of(shared_stock(variant, seed), variant) for seed in seeds]
    plan = plan_fusion([prune_source(s, mask_of(s, kept)) for s, kept in zip(members, KEPT, strict=True)], merge)
    together = replace(source, description=plan.description, tensors=plan.tensors)
    # Of two samples: nothing is counted once for a batch.
    assert macs(plan.description, plan.tensors, batch=2) == 2 * formula(together, *runs_of(together))


@pytest.mark.parametrize(("variant", "whole"), spread([*ONE_OF_EACH, "swin"], [False, True]))
def test_the_single_model_behind_a_pruned_one(variant: str, whole: bool) -> None:
    source = source_of(shared_stock(variant), variant)
    pruned = prune_source(source, mask_of(source, [[0]] * len(source.sites)))
    expected = macs(source.description, source.tensors, whole_last_block=whole)
    assert dense_macs(pruned.description, whole_last_block=whole) == expected


def tower_of_samples(source: Source) -> str:
    network = source.family.build(source.description.config)
    return next(stages.tower for stages in source.family.stages(network) if not stages.of_labels)
