"""The closed formula of multiply-adds: against numbers worked out by hand, torch's counter, and as it is fed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hydractl.fusion.plan import plan_fusion
from hydractl.model.cost import dense_macs, macs
from hydractl.model.cost_formula import Block, BlockWork, Work, macs_formula, single_work, stock_work, work_of
from hydractl.model.source import ModelOptions, Source, open_source
from tests.pico import VARIANTS, mask_of, prune_source, source_of, stock

KEPT = [[[0, 2], [1], [0, 1, 2]], [[1], [0, 1, 2], []], [[], [], []]]
# ViT-B/16: 196 patches of 768 values, 197 tokens of 768, heads of 64, MLP of 3072, 1000 classes.
STEM, READOUT = 196 * 768 * 768, 768 * 1000


def vit_block(heads: int, asking: int = 197) -> int:
    """Q and O, K and V, scores and mixing, MLP."""
    return (
        2 * asking * 768 * 64 * heads
        + 2 * 197 * 768 * 64 * heads
        + 2 * asking * 197 * 64 * heads
        + 2 * asking * 768 * 3072
    )


@pytest.fixture(scope="module")
def vit_base() -> Source:
    source = open_source("timm:vit_tiny_patch16_224?pretrained=0&num_classes=1000", ModelOptions())
    config = {**source.description.config, "architecture": "vit_base_patch16_224"}
    masks = [mask_of(source, [range(12)] * 12)]
    masks = [replace(masks[0], heads=dict.fromkeys(masks[0].heads, 12))]
    return replace(source, description=replace(source.description, config=config, masks=masks))


def test_vit_base(vit_base: Source) -> None:
    every = Work(1, [BlockWork([12])] * 12, 1)
    assert macs_formula(vit_base.description, every) == 17_563_828_224 == STEM + 12 * vit_block(12) + READOUT


def test_what_runs_once_and_for_one_token_is_fed_to_the_formula(vit_base: Source) -> None:
    """Three members of 8 heads: six blocks shared by all, five run for each, the last one for its class token only."""
    work = Work(1, [*[BlockWork([8])] * 6, *[BlockWork([8, 8, 8])] * 5, BlockWork([8, 8, 8], last_only=True)], 3)
    expected = STEM + 6 * vit_block(8) + 3 * 5 * vit_block(8) + 3 * vit_block(8, asking=1) + 3 * READOUT
    assert macs_formula(vit_base.description, work) == expected
    # The dense single model with its last block for one token: 0.93 of the whole, as there are twelve blocks.
    single = macs_formula(vit_base.description, Work(1, [*[BlockWork([12])] * 11, BlockWork([12], last_only=True)], 1))
    assert single is not None and round(single / 17_563_828_224, 2) == 0.93


def test_gates_and_gated_mlps_are_counted() -> None:
    # One head of 2, 3 tokens of 4: Q, K, V, O 3 * 4 * 2 each, two products 3 * 3 * 2, and the matrices of the MLP.
    plain, gated = Block(4, 2, gated=False, mlp=40), Block(4, 2, gated=True, mlp=40)
    assert plain.macs(BlockWork([1]), 3, 3) == 4 * 24 + 2 * 18 + 3 * 40
    assert gated.macs(BlockWork([1]), 3, 3) == 5 * 24 + 2 * 18 + 3 * 40
    assert plain.macs(BlockWork([0]), 3, 3) == 3 * 40
    # Two members draw one head and none from a pool of two: it runs Q, K, V and the products, they run O and MLP.
    assert plain.macs(BlockWork([1, 0], pool=2), 3, 3) == 2 * (3 * 24 + 2 * 18) + 24 + 2 * 3 * 40


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("merge", [["mlp", "norm", "embed"], []])
@pytest.mark.parametrize("seeds", [(0, 0, 0), (0, 1, 2)], ids=["one-checkpoint", "three"])
def test_the_formula_agrees_with_the_counter(variant: str, merge: list[str], seeds: tuple[int, ...]) -> None:
    sources = [source_of(stock(variant, seed=seed), variant) for seed in seeds]
    plan = plan_fusion([prune_source(s, mask_of(s, kept)) for s, kept in zip(sources, KEPT, strict=True)], merge)
    for one in (sources[0], replace(sources[0], description=plan.description, tensors=plan.tensors)):
        # A readout that attends over all tokens is beyond the formula, which then says so.
        found = macs_formula(one.description, work_of(one.description, one.tensors))
        assert found == (None if variant == "map-pooling" else macs(one.description, one.tensors))
    whole = macs_formula(sources[0].description, stock_work(sources[0].description))
    if variant != "map-pooling":
        assert whole == macs(sources[0].description, sources[0].tensors, whole_last_block=True)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_the_single_model_behind_a_pruned_one(variant: str) -> None:
    """By torch's counter on the model with all its heads."""
    source = source_of(stock(variant), variant)
    pruned = prune_source(source, mask_of(source, [[0]] * len(source.sites)))
    found = macs_formula(pruned.description, single_work(pruned.description))
    assert found in (None, dense_macs(pruned.description))
