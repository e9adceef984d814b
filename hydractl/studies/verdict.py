"""The verdict on a choice by the test data, in plain words. Pure functions: from paired differences to sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hydractl.files.study_answer import NextBestRecord
from hydractl.report.texts import number
from hydractl.studies.choosing import REFERENCE, SINGLE
from hydractl.studies.comparing import AgainstSingle, Rung
from hydractl.studies.words import (
    ACCURACY,
    AUROC,
    BETTER,
    CANNOT_TELL,
    FPR95,
    GAINS,
    KINDS,
    LOSSES,
    NO_DIFFERENCE,
    WORDS,
    Finding,
)

HELPS = "helps"
HELPS_SLIGHTLY = "helps slightly"
TRADES = "trades"
AS_GOOD = "a free score is as good"
FREE_SCORE_BETTER = "a free score is better"
UNCLEAR = "cannot tell"
SCORE_HELPS = "score helps"
SCORE_UNCLEAR = "score unclear"
NOTHING_HELPS = "nothing helps"
BLIND = "cannot choose"
ANSWERS = (
    HELPS,
    HELPS_SLIGHTLY,
    TRADES,
    AS_GOOD,
    FREE_SCORE_BETTER,
    UNCLEAR,
    SCORE_HELPS,
    SCORE_UNCLEAR,
    NOTHING_HELPS,
    BLIND,
)
"""The possible answers of a study."""

_NO_BETTER = {NO_DIFFERENCE: "no better", "slightly worse": "slightly worse", "worse": "worse"}


@dataclass(frozen=True)
class Price:
    """The cost of a row as a ratio to the single model; None if it is not known.

    Attributes:
        macs: the ratio of mult-adds.
        params: the ratio of parameters.
    """

    macs: float | None
    params: float | None


@dataclass(frozen=True)
class Use:
    """The model to use, as ``best.st`` holds it.

    Attributes:
        rung: its row and its OOD score.
        temperature, threshold: None if it has none.
        price: the cost of its row.
    """

    rung: Rung
    temperature: float | None
    threshold: float | None
    price: Price


@dataclass(frozen=True)
class NextBest:
    """What comes next to the choice on validation data.

    Attributes:
        rung: its row and its OOD score.
        price: the cost of its row.
        against_used: its differences on the test data to the rung to use, by metric.
    """

    rung: Rung
    price: Price
    against_used: Mapping[str, Finding]

    def line(self, used: Rung) -> str:
        """Return the sentence that names it, with its price and what it does on the test data."""
        price = "" if self.price.macs is None else f", at {self.price.macs:.2f} times the mult-adds"
        return (
            f"Next best on validation data is {name_of(self.rung)}{price}: on the test data "
            f"{_detection(self.against_used)} against {name_of(used)}."
        )

    def record(self, used: Rung) -> NextBestRecord:
        """Return the same as a record of the document."""
        return NextBestRecord(
            row=self.rung.row,
            score=self.rung.score,
            mac_ratio=self.price.macs,
            line=self.line(used),
            against_used=list(self.against_used.values()),
        )


@dataclass(frozen=True)
class Facts:
    """Everything that a verdict is based on.

    A rung is a row with an OOD score. The final rung is where the verdict ends on the ladder.

    Attributes:
        ladder: the rungs, the choice first.
        differences_to_next: for each rung except the last, its differences to the next rung, by metric.
        final_index: the index of the final rung.
        against_single: for each rung, its comparisons with the single model under each of its scores.
        against_hardest: the differences of the final rung to its hardest rival, by metric; empty without rivals.
        against_unbeaten: the same to :attr:`AgainstSingle.unbeaten`; empty without one.
        by_test_set: by the name of each test set, the difference of AUROC between these two.
        against_baseline: the differences of the final rung to the single model with MSP and no temperature, by metric.
        labelled: whether the ID test data have labels.
        has_ood_val: whether somebody gave OOD validation data.
        has_vote: whether any OOD validation set had a vote.
        has_other_rows: whether rows other than the single model were made.
        reasons_for_single: sentences on why no other row than the single model was chosen.
        next_best: what comes next to the choice; None without any.
        uncertain: the sentence on how often resampled validation data choose otherwise; empty where they do not often.
        doubts: sentences on what else makes the verdict less certain.
        mistakes: the sentence on which score to trust for mistakes; empty without labels.
    """

    ladder: Sequence[Rung]
    differences_to_next: Sequence[Mapping[str, Finding]]
    final_index: int
    against_single: Sequence[AgainstSingle]
    against_hardest: Mapping[str, Finding]
    by_test_set: Mapping[str, Finding]
    against_baseline: Mapping[str, Finding]
    labelled: bool = True
    has_ood_val: bool = True
    has_vote: bool = True
    has_other_rows: bool = True
    reasons_for_single: Sequence[str] = ()
    against_unbeaten: Mapping[str, Finding] = field(default_factory=dict)
    next_best: NextBest | None = None
    uncertain: str = ""
    doubts: Sequence[str] = field(default_factory=tuple)
    mistakes: str = ""

    @property
    def rung(self) -> Rung:
        """The final rung, where the verdict ends."""
        return self.ladder[self.final_index]

    @property
    def other_row_may_pay(self) -> bool:
        """Whether other samples often choose otherwise, or the next best is better on the test data."""
        if self.uncertain:
            return True
        return self.next_best is not None and self.next_best.against_used[AUROC].kind in GAINS

    @property
    def free_alternative(self) -> str | None:
        """The score with which the single model is as good as the final rung or better, and that is no rung itself.

        It was fixed before the test. For the single model itself, a score that is only as good is no alternative. None
        without such a score.
        """
        if not self.has_vote:
            return None
        against_single = self.against_single[self.final_index]
        if self.rung.row == SINGLE:
            return next(iter(against_single.better_rivals), None)
        hardest = against_single.hardest
        if hardest is None:
            return None
        kind = against_single.rivals[hardest].kind
        if kind == NO_DIFFERENCE or kind in LOSSES:
            return hardest
        return None


@dataclass(frozen=True)
class Verdict:
    """The answer of a study in words.

    Attributes:
        answer: one of :data:`ANSWERS`.
        lines: the sentences that explain it, the most important one first.
    """

    answer: str
    lines: Sequence[str]


def answer_of(facts: Facts) -> str:
    """Return the answer, one of :data:`ANSWERS`."""
    if not facts.has_vote:
        return BLIND
    if facts.rung.row == SINGLE:
        return _answer_of_single(facts)
    return _answer_of_ensemble(facts)


def _answer_of_single(facts: Facts) -> str:
    """Return the answer of a study that ends with the single model: decided by its score against MSP."""
    if facts.rung.score == REFERENCE:
        return NOTHING_HELPS
    against_msp = facts.differences_to_next[facts.final_index][AUROC]
    if against_msp.kind in GAINS:
        return SCORE_HELPS
    return SCORE_UNCLEAR


def _answer_of_ensemble(facts: Facts) -> str:
    """Return the answer of a study that ends with another row than the single model.

    It is decided by the difference of mean AUROC to the hardest score of the single model. A gain that costs accuracy
    is a trade. It is a gain only where every free score is significantly below it.
    """
    # A free score is any OOD score of the single model. If one that was not fixed beforehand did better, that decides,
    # whatever the fixed ones did.
    against_single = facts.against_single[facts.final_index]
    if against_single.better_afterwards:
        return FREE_SCORE_BETTER

    # The hardest of the scores that were fixed beforehand.
    assert against_single.hardest is not None  # every other row has rivals, at least the single model with MSP
    kind = against_single.rivals[against_single.hardest].kind
    if kind in LOSSES:
        return FREE_SCORE_BETTER
    if kind == NO_DIFFERENCE:
        return AS_GOOD
    if kind == CANNOT_TELL:
        return UNCLEAR
    if against_single.unbeaten is not None:
        return UNCLEAR

    # It detects OOD samples better than the single model.
    accuracy = facts.against_hardest.get(ACCURACY)
    if accuracy is not None and accuracy.kind in LOSSES:
        return TRADES
    if kind == BETTER:
        return HELPS
    return HELPS_SLIGHTLY


def verdict(facts: Facts, use: Use) -> Verdict:
    """Return the verdict: the answer, its consequences, the comparisons behind it, and the doubts."""
    answer = answer_of(facts)

    # The answer and its consequences.
    lines = [" ".join(filter(None, [_first_sentence(facts, answer, use.price), facts.uncertain]))]
    if facts.next_best is not None:
        lines.append(facts.next_best.line(facts.rung))
    lines += _sentences_on_left_rungs(facts)
    lines += _sentence_on_better_rivals(facts)
    lines += _sentence_on_better_free_scores(facts, answer)
    lines += _sentence_on_worse_sets(facts, answer)
    lines += facts.reasons_for_single
    lines.append(_sentence_on_best_file(use))
    lines += _sentence_on_free_alternative(facts)

    # The comparisons.
    against_single = facts.against_single[facts.final_index]
    if against_single.hardest is not None:
        lines.append(_differences_in_words(facts.against_hardest, single_with(against_single.hardest)))
    lines.append(_differences_in_words(facts.against_baseline, "the single model with MSP and no temperature"))
    lines += _sentences_on_needed_samples(facts, answer)
    if not facts.labelled:
        lines.append("The ID test data have no labels: this verdict is about OOD detection alone.")

    # The score for mistakes, and the doubts.
    lines.append(facts.mistakes)
    lines += facts.doubts
    lines_with_text = [line for line in lines if line]
    return Verdict(answer, lines_with_text)


def single_with(score: str) -> str:
    """Return the name of the single model with a score in a sentence; it has its fitted temperature."""
    if score == REFERENCE:
        return "the single model with MSP"
    return f"the single model with {score}"


def name_of(rung: Rung) -> str:
    """Return the name of a row with its score in a sentence."""
    if rung.row == SINGLE:
        return single_with(rung.score)
    return f"{rung.row} with {rung.score}"


def _detection(differences: Mapping[str, Finding]) -> str:
    """Return the differences of OOD detection as text: of mean AUROC, and of FPR95 where that was compared."""
    compared = [differences[metric] for metric in (AUROC, FPR95) if metric in differences]
    return ", ".join(map(str, compared))


def _sentences_on_left_rungs(facts: Facts) -> list[str]:
    """Return a sentence for each rung of the ladder that was left because it is no better than the next one.

    A rung is a row with an OOD score; the first one is the choice on validation data. The verdict steps down from it to
    cheaper rungs, and ends on the final rung.
    """
    sentences = []
    for index in range(facts.final_index):
        differences = facts.differences_to_next[index]
        how_much = _NO_BETTER[differences[AUROC].kind]
        difference = _detection(differences)
        upper = _capitalised(name_of(facts.ladder[index]))
        lower = name_of(facts.ladder[index + 1])
        if not facts.has_vote:
            sentences.append(f"{upper}, taken blind, is {how_much} on the test data than {lower}: {difference}.")
        elif index == 0:
            sentences.append(
                f"{upper}, chosen on validation data, is {how_much} on the test data than {lower}: {difference}."
            )
        else:
            sentences.append(f"{upper} is {how_much} there than {lower}: {difference}.")
    return sentences


def _first_sentence(facts: Facts, answer: str, price: Price) -> str:
    """Return what to use, then what that brings and costs, then whether anything else would pay."""
    if answer == BLIND:
        return _blind_sentence(facts)
    if answer not in (NOTHING_HELPS, SCORE_HELPS, SCORE_UNCLEAR):
        return _ensemble_sentence(facts, answer, price)
    sentence = _single_sentence(facts, answer)
    if not facts.has_other_rows:
        return sentence
    if facts.other_row_may_pay:
        return f"{sentence} On validation data no other model is worth its cost."
    return f"{sentence} No other model is worth its cost here."


def _blind_sentence(facts: Facts) -> str:
    """Return the sentence that states the answer of a study that had no OOD samples to choose by."""
    reason, other = "the OOD validation data cannot tell which model or score is better", " other"
    if not facts.has_ood_val:
        reason, other = "no OOD validation data were given", ""
    name = name_of(facts.rung)
    if facts.rung.score == REFERENCE:
        return f"Use {name}, or give{other} OOD validation data: {reason}, so nothing was chosen."
    differences = _detection(facts.differences_to_next[facts.final_index])
    return (
        f"Use {name}: on the test data {differences} against MSP, at the cost of one model. The score, a sum of "
        f"several, was taken blind: {reason}."
    )


def _single_sentence(facts: Facts, answer: str) -> str:
    """Return the sentence that states the answer of a study that ends with the single model."""
    name = name_of(facts.rung)
    if answer == NOTHING_HELPS:
        if facts.final_index == 0:
            return f"Use {name}: on validation data no other score beats it without harm."
        return f"Use {name}."
    difference = _detection(facts.differences_to_next[facts.final_index])
    if answer == SCORE_HELPS:
        return f"Use {name}: {difference} against MSP, at the cost of one model."
    return f"Use {name} or MSP: which of them is better the test data cannot tell: {difference}."


def _ensemble_sentence(facts: Facts, answer: str, price: Price) -> str:
    """Return the sentence that states the answer of a study that ends with another row than the single model.

    It gives the difference of mean AUROC to the hardest rival: the single model with one of its scores.
    """
    against_single = facts.against_single[facts.final_index]
    assert against_single.hardest is not None  # every other row has rivals, at least the single model with MSP
    name = name_of(facts.rung)
    rival = single_with(against_single.hardest)
    kind = against_single.rivals[against_single.hardest].kind
    difference = _detection(facts.against_hardest)
    cost = "" if price.macs is None else f", at {price.macs:.2f} times the mult-adds"

    # The row is better.
    if answer in (HELPS, HELPS_SLIGHTLY, TRADES):
        gain = f"Use {_gain(name, against_single, kind, difference)}{cost}."
        if answer == TRADES:
            return f"{gain} It pays with {facts.against_hardest[ACCURACY]}."
        return gain

    # The test data cannot tell, or it is no better. A free score that was seen only afterwards may be as good, too.
    if answer == UNCLEAR:
        if kind in GAINS:
            assert against_single.unbeaten is not None  # else the row would help
            rival = single_with(against_single.unbeaten)
            difference = _detection(facts.against_unbeaten)
        return f"Use {name}{cost}, or {rival} for nothing: which is better the test data cannot tell: {difference}."
    if answer == AS_GOOD:
        return f"Use {rival}: {name}{cost}, is no better: {difference}."
    if kind in LOSSES:
        return f"Use {rival}: {name}{cost}, did worse: {difference}."
    return (
        f"Try a free score of the single model before {name}{cost}: it was compared with {_rivals_text(against_single)}"
        ", and another one did better."
    )


def _gain(name: str, against_single: AgainstSingle, kind: str, difference: str) -> str:
    """Return words on how much a row is better than the single model under the scores fixed beforehand.

    Args:
        name: the row with its score.
        against_single: its comparisons with the single model.
        kind, difference: the word for its difference to the hardest of them, and the difference.
    """
    how_much = "slightly better"
    if kind == BETTER:
        how_much = "better"
    rivals = _rivals_text(against_single)
    against_hardest = ""
    if len(against_single.rivals) > 1:
        against_hardest = f" against the hardest, {against_single.hardest}"
    return f"{name}: it detects OOD samples {how_much} than {rivals}, {difference}{against_hardest}"


def _rivals_text(against_single: AgainstSingle) -> str:
    """Return the text that names the scores of the single model that a choice was compared with."""
    scores = list(against_single.rivals)
    if not against_single.others:
        return "the single model with any score"
    if len(scores) == 1:
        return single_with(scores[0])
    *first_scores, last_score = scores
    return f"the single model with any of the scores {', '.join(first_scores)} and {last_score}"


def _sentence_on_better_rivals(facts: Facts) -> list[str]:
    """Return a sentence if the single model is to be used, and did better under scores that were fixed beforehand."""
    if not facts.has_vote or facts.rung.row != SINGLE:
        return []
    better_scores = facts.against_single[facts.final_index].better_rivals
    if not better_scores:
        return []
    first, *others = better_scores
    also = ""
    if others:
        also = f", and so did {', '.join(others)}"
    return [
        f"A free score that was compared from the beginning did better here: {single_with(first)}, against which "
        f"{name_of(facts.rung)} has {better_scores[first]}{also}."
    ]


def _sentence_on_free_alternative(facts: Facts) -> list[str]:
    """Return a sentence on how to get the single model with a free score that is as good as ``best.st`` or better."""
    score = facts.free_alternative
    if score is None:
        return []
    return [
        f"Test data choose no score, so best.st is not {single_with(score)}: the command for the free score writes it "
        "as free.st."
    ]


def _sentence_on_better_free_scores(facts: Facts, answer: str) -> list[str]:
    """Return a sentence if a free score did better than the final rung, or an empty list.

    A free score is an OOD score of the single model: it costs no further computation. Those named here were not
    fixed before the test, so that they did better may be chance. The final rung is the row with the score that the
    verdict is about.

    Args:
        facts: everything the verdict is based on.
        answer: the answer of the study; if it is ``BLIND``, the study could not choose, and nothing is said.
    """
    if answer == BLIND:
        return []
    comparisons = facts.against_single[facts.final_index]
    better_scores = comparisons.better_afterwards  # difference by score, the largest lead first
    if not better_scores:
        return []
    first, *others = better_scores
    rival = single_with(first)
    name = name_of(facts.rung)
    also = ""
    if others:
        also = f", and so did {', '.join(others)}"
    return [
        f"A free score did better here: {rival}, against which {name} has {better_scores[first]}{also}. That was seen "
        "afterwards: confirm it on other data."
    ]


def _sentence_on_worse_sets(facts: Facts, answer: str) -> list[str]:
    """Return a sentence on the test sets where a helpful choice is significantly worse than its hardest rival."""
    if answer not in (HELPS, HELPS_SLIGHTLY, TRADES):
        return []
    worse = []
    for name, finding in facts.by_test_set.items():
        _, high = finding.ci
        if high < 0:
            worse.append(f"{name} ({finding.figures})")
    if not worse:
        return []
    return [f"It is worse on {', '.join(worse)}."]


def _sentence_on_best_file(use: Use) -> str:
    """Return the sentence on what ``best.st`` is; for another row than the single model, with its cost."""
    score = use.rung.score
    settings = [f"the score {score}"]
    if use.temperature is not None:
        temperature = number(use.temperature, 3)
        settings.append(f"temperature {temperature}")
    if use.threshold is not None:
        threshold = number(use.threshold, 4)
        settings.append(f"threshold {threshold}")
    settings_text = ", ".join(settings)

    row = use.rung.row
    if row == SINGLE:
        return f"best.st is the single model with {settings_text}."
    cost = _cost_in_words(use.price)
    return f"best.st is {row} with {settings_text}{cost}."


def _cost_in_words(price: Price) -> str:
    """Return the end of a sentence with the cost of a row; empty if it is not known."""
    ratios = []
    if price.macs is not None:
        ratios.append(f"{price.macs:.2f} times the mult-adds")
    if price.params is not None:
        ratios.append(f"{price.params:.2f} times the parameters")
    if not ratios:
        return ""
    return f"; {' and '.join(ratios)} of the single model"


def _differences_in_words(findings: Mapping[str, Finding], other: str) -> str:
    """Return a sentence that lists differences to another model, grouped by their words; empty without differences.

    Args:
        findings: the differences, by metric.
        other: the name of the other model in a sentence.
    """
    differences_by_word: dict[str, list[str]] = {word: [] for word in WORDS}
    for finding in findings.values():
        differences_by_word[finding.kind].append(str(finding))

    groups = []
    for word, differences in differences_by_word.items():
        if differences:
            listed = ", ".join(differences)
            groups.append(f"{word}: {listed}")
    if not groups:
        return ""
    all_groups = "; ".join(groups)
    return f"Against {other}: {all_groups}."


def _sentences_on_needed_samples(facts: Facts, answer: str) -> list[str]:
    """Return sentences on how many samples would be enough, for OOD detection and accuracy, if the data cannot tell."""
    if answer in (BLIND, NOTHING_HELPS):
        return []

    # Take the comparison that the answer is based on.
    if answer == SCORE_UNCLEAR:  # two scores of the single model: the final rung and the next one
        findings = facts.differences_to_next[facts.final_index]
    elif facts.rung.row == SINGLE:  # the single model with its score and temperature, and as it is
        findings = facts.against_baseline
    else:  # another row, and the single model under the score that comes nearest to it
        findings = facts.against_hardest
        against_single = facts.against_single[facts.final_index]
        if answer == UNCLEAR and findings[AUROC].kind in GAINS and against_single.unbeaten is not None:
            findings = {AUROC: facts.against_unbeaten[AUROC]}

    sentences = []
    for metric in (AUROC, ACCURACY):
        finding = findings.get(metric)
        if finding is None or finding.needed is None:
            continue
        words = KINDS[metric].words
        if metric == ACCURACY:  # it is measured on the ID test data alone
            enough = f"about {finding.needed:,} samples of --test would do; it has {finding.n:,}"
        else:  # sets of other sizes count, too: only if all of them grow alike, the interval shrinks as expected
            times = math.ceil(10 * finding.needed / finding.n) / 10
            enough = f"about {times:,g} times as many samples of each test set would do; the smallest has {finding.n:,}"
        sentences.append(f"To tell about {words}, {enough}.")
    return sentences


def _capitalised(text: str) -> str:
    """Return a text for the start of a sentence: "the" becomes "The"; names of rows stay as they are."""
    if not text.startswith("the "):
        return text
    rest = text.removeprefix("the ")
    return f"The {rest}"
