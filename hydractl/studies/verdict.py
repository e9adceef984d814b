"""What the test data say of the choice, in plain words. Pure: from paired differences to sentences."""

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

HELPS, HELPS_SLIGHTLY, TRADES = "helps", "helps slightly", "trades"
AS_GOOD, FREE_SCORE_BETTER, UNCLEAR = "a free score is as good", "a free score is better", "cannot tell"
SCORE_HELPS, SCORE_UNCLEAR, NOTHING_HELPS, BLIND = "score helps", "score unclear", "nothing helps", "cannot choose"
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
"""What a study can answer, in a word or two."""

_NO_BETTER = {NO_DIFFERENCE: "no better", "slightly worse": "slightly worse", "worse": "worse"}


@dataclass(frozen=True)
class Price:
    """What a row costs, as a ratio to the single model; None where it is not known."""

    macs: float | None
    params: float | None


@dataclass(frozen=True)
class Use:
    """The model to use, as ``best.st`` holds it.

    Attributes:
        rung: its row and score.
        temperature, threshold: None for none.
        price: of its row.
    """

    rung: Rung
    temperature: float | None
    threshold: float | None
    price: Price


@dataclass(frozen=True)
class Facts:
    """What the test data say.

    Attributes:
        ladder: the choice first.
        steps: of each rung but the last its differences to the next one, by metric.
        ends: the place of the rung where the verdict ends.
        met: what each rung met.
        hardest: the differences of the last kept rung to its hardest rival, by metric; empty where it met none.
        sets: of those the AUROC on each test set, by its name.
        baseline: its differences to the single model as it is, with MSP.
        n: samples of the smallest test set.
        labelled: whether the ID test data have labels.
        told: whether any OOD validation set had a vote.
        others: whether rows other than the single model were made.
        why: why no other row than the single model was chosen.
        doubts: what makes all this less sure.
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

    @property
    def rung(self) -> Rung:
        """Where the verdict ends."""
        return self.ladder[self.ends]


@dataclass(frozen=True)
class Verdict:
    """The answer, one of :data:`ANSWERS`, and the sentences that say it, the first one first."""

    answer: str
    lines: Sequence[str]


def answer_of(tested: Facts) -> str:
    """Return one of :data:`ANSWERS`."""
    rung, met = tested.rung, tested.met[tested.ends]
    if not tested.told:
        return BLIND
    if rung.row == SINGLE:
        if rung.score == REFERENCE:
            return NOTHING_HELPS
        return SCORE_HELPS if tested.steps[tested.ends][AUROC].kind in GAINS else SCORE_UNCLEAR
    if met.better_afterwards:
        return FREE_SCORE_BETTER
    assert met.hardest is not None  # single + MSP at least
    word = met.rivals[met.hardest].kind
    if word in LOSSES:
        return FREE_SCORE_BETTER
    if word == NO_DIFFERENCE:
        return AS_GOOD
    if word == CANNOT_TELL:
        return UNCLEAR
    accuracy = tested.hardest.get(ACCURACY)
    if accuracy is not None and accuracy.kind in LOSSES:
        return TRADES
    return HELPS if word == BETTER else HELPS_SLIGHTLY


def verdict(tested: Facts, use: Use) -> Verdict:
    """Say it all: the answer, what follows from it, what it rests on, and what is doubtful."""
    answer = answer_of(tested)
    lines = [
        *_stepped_down(tested),
        _first_sentence(tested, answer),
        *_seen_afterwards(tested, answer),
        *_worse_sets(tested, answer),
        *tested.why,
        _use(use),
    ]
    met = tested.met[tested.ends]
    if met.hardest is not None:
        lines.append(_compared(tested.hardest, single_with(met.hardest)))
    lines.append(_compared(tested.baseline, "the single model as it is, with MSP and no temperature"))
    lines += _samples_needed(tested, answer)
    if not tested.labelled:
        lines.append("The ID test data have no labels: this verdict is about OOD detection alone.")
    lines += tested.doubts
    return Verdict(answer, [line for line in lines if line])


def single_with(score: str) -> str:
    """Name the single model with a score; it has its temperature."""
    return f"the single model with {'MSP' if score == REFERENCE else score}"


def name_of(rung: Rung) -> str:
    """Name a row with its score."""
    return single_with(rung.score) if rung.row == SINGLE else f"{rung.row} with {rung.score}"


def _stepped_down(tested: Facts) -> list[str]:
    """Say of each rung that was left why it was."""
    sentences = []
    for place in range(tested.ends):
        step = tested.steps[place][AUROC]
        upper, lower = name_of(tested.ladder[place]), name_of(tested.ladder[place + 1])
        sentences.append(
            f"{_capital(upper)}, chosen on validation data, is {_NO_BETTER[step.kind]} on the test data than {lower}: "
            f"{step}."
            if place == 0
            else f"{_capital(upper)} is {_NO_BETTER[step.kind]} there than {lower}: {step}."
        )
    return sentences


def _first_sentence(tested: Facts, answer: str) -> str:
    rung, met = tested.rung, tested.met[tested.ends]
    name = name_of(rung)
    nothing_else = "No other row is worth its cost here. " if tested.others else ""
    if answer == BLIND:
        return (
            "The OOD validation data cannot tell which row or score is better, so nothing was chosen: use "
            f"{single_with(REFERENCE)}, or give other OOD validation data."
        )
    if answer == NOTHING_HELPS:
        if tested.ends == 0:
            beaten = "No other score of the single model beats MSP on validation data without harm"
            return f"{nothing_else}{beaten}: use {name}."
        return f"{nothing_else}Use {name}."
    if answer in (SCORE_HELPS, SCORE_UNCLEAR):
        step = tested.steps[tested.ends][AUROC]
        if answer == SCORE_HELPS:
            return f"{nothing_else}What helps is the score {rung.score}, on the single model: {step} against MSP."
        return (
            f"{nothing_else}Whether the score {rung.score} helps the single model, the test data cannot tell: {step}."
        )
    assert met.hardest is not None
    hardest = met.rivals[met.hardest]
    against = _rivals_text(met)
    if answer in (HELPS, HELPS_SLIGHTLY, TRADES):
        how_much = "better" if hardest.kind == BETTER else "slightly better"
        against_hardest = "" if len(met.rivals) == 1 else f" against the hardest, {met.hardest}"
        sentence = f"{name} detects OOD samples {how_much} than {against}: {hardest}{against_hardest}."
        if answer == TRADES:
            return f"{sentence} It pays with {tested.hardest[ACCURACY]}."
        return f"{rung.row} helps this model{'' if answer == HELPS else ', slightly'}: {sentence}"
    if answer == AS_GOOD:
        return f"{_capital(single_with(met.hardest))}, which costs nothing, is as good as {name}: {hardest}."
    if answer == UNCLEAR:
        return f"The test data cannot tell whether {name} is better than {single_with(met.hardest)}: {hardest}."
    if hardest.kind in LOSSES:
        return f"{_capital(single_with(met.hardest))}, which costs nothing, did better than {name}: {hardest}."
    return f"{_capital(name)} was compared with {against}; a score that costs nothing did better than it."


def _rivals_text(met: Met) -> str:
    """The scores of the single model that a choice was compared with."""
    scores = list(met.rivals)
    if not met.others:
        return "the single model does with every score"
    if len(scores) == 1:
        return single_with(scores[0])
    return f"the single model does with any of the scores {', '.join(scores[:-1])} and {scores[-1]}"


def _seen_afterwards(tested: Facts, answer: str) -> list[str]:
    """Name a free score outside the comparison that did better."""
    ahead = tested.met[tested.ends].better_afterwards
    if not ahead or answer == BLIND:
        return []
    score, finding = next(iter(ahead.items()))
    others = f", and so did {', '.join(list(ahead)[1:])}" if len(ahead) > 1 else ""
    return [
        f"A free score did better here: {single_with(score)}, against which {name_of(tested.rung)} has {finding}"
        f"{others}. That was seen afterwards: confirm it on other data."
    ]


def _worse_sets(tested: Facts, answer: str) -> list[str]:
    """Name every test set on which a choice that helps is significantly worse than its hardest rival."""
    if answer not in (HELPS, HELPS_SLIGHTLY, TRADES):
        return []
    worse = [f"{name} ({finding.figures})" for name, finding in tested.sets.items() if finding.ci[1] < 0]
    return [f"It is worse on {', '.join(worse)}."] if worse else []


def _use(use: Use) -> str:
    settings = [f"the score {use.rung.score}"]
    if use.temperature is not None:
        settings.append(f"temperature {number(use.temperature, 3)}")
    if use.threshold is not None:
        settings.append(f"threshold {number(use.threshold, 4)}")
    prices = []
    if use.price.macs is not None:
        prices.append(f"{use.price.macs:.2f} times its mult-adds")
    if use.price.params is not None:
        prices.append(f"{use.price.params:.2f} times its parameters")
    cost = f"; {' and '.join(prices)}" if prices and use.rung.row != SINGLE else ""
    row = "the single model" if use.rung.row == SINGLE else use.rung.row
    return f"best.st is {row} with {', '.join(settings)}{cost}."


def _compared(findings: Mapping[str, Finding], other: str) -> str:
    parts = []
    for kind in WORDS:
        listed = [str(finding) for finding in findings.values() if finding.kind == kind]
        if listed:
            parts.append(f"{kind}: {', '.join(listed)}")
    return f"Against {other}: {'; '.join(parts)}." if parts else ""


def _samples_needed(tested: Facts, answer: str) -> list[str]:
    """How many samples would do, for what the data cannot tell about OOD detection and accuracy."""
    if answer in (BLIND, NOTHING_HELPS):
        return []
    findings = tested.hardest if tested.rung.row != SINGLE else tested.baseline
    if answer == SCORE_UNCLEAR:
        findings = tested.steps[tested.ends]
    sentences = []
    for metric in (AUROC, ACCURACY):
        finding = findings.get(metric)
        if finding is not None and finding.needed is not None:
            sentences.append(
                f"To tell about {KINDS[metric].words}, about {finding.needed:,} samples of each test set would do; the "
                f"smallest has {tested.n:,}."
            )
    return sentences


def _capital(text: str) -> str:
    """A text with a capital where it begins with a word of prose; names of rows stay as they are."""
    return f"T{text[1:]}" if text.startswith("the ") else text
