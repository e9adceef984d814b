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
from hydractl.report.texts import number, percent
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

_SEEN_AFTERWARDS = " That was seen afterwards: confirm it on other data."
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
        reason_for_single: a sentence on why no other row than the single model was chosen; may be empty.
        next_best: what comes next to the choice; None without any.
        highest: what is highest on the test data; None where that is the row of the final rung.
        false_alarms: mean FPR95 of the single model with MSP and no temperature, of the hardest rival if the final rung
            is another row, and of the final rung; may be left out.
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
    reason_for_single: str = ""
    against_unbeaten: Findings = field(default_factory=dict)
    next_best: NextBestRecord | None = None
    highest: NextBestRecord | None = None
    false_alarms: Sequence[float | None] = ()
    uncertain: str = ""
    doubts: Sequence[str] = field(default_factory=tuple)
    mistakes: MistakesRecord | None = None

    @property
    def rung(self) -> Rung:
        """The final rung, where the verdict ends."""
        return self.ladder[self.final_index]

    @property
    def other_row_may_pay(self) -> bool:
        """Whether resampled validation data often choose otherwise, or another row has a better AUROC on test data.

        The other rows are the next best on validation data and the highest on test data; None where there is none.
        """
        for other in (self.next_best, self.highest):
            better = set()  # the metrics in which it is significantly better than the final rung
            if other is not None:
                better = {finding.metric for finding in other.against_used if finding.kind in GAINS}
            if AUROC in better:
                return True
        return bool(self.uncertain)

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

    # Scores fixed before the test that did better. Of another row the first sentence says so already.
    rivals_ahead = ""
    if facts.rung.row == SINGLE:
        compared = "A free score that was compared from the beginning"
        rivals_ahead = _sentence_on_better_scores(facts, facts.against.rivals, compared)
    lines = [
        # The answer and its consequences.
        f"{_first_sentence(facts, answer, use)} {facts.uncertain}".strip(),
        *lines_on_rows([facts.next_best, facts.highest]),
        *_sentences_on_left_rungs(facts),
        rivals_ahead,
        # Other free scores were not fixed before the test, so that they did better may be chance.
        _sentence_on_better_scores(facts, facts.against.others, "A free score", _SEEN_AFTERWARDS),
        _sentence_on_worse_sets(facts, answer),
        facts.reason_for_single,
        _sentence_on_best_file(use),
        _sentence_on_free_alternative(facts),
    ]

    # The comparisons.
    if facts.against.hardest is not None:
        lines.append(_differences_in_words(facts.against_hardest, single_with(facts.against.hardest)))
    lines.append(_differences_in_words(facts.against_baseline, "the single model with MSP and no temperature"))
    lines += _sentences_on_needed_samples(facts, answer)
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
    place: str, rung: Rung, mac_ratio: float | None, against_used: Findings, used: Rung, why_not: str = ""
) -> NextBestRecord:
    """Return a model that might have been chosen instead, with the sentence that names it.

    Args:
        place: where it comes next, as the sentence begins.
        rung: its row and its OOD score.
        mac_ratio: the mult-adds of its row over those of the single model; None if they are not known.
        against_used: its differences on the test data to the rung to use, by metric.
        used: that rung.
        why_not: why validation data did not choose it; empty to leave that out.
    """
    price = "" if mac_ratio is None else f", at {mac_ratio:.2f} times the mult-adds"
    line = f"{place} is {name_of(rung)}{price}: on the test data {_detection(against_used)} against {name_of(used)}."
    if why_not:
        line += f" It is not the answer, as test data choose no model; on validation data: {why_not}."
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


def _sentences_on_left_rungs(facts: Facts) -> list[str]:
    """Return a sentence for each rung that was left because it is no better than the next one; empty if none was.

    A rung is a row with an OOD score; the first one is the choice on validation data. The verdict steps down from it to
    cheaper rungs, and ends on the final rung.
    """
    sentences = []
    for index in range(facts.final_index):
        differences = facts.differences_to_next[index]
        how_much = _NO_BETTER[differences[AUROC].kind]
        difference = _detection(differences)
        upper = name_of(facts.ladder[index])
        if upper.startswith("the "):  # names of rows stay as they are at the start of a sentence
            upper = f"T{upper[1:]}"
        lower = name_of(facts.ladder[index + 1])
        where = "there"
        if index == 0:  # the first sentence says where the rung comes from and what it was measured on
            upper += ", chosen on validation data," if facts.has_vote else ", taken blind,"
            where = "on the test data"
        sentences.append(f"{upper} is {how_much} {where} than {lower}: {difference}.")
    return sentences


