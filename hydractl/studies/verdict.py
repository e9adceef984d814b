"""The verdict on a choice by the test data, in plain words. Pure: from paired differences to sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hydractl.report.texts import number
from hydractl.studies.choosing import REFERENCE, SINGLE
from hydractl.studies.comparing import Met, Rung
from hydractl.studies.words import (
    ACCURACY,
    AUROC,
    BETTER,
    CANNOT_TELL,
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
    """The cost of a row as a ratio to that of the single model; None if it is not known.

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
        rung: its row and score.
        temperature, threshold: None without one.
        price: the price of its row.
    """

    rung: Rung
    temperature: float | None
    threshold: float | None
    price: Price


@dataclass(frozen=True)
class Facts:
    """All that a verdict rests on.

    Attributes:
        ladder: the rungs, the choice first.
        steps: the differences of each rung, except the last, to the next one, by metric.
        ends: the index of the rung where the verdict ends.
        met: the comparisons of each rung with the single model.
        hardest: the differences of the final rung to its hardest rival, by metric; empty without rivals.
        sets: the difference of AUROC between these two on each test set, by the name of the set.
        baseline: the differences of the final rung to the single model as it is, with MSP, by metric.
        n: the number of samples of the smallest test set.
        labelled: whether the ID test data have labels.
        told: whether any OOD validation set had a vote.
        others: whether rows other than the single model were made.
        why: sentences on why no other row than the single model was chosen.
        doubts: sentences on what makes the verdict less certain.
        mistakes: the sentence on which score to trust for mistakes; empty without labels.
    """

    ladder: Sequence[Rung]
    steps: Sequence[Mapping[str, Finding]]
    ends: int
    met: Sequence[Met]
    hardest: Mapping[str, Finding]
    sets: Mapping[str, Finding]
    baseline: Mapping[str, Finding]
    n: int
    labelled: bool = True
    told: bool = True
    others: bool = True
    why: Sequence[str] = ()
    doubts: Sequence[str] = field(default_factory=tuple)
    mistakes: str = ""

    @property
    def rung(self) -> Rung:
        """The final rung, where the verdict ends."""
        return self.ladder[self.ends]


@dataclass(frozen=True)
class Verdict:
    """The answer of a study in words.

    Attributes:
        answer: one of :data:`ANSWERS`.
        lines: the sentences that explain it, the most important one first.
    """

    answer: str
    lines: Sequence[str]


def answer_of(tested: Facts) -> str:
    """Return the answer, one of :data:`ANSWERS`."""
    if not tested.told:
        return BLIND
    if tested.rung.row == SINGLE:
        return _answer_of_single(tested)
    return _answer_of_ensemble(tested)


def _answer_of_single(tested: Facts) -> str:
    """Return the answer of a study that ends with the single model."""
    if tested.rung.score == REFERENCE:
        return NOTHING_HELPS
    against_msp = tested.steps[tested.ends][AUROC]
    if against_msp.kind in GAINS:
        return SCORE_HELPS
    return SCORE_UNCLEAR


def _answer_of_ensemble(tested: Facts) -> str:
    """Return the answer of a study that ends with another row than the single model."""
    met = tested.met[tested.ends]
    if met.better_afterwards:
        return FREE_SCORE_BETTER
    assert met.hardest is not None  # single + MSP at least
    kind = met.rivals[met.hardest].kind
    if kind in LOSSES:
        return FREE_SCORE_BETTER
    if kind == NO_DIFFERENCE:
        return AS_GOOD
    if kind == CANNOT_TELL:
        return UNCLEAR
    accuracy = tested.hardest.get(ACCURACY)
    if accuracy is not None and accuracy.kind in LOSSES:
        return TRADES
    if kind == BETTER:
        return HELPS
    return HELPS_SLIGHTLY


def verdict(tested: Facts, use: Use) -> Verdict:
    """Return the verdict: the answer, its consequences, the comparisons that it rests on, and the doubts."""
    answer = answer_of(tested)

    # The answer and its consequences.
    lines = _stepped_down(tested)
    lines.append(_first_sentence(tested, answer))
    lines += _seen_afterwards(tested, answer)
    lines += _worse_sets(tested, answer)
    lines += tested.why
    lines.append(_use(use))

    # The comparisons.
    met = tested.met[tested.ends]
    if met.hardest is not None:
        lines.append(_compared(tested.hardest, single_with(met.hardest)))
    lines.append(_compared(tested.baseline, "the single model as it is, with MSP and no temperature"))
    lines += _samples_needed(tested, answer)
    if not tested.labelled:
        lines.append("The ID test data have no labels: this verdict is about OOD detection alone.")

    lines.append(tested.mistakes)
    lines += tested.doubts
    said_lines = [line for line in lines if line]
    return Verdict(answer, said_lines)


def single_with(score: str) -> str:
    """Name the single model, which has its fitted temperature, with a score."""
    if score == REFERENCE:
        return "the single model with MSP"
    return f"the single model with {score}"


def name_of(rung: Rung) -> str:
    """Name a row with its score."""
    if rung.row == SINGLE:
        return single_with(rung.score)
    return f"{rung.row} with {rung.score}"


def _stepped_down(tested: Facts) -> list[str]:
    """Return a sentence for each rung that was left, on why it was."""
    sentences = []
    for place in range(tested.ends):
        step = tested.steps[place][AUROC]
        no_better = _NO_BETTER[step.kind]
        upper = _capital(name_of(tested.ladder[place]))
        lower = name_of(tested.ladder[place + 1])
        if place == 0:
            sentences.append(
                f"{upper}, chosen on validation data, is {no_better} on the test data than {lower}: {step}."
            )
        else:
            sentences.append(f"{upper} is {no_better} there than {lower}: {step}.")
    return sentences


def _first_sentence(tested: Facts, answer: str) -> str:
    """Return the sentence that states the answer."""
    if answer == BLIND:
        return (
            "The OOD validation data cannot tell which row or score is better, so nothing was chosen: use "
            f"{single_with(REFERENCE)}, or give other OOD validation data."
        )
    if answer in (NOTHING_HELPS, SCORE_HELPS, SCORE_UNCLEAR):
        sentence = _single_sentence(tested, answer)
        if not tested.others:
            return sentence
        return f"No other row is worth its cost here. {sentence}"
    return _ensemble_sentence(tested, answer)


def _single_sentence(tested: Facts, answer: str) -> str:
    """Return the sentence that states the answer of a study that ends with the single model."""
    name = name_of(tested.rung)
    if answer == NOTHING_HELPS:
        if tested.ends == 0:
            return f"No other score of the single model beats MSP on validation data without harm: use {name}."
        return f"Use {name}."
    score = tested.rung.score
    step = tested.steps[tested.ends][AUROC]
    if answer == SCORE_HELPS:
        return f"What helps is the score {score}, on the single model: {step} against MSP."
    return f"Whether the score {score} helps the single model, the test data cannot tell: {step}."


def _ensemble_sentence(tested: Facts, answer: str) -> str:
    """Return the sentence that states the answer of a study that ends with another row than the single model."""
    met = tested.met[tested.ends]
    assert met.hardest is not None  # single + MSP at least
    name = name_of(tested.rung)
    hardest_name = single_with(met.hardest)
    hardest = met.rivals[met.hardest]
    if answer == HELPS:
        return f"{tested.rung.row} helps this model: {_gain_sentence(name, met, hardest)}"
    if answer == HELPS_SLIGHTLY:
        return f"{tested.rung.row} helps this model, slightly: {_gain_sentence(name, met, hardest)}"
    if answer == TRADES:
        return f"{_gain_sentence(name, met, hardest)} It pays with {tested.hardest[ACCURACY]}."
    if answer == AS_GOOD:
        return f"{_capital(hardest_name)}, which costs nothing, is as good as {name}: {hardest}."
    if answer == UNCLEAR:
        return f"The test data cannot tell whether {name} is better than {hardest_name}: {hardest}."
    if hardest.kind in LOSSES:
        return f"{_capital(hardest_name)}, which costs nothing, did better than {name}: {hardest}."
    return f"{_capital(name)} was compared with {_rivals_text(met)}; a score that costs nothing did better than it."


def _gain_sentence(name: str, met: Met, hardest: Finding) -> str:
    """Return the sentence on how much a row is better than the single model under the scores fixed beforehand."""
    how_much = "slightly better"
    if hardest.kind == BETTER:
        how_much = "better"
    against_hardest = ""
    if len(met.rivals) > 1:
        against_hardest = f" against the hardest, {met.hardest}"
    return f"{name} detects OOD samples {how_much} than {_rivals_text(met)}: {hardest}{against_hardest}."


def _rivals_text(met: Met) -> str:
    """Name the scores of the single model that a choice was compared with."""
    scores = list(met.rivals)
    if not met.others:
        return "the single model with any score"
    if len(scores) == 1:
        return single_with(scores[0])
    *first_scores, last_score = scores
    return f"the single model with any of the scores {', '.join(first_scores)} and {last_score}"


def _seen_afterwards(tested: Facts, answer: str) -> list[str]:
    """Name the free scores outside the comparison that did better."""
    ahead = tested.met[tested.ends].better_afterwards
    if not ahead:
        return []
    if answer == BLIND:
        return []
    first, *others = ahead
    also = ""
    if others:
        also = f", and so did {', '.join(others)}"
    return [
        f"A free score did better here: {single_with(first)}, against which {name_of(tested.rung)} has {ahead[first]}"
        f"{also}. That was seen afterwards: confirm it on other data."
    ]


def _worse_sets(tested: Facts, answer: str) -> list[str]:
    """Name every test set on which a choice that helps is significantly worse than its hardest rival."""
    if answer not in (HELPS, HELPS_SLIGHTLY, TRADES):
        return []
    worse = []
    for name, finding in tested.sets.items():
        _, high = finding.ci
        if high < 0:
            worse.append(f"{name} ({finding.figures})")
    if not worse:
        return []
    return [f"It is worse on {', '.join(worse)}."]


def _use(use: Use) -> str:
    """Return the sentence on what ``best.st`` is."""
    settings = [f"the score {use.rung.score}"]
    if use.temperature is not None:
        settings.append(f"temperature {number(use.temperature, 3)}")
    if use.threshold is not None:
        settings.append(f"threshold {number(use.threshold, 4)}")
    settings_text = ", ".join(settings)
    if use.rung.row == SINGLE:
        return f"best.st is the single model with {settings_text}."
    return f"best.st is {use.rung.row} with {settings_text}{_cost(use.price)}."


def _cost(price: Price) -> str:
    """Return the end of a sentence on the cost of a row; empty if it is not known."""
    ratios = []
    if price.macs is not None:
        ratios.append(f"{price.macs:.2f} times its mult-adds")
    if price.params is not None:
        ratios.append(f"{price.params:.2f} times its parameters")
    if not ratios:
        return ""
    return f"; {' and '.join(ratios)}"


def _compared(findings: Mapping[str, Finding], other: str) -> str:
    """Return the sentence that lists differences to another model by their words; empty without differences."""
    texts: dict[str, list[str]] = {kind: [] for kind in WORDS}
    for finding in findings.values():
        texts[finding.kind].append(str(finding))
    parts = []
    for kind, texts_of_kind in texts.items():
        if texts_of_kind:
            parts.append(f"{kind}: {', '.join(texts_of_kind)}")
    if not parts:
        return ""
    return f"Against {other}: {'; '.join(parts)}."


def _samples_needed(tested: Facts, answer: str) -> list[str]:
    """Say how many samples would be enough where the data cannot tell about OOD detection or accuracy."""
    if answer in (BLIND, NOTHING_HELPS):
        return []
    if answer == SCORE_UNCLEAR:
        findings = tested.steps[tested.ends]
    elif tested.rung.row == SINGLE:
        findings = tested.baseline
    else:
        findings = tested.hardest

    sentences = []
    for metric in (AUROC, ACCURACY):
        finding = findings.get(metric)
        if finding is None:
            continue
        if finding.needed is None:
            continue
        sentences.append(
            f"To tell about {KINDS[metric].words}, about {finding.needed:,} samples of each test set would do; the "
            f"smallest has {tested.n:,}."
        )
    return sentences


def _capital(text: str) -> str:
    """Return a text for the start of a sentence: "the" becomes "The"; names of rows stay as they are."""
    if not text.startswith("the "):
        return text
    rest = text.removeprefix("the ")
    return f"The {rest}"
