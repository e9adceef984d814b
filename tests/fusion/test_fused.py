"""The fused model against its members run alone, and against the library itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from hydractl.files.checkpoint import DictTensors
from hydractl.fusion.plan import plan_fusion
from hydractl.model.source import Source
from tests.pico import (
    MORE,
    VARIANTS,
    close,
    inputs,
    keeping,
    logits,
    mask_of,
    merged_names,
    model_of,
    shared_source,
    shared_stock,
    source_of,
    stock,
    stock_logits,
    zero_columns,
)
from tests.spread import ONE_OF_EACH, marked_release, spread

KEPT = [
    [[0, 2], [1], [0, 1, 2]],
    [[1], [0, 1, 2], []],
    [[0, 1, 2], [0], [2]],
    [[], [1, 2], [0, 1]],
    [[2], [0], [1]],
]
MASKS = {
    **{f"{count}-members": KEPT[:count] for count in (1, 2, 3, 5)},
    "empty-in-all": [[[0], [], [1]], [[1, 2], [], [0]], [[0, 1, 2], [], [2]]],
}


def members(variant: str, kept: Sequence[Sequence[Sequence[int]]]) -> tuple[list[Source], list[torch.Tensor]]:
    """Members with weights of their own, and the logits of the stock models with zeroed columns."""
    sources = pruned_sources(variant, kept)
    expected = []
    for index, source in enumerate(sources):
        removed = tuple(source.description.mask.removed_heads)
        expected.append(stock_logits(variant, removed, index))
    return sources, expected


def pruned_sources(variant: str, kept: Sequence[Sequence[Sequence[int]]]) -> list[Source]:
    """Members with weights of their own."""
    sources = []
    for index, heads in enumerate(kept):
        source = shared_source(variant, index, name=f"member{index}")
        sources.append(keeping(source, heads))
    return sources


# What fusing does depends on the mechanism and not on the library: each is here, or below with merged parts.
UNMERGED = ["class-token", "beit", "bert", "llama", "clip", "swin", "deberta-v3", "gpt2"]
MERGED = [variant for variant in ONE_OF_EACH if variant not in UNMERGED and variant != "hf-siglip"]
WAYS = (MASKS, [True, False])
OTHERS = [*MERGED, "hf-siglip"]
REST = [variant for variant in (*VARIANTS, *MORE) if variant not in (*UNMERGED, *OTHERS)]
CASES = [*spread(UNMERGED, *WAYS), ("class-token", "2-members", False)]
CASES += marked_release(spread(OTHERS, *WAYS) + spread(REST, *WAYS))


@pytest.mark.parametrize(("variant", "case", "side_by_side"), CASES)
@torch.no_grad()
def test_unmerged_members_equal_the_library(variant: str, case: str, side_by_side: bool) -> None:
    sources, expected = members(variant, MASKS[case])
    plan = plan_fusion(sources, [])
    fused = model_of(plan)
    fused.side_by_side = side_by_side
    together = fused.member_logits(inputs(variant))
    assert together.shape == (len(MASKS[case]), 3, 5)
    for member, reference in zip(together, expected, strict=True):
        close(member, reference)
    pooled = torch.stack(expected).softmax(-1).mean(0)
    assert torch.allclose(fused(inputs(variant)).exp(), pooled, atol=1e-6)
    assert torch.allclose(fused(inputs(variant)).exp().sum(-1), torch.ones(3), atol=1e-6)


@pytest.mark.parametrize(("merge", "most_tokens"), [((), 64), (("mlp",), 512)])
@torch.no_grad()
def test_few_tokens_run_side_by_side_on_a_cpu(merge: Sequence[str], most_tokens: int) -> None:
    plan = plan_fusion(pruned_sources("class-token", KEPT[:3]), merge)
    fused = model_of(plan)
    calls: list[int] = []
    fused.networks[0].blocks[1].register_forward_hook(lambda *_: calls.append(1))
    tokens_of_sample = 5
    largest_batch = most_tokens // tokens_of_sample
    fused(fused.example_inputs(largest_batch))
    assert len(calls) == 1
    fused(fused.example_inputs(largest_batch + 1))
    assert len(calls) == 1 + 3, "one after another, the block runs for each member"


def averaged_references(
    variant: str, kept: Sequence[Sequence[Sequence[int]]], merge: Sequence[str]
) -> list[torch.Tensor]:
    """Stock models in which the parts named by ``merge`` hold the mean over members: written from the definition."""
    models = [stock(variant, seed=i) for i in range(len(kept))]
    for name in merged_names(variant, models[0], merge):
        mean = torch.stack([m.get_parameter(name).detach() for m in models]).double().mean(0).float()
        for model in models:
            model.get_parameter(name).data.copy_(mean)
    removed = [mask_of(source_of(models[0], variant), heads).removed_heads for heads in kept]
    with torch.no_grad():
        return [logits(zero_columns(m, r), inputs(variant)) for m, r in zip(models, removed, strict=True)]


MERGES = [["mlp", "norm", "embed"], ["mlp"], ["norm"], ["embed"], ["mlp", "embed"]]
NOT_MERGED = [variant for variant in ONE_OF_EACH if variant not in MERGED]


@pytest.mark.parametrize("variant", [*VARIANTS, *marked_release(MORE)])
def test_merged_parts_are_those_of_the_library(variant: str) -> None:
    source = shared_source(variant)
    for merge in (["mlp"], ["norm"], ["embed"]):
        expected = merged_names(variant, shared_stock(variant), merge)
        plan = plan_fusion([source, source], merge, headers_only=True)  # which weights they have does not matter
        assert sorted(plan.averaged) == sorted(expected), merge


# Which parts are merged is tested with every model above.
@pytest.mark.parametrize(("variant", "merge"), spread(MERGED, MERGES) + marked_release(spread(NOT_MERGED, MERGES)))
@torch.no_grad()
def test_merged_members_equal_the_library_with_averaged_weights(variant: str, merge: list[str]) -> None:
    plan = plan_fusion(pruned_sources(variant, KEPT[:2]), merge)
    together = model_of(plan).member_logits(inputs(variant))
    for member, reference in zip(together, averaged_references(variant, KEPT[:2], merge), strict=True):
        close(member, reference)


def test_a_tensor_whose_last_element_differs_is_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydractl.fusion.plan.PIECE", 61)
    source = shared_source("class-token")
    tensors = {name: source.tensors.read(name).clone() for name in source.tensors.names()}
    name = "blocks.0.mlp.fc1.weight"
    tensors[name].view(-1)[-1] += 1
    other = replace(source, tensors=DictTensors(tensors))
    plan = plan_fusion([source, other])
    assert set(plan.averaged) - plan.tensors.equal == {name}
    assert torch.equal(plan.tensors.read(name), (source.tensors.read(name) + tensors[name]) / 2)
