"""What members have in common runs once: the fused model still equals the library's own, member by member."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hydractl.errors import InputError
from hydractl.files.checkpoint import DictTensors
from hydractl.fusion.plan import plan_fusion
from hydractl.model.loading import build_model
from hydractl.model.projections import neighbours, runs_of
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source, member_source, open_source
from tests.pico import (
    close,
    inputs,
    logits,
    mask_of,
    model_of,
    prune_source,
    shared_source,
    source_of,
    stock,
    stock_logits,
    tensors_of,
    write_stored,
    zero_columns,
)
from tests.running import refused
from tests.spread import ONE_OF_EACH, marked_long, marked_release, spread

# Three members that part at the first, second or third site, or not at all; sites without heads among them.
AT_ONCE = [[[0, 2], [1], [0, 1, 2]], [[1], [0, 1, 2], []], [[], [1, 2], [0, 1]]]
SECOND = [[[0, 2], [1], [0, 1, 2]], [[0, 2], [0, 1, 2], []], [[0, 2], [2], [0, 1]]]
THIRD = [[[0, 2], [1], [0, 1]], [[0, 2], [1], []], [[0, 2], [1], [1, 2]]]
NEVER = [[[0, 2], [], [1]]] * 3
EMPTY = [[[0, 2], [], [1]], [[0, 2], [], [0]], [[0, 2], [], [2]]]
BESIDE_THE_WHOLE = [[[0, 1, 2]] * 3, [[0, 1, 2], [0, 2], [1]], [[0, 1, 2], [1], [0, 1]]]
MASKS = {"at-once": AT_ONCE, "second": SECOND, "third": THIRD, "never": NEVER, "empty-in-all": EMPTY}
MASKS["beside-the-whole"] = BESIDE_THE_WHOLE


def of_one_checkpoint(variant: str, kept: Sequence[Sequence[Sequence[int]]]) -> tuple[list[Source], list[torch.Tensor]]:
    """Members that differ in their heads only, and the logits of the library's model with zeroed columns."""
    source = shared_source(variant)
    masks = [mask_of(source, heads) for heads in kept]
    expected = [stock_logits(variant, tuple(mask.removed_heads)) for mask in masks]
    return [prune_source(source, mask) for mask in masks], expected


def alone(masks: Sequence[Sequence[Sequence[int]]], sites: range) -> int:
    """How many leading sites of a tower keep the same heads in all members."""
    same = [len({tuple(kept[i]) for kept in masks}) == 1 for i in sites]
    return len(same) if all(same) else same.index(False)


WAYS = (MASKS, [True, False], [False, True])


# What is run once does not depend on the library: with one model every two settings together, and one of the twenty
# ways with each of the others.
PAIRS = [
    ("class-token", case, together, together == bool(number % 2))
    for number, case in enumerate(MASKS)
    for together in (True, False)
]
FEW = ["beit", "bert", "llama", "clip", "hf-siglip", "swin"]
REST = [variant for variant in ONE_OF_EACH if variant not in ("class-token", *FEW)]
CASES = PAIRS + spread(FEW, *WAYS) + marked_release(spread(REST, *WAYS))


@pytest.mark.parametrize(("variant", "case", "together", "whole"), CASES)
@torch.no_grad()
def test_members_of_one_checkpoint_equal_the_library(variant: str, case: str, together: bool, whole: bool) -> None:
    members, expected = of_one_checkpoint(variant, MASKS[case])
    plan = plan_fusion(members, [])
    assert not plan.own and not plan.averaged, "members of one checkpoint own nothing but their heads"
    fused = model_of(plan)
    fused.whole_last_block, fused.side_by_side = whole, together
    rows: dict[int, int] = {}
    for site, attention in enumerate(fused.attentions):
        attention.register_forward_pre_hook(lambda _, args, site=site: rows.update({site: len(args[0])}))
    found = fused.member_logits(inputs(variant))
    for member, reference in zip(found, expected, strict=True):
        close(member, reference)
    for chain in fused.chains if together else []:
        assert chain.start.blocks == alone(MASKS[case], chain.sites)
        for site, (_, windows) in zip(chain.sites, chain.spans, strict=False):
            rows[site] //= windows
        first = rows[chain.sites.start] // (3 if chain.start.blocks == 0 else 1)
        assert [rows[s] for s in chain.sites] == [first if chain.start.runs_once(s) else 3 * first for s in chain.sites]
        parting = chain.sites.start + chain.start.blocks
        assert all(fused.attentions[s].pooled == (s == parting) for s in chain.sites)


def changed(source: Source, where: str) -> Source:
    """The source with other numbers in every tensor whose name holds a text."""
    generator = torch.Generator().manual_seed(5)
    tensors = {n: tensor.clone() for n, tensor in tensors_of(source.tensors).items()}
    touched = [n for n in tensors if where in n]
    assert touched
    for name in touched:
        tensors[name] += 0.1 * torch.rand(tensors[name].shape, generator=generator)
    return Source(f"{source.name}+{where}", where, source.description, DictTensors(tensors))


@torch.no_grad()
def test_members_part_before_the_tokens_that_each_merges_for_itself() -> None:
    source = shared_source("swin")
    members = [source, changed(source, "downsample")]
    fused = HydraModel((plan := plan_fusion(members, [])).description, plan.tensors)
    assert fused.chains[0].start.blocks == 2 and not any(attention.pooled for attention in fused.attentions)
    for member, found in zip(members, fused.member_logits(inputs("swin")), strict=True):
        close(found, model_of(member).member_logits(inputs("swin"))[0])


