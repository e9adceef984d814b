"""What the test data say of the row that was chosen, in plain words. Pure: from paired differences to sentences.

Each difference has a margin, below which it does not matter: where its interval lies inside, there is none that does.
Otherwise a difference whose interval excludes 0 is better or worse. Where it includes 0 the data cannot tell, and the
number of samples that could is n times the square of half its width over the margin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hydractl.report.eval_tables import signed_number
from hydractl.report.texts import number

BETTER, WORSE, EQUAL, UNCLEAR = "better", "worse", "equal", "unclear"
MARGIN = 0.02
"""Of a mean AUROC and of NLL in nats."""

_ACCURACY, _AUROC = "id.accuracy", "ood_avg.auroc"


@dataclass(frozen=True)
class Kind:
    """A metric of the verdict: its words, 1 where higher is better and -1 where lower is, and its margin."""

    words: str
    sign: int
    margin: float


KINDS = {
    _ACCURACY: Kind("accuracy", 1, 0.01),
    "id.nll": Kind("NLL", -1, MARGIN),
    "id.ece": Kind("ECE", -1, 0.01),
    _AUROC: Kind("mean OOD AUROC", 1, MARGIN),
    "near_avg.auroc": Kind("near-OOD AUROC", 1, MARGIN),
    "far_avg.auroc": Kind("far-OOD AUROC", 1, MARGIN),
    "ood_avg.fpr95": Kind("mean FPR95", -1, 0.05),
}


@dataclass(frozen=True)
class Finding:
    """One difference on the test data.

    Attributes:
        metric: its dotted key.
        value: the chosen row minus the other.
        ci: its paired 95 % interval.
        kind: ``better``, ``worse``, ``equal`` (none that matters) or ``unclear``.
        needed: about how many samples of each set would show a difference of the margin; None where it is settled.
    """

    metric: str
    value: float
    ci: tuple[float, float]
    kind: str
    needed: int | None = None

    def __str__(self) -> str:
        low, high = map(signed_number, self.ci)
        return f"{KINDS[self.metric].words} {signed_number(self.value)} ({low} to {high})"


def judge(metric: str, value: float, ci: Sequence[float], n: int) -> Finding:
    """Judge one paired difference on n samples."""
    kind, (low, high) = KINDS[metric], ci
    if max(-low, high) <= kind.margin:
        return Finding(metric, value, (low, high), EQUAL)
    if low > 0 or high < 0:
        return Finding(metric, value, (low, high), BETTER if kind.sign * value > 0 else WORSE)
    needed = n * ((high - low) / 2 / kind.margin) ** 2
    return Finding(metric, value, (low, high), UNCLEAR, max(n + 1, _round_up(needed)))


def _round_up(value: float) -> int:
    """To two digits that count."""
    unit = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit


def judge_all(table: Mapping[str, Mapping[str, Any]], n: int) -> dict[str, Finding]:
    """Every difference that has a value, of those that bootstrap gives."""
    return {
        metric: judge(metric, table[metric]["value"], table[metric]["ci"], n)
        for metric in KINDS
        if metric in table and table[metric]["ci"] is not None
    }


@dataclass(frozen=True)
class Chosen:
    """What was chosen, and what it is compared with.

    Attributes:
        row, score, temperature, threshold: what to use; no threshold before ``best.st`` is written.
        pruned: whether it is another row than the single model.
        rival: the score of the single model that is best on validation data.
        mac_ratio, param_ratio: to the single model; None where they are not known.
        n: samples of the smallest test set.
        baseline: against the single model as it is, by MSP.
        against: against the rival; empty where the rival itself was chosen.
        why: why nothing pruned was chosen.
    """

    row: str
    score: str
    temperature: float | None
    threshold: float | None
    pruned: bool
    rival: str
    mac_ratio: float | None
    param_ratio: float | None
    n: int
    baseline: Mapping[str, Finding]
    against: Mapping[str, Finding]
    why: Sequence[str] = ()


ANSWERS = {
    "helps": "{row} helps this model: it detects OOD samples better than the single model with its best score.",
    "trades": "{row} detects OOD samples better than the single model with its best score, and loses accuracy.",
    "no difference": "{row} makes no difference that matters here: use the single model with the score {rival}.",
    "worse": "{row}, chosen on validation data, is worse on test data: use the single model with the score {rival}.",
    "cannot tell": "The test data cannot tell whether {row} is better than the single model with the score {rival}.",
    "score helps": "No ensemble of pruned members is worth its cost here. What helps is the score {score}, on the "
    "single model.",
    "score unclear": "No ensemble of pruned members is worth its cost here. Whether the score {score} helps, the test "
    "data cannot tell.",
    "score does not help": "No ensemble of pruned members is worth its cost here, and the score {score}, chosen on "
    "validation data, is no better than MSP on test data: use the single model with MSP.",
    "nothing helps": "No ensemble of pruned members is worth its cost here, and on validation data no other score "
    "is significantly better than MSP.",
}
"""The first sentence of a verdict, by answer."""


def answer_of(chosen: Chosen) -> str:
    """One of :data:`ANSWERS`."""
    if not chosen.pruned:
        found = chosen.baseline.get(_AUROC)
        if chosen.score == "msp" or found is None:
            return "nothing helps"
        return {BETTER: "score helps", UNCLEAR: "score unclear"}.get(found.kind, "score does not help")
    found = chosen.against.get(_AUROC)
    if found is None or found.kind == UNCLEAR:
        return "cannot tell"
    if found.kind == EQUAL:
        return "no difference"
    if found.kind == WORSE:
        return "worse"
    lost = chosen.against.get(_ACCURACY)
    return "trades" if lost is not None and lost.kind == WORSE else "helps"


def verdict(chosen: Chosen) -> dict[str, Any]:
    """The answer, the sentences that say it, and the differences behind them."""
    answer = answer_of(chosen)
    first = ANSWERS[answer].format(row=chosen.row, score=chosen.score, rival=chosen.rival)
    lines = [first, *chosen.why, _use(chosen)]
    if chosen.against:
        lines += [_compared(chosen.against, f"the single model with {chosen.rival} and a temperature")]
    lines += [_compared(chosen.baseline, "the single model as it is, with MSP"), *_unclear(chosen)]
    return {
        "answer": answer,
        "lines": [line for line in lines if line],
        "against_baseline": [asdict(finding) for finding in chosen.baseline.values()],
        "against_rival": [asdict(finding) for finding in chosen.against.values()],
    }


def _use(chosen: Chosen) -> str:
    settings = [f"the score {chosen.score}"]
    settings += [] if chosen.temperature is None else [f"temperature {number(chosen.temperature, 3)}"]
    settings += [] if chosen.threshold is None else [f"threshold {number(chosen.threshold, 4)}"]
    price = [] if chosen.mac_ratio is None else [f"{chosen.mac_ratio:.2f} times its mult-adds"]
    price += [] if chosen.param_ratio is None else [f"{chosen.param_ratio:.2f} times its parameters"]
    cost = f"; {' and '.join(price)}" if price and chosen.pruned else ""
    return f"best.st is {chosen.row} with {', '.join(settings)}{cost}."


def _compared(findings: Mapping[str, Finding], other: str) -> str:
    groups = {
        "better": [str(one) for one in findings.values() if one.kind == BETTER],
        "worse": [str(one) for one in findings.values() if one.kind == WORSE],
        "no difference that matters": [str(one) for one in findings.values() if one.kind == EQUAL],
        "undecided": [str(one) for one in findings.values() if one.kind == UNCLEAR],
    }
    parts = [f"{name}: {', '.join(listed)}" for name, listed in groups.items() if listed]
    return f"Against {other}: {'; '.join(parts)}." if parts else ""


def _unclear(chosen: Chosen) -> list[str]:
    """How many samples would do, for what is undecided about accuracy and OOD detection."""
    findings = chosen.against or chosen.baseline
    return [
        f"To settle a difference of {KINDS[key].margin:g} in {KINDS[key].words}, about {found.needed:,} samples of "
        f"each test set would do; the smallest has {chosen.n:,}."
        for key in (_ACCURACY, _AUROC)
        if (found := findings.get(key)) is not None and found.needed is not None
    ]
