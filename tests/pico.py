"""Pico vision transformers: timm's own classes with random weights, small enough to test every identity exactly."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import yaml

from hydractl._torchvision import declare_operators
from hydractl.checkpoint import DictTensors
from hydractl.heads import Head, HeadMask
from hydractl.models import Source, open_source

declare_operators()

SMALL = "pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=3&num_heads=3&num_classes=5"

VARIANTS = {
    "class-token": f"vit_tiny_patch16_224?{SMALL}",
    "average-pooling": f"vit_tiny_patch16_224?{SMALL}&global_pool=avg&class_token=false",
    "distilled": f"deit_tiny_distilled_patch16_224?{SMALL}",
    "registers": f"vit_tiny_patch16_224?{SMALL}&reg_tokens=4&no_embed_class=true",
    "qk-norm": f"vit_tiny_patch16_224?{SMALL}&qk_norm=true",
    "layer-scale": f"vit_tiny_patch16_224?{SMALL}&init_values=0.3",
    "pre-norm-no-bias": f"vit_tiny_patch16_224?{SMALL}&pre_norm=true&qkv_bias=false",
    "map-pooling": f"vit_tiny_patch16_224?{SMALL}&global_pool=map&class_token=false",
}


def stock(variant: str, seed: int = 0) -> Any:
    """timm's own model in eval mode, with weights far enough from zero that every head matters."""
    import timm

    name, _, query = VARIANTS[variant].partition("?")
    options = {k: yaml.safe_load(v) for k, v in (part.split("=") for part in query.split("&"))}
    options.pop("pretrained")
    model = timm.create_model(name, pretrained=False, **options).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            # timm's default initialisation (std 0.02, zero biases) would make mistakes invisible.
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def source_of(model: Any, variant: str, name: str = "pico") -> Source:
    """The hydractl source that holds the weights of a stock model."""
    source = open_source(f"timm:{VARIANTS[variant]}", name=name)
    return replace(source, tensors=DictTensors(model.state_dict()), sha256=name)


def prune_source(source: Source, mask: HeadMask) -> Source:
    """The source with only the heads of ``mask``, by the product's own slicing."""
    from hydractl.prune import pruned

    description, tensors = pruned(source, mask, "sliced")
    return replace(source, description=description, tensors=tensors, sha256=f"{source.sha256}-{mask.counts()}")


def zero_columns(model: Any, removed: Iterable[Head]) -> Any:
    """A copy of the STOCK model with the output columns of some heads zeroed: the reference of every identity."""
    model = copy.deepcopy(model)
    for path, head in removed:
        attention = model.get_submodule(path)
        with torch.no_grad():
            attention.proj.weight[:, head * attention.head_dim : (head + 1) * attention.head_dim] = 0
    return model


def images(count: int = 3, seed: int = 1) -> torch.Tensor:
    """Random pixels ``[count, 3, 16, 16]``."""
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def mask_of(source: Source, kept: Sequence[Sequence[int]]) -> HeadMask:
    """A mask from the kept heads of each site."""
    heads = {s.path: s.heads for s in source.sites}
    return HeadMask(heads, {path: tuple(k) for path, k in zip(heads, kept, strict=True)})


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """The tolerance of every identity: 1e-5 times max(1, the largest logit)."""
    scale = max(1.0, float(expected.abs().max()))
    assert float((actual - expected).abs().max()) <= 1e-5 * scale
