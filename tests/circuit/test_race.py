"""What a race leaves out changes no ranking: bounds, memory, an interruption and a second process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hydractl.circuit.objective import EvaluationCounts
from hydractl.circuit.race import Race, RacingHead
from hydractl.circuit.search import GreedySearch
from hydractl.circuit.winners import CandidateHead, Trial
from tests.circuit import naive
from tests.circuit.searching import evaluator_of, resumes, searched, shared_by_two
from tests.circuit.test_search import HEADS
from tests.pico import logits, stock
from tests.spread import marked_release


@pytest.mark.parametrize("objectives", [["avg"], ["acc", "ood", "avg"], *marked_release([["avg", "nll"]])])
@pytest.mark.long
def test_a_ranking_depends_on_no_order_of_evaluation(objectives: list[str]) -> None:
    reference = stock("class-token")
    data = naive.data(inside=15, outside=9)
    data.outside[0][0] = data.inside[0][0]  # a pair that ties
    data.labels = [logits(reference, batch).argmax(1) for batch in data.inside]  # so that the first wrong ones tell
    expected, plain = searched(GreedySearch, reference, "class-token", data, objectives, 2, bounds=False)
    rankings, search = searched(GreedySearch, reference, "class-token", data, objectives, 2)
    assert rankings == expected
    assert search.evaluator.work < plain.evaluator.work
    _, evaluator = evaluator_of(reference, "class-token", data, memory_bytes=30_000)
    assert len(evaluator.memory.chunks) > 2
    assert GreedySearch(evaluator, HEADS).run(objectives, 2) == expected
    evaluator.close()
    resumes(GreedySearch, reference, "class-token", data, objectives, 2, cuts=1 if len(objectives) == 1 else 3)
    shared_by_two(GreedySearch, reference, "class-token", data, objectives, 2)


def test_a_candidate_that_may_win_a_tie_is_not_given_up() -> None:
    """Head 1 has all 4 of 4 right: head 0 would win with as many, and head 2 would not."""
    leader = Trial(CandidateHead(0, 1), EvaluationCounts(correct=4, n_id=4, two_u=None, n_ood=0))
    heads = [CandidateHead(0, 0), CandidateHead(0, 2), leader.head]
    given_up: list[RacingHead] = []
    Race(
        SimpleNamespace(n_id=4, n_ood=0, shares=[]),  # type: ignore[arg-type]
        ["acc"],
        heads,
        bounds=True,
        at_once=1,
        known={leader.head: leader},
        finished=given_up.append,
    )
    assert [contestant.head for contestant in given_up] == [(0, 2)]
