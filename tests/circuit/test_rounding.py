"""What rounding leaves undecided: a search says which of its steps hang on it."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from hydractl.circuit.counting import LOGIT_TOLERANCE, SLOPES, Tally, values_of
from hydractl.circuit.headmap import Headmap
from hydractl.circuit.objective import Doubt, EvaluationCounts
from hydractl.circuit.search import GreedySearch
from tests.circuit import naive
from tests.circuit.searching import evaluator_of, resumes, searched, shared_by_two
from tests.circuit.test_search import HEADS
from tests.pico import stock, zero_columns
from tests.spread import marked_release, spread

PATHS = [f"blocks.{site}.attn" for site in range(3)]


def twins() -> Any:
    """A model two of whose five classes are the same."""
    model = stock("class-token")
    with torch.no_grad():
        model.head.weight[3] = model.head.weight[1]
        model.head.bias[3] = model.head.bias[1]
    return model


def shared() -> naive.Data:
    """One OOD sample is an ID sample too, and one ID sample is of a class that has a twin."""
    data = naive.data(inside=15, outside=9)
    data.outside[0][0] = data.inside[0][0]
    for labels in data.labels:
        labels[(labels == 1) | (labels == 3)] = 0
    data.labels[0][0] = 3
    return data


# --- what may be counted otherwise ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ood_score", "dtype"), spread(SLOPES, [torch.float32, torch.bfloat16]))
def test_no_noise_below_rounding_leaves_the_range(ood_score: str, dtype: torch.dtype) -> None:
    """Logits moved by less than half the tolerance, so that no two of them move apart or together by more."""
    draw = torch.Generator().manual_seed(0)
    labels = np.arange(60) % 4
    inside, outside = (3 * torch.randn(60, 4, generator=draw) for _ in range(2))
    near = torch.tensor([0.2, -0.2]).repeat(10) * LOGIT_TOLERANCE[dtype]
    inside[range(20), labels[:20]] = inside[:20].amax(1) + near
    outside[:30] = inside[15:45]
    inside, outside = (side.to(dtype) for side in (inside, outside))

    def counted(*sides: torch.Tensor) -> EvaluationCounts:
        tally = Tally()
        for batch, (side, own) in enumerate(zip(sides, (labels, None), strict=True)):
            tally.add(batch, values_of(side, own, ood_score))
        return tally.counts()

    found = counted(inside, outside)
    assert min(found.doubt[:4]) > 0
    seen = set()
    for _ in range(50):
        sides = []
        for side in (inside.double(), outside.double()):
            most = 0.45 * LOGIT_TOLERANCE[dtype] * side.abs().amax(-1, keepdim=True).clamp_min(1.0)
            sides.append(side + most * (2 * torch.rand(side.shape, generator=draw, dtype=torch.float64) - 1))
        noisy = counted(*sides)
        seen.add((noisy.correct, noisy.two_u))
        for objective in ("acc", "ood", "avg"):
            assert found.least.key(objective) <= noisy.key(objective) <= found.most.key(objective)
    assert len(seen) > 10


def test_the_range_is_no_wider_than_the_samples_in_doubt() -> None:
    """Margins of 2e-6 and confidences as far apart are in doubt, those of 2e-4 are not."""
    near, far = 2e-6, 2e-4
    sure = [[1.0, 0.0], [0.0, 1.0], [far, 0.0], [0.0, far]]
    open_ = [[near, 0.0], [0.0, near], [0.5, 0.5]]
    found = values_of(torch.tensor(sure + open_), np.zeros(7, int), "msp")
    assert (found.correct, found.doubt) == (4, Doubt(fewer=2, more=1, loss=7))
    tally = Tally()
    tally.add(0, values_of(torch.tensor([[1.0, 0.0], [2.0, 0.0]]), np.zeros(2, int), "msp"))
    tally.add(1, values_of(torch.tensor([[1.0 + near, 0.0], [1.0 - far, 0.0], [0.0, 2.0]]), None, "msp"))
    # Of the first sample: lower confidence, higher, higher; of the second: the first two higher, a tie.
    assert tally.counts().two_u == (0 + 2 + 0) + (2 + 2 + 1)
    assert tally.counts().doubt == Doubt(lower=0 + 1, higher=2 + 1, loss=2)


def test_wider_numbers_leave_less_in_doubt() -> None:
    z, labels = torch.tensor([[1.0, 1.0 - 1e-9], [1.0, 1.0 - 1e-3]]), np.zeros(2, int)
    fewer = {dtype: values_of(z.to(dtype), labels, "msp").doubt.fewer for dtype in LOGIT_TOLERANCE}
    assert fewer == {torch.float64: 1, torch.float32: 1, torch.float16: 2, torch.bfloat16: 2}
    assert values_of(z.double() + torch.tensor([0.0, -1e-9]), labels, "msp").doubt == Doubt()


# --- searches ---------------------------------------------------------------------------------------------------------


def test_steps_that_hang_on_rounding_are_those_of_the_definition() -> None:
    """At each step those could have won whose most is not less than another one's least, of equal ones the first."""
    reference, data = twins(), shared()
    found, _ = searched(GreedySearch, reference, "class-token", data, ["avg"], 2)
    gone: list[naive.Head] = []
    for step in found["avg"].steps:
        left = [(site, head) for site, head in HEADS if (PATHS[site], head) not in gone]
        ranges = {}
        for site, head in left:
            without = zero_columns(reference, [*gone, (PATHS[site], head)])
            ranges[site, head] = naive.bounds(without, "avg", data)
            for other in (2e-6, 1.5e-5):  # what differs does so by little or by much: no test of where the border is
                with mock.patch.object(naive, "ROUNDING", other):
                    assert naive.bounds(without, "avg", data) == ranges[site, head]
        surest = max(left, key=lambda one: (ranges[one][0], -HEADS.index(one)))
        could = {one for one in left if (ranges[one][1], surest) >= (ranges[surest][0], one)}
        assert {step.head, *(rival.head for rival in step.rivals)} == could
        assert 1 < len(could) < len(left)
        gone.append((PATHS[step.head[0]], step.head[1]))


