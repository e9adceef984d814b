"""The product's search against Algorithm 1 written naively on the libraries' own models."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from hydractl.circuit.counting import Tally, Values
from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.objective import OBJECTIVE_BY_NAME, Doubt, EvaluationCounts
from hydractl.circuit.samples import SearchBatch
from hydractl.circuit.search import GreedySearch, ObjectiveRanking, evaluations
from hydractl.circuit.winners import Trial, contenders
from hydractl.expressions.conditions import parse_constraint
from hydractl.heads.mask import HeadMask
from hydractl.model.runtime import HydraModel
from tests.circuit import naive
from tests.pico import CLIP, logits, mask_of, prune_source, source_of, stock, zero_columns

HEADS = [(site, head) for site in range(3) for head in range(3)]


def samples(found: naive.Data, others: Sequence[Any] = ()) -> list[SearchBatch]:
    @torch.no_grad()
    def known(inputs: Any, labels: torch.Tensor | None, size: int) -> SearchBatch:
        beside = np.stack([logits(one, inputs).double().numpy() for one in others]) if others else None
        return SearchBatch(lambda: inputs, None if labels is None else labels.numpy(), size, beside)

    sizes = [len(next(iter(x.values())) if isinstance(x, dict) else x) for x in found.outside]
    inside = [known(x, y, len(y)) for x, y in zip(found.inside, found.labels, strict=True)]
    return inside + [known(x, None, n) for x, n in zip(found.outside, sizes, strict=True)]


def model_of(reference: Any, variant: str) -> HydraModel:
    source = source_of(reference, variant)
    return HydraModel(source.description, source.tensors)


def names(
    model: HydraModel, found: ObjectiveRanking, kept: list[tuple[int, ...]] | None = None
) -> list[tuple[str, int]]:
    heads = kept or [tuple(range(site.heads)) for site in model.sites]
    return [(model.sites[site].path, heads[site][position]) for site, position in found.removed]


# Draws of the data of which the reference refuses none.
DRAWS = {"class-token": 1, "bert": 3, "clip": 31, "llama": 0, "swin": 7, "deberta-v3": 28}
# Of which four heads are removed: what they have of their own is how they attend.
FOUR = {"rope-mixed": 0, "modernbert": 0}
DRAWS |= FOUR
LONG = ("llama", "swin", "deberta-v3", *FOUR)
ENSEMBLE_DRAWS = {(1, "class-token"): 1, (2, "class-token"): 0, (1, "clip"): 2}
SITES_OF = {
    "class-token": [f"blocks.{i}.attn" for i in range(3)],
    "clip": [f"{tower}transformer.resblocks.{i}.attn" for tower, i in (("visual.", 0), ("visual.", 1), ("", 0))],
}


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in DRAWS]
)
def test_rankings_equal_the_naive_algorithm(variant: str) -> None:
    reference, data = stock(variant), naive.data(variant, draw=DRAWS[variant])
    model = model_of(reference, variant)
    paths = [site.path for site in model.sites]
    # Without any (visual) head, or few of a DeBERTa, all samples are the same, and rounding would decide.
    budget = 4 if variant in FOUR else 5 if variant in (*CLIP, "deberta-v3") else 8
    expected = naive.rankings(reference, data, list(OBJECTIVE_BY_NAME), budget, paths)
    for bounds in (True, False) if variant == "class-token" else (True,):
        evaluator = Evaluator(model, samples(data), lanes=2)
        found = GreedySearch(evaluator, HEADS, bounds=bounds).run(list(OBJECTIVE_BY_NAME), budget)
        evaluator.close()
        for objective, ranking in found.items():
            assert names(model, ranking) == [(site, head) for site, head, _ in expected[objective]], objective
            scale = len(torch.cat(data.labels)) if objective in ("nll", "brier") else 1
            for step, (_, _, score) in zip(ranking.steps, expected[objective], strict=True):
                assert step.counts.score(objective) * scale == pytest.approx(float(score), rel=1e-5, abs=1e-5)
                assert step.counts.n_ood == 7  # counted for every objective
                assert not step.rivals  # the reference has seen that nothing rests on rounding
        assert found["acc"].base.score("avg") == pytest.approx(float(naive.score(reference, "avg", data)), abs=1e-12)


@pytest.mark.parametrize(
    ("count", "variant"),
    [
        (1, "class-token"),
        pytest.param(2, "class-token", marks=pytest.mark.long),
        pytest.param(1, "clip", marks=pytest.mark.long),
    ],
)
def test_rankings_for_an_ensemble_equal_the_naive_algorithm(count: int, variant: str) -> None:
    reference, data = stock(variant), naive.data(variant, draw=ENSEMBLE_DRAWS[count, variant])
    others = [stock(variant, seed=3), zero_columns(reference, [(SITES_OF[variant][0], 1)])][:count]
    expected = naive.rankings(reference, data, list(OBJECTIVE_BY_NAME), 5, SITES_OF[variant], others)
    evaluator = Evaluator(model := model_of(reference, variant), samples(data, others), lanes=2)
    for objective, ranking in GreedySearch(evaluator, HEADS).run(list(OBJECTIVE_BY_NAME), 5).items():
        assert names(model, ranking) == [(site, head) for site, head, _ in expected[objective]], objective
        scale = len(torch.cat(data.labels)) if objective in ("nll", "brier") else 1
        for step, (_, _, score) in zip(ranking.steps, expected[objective], strict=True):
            assert step.counts.score(objective) * scale == pytest.approx(float(score), rel=1e-5, abs=1e-5)
            assert not step.rivals


@pytest.mark.parametrize(
    ("objectives", "memory", "at_once", "constraints"),
    [
        (["acc"], sys.maxsize, 1, []),
        (["ood"], 30_000, 2, ["ood>=base-0.01"]),
        (["acc", "ood", "avg"], 0, 1, ["ood>=base-0.01"]),
    ],
)
def test_neither_bounds_nor_memory_nor_company_change_a_ranking(
    objectives: list[str], memory: int, at_once: int, constraints: list[str]
) -> None:
    data = naive.data(inside=31, outside=23)
    model = model_of(stock("class-token"), "class-token")
    plain = Evaluator(model, samples(data))
    # Another number of candidates at once is another shape of the matrix products, and rounds otherwise.
    same: Any = {"at_once": at_once, "constraints": [parse_constraint(text) for text in constraints]}
    expected = GreedySearch(plain, HEADS, bounds=False, **same).run(objectives, 3)
    plain.close()
    evaluator = Evaluator(model, samples(data), memory_bytes=memory, lanes=3)
    assert (len(evaluator.chunks) > 1) == (memory < sys.maxsize)
    search = GreedySearch(evaluator, HEADS, **same)
    assert search.run(objectives, 3) == expected
    if memory == sys.maxsize and at_once == 1:
        assert evaluator.work < plain.work


@pytest.mark.parametrize(("tower", "draw"), [("visual", 1), ("text", 0)])
def test_the_heads_of_one_tower(tower: str, draw: int) -> None:
    """Here more classes than run at once make several passes of the text tower, and removed heads lie in both."""
    reference, data = stock("clip"), naive.data("clip", draw=draw)
    source = source_of(reference, "clip")
    gone = [("visual.transformer.resblocks.1.attn", 1), ("transformer.resblocks.0.attn", 2)]
    mask = HeadMask.full(source.sites).without(gone)
    pruned = prune_source(source, mask)
    model = HydraModel(pruned.description, pruned.tensors)
    kept = list(mask.kept.values())
    sites = [i for i, site in enumerate(source.sites) if site.tower == tower]
    heads = [(i, position) for i in sites for position in range(len(kept[i]))]
    with mock.patch("hydractl.circuit.evaluator.PROMPTS_AT_ONCE", 4):
        found = GreedySearch(Evaluator(model, samples(data)), heads).run(["avg"], 2)["avg"]
    paths = [source.sites[i].path for i in sites]
    expected = naive.ranking(reference, lambda m: naive.score(m, "avg", data), 2, paths, gone)
    assert names(model, found, kept) == [(site, head) for site, head, _ in expected]
    for step, (_, _, score) in zip(found.steps, expected, strict=True):
        assert step.counts.score("avg") == pytest.approx(float(score), abs=1e-12)


def test_search_from_a_pruned_model() -> None:
    reference, data = stock("class-token"), naive.data()
    source = source_of(reference, "class-token")
    mask = mask_of(source, [[0, 2], [1], [0, 1, 2]])
    pruned = prune_source(source, mask)
    model = HydraModel(pruned.description, pruned.tensors)
    heads = [(i, p) for i, kept in enumerate(mask.kept.values()) for p in range(len(kept))]
    found = GreedySearch(Evaluator(model, samples(data)), heads).run(["avg"], 4)["avg"]
    paths = [site.path for site in model.sites]
    expected = naive.ranking(reference, lambda m: naive.score(m, "avg", data), 4, paths, mask.removed_heads)
    assert names(model, found, list(mask.kept.values())) == [(site, head) for site, head, _ in expected]


@pytest.mark.parametrize(
    ("draw", "objective", "constraints", "steps", "bounds"),
    [
        (1, "ood", ["acc>=base-0.3"], 6, False),
        pytest.param(2, "avg", ["acc>=base-0.2", "ood >= 0.5"], 6, True, marks=pytest.mark.long),
        (3, "ood", ["acc>=base"], 4, True),
        pytest.param(1, "acc", ["ood>=base-0.02"], 8, True, marks=pytest.mark.long),
        (1, "ood", ["acc>=1.1"], 0, True),
    ],
)
def test_constrained_rankings_equal_the_naive_algorithm(
    draw: int, objective: str, constraints: list[str], steps: int, bounds: bool
) -> None:
    reference, data = copy.deepcopy(stock("class-token")), naive.data(draw=draw)
    for block in reference.blocks:
        block.attn.proj.weight.data *= 20  # so that heads decide what the model says
    data.labels = [logits(reference, x).argmax(-1) for x in data.inside]
    model = model_of(reference, "class-token")
    asked = [parse_constraint(text) for text in constraints]
    expected = naive.constrained(reference, data, objective, asked, [site.path for site in model.sites])
    assert len(expected) == steps
    evaluator = Evaluator(model, samples(data))
    found = GreedySearch(evaluator, HEADS, bounds=bounds, constraints=asked).run([objective], 8)[objective]
    evaluator.close()
    assert names(model, found) == expected and found.ended == (None if steps == 8 else "subject_to")
    assert not any(step.rivals for step in found.steps)


@pytest.mark.long
def test_a_constraint_that_is_never_met_with_changes_nothing_and_the_first_drop_too_far_ends_a_ranking() -> None:
    model, data = model_of(stock("class-token"), "class-token"), naive.data(inside=31, outside=23)

    def rankings(**options: Any) -> dict[str, ObjectiveRanking]:
        evaluator = Evaluator(model, samples(data))
        found = GreedySearch(evaluator, HEADS, **options).run(["acc", "ood"], 6)
        evaluator.close()
        return found

    plain = rankings()
    assert rankings(constraints=[parse_constraint(text) for text in ("acc>=0", "nll>=-99")]) == plain
    drops = {o: [found.base.correct - step.counts.correct for step in found.steps] for o, found in plain.items()}
    most = max(drops["ood"]) - 1
    ended = rankings(max_drop=Fraction(most, 31))
    assert ended["ood"].ended == "max_drop"
    for objective, found in plain.items():
        within = list(itertools.takewhile(lambda drop: drop <= most, drops[objective]))
        assert ended[objective].steps == found.steps[: len(within)]


def test_rounding_may_decide_whether_a_constraint_is_kept() -> None:
    """EvaluationCounts with doubt made on purpose: who is surely allowed, who perhaps, and who could take over."""

    def step(head: int, correct: int, two_u: int, fewer: int = 0, more: int = 0) -> Trial:
        return Trial((0, head), EvaluationCounts(correct, 10, two_u, 10, doubt=Doubt(fewer=fewer, more=more)))

    surely, perhaps, nearly, not_at_all = (
        step(0, 8, 50),
        step(1, 7, 60, fewer=1),
        step(2, 6, 70, more=1),
        step(3, 5, 99),
    )
    steps = [surely, perhaps, nearly, not_at_all]
    assert contenders("ood", steps, {"acc": 7}) == [perhaps, nearly, surely]
    assert contenders("ood", [surely, not_at_all], {"acc": 7}) == [surely]
    assert contenders("ood", [nearly, not_at_all], {"acc": 7}) == [nearly]  # the first is not allowed: no winner
    assert contenders("ood", [not_at_all], {"acc": 7}) == []
    assert contenders("ood", steps, {}) == [not_at_all]


def test_heads_that_do_nothing_tie_and_the_first_goes_first() -> None:
    reference, data = stock("class-token"), naive.data()
    idle = [("blocks.0.attn", 2), ("blocks.1.attn", 0), ("blocks.1.attn", 1), ("blocks.2.attn", 1)]
    reference = zero_columns(reference, idle)
    model = model_of(reference, "class-token")
    rankings = naive.rankings(reference, data, list(OBJECTIVE_BY_NAME), 6, [site.path for site in model.sites])
    rows = {}
    for at_once, together in ((1, ["acc", "avg", "brier"]), (2, ["ood", "nll"])):
        evaluator = Evaluator(model, samples(data))
        rows |= GreedySearch(evaluator, HEADS, at_once=at_once).run(together, 6)
        evaluator.close()
    paths = [site.path for site in model.sites]
    for objective, expected in rankings.items():
        found = rows[objective]
        for step in found.steps:
            candidates = [step.head, *(rival.head for rival in step.rivals)]
            # Nothing but idle heads is a matter of rounding: a product may round otherwise without their zeros.
            assert not step.rivals or {(paths[site], head) for site, head in candidates} <= set(idle)
        removed = names(model, found)
        places = [(site, head) for site, head, _ in expected]
        if any(step.rivals for step in found.steps):
            assert [head in idle or head for head in removed] == [head in idle or head for head in places]
            continue
        assert removed == places
        ranks = [removed.index(head) for head in idle if head in removed]
        assert ranks == sorted(ranks)


def test_ties_really_occur_in_this_data() -> None:
    model, data = stock("class-token"), naive.data()
    one_gone = [zero_columns(model, [(f"blocks.{s}.attn", h)]) for s, h in HEADS]
    scores = [naive.score(m, "acc", data) for m in one_gone]
    assert len(set(scores)) < len(scores)


def test_objectives_share_what_they_have_in_common() -> None:
    model = model_of(stock("class-token"), "class-token")
    runs = {}
    for objectives in (["acc"], ["ood"], ["acc", "ood"]):
        search = GreedySearch(Evaluator(model, samples(naive.data())), HEADS, bounds=False)
        found = search.run(objectives, 3)
        search.evaluator.close()
        runs[tuple(objectives)] = search.evaluations
    same = [set(found["acc"].removed[:n]) == set(found["ood"].removed[:n]) for n in range(3)]
    assert runs[("acc",)] == runs[("ood",)] == 9 + 8 + 7
    each = [n if shared else 2 * n for n, shared in zip((9, 8, 7), same, strict=True)]
    assert same[0] and runs[("acc", "ood")] == sum(each)


def test_scores_are_exact_integers() -> None:
    # 1/3 + 2/3 style sums differ as floats; the keys must not.
    one, two = EvaluationCounts(1, 3, 4, 3), EvaluationCounts(2, 3, -2, 3)
    assert one.key("avg") == two.key("avg")
    assert EvaluationCounts(2, 4, 9, 3).score("avg") == pytest.approx((0.5 + 9 / 24) / 2)


def test_the_best_case_is_reached_and_never_exceeded() -> None:
    """All ways to complete a part of the data: none beats the best case, and for the pairs one of them reaches it."""
    seen = EvaluationCounts(correct=1, n_id=2, two_u=3, n_ood=1, nll=5, brier=7)
    best = seen.best_case(3, 2)
    for right, unseen in itertools.product((0, 1), range(2 * (3 * 2 - 2 * 1) + 1)):
        done = EvaluationCounts(1 + right, 3, 3 + unseen, 2, 5, 7)
        assert all(done.key(o) <= best.key(o) for o in OBJECTIVE_BY_NAME)
    assert EvaluationCounts(2, 3, 3 + 8, 2, 5, 7) == best


def test_tally_counts_pairs_of_what_it_has_seen() -> None:
    tally = Tally()
    tally.add(0, Values(True, np.array([-0.9, -0.5]), correct=1))
    assert tally.counts().two_u is None
    tally.add(3, Values(False, np.array([-0.5, -0.2])))
    assert tally.counts() == EvaluationCounts(1, 2, 2 + 1 + 2 + 2, 2)


def test_number_of_evaluations_of_the_paper() -> None:
    assert evaluations(144, 48) == 5784


def test_the_model_is_whole_after_a_search() -> None:
    model = model_of(stock("clip"), "clip")
    data = naive.data("clip")
    before = model.member_logits(data.inside[0])
    evaluator = Evaluator(model, samples(data))
    GreedySearch(evaluator, HEADS).run(["acc"], 4)
    evaluator.close()
    model.eval()  # class features are kept; compute them anew
    assert torch.equal(model.member_logits(data.inside[0]), before)
    assert all(a.head_gate is None and a.observer is None for a in model.attentions)
