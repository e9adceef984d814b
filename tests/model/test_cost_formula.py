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
from hydractl.model.stored import heads_of_any_member
from tests.pico import VARIANTS, keeping, shared_source
from tests.spread import ONE_OF_EACH, marked_release, spread

KEPT = [[[0, 2], [1], [0, 1, 2]], [[1], [0, 1, 2], []], [[], [], []]]
# Readouts that attend over all tokens; windows; vectors of distances.
UNKNOWN = {"map-pooling", "hf-siglip", "hf-siglip-images", "swin", "swinv2", "deberta-v3"}


@dataclass(frozen=True)
class BlockRun:
    """What one block runs.

    Attributes:
        heads: of each run, one for each member or one for all.
        pool: how many heads attend once for all members; None: each run attends with its own.
        last_only: whether only the tokens that are read out ask.
        keys: heads of keys and values of all runs, where heads share them; None: as many as heads.
    """

    heads: Sequence[int]
    pool: int | None = None
    last_only: bool = False
    keys: int | None = None

    def macs(self, d: int, dk: int, mlp: int, gated: bool, asking: int, tokens: int) -> int:
        heads_of_all_runs = sum(self.heads)
        attending = heads_of_all_runs if self.pool is None else self.pool
        keys = attending if self.keys is None else self.keys
        queries = asking * d * attending * dk
        keys_and_values = 2 * tokens * d * keys * dk
        both_products = 2 * asking * tokens * attending * dk
        outputs = asking * d * heads_of_all_runs * dk
        gates = outputs if gated else 0
        return queries + keys_and_values + both_products + outputs + gates + len(self.heads) * asking * mlp


