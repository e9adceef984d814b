"""The rule on validation data, on AUROCs made by construction: blind sets, harm, own scores, the cheapest row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hydractl.metrics.bootstrap import Resampled, mean_over_sets
from hydractl.studies.rule import Candidate, Decision
from hydractl.studies.words import ACCURACY, AUROC, NLL

ROUNDS = np.linspace(-1, 1, 101)


def figures(values: dict[str, float], spread: float = 0.0) -> Resampled:
    """Figures that move by ``spread`` from round to round, all alike."""
    rounds = {name: value + spread * ROUNDS for name, value in values.items()}
    return Resampled(dict(values), rounds)


def candidate(row: str, *aurocs: float, spread: float = 0.0, **others: Any) -> Candidate:
    """A candidate with an AUROC for each OOD set; candidates without a spread differ significantly."""
    inside = figures({ACCURACY: others.pop("accuracy", 0.9), NLL: others.pop("nll", 0.3)})
    outside = figures({f"set{number}": auroc for number, auroc in enumerate(aurocs)}, spread)
    facts: dict[str, Any] = {"score": "msp", "members": 1, "macs": 100, **others}
    return Candidate(row, inside=inside, outside=outside, **facts)


def decided(*candidates: Candidate) -> Decision:
    return Decision(candidates, 0.01)


SINGLE = candidate("single", 0.80)


@pytest.mark.parametrize(
    ("others", "taken"),
    [
        ([candidate("a", 0.85, members=2, macs=130)], "a"),
        ([candidate("a", 0.81, members=2, macs=130)], "single"),  # by no more than the margin
        ([candidate("a", 0.811, members=2, macs=130)], "a"),
        ([candidate("a", 0.85, spread=0.1, members=2, macs=130)], "single"),  # the interval includes 0
        ([candidate("a", 0.85, macs=130, accuracy=0.889)], "single"),
        ([candidate("a", 0.85, macs=130, accuracy=0.89)], "a"),  # by no more than the limit
        ([candidate("a", 0.85, macs=130, nll=0.33)], "single"),
        ([candidate("a", 0.85, macs=130, eligible=False)], "single"),
        # Cost decides before members: the dearer row has fewer members, and is not better by more than the margin.
        ([candidate("a", 0.855, macs=300, members=1), candidate("b", 0.85, macs=130, members=3)], "b"),
        # The dearer row is better by more than the margin, significantly; or not significantly.
        ([candidate("a", 0.87, macs=300), candidate("b", 0.85, macs=130)], "a"),
        ([candidate("a", 0.87, macs=300, spread=0.05), candidate("b", 0.85, macs=130)], "b"),
        ([candidate("a", 0.85, macs=130), candidate("b", 0.855, macs=200), candidate("c", 0.87, macs=300)], "c"),
        ([candidate("a", 0.85, macs=130, members=3), candidate("b", 0.85, macs=130, members=2)], "b"),
        ([candidate("a", 0.85, macs=130), candidate("b", 0.85, macs=130)], "a"),
        # A row that is better under MSP alone is not compared where the single model has a better score.
        ([candidate("single", 0.90, score="vim"), candidate("a", 0.95, macs=130)], "single"),
    ],
)
def test_the_cheapest_row_that_no_dearer_one_clearly_beats(others: list[Candidate], taken: str) -> None:
    choice = decided(SINGLE, *others)
    assert choice.chosen.row == taken
    without_reason = [one for one in choice.candidates if not choice.why_not_taken(one)]
    assert without_reason == [choice.chosen]


def test_all_rows_are_compared_under_the_admissible_score_of_the_single_model_with_the_highest_mean() -> None:
    choice = decided(
        SINGLE,
        candidate("single", 0.85, score="energy"),
        candidate("single", 0.86, score="vim"),
        candidate("single", 0.90, score="knn", spread=0.3),  # the highest, and perhaps none better than MSP
        candidate("a", 0.95, score="mi", macs=130),  # under a score that the single model has not
        candidate("a", 0.88, score="vim", macs=130),
        candidate("b", 0.95, score="energy", macs=120),  # better, and under another score
    )
    assert (choice.chosen.row, choice.chosen.score) == ("a", "vim")
    reasons = [choice.why_not_taken(one) for one in choice.candidates]
    for place in (1, 4, 6):
        assert reasons[place] == "models are compared under vim, the score of the single model"
    assert reasons[2] == "a is better (+0.0200)"
    assert "not significantly" in reasons[3]
    assert [choice.own_candidate(row).score for row in ("single", "a", "b")] == ["vim", "mi", "energy"]


@pytest.mark.parametrize("metric", [ACCURACY, NLL])
def test_a_limit_rules_out_only_what_is_worse_for_certain(metric: str) -> None:
    """In some rounds the row is no worse than the single model, whose own figures do not move."""
    values = {ACCURACY: 0.9, NLL: 0.3} | {metric: {ACCURACY: 0.87, NLL: 0.33}[metric]}
    for spread, stays in ((0.05, True), (0.02, False)):
        rounds = {name: value + spread * ROUNDS for name, value in values.items()}
        row = Candidate("a", "msp", 2, 130, Resampled(values, rounds), figures({"set0": 0.9}))
        choice = decided(SINGLE, row)
        assert (choice.chosen is row) is stays and ("a" in choice.ruled_out) is not stays
        assert list(choice.losses_beyond_limit("a")) == [metric]
    within = decided(SINGLE, candidate("a", 0.9, macs=130, accuracy=0.892, nll=0.31))
    assert within.losses_beyond_limit("a") == {}


@pytest.mark.parametrize(
    ("aurocs", "spread", "admissible"),
    [
        ((0.90, 0.80, 0.80), 0.0, True),
        ((0.95, 0.95, 0.795), 0.0, False),  # on one set significantly below, by less than the margin
        ((0.95, 0.95, 0.795), 0.01, True),  # below, by less than the margin, and not significantly
        ((0.95, 0.95, 0.78), 0.05, False),  # by more than the margin, though not significantly
        ((0.80, 0.80, 0.80), 0.0, False),  # no gain
    ],
)
def test_a_score_that_harms_on_one_set_is_not_taken_whatever_it_gains_elsewhere(
    aurocs: tuple[float, ...], spread: float, admissible: bool
) -> None:
    choice = decided(candidate("single", 0.8, 0.8, 0.8), candidate("single", *aurocs, spread=spread, score="gen"))
    assert (choice.chosen.score == "gen") is admissible


def test_of_several_scores_the_one_with_the_highest_mean_over_sets_is_taken() -> None:
    vim, gen = candidate("single", 0.90, 0.80, score="vim"), candidate("single", 0.86, 0.86, score="gen")
    assert decided(candidate("single", 0.8, 0.8), vim, gen).chosen is gen


def test_a_set_that_no_score_of_the_single_model_separates_has_no_vote() -> None:
    single = candidate("single", 0.80, 0.51)
    margin = candidate("single", 0.70, 0.59, score="margin")  # better on the blind set alone
    energy = candidate("single", 0.85, 0.40, score="energy")  # worse there
    choice = decided(single, margin, energy)
    assert (choice.telling, choice.blind, choice.chosen) == (("set0",), ["set1"], energy)


def test_where_all_sets_are_blind_it_is_the_single_model_with_msp() -> None:
    single, row = candidate("single", 0.51, 0.55), candidate("a", 0.7, 0.7)
    choice = decided(single, candidate("single", 0.58, 0.59, score="margin"), row)
    assert choice.chosen is single and choice.telling == () and choice.rivals == []
    assert choice.why_not_taken(row) == "no OOD validation set tells anything"


def test_sets_that_nobody_gave_have_no_vote() -> None:
    candidates = [SINGLE, candidate("single", 0.95, score="vim"), candidate("a", 0.95, macs=130)]
    choice = Decision(candidates, 0.01, may_vote=False)
    assert (choice.chosen, choice.telling, choice.blind, choice.admissible) == (SINGLE, (), ["set0"], [SINGLE])


def test_an_interval_that_reaches_down_to_chance_is_blind() -> None:
    assert decided(candidate("single", 0.65, spread=0.1), candidate("a", 0.9)).telling == ()
    assert decided(candidate("single", 0.65, spread=0.02), candidate("a", 0.9)).telling == ("set0",)


def test_what_might_have_been_chosen_is_kept_cheapest_first() -> None:
    choice = decided(
        SINGLE,
        candidate("b", 0.809, macs=150),  # short of the margin by a little
        candidate("a", 0.805, macs=130),
        candidate("c", 0.90, macs=110, accuracy=0.5),
        candidate("d", 0.79, macs=110),
    )
    assert choice.chosen is SINGLE and [one.row for one in choice.admissible] == ["single", "a", "b"]


def test_rows_that_validation_data_rule_out_are_those_beyond_a_limit_and_those_that_do_harm() -> None:
    choice = decided(
        SINGLE,
        candidate("single", 0.90, score="vim"),
        candidate("a", 0.92, score="vim", macs=130),
        candidate("b", 0.92, score="vim", macs=130, accuracy=0.8),
        candidate("c", 0.79, score="vim", macs=130),
        candidate("d", 0.79, macs=130),  # without the score of the comparison
        candidate("e", 0.79, score="vim", macs=130, eligible=False),  # compared only
        candidate("f", 0.79, score="vim", macs=130, eligible=False, nll=0.4),
    )
    assert choice.ruled_out == {
        "b": "accuracy 0.8000, significantly lower than 0.9000, and by more than 0.01",
        "c": "AUROC on set0 below that of the single model with MSP (-0.0100)",
        "f": "NLL 0.4000, significantly higher than 0.3000, and by more than 0.02",
    }


def test_rivals_are_the_admissible_scores_of_the_single_model_that_are_not_significantly_below_its_best() -> None:
    candidates = [
        SINGLE,
        candidate("single", 0.85, score="entropy"),
        candidate("single", 0.895, score="energy", spread=0.02),
        candidate("single", 0.90, score="vim"),
        candidate("single", 0.92, score="knn", spread=0.3),
    ]
    choice = decided(*candidates)
    assert [rival.score for rival in choice.rivals] == ["energy", "vim"]


def test_how_sure_a_choice_is_follows_from_the_rounds_that_are_there() -> None:
    sure = decided(
        SINGLE, candidate("single", 0.90, score="vim"), candidate("a", 0.95, macs=130, score="vim")
    ).stability
    assert (sure.row, sure.score, sure.difference) == (1.0, 1.0, None)
    # vim's lead over energy turns round in the rounds below -0.5; the row stays.
    doubtful = decided(
        SINGLE,
        candidate("single", 0.895, score="energy"),
        candidate("single", 0.90, score="vim", spread=0.01),
    ).stability
    assert doubtful.row == 1.0
    assert doubtful.score == pytest.approx(np.mean(0.005 + 0.01 * ROUNDS > 0), abs=0.011)
    assert doubtful.difference == pytest.approx(0.895 - 0.90, abs=1e-12)  # on the data themselves


def test_the_mean_over_sets_has_no_value_where_one_set_has_none() -> None:
    empty = Resampled({"a": 0.5, "b": None}, {"a": ROUNDS})
    assert mean_over_sets(empty, AUROC).values == {AUROC: None}
