"""Who wins a round, by counts made on purpose: ties, and what another machine may decide otherwise."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from hydractl.circuit.objective import Doubt, EvaluationCounts, fewest_correct
from hydractl.circuit.winners import (
    CandidateHead,
    SureLeads,
    Trial,
    best_first,
    contenders,
    could_beat,
    first_of_highest,
    lowest_chosen,
    winner_of,
)

ID_SAMPLES = 20


def trial(site: int, head: int, correct: int, fewer: int = 0, more: int = 0, nll: int | None = None) -> Trial:
    """A trial of 20 ID samples; without ``nll``, heads are told apart by a loss of their own."""
    loss = 100 * site + head if nll is None else nll
    doubt = Doubt(fewer=fewer, more=more)
    return Trial(CandidateHead(site, head), EvaluationCounts(correct, ID_SAMPLES, None, 0, nll=loss, doubt=doubt))


def heads(trials: list[Trial]) -> list[tuple[int, int]]:
    return [one.head for one in trials]


# --- a whole round ----------------------------------------------------------------------------------------------------


def test_of_equal_scores_the_lowest_site_wins_and_then_the_lowest_head() -> None:
    trials = [trial(1, 0, 8), trial(0, 2, 8), trial(0, 1, 8), trial(0, 0, 7)]
    for order in itertools.permutations(trials):
        assert heads(best_first("acc", order)) == [(0, 1), (0, 2), (1, 0), (0, 0)]
        winner = winner_of("acc", order)
        assert winner.head == (0, 1) and not winner.rivals


def test_a_number_of_any_kind_is_compared_by_the_same_rule() -> None:
    values = {
        CandidateHead(*head): value for head, value in {(1, 0): 0.5, (0, 2): 0.5, (0, 1): 0.5, (0, 0): 0.25}.items()
    }
    for order in itertools.permutations(values):
        assert first_of_highest(order, values.__getitem__) == (0, 1)


def test_a_lead_of_one_in_large_integers_decides() -> None:
    """As numbers with a point both have the same score."""
    pairs = 10**18
    first = Trial((0, 0), EvaluationCounts(5, 10, pairs, 10**9))
    second = Trial((0, 1), EvaluationCounts(5, 10, pairs + 1, 10**9))
    assert first.counts.score("ood") == second.counts.score("ood")
    winner = winner_of("ood", [first, second])
    assert winner.head == (0, 1)


def test_rivals_are_those_that_may_be_in_front_elsewhere() -> None:
    behind, winner, far_behind = trial(0, 0, 7), trial(0, 1, 8, fewer=1), trial(0, 2, 5, more=1)
    decided = winner_of("acc", [behind, winner, far_behind])
    assert decided.head == (0, 1)
    assert heads(list(decided.rivals)) == [(0, 0)]  # at 7 each the first one would win
    assert could_beat("acc", behind, winner) and not could_beat("acc", far_behind, winner)


def test_trials_that_counted_the_very_same_are_no_rivals() -> None:
    """They are the same model, so the order of heads decides everywhere."""
    first, second = trial(0, 0, 8, fewer=1, more=1, nll=5), trial(0, 1, 8, fewer=1, more=1, nll=5)
    assert heads(contenders("acc", [second, first])) == [(0, 0)]
    other_loss = trial(0, 1, 8, fewer=1, more=1, nll=6)
    assert heads(contenders("acc", [other_loss, first])) == [(0, 0), (0, 1)]


def test_rivals_are_listed_without_what_the_objective_does_not_read() -> None:
    def with_ood(head: int, correct: int, n_ood: int) -> Trial:
        doubt = Doubt(fewer=1, more=1, lower=1, higher=1)
        return Trial((0, head), EvaluationCounts(correct, 20, 5, n_ood, nll=head, doubt=doubt))

    winner = winner_of("acc", [with_ood(0, 8, 3), with_ood(1, 8, 9)])
    assert winner.counts.two_u == 5  # the winner's own counts stay as they are
    (rival,) = winner.rivals
    assert rival.counts == EvaluationCounts(8, 20, None, 0, nll=1, doubt=Doubt(fewer=1, more=1))


def test_who_contends_hangs_on_no_order() -> None:
    trials = [
        trial(0, 0, 8, fewer=1),
        trial(0, 1, 9, fewer=3),
        trial(1, 0, 7, more=1),
        trial(1, 1, 7, more=2),
        trial(2, 0, 4, more=9),
    ]
    expected = contenders("acc", trials)
    assert heads(expected) == [(0, 1), (0, 0), (1, 0), (1, 1), (2, 0)]
    for order in itertools.permutations(trials):
        assert contenders("acc", order) == expected


# --- the limit of a drop ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("drop", "fewest"), [("0", 15), ("0.1", 13), ("0.05", 14), ("0.07", 14), ("0.9", -3)])
def test_a_drop_is_an_exact_fraction(drop: str, fewest: int) -> None:
    base = EvaluationCounts(15, ID_SAMPLES, None, 0)
    assert fewest_correct(base, Fraction(drop)) == fewest


# --- Headmap ----------------------------------------------------------------------------------------------------------


def test_the_lowest_are_chosen_and_those_that_rounding_may_have_put_there_are_noted() -> None:
    trials = [trial(0, 0, 5), trial(0, 1, 9), trial(0, 2, 6, fewer=1), trial(0, 3, 6)]
    chosen, others = lowest_chosen("acc", trials, 2)
    assert heads(chosen) == [(0, 3), (0, 0)]  # of equal ones the lower head is left over
    assert heads(others) == [(0, 1), (0, 2)]
    assert [heads(list(one.rivals)) for one in others] == [[], [(0, 3), (0, 0)]]


@pytest.mark.parametrize(("count", "chosen"), [(0, 0), (3, 3), (9, 3)])
def test_all_are_chosen_where_there_are_fewer(count: int, chosen: int) -> None:
    trials = [trial(0, head, head) for head in range(3)]
    taken, others = lowest_chosen("acc", trials, count)
    assert (len(taken), len(others)) == (chosen, 3 - chosen)


# --- a round that is not yet counted to its end -----------------------------------------------------------------------


def test_only_who_surely_loses_is_out_of_reach() -> None:
    leads = SureLeads()
    best_case = trial(0, 1, 7).counts
    assert not leads.out_of_reach("acc", (0, 1), best_case)  # nobody leads
    assert leads.raise_if_ahead("acc", trial(0, 2, 8, fewer=1))
    assert not leads.out_of_reach("acc", (0, 1), best_case)  # a tie at 7 goes to the lower head
    assert leads.out_of_reach("acc", (0, 3), best_case)
    assert not leads.out_of_reach("nll", (0, 3), best_case)  # another objective
    assert not leads.raise_if_ahead("acc", trial(0, 5, 7, more=9))  # more elsewhere is no sure lead
    assert leads.raise_if_ahead("acc", trial(0, 5, 8))
    assert leads.out_of_reach("acc", (0, 1), best_case)


def test_nobody_is_given_up_who_contends_at_the_end() -> None:
    trials = [trial(site, head, 8 - site, fewer=head, more=site) for site in range(3) for head in range(3)]
    contending = heads(contenders("acc", trials))
    for order in itertools.islice(itertools.permutations(trials), 0, None, 5003):
        leads = SureLeads()
        for done in order:
            leads.raise_if_ahead("acc", done)
        for one in trials:
            if one.head in contending:
                assert not leads.out_of_reach("acc", one.head, one.counts.most)
