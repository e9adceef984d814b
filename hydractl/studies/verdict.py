"""The verdict on a choice by the test data, in plain words. Pure functions: from paired differences to sentences.

A free score is another OOD score of the single model: it costs no further computation. Everything that a choice is
compared with is fixed before any test sample is read. Test data can only move the verdict down the ladder: from the
choice to the single model with its own score, and from there to the single model with MSP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hydractl.files.study_answer import MistakesRecord, NextBestRecord, VerdictRecord, lines_on_rows
from hydractl.report.texts import percent
from hydractl.studies.mistakes import sentence_on_mistakes
from hydractl.studies.rule import REFERENCE, SINGLE
from hydractl.studies.words import (
    ACCURACY,
    AUROC,
    AUROC_MARGIN,
    BETTER,
    CANNOT_TELL,
    FPR95,
    GAINS,
    KINDS,
    LOSSES,
    NO_DIFFERENCE,
    WORDS,
    Finding,
    Findings,
)

# The possible answers of a study.
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

FOOTNOTE = (
    "The 95 % intervals cover the drawing of these test samples alone: other OOD data, another training or another "
    "search may decide otherwise."
)

_NO_BETTER = {NO_DIFFERENCE: "no better", "slightly worse": "slightly worse", "worse": "worse"}


@dataclass(frozen=True)
class Rung:
    """A row with an OOD score, as a rung of the ladder."""

    row: str
    score: str


def end_of(steps: Sequence[Finding]) -> int:
    """Return the index of the rung (a row with an OOD score) where the verdict ends, 0 for the choice.

    A rung is kept if it is better than the next one, or if the data cannot tell. Otherwise (no difference, or worse)
    the next rung is looked at. The last rung has no next one, so it is kept when it is reached.

    Args:
        steps: the difference of each rung, except the last, to the next one.
    """
    for index, step in enumerate(steps):
        if step.kind in (*GAINS, CANNOT_TELL):
            return index
    return len(steps)


@dataclass(frozen=True)
class AgainstSingle:
    """Differences of mean AUROC on the test data: one rung minus the single model under each of its scores.

    Attributes:
        rivals: the differences to the scores that were fixed beforehand, by score.
        others: the differences to all other scores of the single model, which were seen only afterwards, by score.
    """

    rivals: Findings
    others: Findings

    @property
    def hardest(self) -> str | None:
        """The score, of those fixed beforehand, that the rung beats least or not at all; None without any.

        That is the one whose interval of the difference (rung minus single model) has the lowest lower end; of equal
        ones the first.
        """
        return min(self.rivals, key=lambda score: self.rivals[score].ci[0], default=None)

    @property
    def unbeaten(self) -> str | None:
        """Of :attr:`others` the score nearest to the rung, or ahead of it, that it does not beat significantly.

        None if the rung is significantly better than the single model under each of them.
        """
        not_beaten = [score for score, finding in self.others.items() if finding.kind not in GAINS]
        return min(not_beaten, key=lambda score: self.others[score].value, default=None)

    @property
    def nearest(self) -> str | None:
        """The score that decides what is said of another row: the hardest or, if it beats that, :attr:`unbeaten`.

        It is the hardest, too, if the rung beats all scores; None without any.
        """
        hardest = self.hardest
        if hardest is not None and self.rivals[hardest].kind not in GAINS:
            return hardest
        return self.unbeaten or hardest


def ahead(findings: Findings) -> Findings:
    """Return the scores of the single model that are significantly better than the rung, by how much the most first.

    The values are the differences, rung minus single model with this score: their whole interval lies below 0. Empty
    without such scores.
    """
    leads = {score: finding for score, finding in findings.items() if finding.ci[1] < 0}
    # The most negative difference is the largest lead.
    return dict(sorted(leads.items(), key=lambda lead: lead[1].value))


@dataclass(frozen=True)
class Facts:
    """Everything that a verdict is based on.

    A rung is a row with an OOD score. The final rung is where the verdict ends on the ladder.

    Attributes:
        rung: the final rung.
        left: the rungs that were left before it, the choice first, each with its differences to the next, by metric.
        to_next: the differences of the final rung to the next one, by metric; empty for the last.
        against: the comparisons of the final rung with the single model under each of its scores.
        against_hardest: the differences of the final rung to its hardest rival, by metric; empty without rivals.
        against_nearest: the same to :attr:`AgainstSingle.nearest`; empty where the rung is the single model.
        by_test_set: by the name of each test set, the difference of AUROC between the final rung and its hardest rival.
        against_baseline: the differences of the final rung to the single model with MSP and no temperature, by metric.
        has_ood_val: whether somebody gave OOD validation data.
        has_vote: whether any OOD validation set had a vote.
        has_other_rows: whether rows other than the single model were made.
        next_best: what comes next to the choice; None without any.
        highest: what is highest on the test data; None where that is the row of the final rung.
        false_alarms: mean FPR95 of the single model with MSP and no temperature, and of the final rung.
        uncertain: the sentence on how often resampled validation data choose otherwise; empty where they do not often.
        doubts: sentences on what else makes the verdict less certain.
        mistakes: which score to trust for mistakes; None if the ID test data have no labels.
    """

    rung: Rung
    left: Sequence[tuple[Rung, Findings]]
    to_next: Findings
    against: AgainstSingle
    against_hardest: Findings
    against_nearest: Findings
    by_test_set: Findings
    against_baseline: Findings
    has_ood_val: bool
    has_vote: bool
    has_other_rows: bool
    next_best: NextBestRecord | None
    highest: NextBestRecord | None
    false_alarms: tuple[float | None, float | None]
    uncertain: str
    doubts: Sequence[str]
    mistakes: MistakesRecord | None

    @property
    def free_alternative(self) -> str | None:
        """The score with which the single model is as good as the final rung (what to use) or better; None without one.

        It costs no further computation ("free"). Only scores that were fixed before the test count, and only if an OOD
        validation set had a vote.
        """
        if not self.has_vote:
            return None
        # The single model with another score must be better: one that is only as good is no alternative.
        if self.rung.row == SINGLE:
            return next(iter(ahead(self.against.rivals)), None)
        # Against another row, as good is enough, as the single model costs less.
        if self.against_hardest[AUROC].kind in (NO_DIFFERENCE, *LOSSES):
            return self.against.hardest
        return None


def answer_of(facts: Facts) -> str:
    """Return the answer of a study in two or three words, e.g. ``helps``, by the rung where its verdict ends.

    ======================  =========================================================
    no set has a vote       ``cannot choose``
    another row             see :func:`_answer_of_ensemble`
    single model with MSP   ``nothing helps``
    single, another score   ``score helps`` if it is better than MSP, else ``score unclear``
    ======================  =========================================================
    """
    if not facts.has_vote:
        return BLIND
    if facts.rung.row != SINGLE:
        return _answer_of_ensemble(facts)
    if facts.rung.score == REFERENCE:
        return NOTHING_HELPS
    # The next rung is the single model with MSP, so this is the difference to it.
    return SCORE_HELPS if facts.to_next[AUROC].kind in GAINS else SCORE_UNCLEAR


def _answer_of_ensemble(facts: Facts) -> str:
    """Return the answer of a study that ends with another row than the single model, e.g. an ensemble.

    It is decided by the difference of mean AUROC to the single model with its OOD scores. These are free: they cost no
    further computation. The first case that holds decides:

    * any free score is better: a free score is better;
    * the hardest of those fixed before the test is as good: a free score is as good;
    * it cannot be told of that one, or of any other score: cannot tell;
    * else the row is better than all: trades if its accuracy is worse, helps, or helps slightly.
    """
    # Scores that were not fixed beforehand, "others", decide first, whatever the fixed ones did. The hardest is that of
    # those fixed beforehand which the row beats least: every other row has such scores, at least MSP.
    kind = facts.against_hardest[AUROC].kind
    if ahead(facts.against.others) or kind in LOSSES:
        return FREE_SCORE_BETTER
    if kind == NO_DIFFERENCE:
        return AS_GOOD
    if kind == CANNOT_TELL or facts.against.unbeaten is not None:
        return UNCLEAR

    # It detects OOD samples better than the single model under every score. That may cost accuracy.
    accuracy = facts.against_hardest.get(ACCURACY)
    if accuracy is not None and accuracy.kind in LOSSES:
        return TRADES
    if kind == BETTER:
        return HELPS
    return HELPS_SLIGHTLY


def verdict(facts: Facts, mac_ratio: float) -> VerdictRecord:
    """Return the verdict: the answer, its consequences, the comparisons behind it, and the doubts.

    Sentences that do not apply are empty, and dropped at the end.

    Args:
        facts: the comparisons on the test data.
        mac_ratio: the mult-adds of the row to use over those of the single model.
    """
    answer = answer_of(facts)
    lines = [
        # The answer and its consequences.
        f"{_first_sentence(facts, answer, mac_ratio)} {facts.uncertain}".strip(),
        *lines_on_rows([facts.next_best, facts.highest]),
        *_sentences_on_left_rungs(facts),
        *_sentences_on_better_scores(facts),
        _sentence_on_worse_sets(facts, answer),
        _sentence_on_free_alternative(facts),
    ]

    # The comparisons.
    if facts.against.hardest is not None:
        lines.append(_differences_in_words(facts.against_hardest, single_with(facts.against.hardest)))
    lines.append(_differences_in_words(facts.against_baseline, "the single model with MSP and no temperature"))
    lines.append(_sentence_on_needed_samples(facts, answer))

    # The score for mistakes, which only labelled data have, and the doubts.
    if facts.mistakes is None:
        lines.append("The ID test data have no labels: this verdict is about OOD detection alone.")
    else:
        lines.append(sentence_on_mistakes(facts.mistakes))
    lines += facts.doubts
    return VerdictRecord(
        answer=answer,
        lines=[line for line in lines if line],
        next_best=facts.next_best,
        highest=facts.highest,
        uncertain=facts.uncertain or None,
        doubts=list(facts.doubts),
        footnote=FOOTNOTE,
        hardest=facts.against.hardest,
        rivals=facts.against.rivals,
        afterwards=ahead(facts.against.others),
        sets=facts.by_test_set,
        against_hardest=list(facts.against_hardest.values()),
        against_baseline=list(facts.against_baseline.values()),
        mistakes=facts.mistakes,
    )


def record_of_other(
    place: str, rung: Rung, mac_ratio: float, against_used: Findings, used: Rung, why_not: str
) -> NextBestRecord:
    """Return a model that might have been chosen instead, with the sentence that names it.

    Args:
        place: where it comes next, as the sentence begins.
        rung: its row and its OOD score.
        mac_ratio: the mult-adds of its row over those of the single model.
        against_used: its differences on the test data to the rung to use, by metric.
        used: that rung.
        why_not: why validation data, which alone choose, did not choose it; empty of the choice, which was left.
    """
    reason = f"Not chosen on validation data, which alone decide: {why_not}."
    if not why_not:
        reason = (
            "Validation data chose it, but the test data do not show that it is better by more than "
            f"{AUROC_MARGIN:g} of AUROC than what costs less."
        )
    line = (
        f"{place} is {_with_price(rung, mac_ratio)}: on the test data {_detection(against_used)} against "
        f"{name_of(used)}. {reason}"
    )
    findings = list(against_used.values())
    return NextBestRecord(row=rung.row, score=rung.score, mac_ratio=mac_ratio, line=line, against_used=findings)


def single_with(score: str) -> str:
    """Return the name of the single model with a score in a sentence; it has its fitted temperature."""
    if score == REFERENCE:
        return "the single model with MSP"
    return f"the single model with {score}"


def _explained_single(score: str) -> str:
    """Return the name of the single model with a score in the first sentence, which says what both are."""
    named_score = "MSP" if score == REFERENCE else f"the OOD score {score}"
    return f"the single model, yours as it is, with {named_score}"


def name_of(rung: Rung) -> str:
    """Return the name of a row with its score in a sentence."""
    if rung.row == SINGLE:
        return single_with(rung.score)
    return f"{rung.row} with {rung.score}"


def _detection(differences: Findings) -> str:
    """Return the differences of OOD detection as text: of mean AUROC, and of FPR95 where that was compared."""
    compared = [differences[metric] for metric in (AUROC, FPR95) if metric in differences]
    return ", ".join(map(str, compared))


def _with_price(rung: Rung, mac_ratio: float) -> str:
    """Return the name of a row with its score in a sentence, and its mult-adds over those of the single model."""
    return f"{name_of(rung)}, at {mac_ratio:.2f} times the mult-adds"


def _sentences_on_left_rungs(facts: Facts) -> list[str]:
    """Return a sentence for each rung that was left because it is no better than the next one; empty if none was.

    A rung is a row with an OOD score; the first one is the choice on validation data. The verdict steps down from it to
    cheaper rungs, and ends on the final rung.
    """
    origin = ", chosen on validation data" if facts.has_vote else ", taken blind"
    sentences = []
    rungs = [*(rung for rung, _ in facts.left), facts.rung]
    for (rung, differences), next_rung in zip(facts.left, rungs[1:], strict=True):
        how_much = _NO_BETTER[differences[AUROC].kind]
        than = f"it is {how_much} on the test data than {name_of(next_rung)}: {_detection(differences)}"
        sentences.append(f"Not {name_of(rung)}{origin}: {than}.")
        origin = ""  # that of the first rung alone
    return sentences


def _first_sentence(facts: Facts, answer: str, mac_ratio: float) -> str:
    """Return what to use, then what that brings and costs, then whether anything else would pay."""
    if answer == BLIND:
        return _blind_sentence(facts)
    if facts.rung.row == SINGLE:
        return _single_sentence(facts, answer)
    return _ensemble_sentence(facts, answer, _with_price(facts.rung, mac_ratio))


def _blind_sentence(facts: Facts) -> str:
    """Return the sentence that states the answer of a study in which no OOD validation set had a vote.

    The single model is used with MSP, or with a sum of scores that needs no choice.
    """
    reason, other = "the OOD validation data cannot tell which model or score is better", " other"
    if not facts.has_ood_val:
        reason, other = "no OOD validation data were given", ""
    name = _explained_single(facts.rung.score)
    if facts.rung.score == REFERENCE:
        return f"Use {name}, or give{other} OOD validation data: {reason}, so nothing was chosen."
    return (
        f"Use {name}: on the test data {_gain_of_score(facts)}. The score, a sum of several, was taken blind: {reason}."
    )


def _gain_of_score(facts: Facts) -> str:
    """Return the text that says what the OOD score of the single model brings, in false alarms or AUROC.

    It is compared with the model as it is (MSP, no temperature) if it is better than that, else with MSP at the same
    temperature. False alarms, where fewer for certain, are the share of ID samples that are flagged at the threshold
    which flags 95 % of the OOD samples (FPR95).
    """
    same_cost = "at the same mult-adds"
    differences = facts.against_baseline
    if AUROC not in differences or differences[AUROC].kind not in GAINS:
        return f"{_detection(facts.to_next)} against MSP at the same temperature, {same_cost}"
    if FPR95 in differences and differences[FPR95].kind in GAINS:
        before, after = map(percent, facts.false_alarms)
        fall = f"false alarms fall from {before} to {after} of normal (ID) samples"
        return f"{fall}, at thresholds that find 95 % of OOD, {same_cost}"
    return f"{_detection(differences)} against the model as it is, with MSP, {same_cost}"


def _single_sentence(facts: Facts, answer: str) -> str:
    """Return the sentences that state the answer of a study that ends with the single model.

    The first is about its OOD score, by the answer:

    * score helps: what it gains;
    * score unclear: that MSP may be as good;
    * nothing helps: if MSP was chosen at once (no rung was left), that no other score was better.

    The second, if the study made other models and validation data chose none of them, says that none is worth its cost.
    """
    name = _explained_single(facts.rung.score)
    sentence = f"Use {name}."
    if answer == SCORE_HELPS:
        sentence = f"Use {name}: {_gain_of_score(facts)}."
    elif answer == SCORE_UNCLEAR:
        unclear = f"which of them is better the test data cannot tell: {_detection(facts.to_next)}"
        sentence = f"Use {name} or MSP: {unclear}."
    elif not facts.left:
        sentence = f"Use {name}: on validation data no other score beats it without harm."
    other_was_chosen = any(rung.row != SINGLE for rung, _ in facts.left)
    if other_was_chosen or not facts.has_other_rows:
        return sentence
    return (
        f"{sentence} No other model is worth its cost: on validation data none gains more than {AUROC_MARGIN:g} of "
        "AUROC for certain without harm to accuracy, NLL or an OOD set."
    )


def _ensemble_sentence(facts: Facts, answer: str, name: str) -> str:
    """Return the sentence that states the answer of a study that ends with another row than the single model.

    It gives the difference of mean AUROC to the single model with its hardest score: that of the scores fixed before
    the test which the row beats least.

    ===========================  =====================================================
    helps, slightly, or trades   the row, its gain and its cost
    cannot tell                  the row or the single model
    a free score is as good      the single model
    a free score is better       the single model, or to try a score seen only afterwards
    ===========================  =====================================================

    Args:
        facts: what the verdict is based on.
        answer: the answer.
        name: the row with its score, and its cost.
    """
    rivals = facts.against.rivals
    nearest = facts.against.nearest
    assert nearest is not None  # every other row has rivals, at least the single model with MSP
    rival = single_with(nearest)
    kind = facts.against_hardest[AUROC].kind
    difference = _detection(facts.against_nearest)

    # The row is better: what it gains, and on a trade by how much its accuracy is worse.
    if answer in (HELPS, HELPS_SLIGHTLY, TRADES):
        hardest = f", the hardest of {len(rivals)} scores," if len(rivals) > 1 else ""
        pays = f" It pays with {facts.against_hardest[ACCURACY]}." if answer == TRADES else ""
        return f"Use {name}: it detects OOD samples {kind} than {rival}{hardest} by {difference}.{pays}"

    # The test data cannot tell. If the row is better than the hardest score, it is another score that it may not beat.
    if answer == UNCLEAR:
        return f"Use {name}, or {rival} for nothing: which is better the test data cannot tell: {difference}."

    # The row is no better than the hardest score, or worse. At last, a score that was not fixed before did better.
    if answer == AS_GOOD:
        return f"Use {rival}: {name}, is no better: {difference}."
    if kind in LOSSES:
        return f"Use {rival}: {name}, did worse: {difference}."
    return (
        f"Try a free score of the single model before {name}: one did better that it was not compared with beforehand."
    )


def _sentences_on_better_scores(facts: Facts) -> list[str]:
    """Return a sentence on the free scores that did better than the final rung; empty without any, or without a choice.

    A free score is an OOD score of the single model: it costs no further computation. If it was not fixed before the
    test, that it did better may be chance. Of the others the answer on another row than the single model says so.
    """
    if not facts.has_vote:
        return []
    sentences = []
    fixed_before = ahead(facts.against.rivals) if facts.rung.row == SINGLE else {}
    if fixed_before:
        sentences.append(
            f"A free score that was compared from the beginning did better here: {_leads(facts.rung, fixed_before)}."
        )
    afterwards = ahead(facts.against.others)
    if afterwards:
        sentences.append(
            f"A free score did better here: {_leads(facts.rung, afterwards)}. That was seen afterwards: confirm it on "
            "other data."
        )
    return sentences


def _leads(rung: Rung, leads: Findings) -> str:
    """Return the text on the scores of the single model that did better than a rung, the largest lead first."""
    first, *others = leads
    also = f", and so did {', '.join(others)}" if others else ""
    return f"{single_with(first)}, against which {name_of(rung)} has {leads[first]}{also}"


def _sentence_on_free_alternative(facts: Facts) -> str:
    """Return a sentence on how to get the single model with a free score that is as good as ``best.st`` or better."""
    score = facts.free_alternative
    if score is None:
        return ""
    return (
        f"Test data choose no score, so best.st is {name_of(facts.rung)}: the command for the free score writes "
        f"{single_with(score)} as free.st."
    )


def _sentence_on_worse_sets(facts: Facts, answer: str) -> str:
    """Return a sentence on the OOD test sets on which the row to use is significantly worse; empty without any.

    It is compared with the single model under its hardest score. Empty, too, if the answer is not that the row helps.
    """
    worse = [f"{name} ({finding.figures})" for name, finding in facts.by_test_set.items() if finding.ci[1] < 0]
    if not worse or answer not in (HELPS, HELPS_SLIGHTLY, TRADES):
        return ""
    return f"It is worse on {', '.join(worse)}."


def _differences_in_words(findings: Findings, other: str) -> str:
    """Return a sentence that lists differences to another model, grouped by their words; empty without differences.

    Args:
        findings: the differences, by metric.
        other: the name of the other model in a sentence.
    """
    groups = []
    for word in WORDS:  # such as "better", in their fixed order
        listed = [str(finding) for finding in findings.values() if finding.kind == word]
        if listed:
            groups.append(f"{word}: {', '.join(listed)}")
    return f"Against {other}: {'; '.join(groups)}." if groups else ""


def _sentence_on_needed_samples(facts: Facts, answer: str) -> str:
    """Return the sentence on how many test samples would tell what the answer cannot; empty if it can."""
    # Take the comparison that the answer is based on.
    if answer == SCORE_UNCLEAR:  # two scores of the single model: the final rung and the next one
        finding = facts.to_next[AUROC]
    elif answer == UNCLEAR:
        finding = facts.against_nearest[AUROC]
    else:
        return ""
    if finding.needed is None:
        return ""
    # Sets of other sizes count, too: only if all of them grow alike, the interval shrinks as expected.
    times = math.ceil(10 * finding.needed / finding.n) / 10  # rounded up to one decimal: 2310 of 1000 are 2.4 times
    enough = f"about {times:,g} times as many samples of each test set would do; the smallest has {finding.n:,}"
    return f"To tell about {KINDS[AUROC].words}, {enough}."
