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
    if not tested.told:
        return BLIND
    if tested.rung.row == SINGLE:
        if tested.rung.score == REFERENCE:
            return NOTHING_HELPS
        against_msp = tested.steps[tested.ends][AUROC]
        return SCORE_HELPS if against_msp.kind in GAINS else SCORE_UNCLEAR
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
    return HELPS if kind == BETTER else HELPS_SLIGHTLY


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
    shown_score = "MSP" if score == REFERENCE else score
    return f"the single model with {shown_score}"


def name_of(rung: Rung) -> str:
    """Name a row with its score."""
    if rung.row == SINGLE:
        return single_with(rung.score)
    return f"{rung.row} with {rung.score}"


def _stepped_down(tested: Facts) -> list[str]:
    """Say of each rung that was left why it was."""
    sentences = []
    for place in range(tested.ends):
        step = tested.steps[place][AUROC]
        upper = _capital(name_of(tested.ladder[place]))
        lower = name_of(tested.ladder[place + 1])
        if place == 0:
            sentences.append(
                f"{upper}, chosen on validation data, is {_NO_BETTER[step.kind]} on the test data than {lower}: {step}."
            )
        else:
            sentences.append(f"{upper} is {_NO_BETTER[step.kind]} there than {lower}: {step}.")
    return sentences


def _first_sentence(tested: Facts, answer: str) -> str:
    if answer == BLIND:
        return (
            "The OOD validation data cannot tell which row or score is better, so nothing was chosen: use "
            f"{single_with(REFERENCE)}, or give other OOD validation data."
        )
    if answer in (NOTHING_HELPS, SCORE_HELPS, SCORE_UNCLEAR):
        sentence = _single_sentence(tested, answer)
        return f"No other row is worth its cost here. {sentence}" if tested.others else sentence
    return _ensemble_sentence(tested, answer)


def _single_sentence(tested: Facts, answer: str) -> str:
    """Say what a study found that ends with the single model."""
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
    """Say what a study found that ends with another row than the single model."""
    met = tested.met[tested.ends]
    assert met.hardest is not None
    name = name_of(tested.rung)
    hardest_name = single_with(met.hardest)
    hardest = met.rivals[met.hardest]
    if answer in (HELPS, HELPS_SLIGHTLY, TRADES):
        sentence = _gain_sentence(name, met, hardest)
        if answer == TRADES:
            return f"{sentence} It pays with {tested.hardest[ACCURACY]}."
        slightly = ", slightly" if answer == HELPS_SLIGHTLY else ""
        return f"{tested.rung.row} helps this model{slightly}: {sentence}"
    if answer == AS_GOOD:
        return f"{_capital(hardest_name)}, which costs nothing, is as good as {name}: {hardest}."
    if answer == UNCLEAR:
        return f"The test data cannot tell whether {name} is better than {hardest_name}: {hardest}."
    if hardest.kind in LOSSES:
        return f"{_capital(hardest_name)}, which costs nothing, did better than {name}: {hardest}."
    return f"{_capital(name)} was compared with {_rivals_text(met)}; a score that costs nothing did better than it."


def _gain_sentence(name: str, met: Met, hardest: Finding) -> str:
    """Say by how much a row is better than the single model under the scores fixed beforehand."""
    how_much = "better" if hardest.kind == BETTER else "slightly better"
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
    return f"the single model with any of the scores {', '.join(scores[:-1])} and {scores[-1]}"


def _seen_afterwards(tested: Facts, answer: str) -> list[str]:
    """Name a free score outside the comparison that did better."""
    ahead = tested.met[tested.ends].better_afterwards
    if not ahead or answer == BLIND:
        return []
    first, *others = ahead
    also = f", and so did {', '.join(others)}" if others else ""
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
        if finding.ci[1] < 0:
            worse.append(f"{name} ({finding.figures})")
    if not worse:
        return []
    return [f"It is worse on {', '.join(worse)}."]


def _use(use: Use) -> str:
    settings = [f"the score {use.rung.score}"]
    if use.temperature is not None:
        settings.append(f"temperature {number(use.temperature, 3)}")
    if use.threshold is not None:
        settings.append(f"threshold {number(use.threshold, 4)}")
    if use.rung.row == SINGLE:
        return f"best.st is the single model with {', '.join(settings)}."
    return f"best.st is {use.rung.row} with {', '.join(settings)}{_cost(use.price)}."


def _cost(price: Price) -> str:
    """Say what a row costs beside the single model; nothing where that is not known."""
    ratios = []
    if price.macs is not None:
        ratios.append(f"{price.macs:.2f} times its mult-adds")
    if price.params is not None:
        ratios.append(f"{price.params:.2f} times its parameters")
    return f"; {' and '.join(ratios)}" if ratios else ""


def _compared(findings: Mapping[str, Finding], other: str) -> str:
    """List differences by what they say; nothing where there are none."""
    parts = []
    for kind in WORDS:
        of_kind = [str(finding) for finding in findings.values() if finding.kind == kind]
        if of_kind:
            parts.append(f"{kind}: {', '.join(of_kind)}")
    if not parts:
        return ""
    return f"Against {other}: {'; '.join(parts)}."


def _samples_needed(tested: Facts, answer: str) -> list[str]:
    """Say how many samples would do, for what the data cannot tell about OOD detection and accuracy."""
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
        if finding is not None and finding.needed is not None:
            sentences.append(
                f"To tell about {KINDS[metric].words}, about {finding.needed:,} samples of each test set would do; the "
                f"smallest has {tested.n:,}."
            )
    return sentences


def _capital(text: str) -> str:
    """Begin a text with a capital where its first word is one of prose; names of rows stay as they are."""
    return f"T{text[1:]}" if text.startswith("the ") else text
