"""What a circuit costs in an ensemble, against the plan of a fusion that reads all weights."""

from __future__ import annotations

import random

import pytest

from hydractl.circuit.scope import FusedCost
from hydractl.fusion.plan import plan_fusion
from hydractl.model.cost import dense_macs, macs
from tests.pico import prune_source, source_of, stock


@pytest.mark.parametrize(
    "variant", ["class-token", *(pytest.param(name, marks=pytest.mark.long) for name in ("bert", "llama", "clip"))]
)
def test_it_is_that_of_the_fused_model(variant: str) -> None:
    source = source_of(stock(variant), variant)
    heads, draw = source.description.mask.kept_heads, random.Random(0)
    full = source.description.mask
    pruned, other = prune_source(source, full.without(heads[-3:])), source_of(stock(variant, seed=1), variant)
    for members in ([source], [source, pruned], [other]):
        cost = FusedCost(members, source)
        ratios = set()
        for count in (1, 1, 2, 3):
            removed = draw.sample(heads, count)
            plan = plan_fusion([*members, prune_source(source, full.without(removed))])
            ratios.add(cost.without(removed))
            assert cost.without(removed) * dense_macs(source.description) == macs(plan.description, plan.tensors)
        assert len(ratios) > 1
