"""Six words for a paired difference, chosen by where its interval lies. Pure: numbers in, a word out.

Each metric has a margin, below which a difference does not matter. The sign of the interval is changed if necessary, so
that higher is better. The first of these conditions that holds gives the word:

    better            all of it lies above the margin
    slightly better   all of it lies above 0
    worse             all of it lies below minus the margin
    slightly worse    all of it lies below 0
    no difference     all of it lies within the margin
    cannot tell       otherwise

One interval says less than it seems to: that of the accuracy of two models that are right and wrong on the same
samples. Resamples of these samples cannot differ either, so its ends are 0 however few they are. Then the word is
``cannot tell`` until there are so many that samples of which only one model is right would have shown up.

More samples shrink an interval, on average within its former bounds. Then ``cannot tell`` can become any other word,
``no difference`` can become slightly better or slightly worse, and a slight word can become the strong one; no change
goes the other way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hydractl.files.study_answer import FindingRecord, Word
from hydractl.report.eval_tables import signed_number, signed_range

BETTER: Final = "better"
SLIGHTLY_BETTER: Final = "slightly better"
WORSE: Final = "worse"
SLIGHTLY_WORSE: Final = "slightly worse"
NO_DIFFERENCE: Final = "no difference"
CANNOT_TELL: Final = "cannot tell"
WORDS = (BETTER, SLIGHTLY_BETTER, WORSE, SLIGHTLY_WORSE, NO_DIFFERENCE, CANNOT_TELL)
GAINS = (BETTER, SLIGHTLY_BETTER)
LOSSES = (WORSE, SLIGHTLY_WORSE)

_NO_WIDTH = 1e-12
"""The least distance of a value from an end of its interval that is divided by."""

_ROUNDING = 1e-9
"""Figures of one row that differ by less differ by rounding alone."""

AUROC_MARGIN = 0.01
"""The largest difference of AUROC that does not matter."""

ACCURACY, NLL, AUROC, FPR95 = "id.accuracy", "id.nll", "ood_avg.auroc", "ood_avg.fpr95"


@dataclass(frozen=True)
class VerdictMetric:
    """A metric of the verdict.

    Attributes:
        words: its name in sentences.
        sign: 1 if higher is better, -1 if lower is better.
        margin: the largest difference that does not matter.
    """

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
    FPR95: VerdictMetric("mean FPR95", -1, 0.05),
}


class Finding(FindingRecord):
    """One paired difference on the test data, and the word for it.

    Attributes:
        n: the number of samples of the smallest set that it was measured on; it is not part of documents.
    """

    n: int

    def __str__(self) -> str:
        metric = KINDS[self.metric]
        return f"{metric.words} {self.figures}"

    @property
    def figures(self) -> str:
        """The difference with its interval, as text."""
        return f"{signed_number(self.value)} ({signed_range(*self.ci)})"


Findings = dict[str, Finding]
"""Paired differences by metric, by OOD score or by test set."""


def word(low: float, high: float, margin: float) -> Word:
    """Return the word for the 95 % interval of a difference for which higher is better, from ``low`` to ``high``.

    A difference within plus or minus the margin does not matter. With a margin of 0.01, 0.02 to 0.04 is ``better``,
    0.005 to 0.04 ``slightly better``, -0.005 to 0.005 ``no difference``, and -0.02 to 0.04 ``cannot tell``.
    """
    if low > margin:
        return BETTER
    if low > 0:
        return SLIGHTLY_BETTER
    if high < -margin:
        return WORSE
    if high < 0:
        return SLIGHTLY_WORSE
    is_within_margin = -margin <= low and high <= margin
    if is_within_margin:
        return NO_DIFFERENCE
    return CANNOT_TELL


def judge(metric: str, difference: Mapping[str, Any], n: int) -> Finding:
    """Return the finding for one paired difference: the difference, and the word for it, such as ``better``.

    If the data cannot tell, it says how many samples would be enough (``needed``, else None).

    Args:
        metric: a key of :data:`KINDS`, e.g. ``id.accuracy``.
        difference: the paired difference of the bootstrap: its ``value``, and its 95 % interval ``ci``.
        n: the number of samples of the smallest set that the difference was measured on.
    """
    value = difference["value"]
    low, high = difference["ci"]
    judged = KINDS[metric]
    margin = judged.margin
    if judged.sign > 0:
        kind = word(low, high, margin)
    else:  # change the sign, so that higher is better
        kind = word(-high, -low, margin)

    # How many samples would tell. Two models that are right on the same samples have an accuracy interval from 0 to 0,
    # however few samples there are; so there must be enough to see a difference of the margin.
    needed = None
    if kind == CANNOT_TELL:
        needed = samples_needed(value, low, high, margin, n)
    elif metric == ACCURACY and low == high == 0:
        enough = samples_to_see(margin)
        if n < enough:
            kind = CANNOT_TELL
            needed = _two_digits_up(enough)
    return Finding(metric=metric, value=value, ci=(low, high), kind=kind, n=n, needed=needed)


def samples_needed(value: float, low: float, high: float, margin: float, n: int) -> int:
    """Return about how many samples would be enough to tell, if ``n`` samples give the interval from low to high.

    Both ends of an interval come nearer to the value with the square root of the number of samples. The data can tell
    as soon as the interval excludes 0, or lies within the margin. If 1000 samples give 0.01 (-0.01 to 0.03), half the
    width excludes 0, which four times as many samples give: 4000.
    """
    # How far the ends are from the value; not 0, as it is divided by.
    below = max(value - low, _NO_WIDTH)
    above = max(high - value, _NO_WIDTH)

    # The share of its width that the interval may keep at most, for each way to tell.
    if value > 0:
        excludes_zero = value / below
    else:
        excludes_zero = -value / above
    lies_within_margin = min((margin + value) / below, (margin - value) / above)
    share = max(excludes_zero, lies_within_margin)  # the larger share is reached first
    needed = n / share**2
    # More than there are, as these cannot tell.
    return max(n + 1, _two_digits_up(needed))


def samples_to_see(share: float) -> int:
    """Return how many samples show with 97.5 % probability a kind of sample that makes up this share of all data.

    It is the smallest n with (1 - share)^n <= 0.025, e.g. 368 for a share of 0.01. This is the end of an exact
    (Clopper-Pearson) 95 % interval of a share of which no sample was seen.
    """
    unseen = 0.025  # the probability that no sample of this kind is among them
    return math.ceil(math.log(unseen) / math.log1p(-share))


def _two_digits_up(value: float) -> int:
    """Return a number rounded up to two significant digits, e.g. 1300 for 1234; below 10, to a whole number."""
    exponent = math.floor(math.log10(value))
    unit = 10 ** max(0, exponent - 1)
    units = math.ceil(value / unit)
    return units * unit


def judge_all(
    table: Mapping[str, Mapping[str, Any]], samples: Callable[[str], int], same_row: bool = False
) -> Findings:
    """Return the findings for all metrics of :data:`KINDS` that have an interval, by metric.

    Args:
        table: paired differences of the bootstrap, by metric.
        samples: returns the number of samples of the smallest set that a metric was measured on.
        same_row: whether one row is compared with itself, under another score or temperature. What is then the same on
            any data, such as its accuracy, is left out.
    """
    findings = {}
    for metric in KINDS:
        # Leave out what was not measured, or has too few samples for an interval.
        difference = table.get(metric)
        if difference is None or difference["ci"] is None:
            continue
        # Leave out accuracy, NLL and ECE of one row under two scores: they differ by rounding alone.
        is_equal = max(map(abs, difference["ci"])) < _ROUNDING  # both ends of the interval are 0 but for rounding
        if same_row and is_equal and metric.startswith("id."):
            continue
        findings[metric] = judge(metric, difference, samples(metric))
    return findings
