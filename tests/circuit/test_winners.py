"""Who wins a round, by counts made on purpose: ties, large integers, and a limit of accuracy."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from hydractl.circuit.objective import EvaluationCounts, fewest_correct
from hydractl.circuit.winners import CandidateHead, Trial, best_first

ID_SAMPLES = 20


def test_of_equal_scores_the_lowest_site_wins_and_then_the_lowest_head() -> None:
    correct = {(1, 0): 8, (0, 2): 8, (0, 1): 8, (0, 0): 7}
    trials = [Trial(CandidateHead(*head), EvaluationCounts(n, ID_SAMPLES, None, 0)) for head, n in correct.items()]
    for order in itertools.permutations(trials):
        assert [one.head for one in best_first("acc", order)] == [(0, 1), (0, 2), (1, 0), (0, 0)]


def test_a_lead_of_one_in_large_integers_decides() -> None:
    """As numbers with a point both have the same score."""
    pairs = 10**18
    first = Trial(CandidateHead(0, 0), EvaluationCounts(5, 10, pairs, 10**9))
    second = Trial(CandidateHead(0, 1), EvaluationCounts(5, 10, pairs + 1, 10**9))
    assert first.counts.score("ood") == second.counts.score("ood")
    assert best_first("ood", [first, second])[0].head == (0, 1)


@pytest.mark.parametrize(("drop", "fewest"), [("0", 15), ("0.1", 13), ("0.05", 14), ("0.07", 14), ("0.9", -3)])
def test_a_drop_is_an_exact_fraction(drop: str, fewest: int) -> None:
    base = EvaluationCounts(15, ID_SAMPLES, None, 0)
    assert fewest_correct(base, Fraction(drop)) == fewest