def _first_sentence(facts: Facts, answer: str, use: UseRecord) -> str:
    """Return what to use, then what that brings and costs, then whether anything else would pay."""
    if answer == BLIND:
        return _blind_sentence(facts)
    if answer in (NOTHING_HELPS, SCORE_HELPS, SCORE_UNCLEAR):
        return _single_sentence(facts, answer)
    return _ensemble_sentence(facts, answer, use)


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
    temperature.
    """
    differences = facts.against_baseline
    if AUROC in differences and differences[AUROC].kind in GAINS:
        gain = _fewer_false_alarms(facts) or f"{_detection(differences)} against the model as it is, with MSP"
    else:
        gain = f"{_detection(facts.differences_to_next[facts.final_index])} against MSP at the same temperature"
    return f"{gain}, at the same mult-adds"


def _fewer_false_alarms(facts: Facts) -> str:
    """Return the text that says how much false alarms fall against the model as it is; empty if that is not certain.

    False alarms are the share of ID samples that are flagged at the threshold which flags 95 % of the OOD samples
    (FPR95).
    """
    fpr95 = facts.against_baseline.get(FPR95)
    if not facts.false_alarms or fpr95 is None or fpr95.kind not in GAINS:
        return ""
    before, after = map(percent, facts.false_alarms)
    return f"false alarms fall from {before} to {after} of normal (ID) samples, at thresholds that find 95 % of OOD"


def _single_sentence(facts: Facts, answer: str) -> str:
    """Return the sentences that state the answer of a study that ends with the single model.

    The first is about its OOD score, by the answer:

    * score helps: what it gains;
    * score unclear: that MSP may be as good;
    * nothing helps: if MSP was chosen at once (final index 0), that no other score was better.

    The second, if the study made other models, says that none is worth its cost.
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

    # About the other models: on these data, or on validation data alone where test data or resamples say otherwise.
    if not facts.has_other_rows:
        return sentence
    judged = "No other model gains enough to be worth its cost here"
    if facts.other_row_may_pay:
        judged = "On validation data no other model gains enough to be worth its cost"
    return f"{sentence} {judged}: more than {AUROC_MARGIN:g} of AUROC."


def _ensemble_sentence(facts: Facts, answer: str, use: UseRecord) -> str:
    """Return the sentence that states the answer of a study that ends with another row than the single model.

    It gives the difference of mean AUROC to the single model with its hardest score: that of the scores fixed before
    the test which the row beats least.

    ===========================  =====================================================
    helps, slightly, or trades   the row, its gain, its cost, and its false alarms
    cannot tell                  the row or the single model
    a free score is as good      the single model
    a free score is better       the single model, or to try a score seen only afterwards
    ===========================  =====================================================
    """
    against = facts.against
    assert against.hardest is not None  # every other row has rivals, at least the single model with MSP
    name = name_of(facts.rung)
    rival = single_with(against.hardest)
    kind = against.rivals[against.hardest].kind
    difference = _detection(facts.against_hardest)
    cost = "" if use.mac_ratio is None else f", at {use.mac_ratio:.2f} times the mult-adds"

    # The row is better: what it gains, what it costs, and on a trade by how much its accuracy is worse.
    if answer in (HELPS, HELPS_SLIGHTLY, TRADES):
        hardest = f" against the hardest, {against.hardest}" if len(against.rivals) > 1 else ""
        gain = f"it detects OOD samples {kind} than {_rivals_text(against)}, {difference}{hardest}"
        pays = f" It pays with {facts.against_hardest[ACCURACY]}." if answer == TRADES else ""
        # The same in false alarms: of the model as it is, of the single model with its hardest score, and of the row.
        plainly = ""
        if facts.false_alarms:
            before, of_rival, after = map(percent, facts.false_alarms)
            plainly = (
                f" At thresholds that find 95 % of OOD, false alarms are {before} of normal (ID) samples with the "
                f"model as it is, {of_rival} with {rival}, and {after} with this."
            )
        return f"Use {name}: {gain}{cost}.{pays}{plainly}"

    # The test data cannot tell. If the row is better than the hardest score, it is another score that it may not beat.
    if answer == UNCLEAR:
        if kind in GAINS:
            assert against.unbeaten is not None  # else the row would help
            rival = single_with(against.unbeaten)
            difference = _detection(facts.against_unbeaten)
        return f"Use {name}{cost}, or {rival} for nothing: which is better the test data cannot tell: {difference}."

    # The row is no better than the hardest score, or worse. At last, a score that was not fixed before did better.
    if answer == AS_GOOD:
        return f"Use {rival}: {name}{cost}, is no better: {difference}."
    if kind in LOSSES:
        return f"Use {rival}: {name}{cost}, did worse: {difference}."
    return (
        f"Try a free score of the single model before {name}{cost}: it was compared with {_rivals_text(against)}, and "
        "another one did better."
    )


