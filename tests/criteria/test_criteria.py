"""Criteria against direct computations on the libraries' own models with autograd."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from hydractl.criteria import Calibration, get_criterion
from hydractl.heads.mask import Site
from hydractl.log import Log
from hydractl.model.runtime import HydraModel
from tests.pico import (
    CLIP,
    LABELS,
    TEMPLATES,
    head_columns,
    images,
    inputs,
    logits,
    mask_of,
    prune_source,
    shared_stock,
    source_of,
    stock,
    zero_columns,
)
from tests.pico_clip import clip_tokenizer
from tests.spread import ONE_OF_EACH, marked_long

# One of each, and those whose weights lie otherwise or whose heads have terms of their own.
CLASSIFIERS = [variant for variant in ONE_OF_EACH if variant not in CLIP]
CLASSIFIERS += marked_long(["eva-post-norm", "rope-mixed", "swinv2", "deberta-v3", "gpt2", "qwen3", "electra"])


def sample(count: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    return images(count, seed=3), torch.randint(0, 5, (count,), generator=torch.Generator().manual_seed(4))


def calibration(batch: int, seed: int = 0) -> Calibration:
    x, y = sample()

    def batches() -> Iterator[tuple[Any, torch.Tensor]]:
        yield from zip(x.split(batch), y.split(batch), strict=True)

    return Calibration(batches, len(y), seed, Log())


Y = torch.tensor([3, 0, 1])


def of_three(variant: str, *sizes: int) -> Calibration:
    """The three samples of a variant, which for texts are of unequal length, in batches of these sizes."""
    given = wide(inputs(variant))
    split = zip(*(x.split(sizes) for x in given.values()), strict=True)
    parts = [dict(zip(given, part, strict=True)) for part in split]
    batches = parts if "input_ids" in given else [part["x"] for part in parts]
    return Calibration(lambda: iter(list(zip(batches, Y.split(sizes), strict=True))), 3, 0, Log())


def wide(batch: Any) -> dict[str, torch.Tensor]:
    return batch if isinstance(batch, dict) else {"x": batch.double()}


def loss_of(model: Any, variant: str, reduction: str = "mean") -> torch.Tensor:
    given = wide(inputs(variant))
    return F.cross_entropy(logits(model, given.get("x", given)), Y, reduction=reduction)


def projections(attention: Any, site: Site) -> list[list[torch.Tensor]]:
    """Weight times gradient of queries, keys and values in the library's own attention, for each of the heads."""
    found: dict[str, torch.Tensor] = {}
    for name, weight in attention.named_parameters():
        if weight.grad is None or weight.dim() < 2:
            continue
        product = weight.detach() * weight.grad
        if re.search(r"(qkv|Wqkv|qkv_proj|in_proj_|c_attn)\.?weight$", name):
            product = product.T if "c_attn" in name else product
            rows = site.heads * site.head_dim
            rest = (len(product) - rows) // 2
            found |= dict(zip("qkv", product.split([rows, rest, rest]), strict=True))
        elif one := re.search(r"(?:^|\.)([qkv])(uery|ey|alue)?(_proj|_lin)?\.weight$", name):
            found[one[1]] = product
    parts = [found[letter].unflatten(0, (-1, site.head_dim)) for letter in "qkv"]  # [heads * dk, d] -> [heads, dk, d]
    return [[part[head * len(part) // site.heads] for part in parts] for head in range(site.heads)]


@pytest.mark.parametrize("variant", CLASSIFIERS)
def test_taylor_equals_autograd(variant: str) -> None:
    """The paper's D.1.1 word for word, by autograd on the library's model; heads that share keys have the same keys."""
    reference = stock(variant).double()
    source = source_of(reference, variant)
    model = HydraModel(source.description, source.tensors, dtype=torch.float64)
    scores = get_criterion("taylor").score(model, of_three(variant, 2, 1), range(3))
    loss_of(reference, variant).backward()
    for found, site in zip(scores.values(), source.sites, strict=True):
        heads = projections(reference.get_submodule(site.path), site)
        assert found == pytest.approx([sum(float(p.abs().mean()) for p in parts) / 3 for parts in heads], rel=1e-4)


def test_taylor_of_a_pruned_model_equals_autograd_with_zeroed_columns() -> None:
    for variant, kept in (("class-token", [[0, 2], [], [1]]), ("llama", [[0, 2, 3], [1], [0, 1, 3]])):
        reference = stock(variant).double()
        source = source_of(reference, variant)
        mask = mask_of(source, kept)
        pruned = prune_source(source, mask)
        model = HydraModel(pruned.description, pruned.tensors, dtype=torch.float64)
        scores = get_criterion("taylor").score(model, of_three(variant, 3), range(3))
        zeroed = zero_columns(reference, mask.removed_heads)
        loss_of(zeroed, variant).backward()
        for found, site in zip(scores.values(), source.sites, strict=True):
            parts, heads = projections(zeroed.get_submodule(site.path), site), mask.kept[site.path]
            expected = [sum(float(p.abs().mean()) for p in parts[head]) / 3 for head in heads]
            assert found == pytest.approx(expected, rel=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("variant", CLASSIFIERS)
def test_gate_equals_the_gradient_of_each_sample(variant: str) -> None:
    """Michel et al. 2019: mean over samples of |dL/dgate|, here by finite differences on the library's model."""
    reference = stock(variant).double()
    source = source_of(reference, variant)
    model = HydraModel(source.description, source.tensors, dtype=torch.float64)
    with torch.enable_grad():
        scores = get_criterion("gate").score(model, of_three(variant, 3), range(3))
    # Which transformers computes in float32, whatever the weights are.
    single = any(type(module).__name__.endswith(("RMSNorm", "RotaryEmbedding")) for module in reference.modules())
    step, rel = (3e-3, 2e-3) if single else (1e-5, 1e-4)
    for found, site in zip(scores.values(), source.sites, strict=True):
        expected = []
        for head in range(site.heads):
            (columns,) = head_columns(reference, [(site.path, head)])
            before, losses = columns.clone(), []
            for gate in (1 + step, 1 - step):
                columns.copy_(before * gate)
                losses.append(loss_of(reference, variant, "none"))
            columns.copy_(before)
            expected.append(float(((losses[0] - losses[1]) / (2 * step)).abs().mean()))
        norm = sum(e * e for e in expected) ** 0.5
        assert found == pytest.approx([e / norm for e in expected], rel=rel)


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
