"""Criteria against direct computations on timm's own model with autograd."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from hydractl.criteria import Calibration, get_criterion
from hydractl.log import Log
from hydractl.model.runtime import HydraModel
from tests.pico import (
    LABELS,
    TEMPLATES,
    images,
    logits,
    mask_of,
    prune_source,
    shared_stock,
    source_of,
    stock,
    zero_columns,
)
from tests.pico_clip import clip_tokenizer

VARIANTS = ["class-token", "qk-norm", "average-pooling", "beit", "swin"]


def sample(count: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    return images(count, seed=3), torch.randint(0, 5, (count,), generator=torch.Generator().manual_seed(4))


def calibration(batch: int, seed: int = 0) -> Calibration:
    x, y = sample()

    def batches() -> Iterator[tuple[Any, torch.Tensor]]:
        yield from zip(x.split(batch), y.split(batch), strict=True)

    return Calibration(batches, len(y), seed, Log())


def naive_taylor(model: Any, site: int) -> list[float]:
    """method of the paper, D.1.1, word for word: autograd on the stock model, mean loss over the whole sample."""
    x, y = sample()
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    attention = [module for name, module in model.named_modules() if name.endswith(".attn")][site]
    weight, gradient = attention.qkv.weight.detach(), attention.qkv.weight.grad
    heads = attention.num_heads
    dk = len(weight) // (3 * heads)
    scores = []
    for head in range(heads):
        total = 0.0
        for block in range(3):  # q, k, v
            rows = slice(block * heads * dk + head * dk, block * heads * dk + (head + 1) * dk)
            total += float((weight[rows] * gradient[rows]).abs().mean())
        scores.append(total / 3)
    return scores


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("batch", [10, 4])
def test_taylor_equals_autograd(variant: str, batch: int) -> None:
    reference = stock(variant)
    source = source_of(reference, variant)
    model = HydraModel(source.description, source.tensors)
    scores = get_criterion("taylor").score(model, calibration(batch), range(3))
    for site in range(3):
        assert scores[site] == pytest.approx(naive_taylor(reference, site), rel=1e-4)


def test_taylor_of_a_pruned_model_equals_autograd_with_zeroed_columns() -> None:
    reference = stock("class-token")
    source = source_of(reference, "class-token")
    mask = mask_of(source, [[0, 2], [], [1]])
    pruned = prune_source(source, mask)
    scores = get_criterion("taylor").score(HydraModel(pruned.description, pruned.tensors), calibration(5), range(3))
    zeroed = zero_columns(reference, mask.removed_heads)
    for site, kept in enumerate(mask.kept.values()):
        expected = naive_taylor(zeroed, site)
        assert scores[site] == pytest.approx([expected[h] for h in kept], rel=1e-4)


@pytest.mark.parametrize("variant", ["class-token", "beit", "swin"])
def test_gate_equals_the_gradient_of_each_sample(variant: str) -> None:
    """Michel et al. 2019: mean over samples of |dL/dgate|, here by finite differences on the stock model."""
    reference = stock(variant).double()
    source = source_of(reference, variant)
    model = HydraModel(source.description, source.tensors, dtype=torch.float64)
    x, y = sample()

    def batches() -> Iterator[tuple[Any, torch.Tensor]]:
        yield x.double(), y

    scores = get_criterion("gate").score(model, Calibration(batches, len(y), 0, Log()), range(3))
    step = 1e-5
    for site in range(3):
        expected = []
        for head in range(3):
            losses = []
            for gate in (1 + step, 1 - step):
                changed = zero_columns(reference, [])
                out = changed.get_submodule(source.sites[site].path).proj
                columns = slice(head * out.in_features // 3, (head + 1) * out.in_features // 3)
                with torch.no_grad():
                    out.weight[:, columns] *= gate
                    losses.append(F.cross_entropy(changed(x.double()), y, reduction="none"))
            expected.append(float(((losses[0] - losses[1]) / (2 * step)).abs().mean()))
        norm = sum(e * e for e in expected) ** 0.5
        assert scores[site] == pytest.approx([e / norm for e in expected], rel=1e-4)


def test_magnitude_is_the_mean_absolute_weight() -> None:
    reference = stock("class-token")
    source = source_of(reference, "class-token")
    scores = get_criterion("magnitude").score(HydraModel(source.description, source.tensors), calibration(5), range(3))
    attention = reference.blocks[1].attn
    qkv, out = attention.qkv.weight.detach(), attention.proj.weight.detach()
    for head in range(3):
        rows = [qkv[b * 24 + head * 8 : b * 24 + (head + 1) * 8].abs().mean() for b in range(3)]
        columns = out[:, head * 8 : (head + 1) * 8].abs().mean()
        assert scores[1][head] == pytest.approx(float(sum(rows) + columns) / 4, rel=1e-6)


def test_random_follows_the_seed_and_not_the_mask() -> None:
    source = source_of(shared_stock("class-token"), "class-token")
    model = HydraModel(source.description, source.tensors)
    first = get_criterion("random").score(model, calibration(5, seed=1), range(3))
    assert first == get_criterion("random").score(model, calibration(5, seed=1), range(3))
    assert first != get_criterion("random").score(model, calibration(5, seed=2), range(3))
    pruned = prune_source(source, mask_of(source, [[0, 2], [1], [0, 1, 2]]))
    some = get_criterion("random").score(HydraModel(pruned.description, pruned.tensors), calibration(5, 1), range(3))
    assert some[0] == [first[0][0], first[0][2]] and some[1] == [first[1][1]]


def test_scoring_leaves_the_model_as_it_was() -> None:
    source = source_of(shared_stock("class-token"), "class-token")
    model = HydraModel(source.description, source.tensors)
    before = [p.requires_grad for p in model.parameters()]
    for name in ("taylor", "gate", "magnitude", "random"):
        get_criterion(name).score(model, calibration(5), [0, 2])
    assert [p.requires_grad for p in model.parameters()] == before
    assert all(a.head_gate is None for a in model.attentions)


# --- two towers -------------------------------------------------------------------------------------------------------


def clip() -> tuple[Any, HydraModel]:
    reference = stock("clip").double()
    source = source_of(reference, "clip")
    return reference, HydraModel(source.description, source.tensors, dtype=torch.float64)


def clip_calibration(batch: int) -> Calibration:
    x, y = sample()
    return Calibration(lambda: zip(x.double().split(batch), y.split(batch), strict=True), len(y), 0, Log())  # type: ignore[arg-type]


def clip_logits(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Differentiable, unlike the library's own builder of classifiers; pinned to it below."""
    tokens = torch.stack([clip_tokenizer("clip")([t.format(label) for t in TEMPLATES]) for label in LABELS])
    features = model.encode_text(tokens.flatten(0, 1), normalize=True).reshape(len(LABELS), len(TEMPLATES), -1).mean(1)
    features = features / features.norm(dim=1, keepdim=True)
    return model.logit_scale.exp() * model.encode_image(x, normalize=True) @ features.T


