"""Declarations that a family is made of: the names of an attention's tensors."""

from __future__ import annotations

import torch

from hydractl.families.base import AttentionLayout
from hydractl.heads.mask import Site
from tests.pico import same_tensors


def test_what_is_written_is_what_was_read() -> None:
    """With fewer heads of keys and values than of queries, and a bias of values alone."""
    site = Site("blocks.0.attn", heads=4, head_dim=3, d_model=12)
    layout = AttentionLayout(("a.q", "a.k", "a.v"), "o")
    shapes = {"a.q.weight": (12, 12), "a.k.weight": (6, 12), "a.v.weight": (6, 12), "a.v.bias": (6,)}
    shapes |= {"o.weight": (12, 12), "o.bias": (12,)}
    tensors = {f"{site.path}.{name}": torch.randn(shape) for name, shape in shapes.items()}
    written: dict[str, torch.Tensor] = {}
    layout.write(written, site, layout.read(tensors, site))
    assert same_tensors(written, tensors)
