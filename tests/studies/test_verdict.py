"""What a study says of the test data: its hardest rival, the ladder, every answer, and what is doubtful."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from hydractl.files.study_answer import NextBestRecord, StabilityRecord
from hydractl.metrics.bootstrap import Resampled
from hydractl.studies import doubts
from hydractl.studies.choice import Chosen
from hydractl.studies.rule import Difference
from hydractl.studies.verdict import (
    AgainstSingle,
    Facts,
    Rung,
    answer_of,
    end_of,
    record_of_other,
    verdict,
)
from hydractl.studies.words import ACCURACY, AUROC, FPR95, NLL, Finding, judge

BETTER, SLIGHTLY = (0.03, (0.02, 0.04)), (0.012, (0.004, 0.02))
SAME, UNCLEAR = (0.001, (-0.004, 0.006)), (0.01, (-0.012, 0.032))
SLIGHTLY_WORSE, WORSE = (-0.0084, (-0.0126, -0.0052)), (-0.03, (-0.04, -0.02))
Figure = tuple[float, tuple[float, float]]

CHOICE, OWN, MSP = Rung("whole-avg@2", "gen"), Rung("single", "vim"), Rung("single", "msp")


def finding(figure: Figure, metric: str = AUROC) -> Finding:
    value, ci = figure
    return judge(metric, {"value": value, "ci": ci}, 1000)


def facts_of(
    steps: list[Figure],
    rivals: dict[str, Figure],
    rungs: list[Rung] | None = None,
    afterwards: dict[str, Figure] | None = None,
    accuracy: Figure = SAME,
    **others: Any,
) -> Facts:
    rungs = [CHOICE, OWN, MSP] if rungs is None else rungs
    findings = [finding(step) for step in steps]
    to_next = [*({AUROC: step} for step in findings), {}]
    ends = end_of(findings)
    free_scores = afterwards or {"knn": BETTER}
    against_single = AgainstSingle(
        {score: finding(figure) for score, figure in rivals.items()},
        {score: finding(figure) for score, figure in free_scores.items()},
    )
    hardest = {}
    if against_single.hardest is not None:
        hardest = {AUROC: against_single.rivals[against_single.hardest], ACCURACY: finding(accuracy, ACCURACY)}
    nearest = hardest
    if against_single.nearest in against_single.others:
        nearest = {AUROC: against_single.others[against_single.nearest]}
    facts: dict[str, Any] = {
        "by_test_set": {},
        "against_baseline": {AUROC: finding(BETTER)},
        "has_vote": True,
        "has_ood_val": True,
        "has_other_rows": True,
        "next_best": None,
        "highest": None,
        "false_alarms": (None, None),
        "uncertain": "",
        "doubts": [],
        "mistakes": None,
        **others,
    }
    return Facts(
        rungs[ends],
        list(zip(rungs[:ends], to_next[:ends], strict=True)),
        to_next[ends],
        against_single,
        against_hardest=hardest,
        against_nearest=nearest,
        **facts,
    )


def lines(tested: Facts) -> list[str]:
    return list(verdict(tested, mac_ratio=1.14).lines)


def test_the_word_is_that_of_the_rival_with_the_lowest_lower_end() -> None:
    """A choice that beats the single model with its own score, but not a free score that was a rival too."""
    tested = facts_of([BETTER, BETTER], {"msp": BETTER, "energy": BETTER, "vim": SLIGHTLY_WORSE})
    assert tested.against.hardest == "vim"
    assert answer_of(tested) == "a free score is better"
    assert lines(tested)[0] == (
        "Use the single model with vim: whole-avg@2 with gen, at 1.14 times the mult-adds, did worse: mean OOD AUROC "
        "-0.0084 (-0.0126 to -0.0052)."
    )


@pytest.mark.parametrize(
    ("hardest", "accuracy", "answer"),
    [
        (BETTER, SAME, "helps"),
        (SLIGHTLY, SAME, "helps slightly"),
        (BETTER, WORSE, "trades"),
        (BETTER, (-0.004, (-0.007, -0.001)), "trades"),
        (SAME, SAME, "a free score is as good"),
        (UNCLEAR, SAME, "cannot tell"),
        (WORSE, SAME, "a free score is better"),
    ],
)
def test_what_a_pruned_choice_is_answered(hardest: Figure, accuracy: Figure, answer: str) -> None:
    tested = facts_of([BETTER, BETTER], {"msp": (0.2, (0.18, 0.22)), "vim": hardest}, accuracy=accuracy)
    assert answer_of(tested) == answer
    said = lines(tested)
    used = "the single model with vim" if answer.startswith("a free score") else "whole-avg@2 with gen"
    assert said[0].startswith(f"Use {used}") and ", at 1.14 times the mult-adds" in said[0]
    if answer == "trades":
        assert "It pays with accuracy" in said[0]
    if answer == "cannot tell":
        assert any(
            "about 4.9 times as many samples of each test set would do; the smallest has 1,000" in x for x in said
        )


def test_a_free_score_outside_the_comparison_that_did_better_is_named_and_nothing_helps_then() -> None:
    afterwards = {"knn": WORSE, "rmd": SLIGHTLY_WORSE, "gen": UNCLEAR}
    tested = facts_of([BETTER, BETTER], {"msp": BETTER}, afterwards=afterwards)
    assert answer_of(tested) == "a free score is better"
    (named,) = [line for line in lines(tested) if "seen afterwards" in line]
    assert "the single model with knn" in named and "and so did rmd" in named and "confirm it on other data" in named
    found = facts_of([BETTER, BETTER], {"msp": BETTER, "gen": BETTER, "vim": BETTER}, afterwards={"knn": WORSE})
    assert lines(found)[0] == (
        "Try a free score of the single model before whole-avg@2 with gen, at 1.14 times the mult-adds: one did better "
        "that it was not compared with beforehand."
    )


@pytest.mark.parametrize("of_knn", [SAME, UNCLEAR, (0.0058, (-0.0066, 0.0172))])  # the last of a weak Swin
def test_nothing_helps_that_may_be_no_better_than_a_free_score(of_knn: Figure) -> None:
    tested = facts_of([BETTER, BETTER], {"msp": BETTER, "vim": BETTER}, afterwards={"rmd": BETTER, "knn": of_knn})
    assert answer_of(tested) == "cannot tell"
    said = lines(tested)
    assert said[0] == (
        "Use whole-avg@2 with gen, at 1.14 times the mult-adds, or the single model with knn for nothing: which is "
        f"better the test data cannot tell: {finding(of_knn)}."
    )
    assert not any("helps" in line for line in said)
    needs = any("times as many samples of each test set" in line for line in said)
    assert needs == (finding(of_knn).kind == "cannot tell")


def test_where_a_free_score_is_as_good_the_verdict_says_how_to_get_it() -> None:
    command = "so best.st is whole-avg@2 with gen: the command for the free score writes the single model with vim as"
    for hardest in (SAME, WORSE):
        assert command in " ".join(lines(facts_of([BETTER, BETTER], {"msp": BETTER, "vim": hardest})))
    for hardest in (BETTER, UNCLEAR):
        assert "free.st" not in " ".join(lines(facts_of([BETTER, BETTER], {"msp": BETTER, "vim": hardest})))


def test_a_rival_that_did_better_than_the_single_model_to_use_is_named() -> None:
    tested = facts_of([BETTER], {"msp": BETTER, "knn": SLIGHTLY_WORSE, "rmd": WORSE}, [OWN, MSP])
    assert answer_of(tested) == "score helps"
    said = lines(tested)
    assert said[1].endswith(
        "did better here: the single model with rmd, against which the single model with vim has mean OOD AUROC "
        "-0.0300 (-0.0400 to -0.0200), and so did knn."
    )
    assert any("best.st is the single model with vim: the command" in line for line in said)
    equal = lines(facts_of([BETTER], {"msp": BETTER, "knn": SAME}, [OWN, MSP]))
    assert "did better" not in " ".join(equal) and "free.st" not in " ".join(equal)


def test_a_row_that_helps_is_compared_with_its_hardest_rival() -> None:
    one = facts_of([BETTER, BETTER], {"msp": BETTER})
    assert lines(one)[0] == (
        "Use whole-avg@2 with gen, at 1.14 times the mult-adds: it detects OOD samples better than the single model "
        f"with MSP by {finding(BETTER)}."
    )
    two = facts_of([BETTER, BETTER], {"msp": BETTER, "vim": SLIGHTLY})
    hardest = "slightly better than the single model with vim, the hardest of 2 scores, by mean OOD AUROC +0.0120"
    assert hardest in lines(two)[0]


@pytest.mark.parametrize(
    ("steps", "ends"),
    [
        ([BETTER, BETTER], 0),
        ([SLIGHTLY, WORSE], 0),
        ([UNCLEAR, WORSE], 0),  # cannot tell stays where it is
        ([SAME, BETTER], 1),
        ([SLIGHTLY_WORSE, UNCLEAR], 1),
        ([SAME, SAME], 2),
        ([WORSE, WORSE], 2),
    ],
)
def test_test_data_may_only_step_down(steps: list[Figure], ends: int) -> None:
    tested = facts_of(steps, {"msp": BETTER})
    assert tested.rung == [CHOICE, OWN, MSP][ends] and len(tested.left) == ends
    said = lines(tested)
    assert sum("than" in line for line in said[1 : 1 + ends]) == ends
    assert said[1].startswith("Not whole-avg@2 with gen, chosen on validation data: it is") is (ends > 0)
    assert sum(line.startswith("Not ") for line in said) == ends


def test_the_ladder_has_each_rung_once() -> None:
    for taken, score, rungs in ((CHOICE, "vim", [CHOICE, OWN, MSP]), (OWN, "vim", [OWN, MSP]), (MSP, "msp", [MSP])):
        chosen = SimpleNamespace(taken=taken, common_score=score)
        assert Chosen.ladder.fget(chosen) == rungs


@pytest.mark.parametrize(
    ("rungs", "steps", "answer", "begins"),
    [
        (
            [OWN, MSP],
            [BETTER],
            "score helps",
            "Use the single model, yours as it is, with the OOD score vim: mean OOD AUROC +0.0300",
        ),
        (
            [OWN, MSP],
            [UNCLEAR],
            "score unclear",
            "Use the single model, yours as it is, with the OOD score vim or MSP: which of them is better",
        ),
        ([OWN, MSP], [SAME], "nothing helps", "Use the single model, yours as it is, with MSP."),
        (
            [MSP],
            [],
            "nothing helps",
            "Use the single model, yours as it is, with MSP: on validation data no other score beats it",
        ),
    ],
)
def test_where_nothing_pruned_was_chosen(rungs: list[Rung], steps: list[Figure], answer: str, begins: str) -> None:
    tested = facts_of(steps, {"msp": BETTER}, rungs)
    assert answer_of(tested) == answer and lines(tested)[0].startswith(begins)
    assert lines(tested)[0].endswith(f" {NO_OTHER}")


NO_OTHER = (
    "No other model is worth its cost: on validation data none gains more than 0.01 of AUROC for certain without harm "
    "to accuracy, NLL or an OOD set."
)
WHY_NOT = "its gain over single, which costs less, is +0.0098 there, not for certain above 0.01"


def next_best(auroc: Figure, fpr95: Figure | None = None, used: Rung = OWN) -> NextBestRecord:
    findings = {AUROC: finding(auroc)}
    if fpr95 is not None:
        findings[FPR95] = finding(fpr95, FPR95)
    return record_of_other("Next best on validation data", Rung("whole-avg@4", "vim"), 1.14, findings, used, WHY_NOT)


def test_the_next_best_is_named_with_its_price_and_both_figures() -> None:
    """A row that was 0.0002 short of the margin on validation data, and that the test data favour a little."""
    other = next_best((0.009, (0.004, 0.014)), (-0.03, (-0.045, -0.012)))
    tested = facts_of([BETTER], {"msp": BETTER}, [OWN, MSP], next_best=other)
    said = lines(tested)
    assert said[0].startswith("Use the single model, yours as it is, with the OOD score vim: ")
    assert said[0].endswith(f" against the model as it is, with MSP, at the same mult-adds. {NO_OTHER}")
    assert said[1] == (
        "Next best on validation data is whole-avg@4 with vim, at 1.14 times the mult-adds: on the test data mean OOD "
        "AUROC +0.0090 (+0.0040 to +0.0140), mean FPR95 -0.0300 (-0.0450 to -0.0120) against the single model with vim."
        f" Not chosen on validation data, which alone decide: {WHY_NOT}."
    )
    pruned = lines(facts_of([BETTER, BETTER], {"msp": BETTER}, next_best=next_best(SAME, used=CHOICE)))
    assert pruned[0].startswith(
        "Use whole-avg@2 with gen, at 1.14 times the mult-adds: it detects OOD samples better than"
    )
    assert "against whole-avg@2 with gen. Not chosen on validation data" in pruned[1]


def test_the_choice_that_was_left_is_said_to_be_the_choice_where_it_is_highest() -> None:
    left = record_of_other("Highest of all models", CHOICE, 1.77, {AUROC: finding(SAME)}, OWN, "")
    assert left.line.endswith(
        " against the single model with vim. Validation data chose it, but the test data do not show that it is better "
        "by more than 0.01 of AUROC than what costs less."
    )


@pytest.mark.parametrize("rungs", [[OWN, MSP], [CHOICE, OWN, MSP]])
def test_the_headline_carries_the_doubt(rungs: list[Rung]) -> None:
    (doubt,) = doubts.of_stability(StabilityRecord(row=0.46, score=0.9, difference=0.002))
    sure, unsure = (facts_of([BETTER] * (len(rungs) - 1), {"msp": BETTER}, rungs, uncertain=x) for x in ("", doubt))
    assert lines(unsure)[0].endswith(
        ". Not certain: other draws of the validation data would have chosen another model in 54 % of cases, on "
        "average for 0.0020 more of mean OOD AUROC on these data."
    )
    assert "Not certain" not in " ".join(lines(sure))
    is_single = rungs[0] == OWN
    assert (NO_OTHER in lines(unsure)[0]) == is_single


def test_fpr95_stands_beside_auroc_in_the_answer() -> None:
    fpr95 = {FPR95: finding((-0.1, (-0.25, 0.06)), FPR95)}
    figures = f"{finding(BETTER)}, mean FPR95 -0.1000 (-0.2500 to +0.0600)"
    score = facts_of([BETTER], {"msp": BETTER}, [OWN, MSP])
    score = replace(score, against_baseline={AUROC: finding(BETTER), **fpr95})
    assert lines(score)[0].startswith(
        f"Use the single model, yours as it is, with the OOD score vim: {figures} against the model as it is, with MSP"
    )
    row = facts_of([BETTER, BETTER], {"msp": BETTER})
    assert figures in lines(replace(row, against_nearest={**row.against_nearest, **fpr95}))[0]
    left = facts_of([SAME, BETTER], {"msp": BETTER})
    left = replace(left, left=[(CHOICE, {AUROC: finding(SAME), **fpr95})])
    assert "mean FPR95 -0.1000" in lines(left)[1]


def test_the_headline_says_plainly_how_false_alarms_change_where_they_do() -> None:
    fewer = {AUROC: finding(BETTER), FPR95: finding((-0.262, (-0.33, -0.2)), FPR95)}
    plain = "false alarms fall from 34.7 % to 8.5 % of normal (ID) samples, at thresholds that find 95 % of OOD"
    score = facts_of([BETTER], {"msp": BETTER}, [OWN, MSP], against_baseline=fewer, false_alarms=(0.347, 0.085))
    assert (
        lines(score)[0]
        == f"Use the single model, yours as it is, with the OOD score vim: {plain}, at the same mult-adds. {NO_OTHER}"
    )
    unsure = {AUROC: finding(BETTER), FPR95: finding((-0.02, (-0.07, 0.03)), FPR95)}
    assert "false alarms" not in " ".join(lines(replace(score, against_baseline=unsure)))


def test_a_row_that_is_highest_on_the_test_data_and_next_best_is_named_once() -> None:
    other = next_best(SAME)
    highest = record_of_other("Highest of all models", Rung("whole-late@6", "vim"), 1.13, {}, OWN, WHY_NOT)
    said = lines(facts_of([BETTER], {"msp": BETTER}, [OWN, MSP], next_best=other, highest=highest))
    assert said[1:3] == [other.line, highest.line] and highest.line.startswith("Highest of all models is whole-late@6")
    same_row = highest.model_copy(update={"row": other.row})
    said = lines(facts_of([BETTER], {"msp": BETTER}, [OWN, MSP], next_best=other, highest=same_row))
    assert said[1] == highest.line and other.line not in said


def test_the_headline_has_the_differences_of_the_table_below_it() -> None:
    """MSP at the temperature of the row decides; what a reader has now is MSP without one."""
    tested = facts_of([BETTER], {"msp": BETTER}, [OWN, MSP], against_baseline={AUROC: finding(SLIGHTLY)})
    assert f": {finding(SLIGHTLY)} against the model as it is, with MSP, at the same mult-adds." in lines(tested)[0]
    no_gain = facts_of([BETTER], {"msp": BETTER}, [OWN, MSP], against_baseline={AUROC: finding(UNCLEAR)})
    assert f": {finding(BETTER)} against MSP at the same temperature, at the same mult-adds." in lines(no_gain)[0]


def test_blind_validation_data_choose_nothing() -> None:
    tested = facts_of([], {}, [MSP], has_vote=False, doubts=["Blind."])
    assert answer_of(tested) == "cannot choose"
    assert lines(tested)[0].startswith(
        "Use the single model, yours as it is, with MSP, or give other OOD validation data: the OOD"
    )
    assert lines(tested)[-1] == "Blind."


BLIND = Rung("single", "hedge")


def test_without_a_set_that_tells_the_score_is_taken_blind_and_said_so() -> None:
    tested = facts_of([BETTER], {"msp": BETTER}, [BLIND, MSP], has_vote=False, doubts=["Blind."])
    assert answer_of(tested) == "cannot choose"
    assert lines(tested)[0] == (
        "Use the single model, yours as it is, with the OOD score hedge: on the test data "
        f"{finding(BETTER)} against the model as it is, with MSP, at the same mult-adds. The score, a sum of several, "
        "was taken blind: the OOD validation data cannot tell which model or score is better."
    )
    bare = lines(replace(tested, has_ood_val=False))
    assert bare[0].endswith("was taken blind: no OOD validation data were given.")


def test_a_score_taken_blind_that_is_no_better_on_the_test_data_is_left() -> None:
    tested = facts_of([SAME], {"msp": BETTER}, [BLIND, MSP], has_vote=False, has_ood_val=False)
    said = lines(tested)
    assert said[0] == (
        "Use the single model, yours as it is, with MSP, or give OOD validation data: no OOD validation data were "
        "given, so nothing was chosen."
    )
    assert said[1] == (
        "Not the single model with hedge, taken blind: it is no better on the test data than the single model with "
        f"MSP: {finding(SAME)}."
    )


def test_a_test_set_on_which_a_choice_that_helps_is_worse_is_named() -> None:
    sets = {"mnist": finding(BETTER), "svhn": finding(SLIGHTLY_WORSE)}
    tested = facts_of([BETTER, BETTER], {"msp": BETTER}, by_test_set=sets)
    assert "It is worse on svhn (-0.0084 (-0.0126 to -0.0052))." in lines(tested)


def test_unlabelled_test_data_say_nothing_of_accuracy() -> None:
    tested = facts_of([BETTER, BETTER], {"msp": BETTER})
    bare = replace(tested, against_hardest={AUROC: finding(BETTER)})
    said = " ".join(lines(bare))
    assert answer_of(bare) == "helps" and "accuracy" not in said and "about OOD detection alone" in said


# --- doubts -----------------------------------------------------------------------------------------------------------


def test_blind_sets_are_named() -> None:
    assert doubts.of_blind_sets(["a"], []) == []
    assert doubts.of_blind_sets(["a", "c"], ["b"]) == [
        "OOD validation data without a vote: b, as no score of the single model tells them from ID data with an AUROC "
        "whose interval lies above 0.6; a and c decided."
    ]
    (line,) = doubts.of_blind_sets([], ["a", "auto"], made=["auto"])
    assert "a, auto (made of --val), as no" in line and line.endswith("above 0.6; nothing could be chosen.")


def test_a_limit_that_the_sample_cannot_tell_about_is_said() -> None:
    losses = {ACCURACY: Difference(8 / 750, -0.0027, 0.024)}
    assert doubts.of_limits("whole-avg@4", losses, {ACCURACY: 0.01, NLL: 0.02}) == [
        "On validation data the accuracy of whole-avg@4 is worse by 0.0107 (-0.0027 to +0.0240), more than the 0.01 "
        "allowed; the samples cannot tell whether it is worse at all, so it was not ruled out."
    ]
    assert doubts.of_limits("whole-avg@4", {}, {ACCURACY: 0.01, NLL: 0.02}) == []


def test_a_search_on_a_blind_set_is_said() -> None:
    _, line = doubts.of_blind_sets(["auto"], ["a"], searched="a")
    assert line.startswith("Heads were searched on a all the same") and "as the first --ood-val" in line
    assert len(doubts.of_blind_sets(["a"], ["auto"], searched="a")) == 1
    assert len(doubts.of_blind_sets(["auto"], ["a"], searched=None)) == 1  # no row has a circuit
    assert len(doubts.of_blind_sets([], ["a"], searched="a")) == 2  # nothing was chosen, but rows are in the tables


def test_validation_accuracy_significantly_above_that_of_the_test_data_is_said() -> None:
    (line,) = doubts.of_accuracies(np.arange(1000) < 951, np.arange(5000) < 4585)
    assert "0.9510" in line and "0.9170" in line and "trained on the validation data" in line
    assert doubts.of_accuracies(np.arange(1000) < 925, np.arange(5000) < 4585) == []  # by chance
    assert doubts.of_accuracies(np.arange(1000) < 900, np.arange(5000) < 4585) == []  # below, by chance


def test_test_accuracy_significantly_above_that_of_the_validation_data_is_said() -> None:
    (line,) = doubts.of_accuracies(np.arange(500) < 190, np.arange(1500) < 1480)
    assert "0.3800" in line and "0.9867" in line and "trained on the test data" in line and "easier" in line


def test_a_temperature_below_1_that_spoils_the_nll_is_said() -> None:
    def nll(value: float) -> Resampled:
        return Resampled({NLL: value}, {NLL: value + 0.001 * norm.ppf(np.linspace(0.01, 0.99, 99))})

    (line,) = doubts.of_temperature(0.81, nll(0.261), nll(0.244))
    assert "0.810" in line and "+0.0170" in line
    assert doubts.of_temperature(1.2, nll(0.261), nll(0.244)) == []
    assert doubts.of_temperature(0.81, nll(0.244), nll(0.261)) == []  # it helps


def test_a_choice_that_resamples_often_change_is_said_row_and_score_apart() -> None:
    assert doubts.of_stability(StabilityRecord(row=0.8, score=0.8)) == []
    assert doubts.of_stability(StabilityRecord(row=0.66, score=1.0)) == [
        "Not certain: other draws of the validation data would have chosen another model in 34 % of cases."
    ]
    assert (
        "another model in 34 % of cases and another score in 50 % of cases"
        in doubts.of_stability(StabilityRecord(row=0.66, score=0.5))[0]
    )


def test_another_score_that_costs_next_to_nothing_is_no_doubt() -> None:
    assert doubts.of_stability(StabilityRecord(row=0.9, score=0.3, difference=-0.004)) == []
    assert doubts.of_stability(StabilityRecord(row=0.9, score=0.3, difference=-0.014)) == [
        "Not certain: other draws of the validation data would have chosen another score in 70 % of cases, on average "
        "for 0.0140 less of mean OOD AUROC on these data."
    ]
    assert "for 0.0040 more of" in doubts.of_stability(StabilityRecord(row=0.7, score=0.3, difference=0.004))[0]
