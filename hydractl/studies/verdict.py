"""The verdict on a choice by the test data, in plain words. Pure functions: from paired differences to sentences.

A free score is another OOD score of the single model: it costs no further computation. Everything that a choice is
compared with is fixed before any test sample is read. Test data can only move the verdict down the ladder: from the
choice to the single model with its own score, and from there to the single model with MSP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hydractl.files.study_answer import MistakesRecord, NextBestRecord, UseRecord, VerdictRecord, lines_on_rows
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
        ladder: the rungs, the choice first.
        differences_to_next: for each rung except the last, its differences to the next rung, by metric.
        final_index: the index of the final rung.
        against: the comparisons of the final rung with the single model under each of its scores.
        against_hardest: the differences of the final rung to its hardest rival, by metric; empty without rivals.
        against_unbeaten: the same to :attr:`AgainstSingle.unbeaten`; empty without one.
        by_test_set: by the name of each test set, the difference of AUROC between these two.
        against_baseline: the differences of the final rung to the single model with MSP and no temperature, by metric.
        labelled: whether the ID test data have labels.
        has_ood_val: whether somebody gave OOD validation data.
        has_vote: whether any OOD validation set had a vote.
        has_other_rows: whether rows other than the single model were made.
        next_best: what comes next to the choice; None without any.
        highest: what is highest on the test data; None where that is the row of the final rung.
        false_alarms: mean FPR95 of the single model with MSP and no temperature, and of the final rung.
        uncertain: the sentence on how often resampled validation data choose otherwise; empty where they do not often.
        doubts: sentences on what else makes the verdict less certain.
        mistakes: which score to trust for mistakes; None without labels.
    """

    ladder: Sequence[Rung]
    differences_to_next: Sequence[Findings]
    final_index: int
    against: AgainstSingle
    against_hardest: Findings
    by_test_set: Findings
    against_baseline: Findings
    labelled: bool = True
    has_ood_val: bool = True
    has_vote: bool = True
    has_other_rows: bool = True
    against_unbeaten: Findings = field(default_factory=dict)
    next_best: NextBestRecord | None = None
    highest: NextBestRecord | None = None
    false_alarms: tuple[float | None, float | None] = (None, None)
    uncertain: str = ""
    doubts: Sequence[str] = field(default_factory=tuple)
    mistakes: MistakesRecord | None = None

    @property
    def rung(self) -> Rung:
        """The final rung, where the verdict ends."""
        return self.ladder[self.final_index]

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
        hardest = self.against.hardest
        if hardest is not None and self.against.rivals[hardest].kind in (NO_DIFFERENCE, *LOSSES):
            return hardest
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
    against_msp = facts.differences_to_next[facts.final_index][AUROC]
    return SCORE_HELPS if against_msp.kind in GAINS else SCORE_UNCLEAR


def _answer_of_ensemble(facts: Facts) -> str:
    """Return the answer of a study that ends with another row than the single model, e.g. an ensemble.

    It is decided by the difference of mean AUROC to the single model with its OOD scores. These are free: they cost no
    further computation. The first case that holds decides:

    * any free score is better: a free score is better;
    * the hardest of those fixed before the test is as good: a free score is as good;
    * it cannot be told of that one, or of any other score: cannot tell;
    * else the row is better than all: trades if its accuracy is worse, helps, or helps slightly.
    """
    # Scores that were not fixed beforehand, "others", decide first, whatever the fixed ones did.
    against = facts.against
    if ahead(against.others):
        return FREE_SCORE_BETTER

    # The score, of those fixed beforehand, that the row beats least.
    assert against.hardest is not None  # every other row has rivals, at least the single model with MSP
    kind = against.rivals[against.hardest].kind
    if kind in LOSSES:
        return FREE_SCORE_BETTER
    if kind == NO_DIFFERENCE:
        return AS_GOOD
    if kind == CANNOT_TELL or against.unbeaten is not None:
        return UNCLEAR

    # It detects OOD samples better than the single model under every score. That may cost accuracy.
    accuracy = facts.against_hardest.get(ACCURACY)
    if accuracy is not None and accuracy.kind in LOSSES:
        return TRADES
    if kind == BETTER:
        return HELPS
    return HELPS_SLIGHTLY


