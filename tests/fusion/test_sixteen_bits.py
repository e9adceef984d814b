"""Weights of 16 bits that compute in float32: the numbers of a model whose weights were widened beforehand."""

from __future__ import annotations

import pytest
import torch

from hydractl.files.checkpoint import DictTensors
from hydractl.fusion.plan import plan_fusion
from hydractl.fusion.selfcheck import compute_in_float32, storage_dtype
from hydractl.model.runtime import HydraModel
from tests.pico import VARIANTS, inputs, mask_of, prune_source, shared_stock, source_of
from tests.spread import spread

KEPT = [[[0, 2], [1], [0, 1, 2]], [[1], [0, 1, 2], []]]


def narrowed(variant: str, dtype: torch.dtype, merge: list[str]) -> tuple[object, DictTensors]:
    """Description and 16-bit tensors of a fused model."""
    sources = []
    for index, heads in enumerate(KEPT):
        source = source_of(shared_stock(variant, index), variant, name=f"member{index}")
        sources.append(prune_source(source, mask_of(source, heads)))
    plan = plan_fusion(sources, merge)
    return plan.description, DictTensors({n: plan.tensors.read(n).to(dtype) for n in plan.tensors.names()})


@pytest.mark.parametrize(
    ("variant", "dtype", "merge"), spread(VARIANTS, [torch.float16, torch.bfloat16], [["mlp", "norm", "embed"], []])
)
@torch.no_grad()
def test_the_same_numbers_as_float32(variant: str, dtype: torch.dtype, merge: list[str]) -> None:
    description, tensors = narrowed(variant, dtype, merge)
    assert storage_dtype(tensors) == dtype
    wide = HydraModel(description, tensors).with_classes()  # type: ignore[arg-type]
    narrow = compute_in_float32(HydraModel(description, tensors, dtype=dtype).with_classes())  # type: ignore[arg-type]
    expected, found = wide.member_logits(inputs(variant)), narrow.member_logits(inputs(variant))
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    assert torch.equal(narrow.member_logits(inputs(variant)), expected), "a second time, after all was dropped"
