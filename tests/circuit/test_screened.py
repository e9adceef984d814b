"""The search that is screened in bfloat16, against the same rule written naively on the libraries' own models.

Two libraries do not round alike in bfloat16. So here the coarse format is float32 with other weights: the model in it
differs from the model itself as it does in bfloat16, and any library says the same of it.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch

from hydractl.circuit import screened
from hydractl.circuit.counting import Tally, Values
from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.objective import Doubt, Share
from hydractl.circuit.screened import CoarseEvaluator, Screened
from hydractl.circuit.winners import CandidateHead
from tests.circuit import naive
from tests.circuit.searching import Kept, by_two, evaluated, evaluator_of, resumes, searched, shared_by_two
from tests.circuit.test_search import DRAWS, HEADS, model_of, names, samples
from tests.pico import logits, stock, without_heads
from tests.spread import marked_long, marked_release

PILOTS = [HEADS[0], HEADS[3], HEADS[5], HEADS[8]]
"""Four of the nine heads, at equal distances."""
OTHERS = [CandidateHead(*head) for head in HEADS if head not in PILOTS]


@pytest.fixture(autouse=True)
def few_pilots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screened, "PILOTS", len(PILOTS))


def blurred(reference: Any, by: float) -> Any:
    """The model with weights that are off by a share: what a format of fewer digits does to them."""
    model = copy.deepcopy(reference)
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + by * torch.randn(parameter.shape, generator=draw))
    return model


def screening(coarse_model: Any, variant: str, data: naive.Data) -> Any:
    """What makes a search whose coarse format is another model."""

    def make(evaluator: Evaluator, heads: Any, **others: Any) -> Screened:
        coarse = CoarseEvaluator(model_of(coarse_model, variant), samples(data))
        return Screened(evaluator, heads, coarse=coarse, **others)

    return make


# --- the rule, written naively ----------------------------------------------------------------------------------------


@dataclass
class NaiveCounts:
    """A model in one format: of each ID sample whether it is right, and whether that is sure; and twice U."""

    right: list[bool]
    sure: list[bool]
    two_u: int


@torch.no_grad()
def naive_counts(model: Any, gone: Sequence[naive.Head], data: naive.Data, tolerance: float) -> NaiveCounts:
    with without_heads(model, gone):
        inside = torch.cat([logits(model, batch) for batch in data.inside]).double()
        outside = torch.cat([logits(model, batch) for batch in data.outside]).double()
    labels = torch.cat(data.labels)
    right, sure = [], []
    for row, label in zip(inside, labels, strict=True):
        others = torch.cat([row[:label], row[label + 1 :]])
        margin = float(row[label] - others.max())
        allowed = tolerance * max(1.0, float(row.abs().max()))
        assert abs(abs(margin) - allowed) > 1e-5, "rounding decides what is sure"
        right.append(margin > 0)
        sure.append(abs(margin) > allowed)
    gaps = inside.softmax(1).amax(1)[:, None] - outside.softmax(1).amax(1)[None]
    assert float(gaps.abs().min()) > 1e-6, "rounding decides a pair"
    return NaiveCounts(right, sure, 2 * int((gaps > 0).sum()))


class NaiveScreen:
    """Which heads of a step are evaluated in full, and which one is removed, by Python loops over samples."""

    def __init__(self, exact: Any, coarse: Any, data: naive.Data, paths: Sequence[str]) -> None:
        self.exact, self.coarse, self.data = exact, coarse, data
        self.heads = naive.all_heads(paths)
        self.gone: list[naive.Head] = []
        self.errors: list[int] = []  # in pairs, twice
        self.sizes = [len(labels) for labels in data.labels]
        self.n_ood = sum(batch.size for batch in samples(data) if batch.labels is None)

    def counts(self, head: naive.Head) -> tuple[NaiveCounts, NaiveCounts]:
        gone = [*self.gone, head]
        return (
            naive_counts(self.exact, gone, self.data, 1e-5),
            naive_counts(self.coarse, gone, self.data, 2 * 0.02),
        )

    def key(self, right: int, two_u: int) -> int:
        """The objective avg, as an integer."""
        return 2 * self.n_ood * right + two_u

    def step(self) -> tuple[set[naive.Head], naive.Head]:
        left = [head for head in self.heads if head not in self.gone]
        counts = {head: self.counts(head) for head in left}
        if not self.gone:
            self.errors = [self.error(*counts[self.heads[3 * site + head]]) for site, head in PILOTS]
        slack = 1 + math.ceil(6 * statistics.stdev(self.errors) - 1e-9)

        # Round 1: what is uncertain is counted against the best head, and in favour of all others.
        surely = {
            h: self.key(sum(r and s for r, s in zip(c.right, c.sure, strict=True)), c.two_u)
            for h, (_, c) in counts.items()
        }
        perhaps = {
            h: self.key(sum(r or not s for r, s in zip(c.right, c.sure, strict=True)), c.two_u)
            for h, (_, c) in counts.items()
        }
        near = [head for head in left if perhaps[head] > max(surely.values()) - slack]

        # Round 2: batches with uncertain samples are as they are.
        settled = {head: self.key(sum(self.settled(*counts[head])), counts[head][1].two_u) for head in near}
        nearest = {head for head in near if settled[head] > max(settled.values()) - slack}

        keys = {head: self.key(sum(counts[head][0].right), counts[head][0].two_u) for head in nearest}
        winner = max(sorted(nearest, key=self.heads.index), key=keys.__getitem__)
        self.errors.append(self.error(*counts[winner]))
        self.gone.append(winner)
        return nearest, winner

    @staticmethod
    def error(exact: NaiveCounts, coarse: NaiveCounts) -> int:
        return exact.two_u - coarse.two_u

    def settled(self, exact: NaiveCounts, coarse: NaiveCounts) -> list[bool]:
        right: list[bool] = []
        for size in self.sizes:
            batch = slice(len(right), len(right) + size)
            source = coarse if all(coarse.sure[batch]) else exact
            right += source.right[batch]
        return right


@pytest.mark.parametrize("bounds", [True, False])
@pytest.mark.parametrize(
    ("variant", "blur", "draw"), [("class-token", 0.01, 1), ("class-token", 0.02, 10), ("llama", 0.02, 4)]
)
def test_a_step_evaluates_what_the_rule_says(variant: str, blur: float, draw: int, bounds: bool) -> None:
    reference = stock(variant)
    coarse = blurred(reference, blur)
    data = naive.data(variant, inside=24, outside=20, draw=draw)
    memory = Kept()
    make = partial(screening(coarse, variant, data), journal=memory, bounds=bounds)
    found, search = searched(make, reference, variant, data, ["avg"], 4)
    model = model_of(reference, variant)
    paths = [site.path for site in model.sites]
    rule = NaiveScreen(reference, coarse, data, paths)
    left_out = 0
    for number in range(1, 5):
        left = 10 - number
        nearest, _ = rule.step()
        asked = {(paths[r["head"][0]], r["head"][1]) for r in memory.written if "of" in r and r["step"] == number}
        pilots = {(paths[site], head) for site, head in PILOTS} if number == 1 else set()
        assert asked == nearest | pilots, number
        left_out += left - len(nearest)
    assert names(model, found["avg"]) == rule.gone
    assert search.whole_steps == 0
    assert left_out >= 10  # of 30: the rule is not merely to keep everything


# --- what the coarse format cannot tell -------------------------------------------------------------------------------


def exact_removals(reference: Any, variant: str, data: naive.Data, objective: str, budget: int) -> list[CandidateHead]:
    """What Algorithm 1 removes, written naively on the library's own model."""
    paths = [site.path for site in model_of(reference, variant).sites]
    ranking = naive.rankings(reference, data, [objective], budget, paths)[objective]
    return [CandidateHead(paths.index(path), head) for path, head, _ in ranking]


