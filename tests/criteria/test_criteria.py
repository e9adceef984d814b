"""Criteria against direct computations on the libraries' own models with autograd."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from hydractl.criteria import Calibration, read_criterion
from hydractl.heads.mask import Site
from hydractl.log import Log
from tests.pico import (
    CLIP,
    LABELS,
    TEMPLATES,
    head_columns,
    images,
    inputs,
    keeping,
    logits,
    mask_of,
    model_of,
    prune_source,
    shared_source,
    source_of,
    stock,
    zero_columns,
)
from tests.pico_clip import clip_tokenizer
from tests.spread import ONE_OF_EACH, marked_release

# One of each, and those whose weights lie otherwise or whose heads have terms of their own.
MODELS = [variant for variant in ONE_OF_EACH if variant not in CLIP or variant == "clip"]
GATED = ["class-token", "beit", "bert", "deberta-v3", "llama", "clip"]
MODELS += marked_release(["eva-post-norm", "deberta-v3", "gpt2", "qwen3", "electra"])


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
    samples = wide(inputs(variant))
    parts_by_name = {name: tensor.split(sizes) for name, tensor in samples.items()}
    batches: list[tuple[Any, torch.Tensor]] = []
    for number, labels in enumerate(Y.split(sizes)):
        batch = {name: parts[number] for name, parts in parts_by_name.items()}
        batches.append((batch if "input_ids" in samples else batch["x"], labels))
    return Calibration(lambda: iter(batches), 3, 0, Log())


def wide(batch: Any) -> dict[str, torch.Tensor]:
    return batch if isinstance(batch, dict) else {"x": batch.double()}


def wide_logits(model: Any, variant: str) -> torch.Tensor:
    """What the library says of the three samples, in float64 and with gradients.

    Its own builder of zero-shot classifiers has none.
    """
    given = wide(inputs(variant))
    given = given.get("x", given)
    if variant != "clip":
        return logits(model, given)
    prompts = []
    for label in LABELS:
        prompts += [template.format(label) for template in TEMPLATES]
    by_prompt = model.encode_text(clip_tokenizer("clip")(prompts), normalize=True)
    features = by_prompt.reshape(len(LABELS), len(TEMPLATES), -1).mean(1)
    features = features / features.norm(dim=1, keepdim=True)
    found = model.logit_scale.exp() * model.encode_image(given, normalize=True) @ features.T
    assert torch.allclose(found, logits(model, given), atol=1e-12)
    return found


def loss_of(model: Any, variant: str, reduction: str = "mean") -> torch.Tensor:
    return F.cross_entropy(wide_logits(model, variant), Y, reduction=reduction)


def projections(attention: Any, site: Site) -> list[list[torch.Tensor]]:
    """Weight times gradient of queries, keys and values in the library's own attention, for each of the heads."""
    products: dict[str, torch.Tensor] = {}
    for name, weight in attention.named_parameters():
        if weight.grad is None or weight.dim() < 2:
            continue
        product = weight.detach() * weight.grad
        alone = re.search(r"(?:^|\.)([qkv])(uery|ey|alue)?(_proj|_lin)?\.weight$", name)
        if re.search(r"(qkv|Wqkv|qkv_proj|in_proj_|c_attn)\.?weight$", name):
            if "c_attn" in name:
                product = product.T
            rows = site.heads * site.head_dim
            rows_of_keys = (len(product) - rows) // 2
            q, k, v = product.split([rows, rows_of_keys, rows_of_keys])
            products.update(q=q, k=k, v=v)
        elif alone is not None:
            products[alone[1]] = product
    by_head = []
    for head in range(site.heads):
        parts = []
        for letter in "qkv":
            part = products[letter].unflatten(0, (-1, site.head_dim))  # [heads * dk, d] -> [heads, dk, d]
            parts.append(part[head * len(part) // site.heads])
        by_head.append(parts)
    return by_head


def taylor_score(parts: list[torch.Tensor]) -> float:
    """The score of a head by its projections' weights times gradients."""
    return sum(float(part.abs().mean()) for part in parts) / 3


@pytest.mark.parametrize("variant", MODELS)
def test_taylor_equals_autograd(variant: str) -> None:
    """The paper's D.1.1 word for word, by autograd on the library's model; heads that share keys have the same keys."""
    reference = stock(variant).double()
    source = source_of(reference, variant)
    model = model_of(source, dtype=torch.float64)
    scores = read_criterion("taylor").score(model, of_three(variant, 2, 1), range(3))
    loss_of(reference, variant).backward()
    for scores_of_site, site in zip(scores.values(), source.sites, strict=True):
        heads = projections(reference.get_submodule(site.path), site)
        assert scores_of_site == pytest.approx(list(map(taylor_score, heads)), rel=1e-4)


@pytest.mark.parametrize(
    ("variant", "kept"), [("class-token", [[0, 2], [], [1]]), ("llama", [[0, 2, 3], [1], [0, 1, 3]])]
)
def test_taylor_of_a_pruned_model_equals_autograd_with_zeroed_columns(variant: str, kept: list[list[int]]) -> None:
    reference = stock(variant).double()
    source = source_of(reference, variant)
    mask = mask_of(source, kept)
    pruned = prune_source(source, mask)
    model = model_of(pruned, dtype=torch.float64)
    scores = read_criterion("taylor").score(model, of_three(variant, 3), range(3))
    zeroed = zero_columns(reference, mask.removed_heads)
    loss_of(zeroed, variant).backward()
    for scores_of_site, site in zip(scores.values(), source.sites, strict=True):
        heads = projections(zeroed.get_submodule(site.path), site)
        expected = [taylor_score(heads[head]) for head in mask.kept[site.path]]
        assert scores_of_site == pytest.approx(expected, rel=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("variant", GATED)
def test_gate_equals_the_gradient_of_each_sample(variant: str) -> None:
    """Michel et al. 2019: mean over samples of |dL/dgate|, here by finite differences on the library's model."""
    reference = stock(variant).double()
    source = source_of(reference, variant)
    model = model_of(source, dtype=torch.float64)
    with torch.enable_grad():
        scores = read_criterion("gate").score(model, of_three(variant, 3), range(3))
    step, rel = 1e-5, 1e-4
    for module in reference.modules():
        if type(module).__name__.endswith(("RMSNorm", "RotaryEmbedding")):
            step, rel = 3e-3, 2e-3  # transformers computes these in float32, whatever the weights are
    for scores_of_site, site in zip(scores.values(), source.sites, strict=True):
        changes = []
        for head in range(site.heads):
            (columns,) = head_columns(reference, [(site.path, head)])
            before = columns.clone()
            columns.copy_(before * (1 + step))
            above = loss_of(reference, variant, "none")
            columns.copy_(before * (1 - step))
            below = loss_of(reference, variant, "none")
            columns.copy_(before)
            changes.append(mean_change(above, below, step))
        assert scores_of_site == pytest.approx(normalised(changes), rel=rel)


def mean_change(above: torch.Tensor, below: torch.Tensor, step: float) -> float:
    """The mean absolute slope of the losses of samples, by those a step above and below."""
    return float(((above - below) / (2 * step)).abs().mean())


def normalised(values: list[float]) -> list[float]:
    norm = math.hypot(*values)
    return [value / norm for value in values]


def test_random_follows_the_seed_and_not_the_mask() -> None:
    source = shared_source("class-token")
    model = model_of(source)
    criterion = read_criterion("random")
    first = criterion.score(model, calibration(5, seed=1), range(3))
    assert criterion.score(model, calibration(5, seed=1), range(3)) == first
    assert criterion.score(model, calibration(5, seed=2), range(3)) != first
    pruned = keeping(source, [[0, 2], [1], [0, 1, 2]])
    some = criterion.score(model_of(pruned), calibration(5, 1), range(3))
    assert some[0] == [first[0][0], first[0][2]]
    assert some[1] == [first[1][1]]


def test_scoring_leaves_the_model_as_it_was() -> None:
    source = shared_source("class-token")
    model = model_of(source)
    before = [parameter.requires_grad for parameter in model.parameters()]
    for name in ("taylor", "gate", "magnitude", "random"):
        read_criterion(name).score(model, calibration(5), [0, 2])
    assert [parameter.requires_grad for parameter in model.parameters()] == before
    assert all(attention.head_gate is None for attention in model.attentions)
