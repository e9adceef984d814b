"""Models that are copied, pickled and averaged: the copy answers the same, and shares nothing with the original."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from hydractl.fusion.plan import plan_fusion
from hydractl.methods.batch_ensemble import BatchEnsembleOptions
from hydractl.methods.batch_ensemble.factors import BatchEnsemble
from hydractl.methods.lora import LoraOptions
from hydractl.methods.lora.matrices import LoRA
from hydractl.model.loading import SequentialEnsemble
from hydractl.model.runtime import HydraModel
from hydractl.training.start import speed_up
from tests.fusion.test_batched import NEARLY, SHARED, UNEVEN, one_weight, own_weights
from tests.pico import (
    VARIANTS,
    close,
    inputs,
    mask_of,
    model_of,
    prune_source,
    shared_source,
    stock_logits,
)
from tests.spread import ONE_OF_EACH, marked_release

FAST = ["class-token", "bert", "clip"]


def other_weights(variant: str, kept: Any) -> tuple[HydraModel, list[Tensor]]:
    """As :func:`own_weights`, each member of the seed of the next, and what the library says of it."""
    sources, expected = [], []
    for member, heads in enumerate(kept):
        seed = (member + 1) % len(kept)
        source = shared_source(variant, seed, name=f"member{member}")
        mask = mask_of(source, heads)
        sources.append(prune_source(source, mask))
        expected.append(stock_logits(variant, tuple(mask.removed_heads), seed))
    plan = plan_fusion(sources, [])
    return model_of(plan), expected


def storages(model: HydraModel) -> set[int]:
    return {p.untyped_storage().data_ptr() for p in model.parameters() if p.numel()}


@pytest.mark.parametrize(
    ("variant", "batched"),
    [
        *((variant, variant in ("class-token", "clip")) for variant in FAST),
        *marked_release((variant, False) for variant in ONE_OF_EACH if variant not in FAST),
    ],
)
@torch.no_grad()
def test_a_copy_is_a_model_of_its_own(variant: str, batched: bool) -> None:
    model = own_weights(variant, UNEVEN)
    model.batched = model.side_by_side = batched or None
    before = model.member_logits(inputs(variant))
    copied = copy.deepcopy(model)
    assert torch.equal(copied.member_logits(inputs(variant)), before)
    assert list(copied.state_dict()) == list(model.state_dict())
    assert not storages(copied) & storages(model)
    assert not {id(module) for module in copied.modules()} & {id(module) for module in model.modules()}
    other, expected = other_weights(variant, UNEVEN)
    copied.load_state_dict(other.state_dict())
    for member, reference in zip(copied.member_logits(inputs(variant)), expected, strict=True):
        close(member, reference)
    assert torch.equal(model.member_logits(inputs(variant)), before)


@torch.no_grad()
def test_what_is_shared_stays_shared_within_a_copy() -> None:
    model = one_weight("class-token", SHARED)
    copied = copy.deepcopy(model)
    assert len(list(copied.parameters())) == len(list(model.parameters()))
    inside = set(copied.modules())
    for attention, chained in zip(copied.attentions, copied.chains[0].attentions, strict=True):
        assert attention is chained and attention in inside
        assert all(projections.bank in inside for projections in attention.projections)


@pytest.mark.parametrize(
    "variant",
    [
        *FAST,
        *marked_release(v for v in VARIANTS if v not in FAST),
    ],
)
@torch.no_grad()
def test_a_pickle_gives_the_same_bits(variant: str) -> None:
    model = one_weight(variant, NEARLY)
    model.side_by_side = False
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded.side_by_side is False and loaded.labels == model.labels
    assert torch.equal(loaded(inputs(variant)), model(inputs(variant)))


def test_an_ensemble_and_its_preprocessing_are_copied() -> None:
    ensemble = SequentialEnsemble([own_weights("class-token", NEARLY), one_weight("class-token", SHARED)])
    for copied in (copy.deepcopy(ensemble), pickle.loads(pickle.dumps(ensemble))):
        assert torch.equal(copied(inputs("class-token")), ensemble(inputs("class-token")))
        assert callable(copied.preprocess)


@pytest.mark.parametrize("adapter", [LoRA(LoraOptions(2, 4.0)), BatchEnsemble(BatchEnsembleOptions(0.5)), None])
def test_a_model_in_training_is_copied(adapter: Any) -> None:
    source = shared_source("class-token")
    model = model_of(source)
    if adapter is not None:
        adapter.add(model, seed=0)
    speed_up(model, checkpoint_blocks=True, compile=False)
    copied = copy.deepcopy(model.train())
    gradients = []
    for each in (model, copied):
        each.member_logits(inputs("class-token")).square().sum().backward()
        gradients.append([p.grad for p in each.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True) if a is not None)
    with torch.no_grad():
        before = model.eval()(inputs("class-token"))
        for parameter in copied.parameters():
            parameter.mul_(1.3)
        assert torch.equal(model(inputs("class-token")), before)
        assert not torch.allclose(copied.eval()(inputs("class-token")), before)


@pytest.mark.long
@torch.no_grad()
def test_a_copy_of_a_compiled_model_is_not_compiled() -> None:
    model = own_weights("class-token", NEARLY)
    expected = model(inputs("class-token"))
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model.compile(backend=backend)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        close(copied(inputs("class-token")), expected)
    assert not graphs
    copied.compile(backend=backend)
    close(copied(inputs("class-token")), expected)
    assert len(graphs) == 1
