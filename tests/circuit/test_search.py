"""The product's search against Algorithm 1 written naively on the libraries' own models."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.objective import OBJECTIVE_BY_NAME, EvaluationCounts
from hydractl.circuit.samples import SearchBatch
from hydractl.circuit.search import GreedySearch, ObjectiveRanking
from hydractl.heads.mask import HeadMask
from hydractl.model.runtime import HydraModel
from tests.circuit import naive
from tests.pico import prune_source, source_of, stock
from tests.spread import marked_long, marked_release

HEADS = [(site, head) for site in range(3) for head in range(3)]


def samples(data: naive.Data) -> list[SearchBatch]:
    """Return the batches of a search, ID batches first."""

    def batch_of(inputs: Any, labels: torch.Tensor | None) -> SearchBatch:
        first = next(iter(inputs.values())) if isinstance(inputs, dict) else inputs
        return SearchBatch(lambda: inputs, None if labels is None else labels.numpy(), len(first))

    batches = []
    for inputs, labels in zip(data.inside, data.labels, strict=True):
        batches.append(batch_of(inputs, labels))
    for inputs in data.outside:
        batches.append(batch_of(inputs, None))
    return batches


def model_of(reference: Any, variant: str) -> HydraModel:
    source = source_of(reference, variant)
    return HydraModel(source.description, source.tensors)


def names(
    model: HydraModel, ranking: ObjectiveRanking, kept: list[tuple[int, ...]] | None = None
) -> list[tuple[str, int]]:
    """Return the removals of a ranking, each with its site and original number."""
    heads = kept or [tuple(range(site.heads)) for site in model.sites]
    return [(model.sites[site].path, heads[site][position]) for site, position in ranking.removed]


# Draws of the data of which the reference refuses none.
DRAWS = {"class-token": 1, "bert": 3, "clip": 31, "llama": 0, "swin": 7, "deberta-v3": 28}
DRAWS |= {"modernbert": 0}
# Heads that are removed: all but one, and of other kinds of attention as many as tell them apart. Without any (visual)
# head, or few of a DeBERTa, all samples are the same, and rounding would decide.
BUDGETS = {"class-token": 8, "clip": 5, "deberta-v3": 5}
WHOLE = [(variant, BUDGETS.get(variant, 4)) for variant in DRAWS]
# LLaMA rotates, too, and reads texts; DeBERTa has relative positions, too.
BEFORE_A_RELEASE = ("bert", "swin", "modernbert")
OFTEN = [case for case in WHOLE if case[0] not in BEFORE_A_RELEASE]
RARELY = [case for case in WHOLE if case[0] in BEFORE_A_RELEASE]


@pytest.mark.parametrize(("variant", "budget"), [("class-token", 3), *marked_long(OFTEN), *marked_release(RARELY)])
def test_rankings_equal_the_naive_algorithm(variant: str, budget: int) -> None:
    reference = stock(variant)
    data = naive.data(variant, draw=DRAWS[variant])
    model = model_of(reference, variant)
    objectives = list(OBJECTIVE_BY_NAME)
    paths = [site.path for site in model.sites]
    expected = naive.rankings(reference, data, objectives, budget, paths)
    base_score = float(naive.score(reference, "avg", data))
    for bounds in (True, False) if variant == "class-token" else (True,):
        evaluator = Evaluator(model, samples(data), lanes=2)
        rankings = GreedySearch(evaluator, HEADS, bounds=bounds).run(objectives, budget)
        evaluator.close()
        for objective, ranking in rankings.items():
            expected_removals = [(path, head) for path, head, _ in expected[objective]]
            assert names(model, ranking) == expected_removals, objective
            scale = len(torch.cat(data.labels)) if objective == "nll" else 1
            for step, (_, _, score) in zip(ranking.steps, expected[objective], strict=True):
                assert step.counts.score(objective) * scale == pytest.approx(float(score), rel=1e-5, abs=1e-5)
                assert step.counts.n_ood == 7  # counted for every objective
        assert rankings["acc"].base.score("avg") == pytest.approx(base_score, abs=1e-12)


@pytest.mark.parametrize(("tower", "draw"), [("visual", 1), ("text", 0)])
def test_the_heads_of_one_tower(tower: str, draw: int) -> None:
    """Here more classes than run at once make several passes of the text tower, and removed heads lie in both."""
    reference = stock("clip")
    data = naive.data("clip", draw=draw)
    source = source_of(reference, "clip")
    removed_before = [("visual.transformer.resblocks.1.attn", 1), ("transformer.resblocks.0.attn", 2)]
    mask = HeadMask.full(source.sites).without(removed_before)
    pruned = prune_source(source, mask)
    model = HydraModel(pruned.description, pruned.tensors)
    kept = list(mask.kept.values())
    heads = []
    paths = []
    for index, site in enumerate(source.sites):
        if site.tower == tower:
            heads += [(index, position) for position in range(len(kept[index]))]
            paths.append(site.path)
    with mock.patch("hydractl.circuit.evaluator.PROMPTS_AT_ONCE", 4):
        ranking = GreedySearch(Evaluator(model, samples(data)), heads).run(["avg"], 2)["avg"]
    measure = partial(naive.score, objective="avg", samples=data)
    expected = naive.ranking(reference, measure, 2, paths, removed_before)
    assert names(model, ranking, kept) == [(path, head) for path, head, _ in expected]
    for step, (_, _, score) in zip(ranking.steps, expected, strict=True):
        assert step.counts.score("avg") == pytest.approx(float(score), abs=1e-12)


def test_objectives_share_what_they_have_in_common() -> None:
    model = model_of(stock("class-token"), "class-token")

    def search(*objectives: str) -> tuple[dict[str, ObjectiveRanking], int]:
        greedy = GreedySearch(Evaluator(model, samples(naive.data())), HEADS, bounds=False)
        rankings = greedy.run(objectives, 3)
        greedy.evaluator.close()
        return rankings, greedy.evaluations

    for objective in ("acc", "ood"):
        _, evaluations_alone = search(objective)
        assert evaluations_alone == 9 + 8 + 7
    rankings, evaluations_together = search("acc", "ood")
    expected = 9  # at the first step both have the same model
    for step, candidates in ((1, 8), (2, 7)):
        same = set(rankings["acc"].removed[:step]) == set(rankings["ood"].removed[:step])
        expected += candidates if same else 2 * candidates
    assert evaluations_together == expected


def test_scores_are_exact_integers() -> None:
    # 1/3 + 2/3 style sums differ as floats; the keys must not.
    thirds = EvaluationCounts(correct=1, n_id=3, two_u=4, n_ood=3)
    others = EvaluationCounts(correct=2, n_id=3, two_u=-2, n_ood=3)
    assert thirds.key("avg") == others.key("avg")
    assert EvaluationCounts(2, 4, 9, 3).score("avg") == pytest.approx((0.5 + 9 / 24) / 2)


def test_the_best_case_is_reached_and_never_exceeded() -> None:
    """All ways to complete a part of the data: none beats the best case, and for the pairs one of them reaches it."""
    seen = EvaluationCounts(correct=1, n_id=2, two_u=3, n_ood=1, nll=5)
    best = seen.best_case(3, 2)
    for right, unseen in itertools.product((0, 1), range(2 * (3 * 2 - 2 * 1) + 1)):
        done = EvaluationCounts(1 + right, 3, 3 + unseen, 2, 5)
        assert all(done.key(o) <= best.key(o) for o in OBJECTIVE_BY_NAME)
    assert EvaluationCounts(2, 3, 3 + 8, 2, 5) == best


def test_the_model_is_whole_after_a_search() -> None:
    model = model_of(stock("clip"), "clip")
    data = naive.data("clip")
    before = model.member_logits(data.inside[0])
    evaluator = Evaluator(model, samples(data))
    GreedySearch(evaluator, HEADS).run(["acc"], 4)
    evaluator.close()
    model.eval()  # class features are kept; compute them anew
    assert torch.equal(model.member_logits(data.inside[0]), before)
    for attention in model.attentions:
        assert attention.head_gate is None
        assert attention.observer is None