PARTS = {
    # What was trained in the second member -> blocks run once, the attention behind them shares its heads.
    "blocks.1.norm1": (1, False),
    "blocks.1.attn": (1, False),
    "blocks.1.mlp": (1, True),
    "blocks.2.": (2, False),
    "head.": (3, False),
    "pos_embed": (0, False),
}


@pytest.mark.parametrize("where", PARTS)
@torch.no_grad()
def test_members_part_where_their_weights_do(where: str) -> None:
    source = shared_source("class-token")
    members = [source, changed(source, where), source]
    one, other = (build_model(member).member_logits(inputs("class-token"))[0] for member in members[:2])
    plan = plan_fusion(members, [])
    fused = model_of(plan)
    blocks, pool = PARTS[where]
    start = fused.chains[0].start
    assert (start.blocks, start.pool, start.shared_stem) == (blocks, pool, where != "pos_embed")
    assert set(plan.own) == {n for n in source.tensors.names() if where in n}
    for member, reference in zip(fused.member_logits(inputs("class-token")), (one, other, one), strict=True):
        close(member, reference)


@torch.no_grad()
def test_a_head_that_differs_is_kept_by_its_member() -> None:
    """All other heads of the site are equal: they are not taken apart from it."""
    source = shared_source("qk-norm")
    for name in ("blocks.0.attn.qkv.weight", "blocks.0.attn.proj.bias", "blocks.0.attn.q_norm.weight"):
        other = changed(source, name)
        plan = plan_fusion([source, other], [])
        assert list(plan.own) == sorted(n for n in source.tensors.names() if n.startswith("blocks.0.attn."))
        both = model_of(plan).member_logits(inputs("qk-norm"))
        for member, model in zip(both, (source, other), strict=True):
            close(member, build_model(model).member_logits(inputs("qk-norm"))[0])


@pytest.mark.parametrize(
    ("variant", "case"), [("qk-norm", "at-once"), ("clip", "second"), *marked_long([("bert", "empty-in-all")])]
)
@torch.no_grad()
def test_through_a_file_and_back_to_single_members(variant: str, case: str, tmp_path: Path) -> None:
    members, expected = of_one_checkpoint(variant, MASKS[case])
    plan = plan_fusion(members)
    stored = open_source(str(write_stored(plan, tmp_path / "hydra.st")))
    heads = sum(len({h for kept in MASKS[case] for h in kept[s]}) for s in range(3))
    qkv = [stored.tensors.info(n).shape for n in stored.tensors.names() if n.endswith(("qkv.weight", "in_proj_weight"))]
    if qkv:
        assert sum(shape[0] for shape in qkv) == heads * 3 * 8, "every head stands once in the file"
    for number, reference in enumerate(expected):
        one = member_source(stored, number)
        assert one.description.mask == members[number].description.mask
        assert one.tensors.names() == members[number].tensors.names()
        assert all(torch.equal(one.tensors.read(n), members[number].tensors.read(n)) for n in one.tensors.names())
        close(build_model(one).member_logits(inputs(variant))[0], reference)


def test_gradients_reach_what_is_shared() -> None:
    """Through the prefix, the pool and what follows: as the library's with the same columns zeroed."""
    kept = [[[0, 2], [1], [0, 1]], [[0, 2], [0, 2], [2]]]
    members, _ = of_one_checkpoint("class-token", kept)
    plan = plan_fusion(members)
    fused = model_of(plan)
    fused.member_logits(inputs("class-token")).square().sum().backward()
    reference = torch.zeros(24, 24 * 4)
    for heads in kept:
        model = stock("class-token")
        model = zero_columns(model, mask_of(source_of(model, "class-token"), heads).removed_heads)
        logits(model, inputs("class-token")).square().sum().backward()
        reference += model.blocks[1].mlp.fc2.weight.grad
    assert torch.allclose(fused.networks[0].blocks[1].mlp.fc2.weight.grad, reference, rtol=1e-4, atol=1e-6)


def test_a_file_that_holds_other_heads_than_it_says_is_refused(tmp_path: Path) -> None:
    members, _ = of_one_checkpoint("class-token", SECOND)
    plan = plan_fusion(members)
    tensors = tensors_of(plan.tensors)
    tensors["blocks.1.attn.proj.weight"] = tensors["blocks.1.attn.proj.weight"][:, :16].contiguous()
    path = write_stored(replace(plan, tensors=DictTensors(tensors)), tmp_path / "bad.st")
    caught = refused(InputError, open_source, str(path))
    assert "tensor 'blocks.1.attn.proj.weight' is [24, 16], expected [24, 24]" in caught.problems


def test_a_site_that_is_stored_partly_once_is_refused(tmp_path: Path) -> None:
    members, _ = of_one_checkpoint("class-token", NEVER)
    plan = plan_fusion(members)
    tensors = tensors_of(plan.tensors)
    weight = tensors.pop("blocks.0.attn.proj.weight")
    tensors |= {f"members.{m}.blocks.0.attn.proj.weight": weight + m for m in range(3)}
    path = write_stored(replace(plan, tensors=DictTensors(tensors)), tmp_path / "bad.st")
    caught = refused(InputError, open_source, str(path))
    assert list(caught.problems) == ["the attention of blocks.0.attn belongs partly to all members and partly to one"]


def test_heads_of_a_member_lie_in_few_runs() -> None:
    """Of three members that each lack another third, two are one run and one is two: no order does better."""
    kept = [[h for h in range(12) if h % 3 != m] for m in range(3)]
    order = neighbours(kept)
    assert sorted(order) == list(range(12))
    assert sum(len(runs_of([order.index(h) for h in heads])) for heads in kept) == 4
    assert neighbours([[0, 1, 2], [0, 1, 2]]) == [0, 1, 2] and neighbours([[], []]) == []