def stem_and_block_runs(source: Source) -> tuple[int, list[BlockRun]]:
    """Return how often the stem of a source runs, and what its blocks run."""
    model = HydraModel(source.description, shapes_only(source.tensors), torch.device("meta"))
    chain = model.chain_of_samples
    masks = source.description.masks
    runs = []
    for index in chain.sites:
        site = source.sites[index]
        masks_that_run = masks[:1] if chain.start.runs_once(index) else masks
        kept = [mask.kept[site.path] for mask in masks_that_run]
        pool = heads_of_any_member(masks, site.path) if chain.start.pooled(index) else None
        keys = 0
        for heads in kept if pool is None else [pool]:
            keys += len({head // site.sharing for head in heads})
        runs.append(
            BlockRun(
                heads=[len(heads) for heads in kept],
                pool=None if pool is None else len(pool),
                last_only=index == chain.sites.stop - 1,
                keys=keys,
            )
        )
    stems = 1 if chain.start.shared_stem else len(masks)
    return stems, runs


def formula(source: Source, stems: int, runs: Sequence[BlockRun]) -> int:
    """Return the multiply-adds of one call on one sample."""
    description = source.description
    family = source.family
    model = family.build(description.config).to("meta")
    stages = next(stages for stages in family.stages(model) if not stages.of_labels)
    parameters = dict(model.named_parameters())
    matrices = {name: tensor for name, tensor in parameters.items() if tensor.dim() == 2}
    in_blocks = tuple(f"{path}." for path in stages.block_paths)

    def is_outside_blocks(name: str) -> bool:
        return name.startswith(stages.prefixes) and not name.startswith(in_blocks)

    modules = [module for name, module in model.named_modules() if name and is_outside_blocks(f"{name}.")]
    inputs = move(family.example_inputs(description.preprocess, 1, 0), torch.device("meta"), torch.float32)
    with torch.no_grad(), counted(modules) as stem:
        state = stages.stem(inputs)
    with torch.no_grad(), counted(modules) as readout:
        output = stages.readout(state)
    for name, matrix in matrices.items():
        owner = model.get_submodule(name.rpartition(".")[0])
        # A matrix that no layer holds is applied to the one feature that is read out.
        is_own = is_outside_blocks(name) and family.part(name, source.sites) == "own"
        if is_own and not isinstance(owner, nn.Linear):
            readout.append(matrix.numel())
    if family.classes(description.config) is None:  # features of the sample against those of the classes
        readout.append(int(output.shape[-1]) * len(description.labels or STAND_INS))
    total = stems * sum(stem) + len(description.masks) * sum(readout)

    tokens = int(state.hidden.shape[1])
    tokens_read = tokens if stages.reads is None else int(stages.reads(state).shape[1])
    sites = [site for site in source.sites if site.tower == stages.tower]
    for site, path, run in zip(sites, stages.block_paths, runs, strict=True):
        mlp = 0
        for name, matrix in matrices.items():
            if name.startswith(f"{path}.") and family.part(name, source.sites) == "mlp":
                mlp += matrix.numel()
        names_of_heads = attention_names(family, parameters, source.sites, site)
        weights = family.read({name: parameters[name] for name in names_of_heads}, site)
        asking = tokens_read if run.last_only else tokens
        total += run.macs(site.d_model, site.head_dim, mlp, weights.gate is not None, asking, tokens)
    return total


@contextmanager
def counted(modules: Sequence[nn.Module]) -> Iterator[list[int]]:
    """Collect the multiply-adds of every linear layer and convolution that runs in the meantime."""
    counts: list[int] = []

    def count(module: Any, _: Any, output: Tensor) -> None:
        counts.append(output.numel() * module.weight[0].numel())  # each output is a product with one row of weights

    hooks = []
    for module in modules:
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            hooks.append(module.register_forward_hook(count))
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


# Members of their own weights, with everything merged and with nothing, and members of one checkpoint.
FUSED = [((0, 1, 2), ["mlp", "norm", "embed"]), ((0, 1, 2), []), ((0, 0, 0), [])]


FEW = [variant for variant in ONE_OF_EACH if variant not in UNKNOWN]
REST = sorted(set(VARIANTS) - set(FEW) - UNKNOWN)
OFTEN = spread(FEW, FUSED)
"""Every other one in the long run."""


@pytest.mark.long
@pytest.mark.parametrize(("variant", "fused"), OFTEN[::2] + marked_release(OFTEN[1::2] + spread(REST, FUSED)))
def test_the_counter_agrees_with_the_formula(variant: str, fused: tuple[Sequence[int], Sequence[str]]) -> None:
    source = shared_source(variant)
    tower = tower_of_samples(source)
    whole_blocks = []
    for site in source.sites:
        if site.tower == tower:
            whole_blocks.append(BlockRun([site.heads], keys=site.heads // site.sharing))
    assert macs(source.description, source.tensors, whole_last_block=True) == formula(source, 1, whole_blocks)
    assert macs(source.description, source.tensors) == formula(source, *stem_and_block_runs(source))
    seeds, merge = fused
    members = []
    for seed, kept in zip(seeds, KEPT, strict=True):
        member = shared_source(variant, seed)
        members.append(keeping(member, kept))
    plan = plan_fusion(members, merge)
    together = replace(source, description=plan.description, tensors=plan.tensors)
    # Of two samples: nothing is counted once for a batch.
    macs_of_sample = formula(together, *stem_and_block_runs(together))
    assert macs(plan.description, plan.tensors, batch=2) == 2 * macs_of_sample


@pytest.mark.parametrize(("variant", "whole"), spread(["class-token", "bert", "llama", "clip", "swin"], [False, True]))
def test_the_single_model_behind_a_pruned_one(variant: str, whole: bool) -> None:
    source = shared_source(variant)
    pruned = keeping(source, [[0]] * len(source.sites))
    expected = macs(source.description, source.tensors, whole_last_block=whole)
    assert dense_macs(pruned.description, whole_last_block=whole) == expected


def tower_of_samples(source: Source) -> str:
    """Return the name of the tower that reads samples."""
    network = source.family.build(source.description.config)
    towers = [stages.tower for stages in source.family.stages(network) if not stages.of_labels]
    return towers[0]
