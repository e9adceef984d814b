"""Cascades: one member answers alone where its score is low, and the others run for the other samples."""

from __future__ import annotations

import pytest
import torch

from hydractl.fusion.plan import plan_fusion
from hydractl.model.runtime import HydraModel
from tests.fusion.test_common import MASKS, of_one_checkpoint
from tests.fusion.test_fused import members as of_their_own
from tests.pico import close, inputs
from tests.spread import ONE_OF_EACH, marked_release, spread

# Who goes on does not depend on the library: with one model every two settings together, and one of the thirty ways
# with each of the others.
WAYS = (MASKS, [0, 1, 2], [False, True])
PAIRS = [
    ("class-token", case, first, bool((number + first) % 2)) for number, case in enumerate(MASKS) for first in range(3)
]
FEW = ["beit", "bert", "llama", "clip", "swin"]
REST = [variant for variant in ONE_OF_EACH if variant not in ("class-token", *FEW)]
CASES = PAIRS + spread(FEW, *WAYS) + marked_release(spread(REST, *WAYS))


@pytest.mark.parametrize(("variant", "case", "first", "own"), CASES)
@torch.no_grad()
def test_rows_that_go_on_have_the_librarys_answers_of_all_members(
    variant: str, case: str, first: int, own: bool
) -> None:
    members, expected = (of_their_own if own else of_one_checkpoint)(variant, MASKS[case])
    plan = plan_fusion(members, [])
    fused = HydraModel(plan.description, plan.tensors)
    found = fused.staged_logits(inputs(variant), first, lambda logits: torch.tensor([len(logits) - 1]))
    for member, reference in zip(found, expected, strict=True):
        close(member[-1:], reference[-1:])
        close(member[:-1], expected[first][:-1])
