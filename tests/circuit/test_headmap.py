"""Headmap against the pass over the sites written naively on the libraries' own models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.headmap import Headmap
from hydractl.circuit.scope import kept_at_sites
from hydractl.errors import UsageError
from hydractl.model.runtime import HydraModel
from tests.circuit import naive
from tests.circuit.searching import resumes, searched, shared_by_two
from tests.circuit.test_search import HEADS, model_of, names, samples
from tests.pico import mask_of, prune_source, source_of, stock, without_heads
from tests.running import refused
from tests.spread import marked_long


def naive_headmap(
    model: Any,
    measure: Callable[[Any], Fraction | float],
    kept: Mapping[str, int],
    candidates: Sequence[naive.Head],
    gone: Sequence[naive.Head] = (),
) -> list[tuple[str, int, Fraction | float]]:
    """The heads not chosen: (site, head, score when masked), in the order of removal."""
    chosen: list[naive.Head] = []
    rest = []
    for path, k in kept.items():
        scores = []
        for one in candidates:
            if one[0] == path:
                with without_heads(model, [*gone, *chosen, one]):
                    scores.append((measure(model), one))
        naive.refuse_close_losses([score for score, _ in scores])
        worst_last = sorted(scores, key=lambda pair: -pair[0])  # stable: of equal scores the lower head comes first
        cut = max(0, len(worst_last) - k)
        chosen += [one for _, one in worst_last[cut:]]
        rest += [(*one, score) for score, one in worst_last[:cut]]
    naive.refuse_close_losses([score for *_, score in rest])
    places = {path: place for place, path in enumerate(kept)}
    return sorted(rest, key=lambda step: (-step[2], places[step[0]], step[1]))


@pytest.mark.parametrize(
    ("variant", "draw", "k", "objectives"),
    [
        ("class-token", 1, 1, ["nll", "acc", "avg"]),
        *marked_long([("class-token", 0, 2, ["ood"]), ("bert", 0, 1, ["nll"])]),
        ("clip", 0, 2, ["nll"]),
    ],
)
def test_it_is_the_pass_over_the_sites(variant: str, draw: int, k: int, objectives: list[str]) -> None:
    reference, data = stock(variant), naive.data(variant, draw=draw)
    make = partial(Headmap, kept=dict.fromkeys(range(3), k))
    model = model_of(reference, variant)
    paths = {site.path: k for site in model.sites}
    heads = [(path, head) for path in paths for head in range(3)]
    together, search = searched(make, reference, variant, data, objectives)
    evaluations = []
    for objective in objectives:
        found, alone = searched(make, reference, variant, data, [objective])
        evaluations.append(alone.evaluations)
        expected = naive_headmap(reference, lambda m, o=objective: naive.score(m, o, data), paths, heads)
        for ranking in (found[objective], together[objective]):
            assert names(model, ranking) == [(path, head) for path, head, _ in expected], objective
            scale = 11 if objective == "nll" else 1
            for step, (_, _, score) in zip(ranking.steps, expected, strict=True):
                assert step.counts.score(objective) * scale == pytest.approx(float(score), rel=1e-5, abs=1e-5)
    assert evaluations == [9] * len(objectives)
    if len(objectives) == 3:  # the first site at least is measured once
        assert search.evaluations <= 27 - 6


def test_from_a_pruned_model_and_some_sites_only() -> None:
    """A site that has fewer heads than are to be kept keeps them all."""
    reference, data = stock("class-token"), naive.data()
    source = source_of(reference, "class-token")
    mask = mask_of(source, [[0, 2], [1], [0, 1, 2]])
    pruned = prune_source(source, mask)
    model = HydraModel(pruned.description, pruned.tensors)
    heads = [(1, 0), (2, 0), (2, 1), (2, 2)]
    kept = kept_at_sites(heads, 2)
    assert kept == {1: 1, 2: 2}
    found = Headmap(Evaluator(model, samples(data)), heads, kept=kept).run(["avg"])["avg"]
    paths = {"blocks.1.attn": 1, "blocks.2.attn": 2}
    candidates = [head for head in mask.kept_heads if head[0] in paths]
    measure = lambda m: naive.score(m, "avg", data)  # noqa: E731
    expected = naive_headmap(reference, measure, paths, candidates, mask.removed_heads)
    assert len(expected) == 1
    assert names(model, found, list(mask.kept.values())) == [(path, head) for path, head, _ in expected]


def test_it_goes_on_where_it_was() -> None:
    make = partial(Headmap, kept=dict.fromkeys(range(3), 1))
    resumes(make, stock("clip"), "clip", naive.data("clip"), ["nll", "acc", "avg"])


def test_two_processes_share_the_heads_of_a_site() -> None:
    make = partial(Headmap, kept=dict.fromkeys(range(3), 2))
    shared_by_two(make, stock("clip"), "clip", naive.data("clip"), ["nll", "ood"])


def test_sites_of_unequal_size() -> None:
    heads = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert kept_at_sites(heads, 2) == {0: 2, 1: 2}
    assert kept_at_sites(heads, 0) == {0: 0, 1: 0}
    assert "--keep 3 is outside 0..2" in refused(UsageError, kept_at_sites, HEADS, 3).message
