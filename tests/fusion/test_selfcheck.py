"""What the self-check of a fused model finds, against the library's own models, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from hydractl.errors import HydraError
from hydractl.files.checkpoint import DictTensors
from hydractl.files.fuse_answer import SelfCheckRecord
from hydractl.fusion.plan import FusedTensors, plan_fusion
from hydractl.fusion.selfcheck import INPUTS, float32_model, self_check, storage_dtype
from hydractl.log import Log
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source
from tests.pico import (
    inputs,
    keeping,
    logits,
    merged_names,
    shared_source,
    stock,
    tensors_of,
    zero_columns,
)
from tests.spread import ONE_OF_EACH, marked_long, marked_release, spread

KEPT = [[[0, 2], [1], [0, 1, 2]], [[1], [0, 1, 2], []]]

SEED = 5


def members(variant: str, seeds: list[int]) -> list[Source]:
    """Sources of these weights with heads of their own."""
    sources = []
    for index, (seed, heads) in enumerate(zip(seeds, KEPT, strict=True)):
        sources.append(keeping(shared_source(variant, seed, name=f"m{index}"), heads))
    return sources


def check(sources: list[Source], merge: list[str]) -> SelfCheckRecord:
    return self_check(plan_fusion(sources, merge), sources, torch.device("cpu"), SEED, Log())


@pytest.mark.parametrize("seeds", [[0, 1], [0, 0]])
@torch.no_grad()
def test_the_effect_of_averaging(seeds: list[int]) -> None:
    variant, merge = "class-token", ["mlp", "norm", "embed"]
    sources = members(variant, seeds)
    models = []
    for seed, source in zip(seeds, sources, strict=True):
        models.append(zero_columns(stock(variant, seed), source.description.mask.removed_heads))
    images = torch.randn(INPUTS, 3, 16, 16, generator=torch.Generator().manual_seed(SEED))
    before = [logits(model, images) for model in models]
    for name in merged_names(variant, models[0], merge):
        mean = torch.stack([m.get_parameter(name) for m in models]).double().mean(0).float()
        for model in models:
            model.get_parameter(name).copy_(mean)
    effect = [float((logits(model, images) - old).abs().max()) for model, old in zip(models, before, strict=True)]
    found = check(sources, merge)
    assert found.merge_max_abs == pytest.approx(effect, rel=1e-2, abs=1e-5)
    assert (max(effect) < 1e-5) == (len(set(seeds)) == 1)
    assert max(found.member_max_abs) <= 1e-5 and found.pool_max_abs <= 1e-5
    assert check(sources, []).merge_max_abs == [0.0] * 2


def test_a_big_model_has_fewer_inputs_where_no_decision_hangs_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = ["mlp", "norm", "embed"]
    of_one_checkpoint = members("class-token", [0, 0])
    trained_apart = members("class-token", [0, 1])
    assert check(of_one_checkpoint, everything).inputs == f"4 random inputs, seed {SEED}"
    monkeypatch.setattr("hydractl.fusion.selfcheck.BIG", 1)
    few = f"2 random inputs, seed {SEED}"
    assert check(of_one_checkpoint, everything).inputs == few
    assert check(trained_apart, []).inputs == few
    assert check(trained_apart, everything).inputs == f"4 random inputs, seed {SEED}"


@pytest.mark.parametrize("variant", ["bert", *marked_long(["llama", "gpt2", "distilbert"])])
def test_a_big_model_of_texts_reads_short_ones(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = members(variant, [0, 0])
    long_texts = check(sources, [])
    monkeypatch.setattr("hydractl.fusion.selfcheck.BIG", 1)
    monkeypatch.setattr("hydractl.fusion.selfcheck.TOKENS_OF_A_BIG_TEXT", 3)
    lengths = []
    run = HydraModel.member_logits

    def seen(self: HydraModel, texts: Any) -> torch.Tensor:
        lengths.extend(tokens.shape for tokens in texts.values())
        return run(self, texts)

    monkeypatch.setattr(HydraModel, "member_logits", seen)
    short_texts = check(sources, [])
    assert set(lengths) == {(2, 3)}
    assert max(short_texts.member_max_abs) <= 1e-5
    assert short_texts.max_abs_logit != long_texts.max_abs_logit


@pytest.mark.parametrize(("wrong", "merge"), [(0.5, ["mlp", "norm", "embed"]), (math.nan, [])])
def test_a_fused_model_that_is_not_its_members(wrong: float, merge: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sources = members("class-token", [0, 1])
    read = FusedTensors._read

    def tampered(self: FusedTensors, name: str) -> torch.Tensor:
        return read(self, name) + (wrong if name == "members.1.head.bias" else 0)

    monkeypatch.setattr(FusedTensors, "_read", tampered)
    with pytest.raises(HydraError, match=r"^self-check failed: a fused member differs from the member alone by"):
        check(sources, merge)


# --- weights of 16 bits that compute in float32 -----------------------------------------------------------------------


FEW = ["class-token", "bert", "llama", "clip"]
REST = [variant for variant in ONE_OF_EACH if variant not in FEW]
WAYS = ([torch.float16, torch.bfloat16], [["mlp", "norm", "embed"], []])


@pytest.mark.parametrize(("variant", "dtype", "merge"), spread(FEW, *WAYS) + marked_release(spread(REST, *WAYS)))
@torch.no_grad()
def test_the_same_numbers_as_float32(variant: str, dtype: torch.dtype, merge: list[str]) -> None:
    plan = plan_fusion(members(variant, [0, 1]), merge)
    tensors = DictTensors({name: tensor.to(dtype) for name, tensor in tensors_of(plan.tensors).items()})
    assert storage_dtype(tensors) == dtype
    wide = HydraModel(plan.description, tensors).with_classes()  # type: ignore[arg-type]
    narrow = float32_model(plan.description, tensors, torch.device("cpu"), dtype).with_classes()  # type: ignore[arg-type]
    expected, found = wide.member_logits(inputs(variant)), narrow.member_logits(inputs(variant))
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    assert torch.equal(narrow.member_logits(inputs(variant)), expected), "a second time, after all was dropped"