class Wrong(CoarseEvaluator):
    """It rates one head by far too high or too low, and knows nothing of it."""

    head = CandidateHead(0, 0)
    shift = 0.0
    right = 0

    def values_without_each(self, batch: int, site: int, heads: Sequence[int]) -> list[Values]:
        found = super().values_without_each(batch, site, heads)
        for index, position in enumerate(heads):
            if (site, position) != self.head:
                continue
            values = found[index]
            if values.labelled:
                correct = min(len(values.scores), values.correct + self.right)
                found[index] = replace(values, correct=correct)
            else:
                found[index] = replace(values, scores=values.scores + self.shift)
        return found


def wrongly(variant: str, data: naive.Data, reference: Any, **wrong: Any) -> Any:
    """What makes a search that is screened in the format of the search, but for one head."""

    def make(evaluator: Evaluator, heads: Any, **others: Any) -> Screened:
        coarse = Wrong(model_of(reference, variant), samples(data))
        for name, value in wrong.items():
            setattr(coarse, name, value)
        return Screened(evaluator, heads, coarse=coarse, **others)

    return make


@pytest.mark.parametrize(
    ("objective", "wrong"), [("ood", {"shift": 5.0}), ("acc", {"right": 9}), ("avg", {"right": 9})]
)
def test_a_winner_that_surprises_makes_the_step_whole(objective: str, wrong: dict[str, Any]) -> None:
    reference, data = stock("class-token"), naive.data(draw=1)
    exact = exact_removals(reference, "class-token", data, objective, 3)
    wrong_head = next(head for head in OTHERS if head not in exact)
    found, search = searched(
        wrongly("class-token", data, reference, head=wrong_head, **wrong),
        reference,
        "class-token",
        data,
        [objective],
        3,
    )
    assert found[objective].removed == exact
    assert search.whole_steps >= 2