def verdict(facts: Facts, use: UseRecord) -> VerdictRecord:
    """Return the verdict: the answer, its consequences, the comparisons behind it, and the doubts.

    Sentences that do not apply are empty, and dropped at the end.

    Args:
        facts: the comparisons on the test data.
        use: the model to use, as it is written to ``best.st``.
    """
    answer = answer_of(facts)
    lines = [
        # The answer and its consequences.
        f"{_first_sentence(facts, answer, use)} {facts.uncertain}".strip(),
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
    if not facts.labelled:
        lines.append("The ID test data have no labels: this verdict is about OOD detection alone.")

    # The score for mistakes, and the doubts.
    if facts.mistakes is not None:
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
    place: str, rung: Rung, mac_ratio: float | None, against_used: Findings, used: Rung, why_not: str
) -> NextBestRecord:
    """Return a model that might have been chosen instead, with the sentence that names it.

    Args:
        place: where it comes next, as the sentence begins.
        rung: its row and its OOD score.
        mac_ratio: the mult-adds of its row over those of the single model; None if they are not known.
        against_used: its differences on the test data to the rung to use, by metric.
        used: that rung.
        why_not: why validation data, which alone choose, did not choose it; empty of the choice, which was left.
    """
    reason = f"Validation data alone choose, and there it was not taken: {why_not}."
    if not why_not:
        reason = (
            "Validation data chose it, but the test data do not show that it is better by more than "
            f"{AUROC_MARGIN:g} of AUROC than what costs less."
        )
    line = (
        f"{place} is {name_of(rung)}{_price(mac_ratio)}: on the test data {_detection(against_used)} against "
        f"{name_of(used)}. {reason}"
    )
    findings = list(against_used.values())
    return NextBestRecord(row=rung.row, score=rung.score, mac_ratio=mac_ratio, line=line, against_used=findings)


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


def _detection(differences: Findings) -> str:
    """Return the differences of OOD detection as text: of mean AUROC, and of FPR95 where that was compared."""
    compared = [differences[metric] for metric in (AUROC, FPR95) if metric in differences]
    return ", ".join(map(str, compared))


def _price(mac_ratio: float | None) -> str:
    """Return the text on the mult-adds of a row over those of the single model; empty if they are not known."""
    return "" if mac_ratio is None else f", at {mac_ratio:.2f} times the mult-adds"


def _sentences_on_left_rungs(facts: Facts) -> list[str]:
    """Return a sentence for each rung that was left because it is no better than the next one; empty if none was.

    A rung is a row with an OOD score; the first one is the choice on validation data. The verdict steps down from it to
    cheaper rungs, and ends on the final rung.
    """
    origin = ", chosen on validation data" if facts.has_vote else ", taken blind"
    sentences = []
    for index in range(facts.final_index):
        differences = facts.differences_to_next[index]
        upper, lower = name_of(facts.ladder[index]), name_of(facts.ladder[index + 1])
        how_much = _NO_BETTER[differences[AUROC].kind]
        sentences.append(
            f"Not {upper}{origin}: it is {how_much} on the test data than {lower}: {_detection(differences)}."
        )
        origin = ""  # that of the first rung alone
    return sentences


def _first_sentence(facts: Facts, answer: str, use: UseRecord) -> str:
    """Return what to use, then what that brings and costs, then whether anything else would pay."""
    if answer == BLIND:
        return _blind_sentence(facts)
    if facts.rung.row == SINGLE:
        return _single_sentence(facts, answer)
    return _ensemble_sentence(facts, answer, f"{name_of(facts.rung)}{_price(use.mac_ratio)}")


