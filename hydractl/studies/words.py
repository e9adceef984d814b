"""Words for a paired difference: six of them, by where its interval lies. Pure: numbers in, a word out.

Each metric has a margin, below which a difference does not matter. With the interval turned so that higher is better,
and tried in this order:

    better            all of it lies above the margin
    slightly better   all of it lies above 0
    worse             all of it lies below minus the margin
    slightly worse    all of it lies below 0
    no difference     all of it lies within the margin
    cannot tell       else

Where an interval shrinks into itself, as it does on average while samples are added, ``cannot tell`` may become any
other word, ``no difference`` may become slightly better or slightly worse, the slight words may become strong ones,
and nothing turns back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hydractl.files.study_answer import Word
from hydractl.report.eval_tables import signed_number

BETTER: Final = "better"
SLIGHTLY_BETTER: Final = "slightly better"
WORSE: Final = "worse"
SLIGHTLY_WORSE: Final = "slightly worse"
NO_DIFFERENCE: Final = "no difference"
CANNOT_TELL: Final = "cannot tell"
WORDS = (BETTER, SLIGHTLY_BETTER, WORSE, SLIGHTLY_WORSE, NO_DIFFERENCE, CANNOT_TELL)
GAINS = (BETTER, SLIGHTLY_BETTER)
LOSSES = (WORSE, SLIGHTLY_WORSE)

AUROC_MARGIN = 0.01
"""A difference of AUROC that is no larger does not matter."""

ACCURACY, NLL, AUROC = "id.accuracy", "id.nll", "ood_avg.auroc"


@dataclass(frozen=True)
class VerdictMetric:
    """A metric of the verdict: its words, 1 where higher is better and -1 where lower is, and its margin."""

    words: str
    sign: int
    margin: float


KINDS = {
    ACCURACY: VerdictMetric("accuracy", 1, 0.01),
    NLL: VerdictMetric("NLL", -1, 0.02),
    "id.ece": VerdictMetric("ECE", -1, 0.01),
    AUROC: VerdictMetric("mean OOD AUROC", 1, AUROC_MARGIN),
    "near_avg.auroc": VerdictMetric("near-OOD AUROC", 1, AUROC_MARGIN),
    "far_avg.auroc": VerdictMetric("far-OOD AUROC", 1, AUROC_MARGIN),
    "ood_avg.fpr95": VerdictMetric("mean FPR95", -1, 0.05),
}


@dataclass(frozen=True)
class Finding:
    """One paired difference on the test data, and what it says.

    Attributes:
        metric: its dotted key.
        value: this row minus the other.
        ci: its paired 95 % interval.
        kind: one of :data:`WORDS`.
        needed: about how many samples of each set would tell; None where the data do.
    """

    metric: str
    value: float
    ci: tuple[float, float]
    kind: Word
    needed: int | None = None

    def __str__(self) -> str:
        return f"{KINDS[self.metric].words} {self.figures}"

    @property
    def figures(self) -> str:
        """The difference with its interval."""
        low, high = map(signed_number, self.ci)
        return f"{signed_number(self.value)} ({low} to {high})"


def word(low: float, high: float, margin: float) -> Word:
    """Return the word of an interval in which higher is better."""
    if low > margin:
        return BETTER
    if low > 0:
        return SLIGHTLY_BETTER
    if high < -margin:
        return WORSE
    if high < 0:
        return SLIGHTLY_WORSE
    if -margin <= low and high <= margin:
        return NO_DIFFERENCE
    return CANNOT_TELL


def judge(metric: str, value: float, ci: Sequence[float], n: int) -> Finding:
    """Judge one paired difference on n samples."""
    about = KINDS[metric]
    low, high = ci
    if about.sign > 0:
        kind = word(low, high, about.margin)
    else:
        kind = word(-high, -low, about.margin)
    needed = None
    if kind == CANNOT_TELL:
        needed = samples_needed(value, (high - low) / 2, about.margin, n)
    return Finding(metric, value, (low, high), kind, needed)


def samples_needed(value: float, half_width: float, margin: float, n: int) -> int:
    """Return about how many samples would tell, where n of them give an interval of this half width.

    Intervals shrink with the square root of the number of samples. The data tell as soon as the interval excludes 0
    (its half width is below the difference) or lies within the margin (it is below what the margin leaves), whichever
    comes first.
    """
    enough = max(abs(value), margin - abs(value))
    return max(n + 1, _two_digits_up(n * (half_width / enough) ** 2))


def _two_digits_up(value: float) -> int:
    """Round up to two significant digits."""
    unit = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit


def judge_all(table: Mapping[str, Mapping[str, Any]], n: int) -> dict[str, Finding]:
    """Judge every difference that has a value, of those that the bootstrap gives."""
    findings = {}
    for metric in KINDS:
        difference = table.get(metric)
        if difference is not None and difference["ci"] is not None:
            findings[metric] = judge(metric, difference["value"], difference["ci"], n)
    return findings