def test_it_can_miss_what_the_exact_search_finds() -> None:
    """A head that is rated too low is not seen again: the search is an approximation."""
    reference, data = stock("class-token"), naive.data(draw=2)
    (best,) = exact_removals(reference, "class-token", data, "ood", 1)
    assert best in OTHERS
    make = wrongly("class-token", data, reference, shift=-5.0, head=best)
    found, _ = searched(make, reference, "class-token", data, ["ood"], 1)
    assert found["ood"].removed != [best]


# --- as a search ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["class-token", *marked_long(["clip"]), *marked_release(["bert", "swin"])])
def test_in_bfloat16_it_finds_what_the_exact_search_finds(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the coarse format is bfloat16 itself, and eight of the nine heads are pilots."""
    monkeypatch.setattr(screened, "PILOTS", 8)
    reference, data = stock(variant), naive.data(variant, draw=DRAWS[variant])

    def make(evaluator: Evaluator, heads: Any, **others: Any) -> Screened:
        model = model_of(reference, variant).bfloat16()
        batches = [replace(batch, read=partial(halved, batch.read)) for batch in samples(data)]
        return Screened(evaluator, heads, coarse=CoarseEvaluator(model, batches), **others)

    found, search = searched(make, reference, variant, data, ["avg", "nll"], 3)
    model = model_of(reference, variant)
    paths = [site.path for site in model.sites]
    expected = naive.rankings(reference, data, ["avg", "nll"], 3, paths)
    for objective, samples_in_score in (("avg", 1), ("nll", len(torch.cat(data.labels)))):
        assert names(model, found[objective]) == [(path, head) for path, head, _ in expected[objective]]
        for step, (_, _, score) in zip(found[objective].steps, expected[objective], strict=True):
            score_in_wide_format = step.counts.score(objective) * samples_in_score
            assert score_in_wide_format == pytest.approx(float(score), rel=1e-5, abs=1e-5)
    assert search.coarse_evaluations > search.evaluations


def halved(read: Any) -> Any:
    inputs = read()
    if isinstance(inputs, dict):
        return inputs
    return inputs.bfloat16()


def test_a_winner_that_only_another_objective_asked_about_makes_the_step_whole() -> None:
    """The best head is rated too low, so it is not near; that a search for accuracy evaluates it as well, shows it."""
    reference, data = stock("class-token"), naive.data(draw=2)
    (best,) = exact_removals(reference, "class-token", data, "ood", 1)
    make = wrongly("class-token", data, reference, shift=-5.0, head=best)
    found, search = searched(make, reference, "class-token", data, ["acc", "ood"], 1)
    assert found["ood"].removed == [best]
    assert search.whole_steps == 1


def test_only_classes_are_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class is uncertain up to 0.04 of the largest logit in magnitude, or of 1."""
    rows = [
        ([10.0, 9.7, 0.0], 0),  # right, and 0.3 is less than 0.4
        ([10.0, 9.5, 0.0], 0),  # right, surely
        ([9.7, 10.0, -20.0], 0),  # wrong, and 0.3 is less than 0.8
        ([0.5, 0.47, 0.0], 0),  # right, and 0.03 is less than 0.04
        ([0.5, 0.0, 0.55], 0),  # wrong, surely
    ]
    data = naive.Data([torch.zeros(len(rows), 3, 16, 16)], [torch.tensor([label for _, label in rows])], [])
    evaluator = CoarseEvaluator(model_of(stock("class-token"), "class-token"), samples(data))
    logits_of_rows = torch.tensor([row for row, _ in rows])
    monkeypatch.setattr(evaluator, "_logits_from_reads", lambda *_: logits_of_rows)
    evaluator.go_to_model_without([])
    values = evaluator.current_values(0)
    assert (values.correct, values.doubt, values.near) == (3, Doubt(fewer=2, more=1), 0.0)

    # In a wider format one of them is wrong, and nothing is uncertain any more.
    tally = Tally([Share(inside=3), Share(inside=5)])
    tally.add(0, replace(values, tasks=(0, 1)))
    before = tally.counts()
    assert (before.correct, before.least.correct, before.most.correct) == (8 * 3, 8 * 1, 8 * 4)
    tally.settle_classes(0, replace(values, correct=2, doubt=Doubt(loss=7)))
    after = tally.counts()
    assert (after.correct, after.least.correct, after.most.correct) == (8 * 2, 8 * 2, 8 * 2)
    assert (after.nll, after.doubt, tally.uncertain) == (before.nll, Doubt(), {})


SCREENED_DATA = naive.data("class-token", inside=24, outside=20, draw=1)


def search_of_two(evaluator: Evaluator, heads: Any, **others: Any) -> Screened:
    coarse = blurred(stock("class-token"), 0.01)
    found: Screened = screening(coarse, "class-token", SCREENED_DATA)(evaluator, heads, **others)
    return found


def misjudging(evaluator: Evaluator, heads: Any, **others: Any) -> Screened:
    """A search of which steps are whole: one head is rated far too high."""
    make = wrongly("class-token", SCREENED_DATA, stock("class-token"), head=OTHERS[0], shift=5.0)
    found: Screened = make(evaluator, heads, **others)
    return found


@pytest.mark.parametrize("make", [search_of_two, misjudging])
def test_it_goes_on_where_it_was(make: Any) -> None:
    resumes(make, stock("class-token"), "class-token", SCREENED_DATA, ["avg", "nll"], 3, cuts=6)


@pytest.mark.parametrize("make", [search_of_two, misjudging])
def test_two_processes_share_the_work(make: Any) -> None:
    shared_by_two(make, stock("class-token"), "class-token", SCREENED_DATA, ["avg", "nll"], 3)


def test_errors_are_remembered_after_a_break() -> None:
    """Those of the pilots and of all removed heads decide what a later step leaves out."""
    reference, memory = stock("class-token"), Kept()
    _, whole = searched(search_of_two, reference, "class-token", SCREENED_DATA, ["avg", "nll"], 3, journal=memory)
    for cut in range(len(memory.written)):
        again = Kept(memory.written[:cut])
        _, search = searched(search_of_two, reference, "class-token", SCREENED_DATA, ["avg", "nll"], 3, journal=again)
        assert search._errors == whole._errors, cut
    assert [len(errors) for errors in whole._errors.values()] == [len(PILOTS) + 3] * 2


class Noted(Kept):
    """A journal of one process that also notes in what order all of them wrote."""

    def __init__(self, rank: int, order: list[tuple[int, Any]]) -> None:
        super().__init__()
        self._rank, self._order = rank, order

    def append(self, record: Any) -> None:
        super().append(record)
        self._order.append((self._rank, self.written[-1]))


def test_what_two_killed_processes_leave_behind_is_gone_on_with() -> None:
    """Each process loses what it had not written yet, also in the middle of a step that is whole."""
    run = (stock("class-token"), "class-token", SCREENED_DATA, ["ood"], 2)
    expected, alone = searched(misjudging, *run)
    order: list[tuple[int, Any]] = []
    journals = [Noted(rank, order) for rank in (0, 1)]
    by_two(lambda rank, twin: searched(misjudging, *run, processes=twin, journal=journals[rank]))
    assert alone.whole_steps == 2
    for cut in range(1, len(order)):
        # The file of the first process is read first.
        records = [record for rank in (0, 1) for writer, record in order[:cut] if writer == rank]
        found, _ = searched(misjudging, *run, journal=Kept(records))
        assert found == expected, cut
    assert max(evaluated([record for _, record in order]).values()) == 1


def test_neither_bounds_nor_memory_nor_company_change_what_it_finds() -> None:
    reference = stock("class-token")
    expected, _ = searched(search_of_two, reference, "class-token", SCREENED_DATA, ["acc", "ood"], 3)
    for memory, others in ((20_000, {}), (20_000, {"bounds": False}), (None, {"at_once": 2})):
        limit = {} if memory is None else {"memory_bytes": memory}
        _, evaluator = evaluator_of(reference, "class-token", SCREENED_DATA, **limit)
        assert len(evaluator.chunks) > 1 or memory is None
        coarse = CoarseEvaluator(model_of(blurred(reference, 0.01), "class-token"), samples(SCREENED_DATA), **limit)
        search = Screened(evaluator, HEADS, coarse=coarse, **others)
        found = search.run(["acc", "ood"], 3)
        for objective in ("acc", "ood"):
            assert found[objective].removed == expected[objective].removed, (memory, others)
            counts = [(step.counts.correct, step.counts.two_u) for step in found[objective].steps]
            assert counts == [(step.counts.correct, step.counts.two_u) for step in expected[objective].steps]
