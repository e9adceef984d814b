"""Algorithm 1 written naively on the libraries' own models, against the product's search."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any
from unittest import mock

import pytest
import torch

from hydractl.circuit.evaluator import Evaluator, Sample
from hydractl.circuit.objective import Measured
from hydractl.circuit.search import GreedySearch, evaluations
from hydractl.fusion.runtime import HydraModel
from hydractl.heads import HeadMask
from tests.pico import CLIP, images, logits, mask_of, prune_source, source_of, stock, zero_columns

BLOCKS = tuple(f"blocks.{site}.attn" for site in range(3))


def data() -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """ID batches, their labels and OOD batches; small numbers make ties the rule."""
    inside, outside = images(11, seed=5), images(7, seed=6) * 1.5
    labels = torch.randint(0, 5, (11,), generator=torch.Generator().manual_seed(7))
    return list(inside.split(4)), list(labels.split(4)), list(outside.split(4))


@torch.no_grad()
def naive_score(model: Any, objective: str) -> Fraction:
    """S of the paper, D.1.2, with pairs counted one by one."""
    inside, labels, outside = data()
    found = [logits(model, x).double() for x in inside]
    correct = sum(int((z.argmax(-1) == y).sum()) for z, y in zip(found, labels, strict=True))
    confident = [float(c) for z in found for c in z.softmax(-1).amax(-1)]
    strange = [float(c) for x in outside for c in logits(model, x).double().softmax(-1).amax(-1)]
    pairs = sum(Fraction(1) if o < i else Fraction(1, 2) if o == i else Fraction(0) for o in strange for i in confident)
    accuracy = Fraction(correct, len(confident))
    auroc = pairs / (len(confident) * len(strange))
    return {"acc": accuracy, "ood": auroc, "avg": (accuracy + auroc) / 2}[objective]


def naive_ranking(
    model: Any, objective: str, budget: int, start: list[tuple[str, int]], paths: Sequence[str] = BLOCKS
) -> list[tuple[str, int, Fraction]]:
    """Algorithm 1: ablate each remaining head alone, remove the one with the highest score, first one wins a tie."""
    removed = list(start)
    steps = []
    for _ in range(budget):
        best: tuple[Fraction, str, int] | None = None
        for path in paths:
            for head in range(3):
                if (path, head) in removed:
                    continue
                score = naive_score(zero_columns(model, [*removed, (path, head)]), objective)
                if best is None or score > best[0]:
                    best = (score, path, head)
        assert best is not None
        removed.append((best[1], best[2]))
        steps.append((best[1], best[2], best[0]))
    return steps


def samples() -> list[Sample]:
    inside, labels, outside = data()
    known = [Sample(x, y, len(y)) for x, y in zip(inside, labels, strict=True)]
    return known + [Sample(x, None, len(x)) for x in outside]


@pytest.mark.parametrize("variant", ["class-token", "average-pooling", "qk-norm", "clip"])
@pytest.mark.parametrize("objective", ["acc", "ood", "avg"])
def test_ranking_equals_the_naive_algorithm(variant: str, objective: str) -> None:
    reference = stock(variant)
    source = source_of(reference, variant)
    model = HydraModel(source.description, source.tensors)
    heads = [(site, head) for site in range(3) for head in range(3)]
    # A CLIP whose visual heads are all gone gives every image the same features, and rounding would decide the rest.
    budget = 6 if variant in CLIP else 9
    base, steps = GreedySearch(Evaluator(model, samples()), heads).rank(objective, budget, lambda step: None)
    assert base.score(objective) == pytest.approx(float(naive_score(reference, objective)), abs=1e-12)
    paths = [site.path for site in model.sites]
    found = [(paths[s.candidate[0]], s.candidate[1]) for s in steps]
    expected = naive_ranking(reference, objective, budget, [], paths)
    assert found == [(site, head) for site, head, _ in expected]
    for step, (_, _, score) in zip(steps, expected, strict=True):
        assert step.measured.score(objective) == pytest.approx(float(score), abs=1e-12)


@pytest.mark.parametrize("tower", ["visual", "text"])
def test_the_heads_of_one_tower(tower: str) -> None:
    """Here more classes than run at once make several passes of the text tower, and removed heads lie in both."""
    reference = stock("clip")
    source = source_of(reference, "clip")
    gone = [("visual.transformer.resblocks.1.attn", 1), ("transformer.resblocks.0.attn", 2)]
    mask = HeadMask.full(source.sites).without(gone)
    pruned = prune_source(source, mask)
    model = HydraModel(pruned.description, pruned.tensors)
    kept = list(mask.kept.values())
    sites = [i for i, site in enumerate(source.sites) if site.tower == tower]
    heads = [(i, position) for i in sites for position in range(len(kept[i]))]
    with mock.patch("hydractl.circuit.evaluator.PROMPTS_AT_ONCE", 4):
        _, steps = GreedySearch(Evaluator(model, samples()), heads).rank("avg", 2, lambda step: None)
    paths = [source.sites[i].path for i in sites]
    found = [(source.sites[s.candidate[0]].path, kept[s.candidate[0]][s.candidate[1]]) for s in steps]
    expected = naive_ranking(reference, "avg", 2, gone, paths)
    assert found == [(site, head) for site, head, _ in expected]
    for step, (_, _, score) in zip(steps, expected, strict=True):
        assert step.measured.score("avg") == pytest.approx(float(score), abs=1e-12)


def test_ties_really_occur_in_this_data() -> None:
    model = stock("class-token")
    scores = [naive_score(zero_columns(model, [(f"blocks.{s}.attn", h)]), "acc") for s in range(3) for h in range(3)]
    assert len(set(scores)) < len(scores)


def test_search_from_a_pruned_model() -> None:
    reference = stock("class-token")
    source = source_of(reference, "class-token")
    mask = mask_of(source, [[0, 2], [1], [0, 1, 2]])
    pruned = prune_source(source, mask)
    model = HydraModel(pruned.description, pruned.tensors)
    heads = [(i, p) for i, kept in enumerate(mask.kept.values()) for p in range(len(kept))]
    _, steps = GreedySearch(Evaluator(model, samples()), heads).rank("avg", 4, lambda step: None)
    kept = list(mask.kept.values())
    found = [(f"blocks.{s.candidate[0]}.attn", kept[s.candidate[0]][s.candidate[1]]) for s in steps]
    assert found == [(site, head) for site, head, _ in naive_ranking(reference, "avg", 4, mask.removed_heads)]


def test_objectives_share_what_they_have_in_common() -> None:
    source = source_of(stock("class-token"), "class-token")
    model = HydraModel(source.description, source.tensors)
    heads = [(site, head) for site in range(3) for head in range(3)]
    search = GreedySearch(Evaluator(model, samples()), heads)
    search.rank("acc", 3, lambda step: None)
    assert search.evaluations == 9 + 8 + 7
    search.rank("ood", 1, lambda step: None)
    assert search.evaluations == 9 + 8 + 7


def test_scores_are_exact_integers() -> None:
    # 1/3 + 2/3 style sums differ as floats; the keys must not.
    one, two = Measured(1, 3, 4, 3), Measured(2, 3, -2, 3)
    assert one.key("avg") == two.key("avg")
    assert Measured(2, 4, 9, 3).score("avg") == pytest.approx((0.5 + 9 / 24) / 2)


def test_number_of_evaluations_of_the_paper() -> None:
    assert evaluations(144, 48) == 5784


def test_gates_are_off_after_a_search() -> None:
    source = source_of(stock("class-token"), "class-token")
    model = HydraModel(source.description, source.tensors)
    Evaluator(model, samples()).measure([(0, 1)], [(2, 2)])
    assert all(a.head_gate is None for a in model.attentions)
