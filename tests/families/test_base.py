"""Declarations that a family is made of: the names of an attention's tensors."""

from __future__ import annotations

import pytest
import torch

from hydractl.families.base import AttentionLayout
from hydractl.heads.mask import Site
from tests.pico import same_tensors

SITE = Site("blocks.0.attn", heads=4, head_dim=3, d_model=12)
LAYOUTS = {
    "one matrix, a norm": (
        AttentionLayout(("in_proj_",), "out", q_norm="ln_q"),
        {"in_proj_weight": (36, 12), "in_proj_bias": (36,), "out.weight": (12, 12), "ln_q.weight": (3,)},
    ),
    "one each, fewer keys and values than queries": (
        AttentionLayout(("a.q", "a.k", "a.v"), "o"),
        {"a.q.weight": (12, 12), "a.k.weight": (6, 12), "a.v.weight": (6, 12), "a.v.bias": (6,), "o.weight": (12, 12)},
    ),
    "gated, with all biases": (
        AttentionLayout(("qkv",), "o", gate="g"),
        {"qkv.weight": (36, 12), "g.weight": (12, 12), "g.bias": (12,), "o.weight": (12, 12), "o.bias": (12,)},
    ),
    "no head is left": (
        AttentionLayout(("qkv",), "o"),
        {"qkv.weight": (0, 12), "qkv.bias": (0,), "o.weight": (12, 0)},
    ),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_what_is_written_is_what_was_read(case: str) -> None:
    layout, shapes = LAYOUTS[case]
    tensors = {f"{SITE.path}.{name}": torch.randn(shape) for name, shape in shapes.items()}
    weights = layout.read(tensors, SITE)
    assert weights.q.shape[1:] == weights.k.shape[1:] == weights.o.mT.shape[1:] == (3, 12)
    written: dict[str, torch.Tensor] = {}
    layout.write(written, SITE, weights)
    assert same_tensors(written, tensors)
