"""Parameters and multiply-adds: the paper's numbers, and a closed formula against the counter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import pytest
import torch
from torch import Tensor

from hydractl.families import get_family
from hydractl.files.description import Description
from hydractl.files.header import TensorInfo, tensor_info
from hydractl.fusion.plan import plan_fusion
from hydractl.heads.mask import HeadMask
from hydractl.model import cost as module
from hydractl.model.cost import cost_of, dense_macs, macs, parameters, weight_bytes
from hydractl.model.source import Source
from tests.pico import keeping, shared_source
from tests.spread import marked_long, spread

D, DK, T, BLOCKS, HEADS = 768, 64, 197, 12, 12
POSITION_AND_CLASS = T * D + D


class Skeleton:
    """The tensors of an architecture that has no weights.

    Reading one is a defect, unless it is given a number to stand in for all of them: fusing compares weights.
    """

    def __init__(self, tensors: dict[str, Tensor], number: float | None = None) -> None:
        self.tensors, self.number = tensors, number

    def names(self) -> list[str]:
        return sorted(self.tensors)

    def info(self, name: str) -> TensorInfo:
        return tensor_info(self.tensors[name])

    def read(self, name: str) -> Tensor:
        assert self.number is not None, f"{name} was read, but cost needs no weights"
        return torch.tensor(self.number).expand(self.tensors[name].shape)


@pytest.fixture(scope="module")
def vit_base() -> Source:
    """ViT-B/16 with 1,000 classes, as shapes."""
    family = get_family("timm")
    config = {"architecture": "vit_base_patch16_224", "num_classes": 1000, "global_pool": "token", "pretrained_cfg": {}}
    preprocess = {
        "input_size": [3, 224, 224],
        "interpolation": "bicubic",
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "crop_pct": 0.9,
        "crop_mode": "center",
    }
    description = Description(
        kind="dense",
        family="timm",
        family_version=family.version,
        arch="vit_base_patch16_224",
        config=config,
        preprocess=preprocess,
        labels=None,
        masks=[HeadMask.full(family.sites(config))],
    )
    return Source("vit", "vit", description, Skeleton(dict(family.build(config).state_dict())))


def with_weights(source: Source, number: float) -> Source:
    return replace(source, digest=str(number), tensors=Skeleton(source.tensors.tensors, number))


def keep(source: Source, *heads: Sequence[int]) -> Source:
    """With the heads of every site; one list for all sites, or one for each."""
    return keeping(source, heads * len(source.sites) if len(heads) == 1 else heads)


def cost(source: Source) -> dict[str, int]:
    return cost_of(source.description, source.tensors)


def layer_macs(heads: int, d: int, dk: int, tokens: int, d_ff: int, queries: int | None = None) -> int:
    """speed.md, "Where the roof is": Q and O, K and V, both products, MLP; every token is a query unless told."""
    q = tokens if queries is None else queries
    return 2 * q * d * heads * dk + 2 * tokens * d * heads * dk + 2 * q * tokens * heads * dk + 2 * q * d * d_ff


PATCHES = 196 * (3 * 16 * 16) * D
CLASSIFIER = D * 1000


def vit_base_macs(heads: Sequence[int], stems: int = 1, queries: int = 1) -> int:
    """Members with so many heads at every site of ViT-B/16; the patch embedding runs ``stems`` times.

    In the last block ``queries`` tokens ask.
    """
    layers = sum((BLOCKS - 1) * layer_macs(h, D, DK, T, 4 * D) + layer_macs(h, D, DK, T, 4 * D, queries) for h in heads)
    return stems * PATCHES + layers + len(heads) * CLASSIFIER


def test_single(vit_base: Source) -> None:
    assert cost(vit_base) == {"params": 86_567_656, "macs": vit_base_macs([12]), "bytes": 4 * 86_567_656}
    assert 0.93 < cost(vit_base)["macs"] / vit_base_macs([12], queries=T) < 0.935
    whole = macs(vit_base.description, vit_base.tensors, whole_last_block=True)
    assert whole == vit_base_macs([12], queries=T) == 17_563_828_224


def test_pruned_member(vit_base: Source) -> None:
    pruned = keep(vit_base, range(8))
    # Four heads less at each site: four projections of 64 x 768, and the biases of three of them.
    assert cost(pruned)["params"] == 86_567_656 - BLOCKS * 4 * (4 * DK * D + 3 * DK) == 77_121_256
    assert cost(pruned)["macs"] == vit_base_macs([8])
    assert vit_base_macs([8], queries=T) == 15_466_260_480


def test_fused(vit_base: Source) -> None:
    members = [keep(with_weights(vit_base, index), range(8)) for index in range(3)]
    plan = plan_fusion(members)
    fused = cost_of(plan.description, plan.tensors)
    assert fused["params"] == 116_463_288
    assert POSITION_AND_CLASS == 152_064 and fused["params"] - POSITION_AND_CLASS == 116_311_224
    # The members share the patch embedding, which runs once. Every block runs for all members, and each has its own
    # classifier. Whole, that is 46.17 G, not three times 15.47.
    assert fused["macs"] == vit_base_macs([8, 8, 8], stems=1)
    assert vit_base_macs([8, 8, 8], stems=1, queries=T) == 46_167_570_432 == 3 * 15_466_260_480 - 2 * PATCHES


# Every member lacks other four heads, so each of the twelve heads is in two of three.
EIGHT = [[h for h in range(HEADS) if h % 3 != m] for m in range(3)]
HEAD = 4 * DK * D + 3 * DK


def one_checkpoint(vit_base: Source, shared: int) -> list[Source]:
    """Three members of one checkpoint, the first so many sites of which keep the same heads."""
    source = with_weights(vit_base, 1.0)
    members = [keep(source, *[EIGHT[0]] * shared, *[EIGHT[m]] * (BLOCKS - shared)) for m in range(3)]
    return [replace(member, digest=str(index)) for index, member in enumerate(members)]


# Sites that are shared -> the ratio of speed.md, "What the method costs", to the single model through the same code.
RATIOS = {0: 2.62, 6: 1.68, 11: 0.90}


@pytest.mark.parametrize("shared", [6, *marked_long([0, 12])])
def test_what_members_of_one_checkpoint_share_is_stored_and_run_once(vit_base: Source, shared: int) -> None:
    plan = plan_fusion(one_checkpoint(vit_base, shared))
    assert parameters(plan.tensors) == 86_567_656 - shared * 4 * HEAD and not plan.own
    if shared in RATIOS:
        ratio = macs(plan.description, plan.tensors) / vit_base_macs([12])
        assert RATIOS[shared] - 0.05 < ratio < RATIOS[shared]
    whole = macs(plan.description, plan.tensors, whole_last_block=True)
    once, layer = shared * layer_macs(8, D, DK, T, 4 * D), layer_macs(8, D, DK, T, 4 * D)
    if shared == 12:
        assert whole == PATCHES + once + 3 * CLASSIFIER
        return
    # Where members part, the input is still common: all twelve heads attend once, each member projects its eight.
    heads_once = 3 * T * D * HEADS * DK + 2 * T * T * HEADS * DK
    parting = heads_once + 3 * (T * 8 * DK * D + 2 * T * D * 4 * D)
    assert whole == PATCHES + once + parting + 3 * (BLOCKS - shared - 1) * layer + 3 * CLASSIFIER


@pytest.mark.parametrize(("merge", "stems"), [(["mlp", "norm"], 2), (["embed"], 1)])
def test_the_stem_runs_once_only_where_it_is_merged(vit_base: Source, merge: list[str], stems: int) -> None:
    members = [keep(with_weights(vit_base, i), range(n)) for i, n in enumerate([8, 0])]
    plan = plan_fusion(members, merge)
    assert macs(plan.description, plan.tensors) == vit_base_macs([8, 0], stems)


def test_a_model_is_counted_once_and_whatever_differs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes alone do not say which heads members have in common, so the masks decide too."""
    runs = []
    count = module._count_macs
    monkeypatch.setattr(module, "_count_macs", lambda run: runs.append(run) or count(run))
    monkeypatch.setattr(module, "_macs_of_call", {})
    source = shared_source("class-token")
    site_heads = {"the same": [[0, 1, 2], [0, 1, 2]], "one each": [[0, 1], [1, 2]]}
    fused = {}
    for name, heads in site_heads.items():
        members = [keeping(source, [kept] * 3) for kept in heads]
        fused[name] = plan_fusion([replace(member, digest=str(number)) for number, member in enumerate(members)])
    same, apart = fused["the same"], fused["one each"]
    assert same.tensors.names() == apart.tensors.names()
    assert all(same.tensors.info(name).shape == apart.tensors.info(name).shape for name in same.tensors.names())

    first = macs(same.description, same.tensors)
    assert macs(apart.description, apart.tensors) != first
    traced = replace(same.description, origin="elsewhere", provenance={"verb": "fuse"})
    assert macs(traced, same.tensors) == first
    assert len(runs) == 2
    assert macs(same.description, same.tensors, whole_last_block=True) > first
    assert len(runs) == 3


@pytest.mark.parametrize(("variant", "whole"), spread(["class-token", "bert", "llama", "clip", "swin"], [False, True]))
def test_the_single_model_behind_a_pruned_one(variant: str, whole: bool) -> None:
    source = shared_source(variant)
    pruned = keeping(source, [[0]] * len(source.sites))
    expected = macs(source.description, source.tensors, whole_last_block=whole)
    assert dense_macs(pruned.description, whole_last_block=whole) == expected


def test_bytes_follow_the_stored_dtype() -> None:
    tensors = {"a": torch.zeros(3, 5, dtype=torch.bfloat16), "b": torch.zeros(0, 7), "c": torch.zeros(2)}
    source = Skeleton(tensors)
    assert parameters(source) == prod((3, 5)) + 2
    assert weight_bytes(source) == 2 * 15 + 4 * 2
