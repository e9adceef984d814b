"""Masksembles against masked MLPs written out on timm's own model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hydractl_more_methods.masks import draw_masks
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from hydractl.files.checkpoint import DictTensors
from hydractl.model.loading import build_model
from tests.methods.test_together import PLAIN, batches, near, state_of, together, train
from tests.pico import images, inputs, shared_stock, source_of, stock
from tests.spread import spread

HIDDEN, BLOCKS, MEMBERS = 96, 3, 3


def masks_of(model: Any) -> list[Tensor]:
    """The masks of each block, ``[M, neurons]``."""
    return list(model._masks.values())


def masked_logits(reference: Any, weights: dict[str, Tensor], x: Tensor, masks: list[Tensor]) -> Tensor:
    """The logits of timm's own model whose activations between fc1 and fc2 are masked, by rows ``[B, neurons]``."""
    handles = []
    for block, mask in zip(reference.blocks, masks, strict=True):
        handles.append(block.mlp.fc2.register_forward_pre_hook(lambda _, given, mask=mask: given[0] * mask[:, None]))
    try:
        return functional_call(reference, weights, (x,))
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("variant", ["class-token", "gpt2"])
def test_each_member_is_an_ordinary_model_without_its_neurons(variant: str) -> None:
    source = source_of(shared_stock(variant), variant)
    model = together(source, "masksembles:3,2").eval()
    batch = inputs(variant)
    before = shared_stock(variant).state_dict()
    with torch.no_grad():
        found = model.member_logits(batch)
        assert not near(found[0], found[1])
        changed = set()
        for member, weights in enumerate(state_of(model)):
            alone = build_model(replace(source, tensors=DictTensors(weights))).eval()
            assert near(alone.member_logits(batch)[0], found[member], 1e-4)
            changed |= {name for name in weights if not torch.equal(weights[name], before[name])}
    assert len(changed) == len(masks_of(model)) and all(name.endswith("weight") for name in changed)


def test_a_model_with_prompts_masks_the_tower_that_reads_samples() -> None:
    source = source_of(shared_stock("clip"), "clip")
    model = together(source, f"masksembles:{MEMBERS},2")
    blocks = len(model.each[0].chain_of_samples.block_paths)
    assert len(masks_of(model)) == blocks and all(path.startswith("visual.") for path in model._masks)
    batch = images(7)  # not as many as there are prompts
    labels = torch.zeros(7, dtype=torch.int64)
    with torch.no_grad():
        (found,), _ = model.answers(batch, labels)
        of_members = model.eval().member_logits(batch)
        model.train()
    for row in range(7):
        assert near(found[row], of_members[row % MEMBERS][row])
    loss = model.loss(*model.answers(batch, labels), 0.0)
    loss.backward()  # type: ignore[no-untyped-call]
    before = shared_stock("clip").state_dict()
    for member, weights in enumerate(state_of(model)):
        for name, weight in weights.items():
            masked = name.endswith("mlp.c_proj.weight") and name.startswith("visual.")
            assert torch.equal(weight, before[name]) is not masked, (member, name)


def test_each_sample_trains_the_neurons_of_one_member() -> None:
    reference = stock("class-token")
    model = together(source_of(reference, "class-token"), f"masksembles:{MEMBERS},2")
    masks = masks_of(model)
    weights = {name: tensor.detach().clone().requires_grad_() for name, tensor in reference.named_parameters()}
    matrices = [weight for weight in weights.values() if weight.dim() > 1]
    vectors = [weight for weight in weights.values() if weight.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": PLAIN["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.02, momentum=0.9)
    train(model, steps=3)
    for x, y in batches(3):
        rows = torch.arange(len(y)) % MEMBERS
        optimizer.zero_grad()
        F.cross_entropy(masked_logits(reference, weights, x, [mask[rows] for mask in masks]), y).backward()
        optimizer.step()
    for member, found in enumerate(state_of(model)):
        for block, mask in enumerate(masks):
            name = f"blocks.{block}.mlp.fc2.weight"
            assert near(found[name], weights[name] * mask[member])
        assert near(found["blocks.1.mlp.fc1.weight"], weights["blocks.1.mlp.fc1.weight"])
        assert near(found["head.weight"], weights["head.weight"])
    rows = [mask[[1] * len(images())] for mask in masks]
    with torch.no_grad():
        assert near(model.eval().member_logits(images())[1], masked_logits(reference, weights, images(), rows))


@pytest.mark.parametrize(("members", "scale", "share"), [(3, 1.0, 1.0), (3, 2.0, 1 / 1.75), (4, 3.0, 27 / 65)])
def test_masks_overlap_as_the_scale_says(members: int, scale: float, share: float) -> None:
    """A mask keeps 1 / (S (1 - (1 - 1 / S)^M)) of the neurons, rounded down, and each neuron is kept by some mask."""
    masks = draw_masks(members, 1000, scale, torch.Generator().manual_seed(0))
    assert masks.shape == (members, 1000) and bool(masks.any(dim=0).all())
    assert masks.sum(dim=1).tolist() == [int(1000 * share)] * members
    if scale > 1:
        both = (masks[0] & masks[1]).float().mean()
        assert float(both) == pytest.approx(share / scale, abs=0.04)


def test_masks_of_few_neurons_are_all_equally_probable() -> None:
    """Two masks of 3 neurons that have 5 together: any of the 5 is in both, and the others are dealt in 6 ways."""
    generator = torch.Generator().manual_seed(0)
    kept = int(5 / (2 * (1 - (1 - 1 / 2) ** 2)))
    assert kept == 3
    drawn = Counter(str(draw_masks(2, 5, 2.0, generator).int().tolist()) for _ in range(3000))
    assert len(drawn) == 30
    expected = 3000 / 30
    chi_squared = sum((count - expected) ** 2 / expected for count in drawn.values())
    assert chi_squared < 58, "the 0.999 quantile of 29 degrees of freedom"


@pytest.mark.parametrize(("neurons", "dealt"), spread([1, 2, 5, 12, 63], [(2, 6.0), (3, 2.0), (5, 4.0), (8, 6.0)]))
def test_few_neurons_are_divided_too(neurons: int, dealt: tuple[int, float]) -> None:
    members, scale = dealt
    masks = draw_masks(members, neurons, scale, torch.Generator().manual_seed(0))
    assert masks.shape == (members, neurons) and bool(masks.any(dim=0).all())
    assert len(set(masks.sum(dim=1).tolist())) == 1


def test_the_page_counts_what_is_stored() -> None:
    page = Path(__file__).resolve().parents[1] / "README.md"
    assert "| [Masksembles](#masksembles) | T | P, in all | fused: P + (M - 1) d m L | M |" in page.read_text("utf-8")
