"""The approximate search against a short naive version of it on the libraries' own models."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.forecasts import (
    ID_SCORE,
    LABEL,
    MARGIN,
    OOD_SCORE,
    QUANTITIES_OF,
    current_quantities,
    forecast,
    of_task,
    quantity,
    slopes,
)
from hydractl.circuit.lazy import Lazy
from hydractl.circuit.objective import OBJECTIVE_BY_NAME
from hydractl.circuit.search import GreedySearch
from hydractl.distributed import Processes
from hydractl.metrics.ood import OOD_SCORES
from hydractl.model.runtime import HydraModel
from hydractl.options.verbs import options_of_verb
from tests.circuit import naive
from tests.circuit.searching import Kept, resumes, searched, shared_by_two
from tests.circuit.test_search import HEADS, samples
from tests.pico import logits, source_of, stock, zero_columns
from tests.spread import marked_long, marked_release


def test_every_objective_and_score_has_a_forecast() -> None:
    assert QUANTITIES_OF.keys() == OBJECTIVE_BY_NAME.keys()
    (choices,) = (option.choices for option in options_of_verb("extract-circuit") if option.name == "ood_score")
    draws = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).double()
    for name in choices:
        # Samples stand in the order of the score itself.
        found = quantity(OOD_SCORE, draws, None, name).numpy()
        assert (np.argsort(found) == np.argsort(OOD_SCORES[name](draws[None].numpy()))).all()
    p, labels = draws.softmax(-1), torch.arange(50) % 4
    assert torch.equal(quantity(MARGIN, draws, labels, "msp") > 0, p.argmax(-1) == labels)
    right = p[range(50), labels]
    assert torch.allclose(quantity(LABEL, draws, labels, "msp"), (right / (1 - right)).log())


# --- slopes -----------------------------------------------------------------------------------------------------------


def scaled(model: Any, path: str, head: int, scale: float) -> Any:
    """The library's model with one head's output scaled: the difference of it whole and without that head."""
    model = copy.deepcopy(model)
    gone = dict(zero_columns(model, [(path, head)]).named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(gone[name] + scale * (parameter - gone[name]))
    return model


def doubled(batch: Any) -> Any:
    return batch.double() if isinstance(batch, torch.Tensor) else batch


def naive_quantities(model: Any, data: naive.Data, ood_score: str) -> dict[str, torch.Tensor]:
    """The quantities from probabilities, by name."""

    def strange(p: torch.Tensor) -> torch.Tensor:
        top = p.amax(dim=1)
        return torch.log((1 - top) / top) if ood_score == "msp" else torch.log(-(p * p.log()).sum(dim=1))

    with torch.no_grad():
        inside = torch.cat([logits(model, doubled(batch)) for batch in data.inside]).softmax(dim=1)
        outside = torch.cat([logits(model, doubled(batch)) for batch in data.outside]).softmax(dim=1)
    labels = torch.cat(data.labels)
    right = inside[range(len(labels)), labels]
    wrong = inside.clone()
    wrong[range(len(labels)), labels] = 0
    return {
        MARGIN: torch.log(right / wrong.amax(dim=1)),
        LABEL: torch.log(right / (1 - right)),
        ID_SCORE: strange(inside),
        OOD_SCORE: strange(outside),
    }


@pytest.mark.parametrize(("variant", "ood_score"), [("average-pooling", "entropy"), ("bert", "msp"), ("clip", "msp")])
def test_slopes_are_finite_differences_on_the_library_s_model(variant: str, ood_score: str) -> None:
    reference, data = stock(variant).double(), naive.data(variant)
    source = source_of(reference, variant)
    model = HydraModel(source.description, source.tensors, dtype=torch.float64)
    batches = samples(naive.Data([doubled(x) for x in data.inside], data.labels, [doubled(x) for x in data.outside]))
    evaluator = Evaluator(model, batches, ood_score=ood_score)
    removed = [(0, 1), (2, 0)]
    evaluator.go_to_model_without(removed)
    names = [MARGIN, LABEL, ID_SCORE, OOD_SCORE]
    measured = slopes(evaluator, names)
    heads, found = measured.heads, of_task(evaluator, 0, measured.of_batches)
    assert sorted(found) == sorted(names)
    sites = 2 if variant == "clip" else 3  # slopes are for the tower of the samples
    assert heads == [head for head in HEADS if head not in removed and head[0] < sites]
    paths = [site.path for site in model.sites]
    without = zero_columns(reference, [(paths[site], head) for site, head in removed])
    for column in (0, 3, len(heads) - 1):
        site, head = heads[column]
        step = 1e-5
        more, less = (
            naive_quantities(scaled(without, paths[site], head, 1 + sign * step), data, ood_score) for sign in (1, -1)
        )
        for name, values in found.items():
            expected = (more[name] - less[name]) / (2 * step)
            assert torch.allclose(values[:, column].double(), expected, rtol=1e-4, atol=1e-6), (name, head)
            assert float(expected.abs().max()) > 1e-3
    now = of_task(evaluator, 0, current_quantities(evaluator, names, Processes()))
    expected = naive_quantities(without, data, ood_score)
    for name in names:
        assert torch.allclose(now[name], expected[name], rtol=1e-6, atol=1e-8)
    assert all(a.head_gate is None for a in model.attentions)
    assert all(p.requires_grad for p in model.parameters())


def test_forecasts_count_what_samples_would_be() -> None:
    """For two classes and changes that are small beside the margins everything can be counted by hand."""
    draw = np.random.default_rng(0)
    odds, strange = draw.normal(0, 3, 40), draw.normal(1, 2, 30)
    change, strange_change = draw.normal(0, 0.2, (40, 4)), draw.normal(0, 0.2, (30, 4))
    tensor = torch.from_numpy
    now = {MARGIN: tensor(odds), LABEL: tensor(odds), ID_SCORE: tensor(odds), OOD_SCORE: tensor(strange)}
    slope = {
        MARGIN: tensor(change * 1e-3),
        LABEL: tensor(change),
        ID_SCORE: tensor(change),
        OOD_SCORE: tensor(strange_change),
    }
    after, away = odds[:, None] - change, strange[:, None] - strange_change
    p = 1 / (1 + np.exp(-after))
    right = (odds > 0).mean()
    pairs = [(away[:, h][:, None] > after[:, h][None]).mean() for h in range(4)]
    assert forecast("nll", now, slope) == pytest.approx(np.log(p).mean(axis=0))
    assert forecast("ood", now, slope) == pytest.approx(pairs)
    assert forecast("acc", now, slope) == pytest.approx(np.full(4, right), abs=0.01)
    assert forecast("avg", now, slope) == pytest.approx((right + np.array(pairs)) / 2, abs=0.01)
    # A sample whose margin a removal takes to a half of what it is: two standard deviations of the doubt remain.
    half = {MARGIN: torch.tensor([2.0])}, {MARGIN: torch.tensor([[1.0]])}
    assert forecast("acc", *half) == pytest.approx([0.97725], abs=1e-5)


# --- what is evaluated ------------------------------------------------------------------------------------------------


class Doubtful(Lazy):
    """Every estimate is above every score, so each step evaluates everything."""

    def _score_or_estimate(self, this_step: Any, objective: str, head: Any) -> float:
        score = super()._score_or_estimate(this_step, objective, head)
        return score if head in this_step.counted else 1000.0


@pytest.mark.parametrize("variant", ["clip", *marked_long(["class-token"]), *marked_release(["bert"])])
def test_it_is_exact_where_everything_is_evaluated(variant: str) -> None:
    reference, data = stock(variant), naive.data(variant)
    exact, _ = searched(GreedySearch, reference, variant, data, ["avg", "nll"], 3)
    found, search = searched(partial(Doubtful, size=9), reference, variant, data, ["avg", "nll"], 3)
    assert {o: ranking.removed for o, ranking in found.items()} == {o: ranking.removed for o, ranking in exact.items()}
    for objective, ranking in found.items():
        for step, other in zip(ranking.steps, exact[objective].steps, strict=True):
            assert step.counts.score(objective) == pytest.approx(other.counts.score(objective), abs=1e-5)
    assert search.evaluations >= 9 + 8 + 7


def naive_forecasts(model: Any, paths: Sequence[str], gone: Sequence[naive.Head], data: naive.Data) -> dict[Any, Any]:
    """By head the slopes of the log-odds of the labels, by finite differences."""
    model = zero_columns(model, gone)
    found = {}
    for path in paths:
        for head in range(3):
            if (path, head) not in gone:
                more, less = (naive_quantities(scaled(model, path, head, s), data, "msp")[LABEL] for s in (1.01, 0.99))
                found[path, head] = (more - less) / 0.02
    return found


@pytest.mark.parametrize(("every", "seed"), [*marked_release([(1, 0)]), (4, 3)])
def test_the_best_estimate_is_evaluated_until_it_has_been(every: int, seed: int) -> None:
    """Written with differences on the library's own model; in between old slopes are added to what samples are now, and
    a head that was evaluated is forecast as much too high as it was."""
    reference, data = stock("class-token", seed=seed).double(), naive.data()
    paths = [f"blocks.{i}.attn" for i in range(3)]
    memory = Kept()
    make = partial(Lazy, size=3, every=every, journal=memory)
    found, search = searched(make, copy.deepcopy(reference).float(), "class-token", data, ["nll"], 4)
    asked = [
        [(paths[r["head"][0]], r["head"][1]) for r in memory.written if r.get("step") == n and "of" in r]
        for n in range(1, 5)
    ]
    gone: list[naive.Head] = []
    corrections = 0
    for number, step in enumerate(found["nll"].steps):
        if number % every == 0:
            slope, off = naive_forecasts(reference, paths, gone, data), {}
        now = naive_quantities(zero_columns(reference, gone), data, "msp")[LABEL]
        left = [one for one in slope if one not in gone]
        forecasts = {one: float(torch.nn.functional.logsigmoid(now - slope[one]).mean()) for one in left}
        corrections += sum(one in off for one in left)
        values = {one: forecasts[one] + off.get(one, 0.0) for one in left}
        counted: list[naive.Head] = []
        while len(counted) < 3 and (first := max(left, key=values.__getitem__)) not in counted:
            naive.refuse_close_losses(sorted(values.values())[-2:])
            scored = naive.score(zero_columns(copy.deepcopy(reference).float(), [*gone, first]), "nll", data)
            values[first] = float(scored) / sum(map(len, data.labels))
            off[first] = values[first] - forecasts[first]
            counted.append(first)
        assert asked[number] == counted
        gone.append(max(counted, key=values.__getitem__))
        assert (paths[step.head[0]], step.head[1]) == gone[-1]
    assert search.evaluations == sum(map(len, asked)) > 4
    assert corrections or every == 1, every


def test_heads_of_the_labels_are_all_evaluated_at_first() -> None:
    memory = Kept()
    make = partial(Lazy, size=1, journal=memory)
    searched(make, stock("clip"), "clip", naive.data("clip", draw=3), ["avg"], 3)
    first, second, third = ([r for r in memory.written if r.get("step") == n and "of" in r] for n in (1, 2, 3))
    assert {2} < {r["head"][0] for r in first} or [r["head"] for r in first] == [[2, 0], [2, 1], [2, 2]]
    assert len(first) <= 4 and len(second) == len(third) == 1


# --- as a search ------------------------------------------------------------------------------------------------------

LAZY: Any = partial(Lazy, size=2, every=2)


def test_it_goes_on_where_it_was() -> None:
    resumes(LAZY, stock("clip"), "clip", naive.data("clip"), ["acc", "avg"], 3, cuts=2)


def test_two_processes_share_the_work() -> None:
    shared_by_two(LAZY, stock("clip"), "clip", naive.data("clip", draw=1), ["acc", "avg"], 3, by_batch=True)