def _rivals_text(against_single: AgainstSingle) -> str:
    """Return the text that names the scores of the single model that a choice was compared with.

    It is ``the single model with any score`` if all of them were fixed before the test.
    """
    scores = list(against_single.rivals)
    if not against_single.others:
        return "the single model with any score"
    if len(scores) == 1:
        return single_with(scores[0])
    *first_scores, last_score = scores
    return f"the single model with any of the scores {', '.join(first_scores)} and {last_score}"


def _sentence_on_better_scores(facts: Facts, findings: Findings, beginning: str, end: str = "") -> str:
    """Return a sentence if free scores did better than the final rung; empty else, or if the study could not choose.

    A free score is an OOD score of the single model: it costs no further computation.

    Args:
        facts: what the verdict is based on.
        findings: the differences of the final rung to free scores, by score.
        beginning, end: how the sentence begins, and what follows it.
    """
    better = ahead(findings)
    if not better or not facts.has_vote:
        return ""
    first, *others = better  # the names of the scores, the one with the largest lead first
    also = f", and so did {', '.join(others)}" if others else ""
    lead = f"{single_with(first)}, against which {name_of(facts.rung)} has {better[first]}{also}"
    return f"{beginning} did better here: {lead}.{end}"


def _sentence_on_free_alternative(facts: Facts) -> str:
    """Return a sentence on how to get the single model with a free score that is as good as ``best.st`` or better."""
    score = facts.free_alternative
    if score is None:
        return ""
    return (
        f"Test data choose no score, so best.st is not {single_with(score)}: the command for the free score writes it "
        "as free.st."
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


def _sentence_on_best_file(use: UseRecord) -> str:
    """Return the sentence on what ``best.st`` is: the row with its score, temperature and threshold.

    Of another row than the single model it says the cost, too, as far as it is known.
    """
    settings = f"the score {use.score}, temperature {number(use.temperature, 3)}"
    if use.threshold is not None and use.threshold.value is not None:
        settings += f", threshold {number(use.threshold.value, 4)}"
    if use.row == SINGLE:
        return f"best.st is the single model with {settings}."
    ratios = []
    if use.mac_ratio is not None:
        ratios.append(f"{use.mac_ratio:.2f} times the mult-adds")
    if use.param_ratio is not None:
        ratios.append(f"{use.param_ratio:.2f} times the parameters")
    cost = f"; {' and '.join(ratios)} of the single model" if ratios else ""
    return f"best.st is {use.row} with {settings}{cost}."


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


def _sentences_on_needed_samples(facts: Facts, answer: str) -> list[str]:
    """Return sentences on how many test samples would be enough to tell what these data cannot; empty if they can.

    There is one sentence for OOD detection and one for accuracy, of the comparison that the answer is based on.
    """
    if answer in (BLIND, NOTHING_HELPS):
        return []

    # Take the comparison that the answer is based on.
    if answer == SCORE_UNCLEAR:  # two scores of the single model: the final rung and the next one
        findings = facts.differences_to_next[facts.final_index]
    elif facts.rung.row == SINGLE:  # the single model with its score and temperature, and as it is
        findings = facts.against_baseline
    else:  # another row, and the single model under the score that comes nearest to it
        findings = facts.against_hardest
        if answer == UNCLEAR and findings[AUROC].kind in GAINS:  # it is another score that the row may not beat
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
            times = math.ceil(10 * finding.needed / finding.n) / 10  # up to one decimal: 2300 of 1000 are 2.3
            enough = f"about {times:,g} times as many samples of each test set would do; the smallest has {finding.n:,}"
        sentences.append(f"To tell about {words}, {enough}.")
    return sentences