def test_the_reference_is_the_library_s_classifier() -> None:
    reference, _ = clip()
    with torch.no_grad():
        ours = clip_logits(reference, sample()[0].double())
    assert torch.allclose(ours, logits(reference, sample()[0].double()), atol=1e-12)


@pytest.mark.parametrize("batch", [10, 4])
def test_taylor_of_both_towers_equals_autograd(batch: int) -> None:
    reference, model = clip()
    x, y = sample()
    F.cross_entropy(clip_logits(reference, x.double()), y).backward()
    scores = get_criterion("taylor").score(model, clip_calibration(batch), range(3))
    visual = get_criterion("taylor").score(model, clip_calibration(batch), [0, 1])
    for i, site in enumerate(model.sites):
        weight = reference.get_submodule(site.path).in_proj_weight
        product = (weight.detach() * weight.grad).abs()  # [3 * 3 heads * 8, 24]
        expected = [sum(float(part[h * 8 : h * 8 + 8].mean()) for part in product.chunk(3)) / 3 for h in range(3)]
        assert scores[i] == pytest.approx(expected, rel=1e-5)
        if i < 2:
            assert visual[i] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("batch", [10, 4])
def test_gate_of_both_towers_equals_the_gradient_of_each_sample(batch: int) -> None:
    reference, model = clip()
    x, y = sample()
    scores = get_criterion("gate").score(model, clip_calibration(batch), range(3))
    for i, site in enumerate(model.sites):
        weight = reference.get_submodule(site.path).out_proj.weight
        before, step, found = weight.detach().clone(), 1e-5, []
        for head in range(3):
            losses = []
            for gate in (1 + step, 1 - step):
                with torch.no_grad():
                    weight[:, head * 8 : head * 8 + 8] = before[:, head * 8 : head * 8 + 8] * gate
                    losses.append(F.cross_entropy(clip_logits(reference, x.double()), y, reduction="none"))
                    weight.copy_(before)
            found.append(float(((losses[0] - losses[1]) / (2 * step)).abs().mean()))
        norm = sum(value**2 for value in found) ** 0.5
        assert scores[i] == pytest.approx([value / norm for value in found], rel=1e-4)