def _blind_sentence(facts: Facts) -> str:
    """Return the sentence that states the answer of a study in which no OOD validation set had a vote.

    The single model is used with MSP, or with a sum of scores that needs no choice.
    """
    reason, other = "the OOD validation data cannot tell which model or score is better", " other"
    if not facts.has_ood_val:
        reason, other = "no OOD validation data were given", ""
    name = name_of(facts.rung)
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
        to_msp = facts.differences_to_next[facts.final_index]
        return f"{_detection(to_msp)} against MSP at the same temperature, {same_cost}"
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
    * nothing helps: if MSP was chosen at once (final index 0), that no other score was better.

    The second, if the study made other models and validation data chose none of them, says that none is worth its cost.
    """
    sentence = f"Use {name_of(facts.rung)}."
    if answer == SCORE_HELPS:
        sentence = f"Use {name_of(facts.rung)}: {_gain_of_score(facts)}."
    elif answer == SCORE_UNCLEAR:
        difference = _detection(facts.differences_to_next[facts.final_index])
        unclear = f"which of them is better the test data cannot tell: {difference}"
        sentence = f"Use {name_of(facts.rung)} or MSP: {unclear}."
    elif facts.final_index == 0:
        sentence = f"Use {name_of(facts.rung)}: on validation data no other score beats it without harm."
    other_was_chosen = facts.ladder[0].row != SINGLE
    if other_was_chosen or not facts.has_other_rows:
        return sentence
    return (
        f"{sentence} No other model is worth its cost: on validation data none gains more than {AUROC_MARGIN:g} of "
        "AUROC for certain and without harm."
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
    against = facts.against
    assert against.hardest is not None  # every other row has rivals, at least the single model with MSP
    rival = single_with(against.hardest)
    kind = against.rivals[against.hardest].kind
    difference = _detection(facts.against_hardest)

    # The row is better: what it gains, and on a trade by how much its accuracy is worse.
    if answer in (HELPS, HELPS_SLIGHTLY, TRADES):
        hardest = f", the hardest of {len(against.rivals)} scores," if len(against.rivals) > 1 else ""
        pays = f" It pays with {facts.against_hardest[ACCURACY]}." if answer == TRADES else ""
        return f"Use {name}: it detects OOD samples {kind} than {rival}{hardest} by {difference}.{pays}"

    # The test data cannot tell. If the row is better than the hardest score, it is another score that it may not beat.
    if answer == UNCLEAR:
        if kind in GAINS:
            assert against.unbeaten is not None  # else the row would help
            rival = single_with(against.unbeaten)
            difference = _detection(facts.against_unbeaten)
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
    sentences = []
    # The scores fixed before the test, if the final rung is the single model; then those seen only afterwards. Each
    # group with the beginning and the end of its sentence.
    fixed_before = facts.against.rivals if facts.rung.row == SINGLE else {}
    afterwards = " That was seen afterwards: confirm it on other data."
    for which, findings, end in (
        ("A free score that was compared from the beginning", fixed_before, ""),
        ("A free score", facts.against.others, afterwards),
    ):
        better = ahead(findings)
        if better and facts.has_vote:
            first, *others = better  # the names of the scores, the one with the largest lead first
            also = f", and so did {', '.join(others)}" if others else ""
            lead = f"{single_with(first)}, against which {name_of(facts.rung)} has {better[first]}{also}"
            sentences.append(f"{which} did better here: {lead}.{end}")
    return sentences


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
    worse = []
    for name, finding in facts.by_test_set.items():
        _, high = finding.ci
        if high < 0:
            worse.append(f"{name} ({finding.figures})")
    if not worse or answer not in (HELPS, HELPS_SLIGHTLY, TRADES):
        return ""
    return f"It is worse on {', '.join(worse)}."


def _differences_in_words(findings: Findings, other: str) -> str:
    """Return a sentence that lists differences to another model, grouped by their words; empty without differences.

    Args:
        findings: the differences, by metric.
        other: the name of the other model in a sentence.
    """
    # By word, such as "better", the texts of the differences; words in their fixed order, best first.
    differences_by_word: dict[str, list[str]] = {word: [] for word in WORDS}
    for finding in findings.values():
        differences_by_word[finding.kind].append(str(finding))

    groups = [f"{word}: {', '.join(listed)}" for word, listed in differences_by_word.items() if listed]
    return f"Against {other}: {'; '.join(groups)}." if groups else ""


def _sentence_on_needed_samples(facts: Facts, answer: str) -> str:
    """Return the sentence on how many test samples would tell what the answer cannot; empty if it can."""
    # Take the comparison that the answer is based on.
    if answer == SCORE_UNCLEAR:  # two scores of the single model: the final rung and the next one
        finding = facts.differences_to_next[facts.final_index][AUROC]
    elif answer == UNCLEAR:
        finding = facts.against_hardest[AUROC]
        if finding.kind in GAINS:  # it is another score that the row may not beat
            finding = facts.against_unbeaten[AUROC]
    else:
        return ""
    if finding.needed is None:
        return ""
    # Sets of other sizes count, too: only if all of them grow alike, the interval shrinks as expected.
    times = math.ceil(10 * finding.needed / finding.n) / 10  # rounded up to one decimal: 2310 of 1000 are 2.4 times
    enough = f"about {times:,g} times as many samples of each test set would do; the smallest has {finding.n:,}"
    return f"To tell about {KINDS[AUROC].words}, {enough}."