@pytest.mark.parametrize("objectives", [["avg"], ["acc", "ood", "avg"], *marked_release([["avg", "nll"]])])
@pytest.mark.long
def test_what_is_noted_hangs_on_no_order_of_evaluation(objectives: list[str]) -> None:
    reference, data = twins(), shared()
    expected, plain = searched(GreedySearch, reference, "class-token", data, objectives, 2, bounds=False)
    assert any(step.rivals for found in expected.values() for step in found.steps)
    found, search = searched(GreedySearch, reference, "class-token", data, objectives, 2)
    assert found == expected
    assert search.evaluator.work < plain.evaluator.work
    _, evaluator = evaluator_of(reference, "class-token", data, memory_bytes=30_000)
    assert len(evaluator.memory.chunks) > 2
    assert GreedySearch(evaluator, HEADS).run(objectives, 2) == expected
    evaluator.close()
    resumes(GreedySearch, reference, "class-token", data, objectives, 2, cuts=1 if len(objectives) == 1 else 3)
    shared_by_two(GreedySearch, reference, "class-token", data, objectives, 2)


def test_headmap_notes_heads_that_rounding_may_have_kept() -> None:
    reference, data = twins(), shared()
    make = partial(Headmap, kept=dict.fromkeys(range(3), 1))
    found, _ = searched(make, reference, "class-token", data, ["avg", "acc"])
    for ranking in found.values():
        assert 0 < sum(bool(step.rivals) for step in ranking.steps) < 6
        for step in ranking.steps:
            chosen = next(one for one in HEADS if one[0] == step.head[0] and one not in ranking.removed)
            assert all(rival.head == chosen for rival in step.rivals)
