"""Metrics of how well an OOD score finds wrong answers to labelled ID samples: wrong answers are the positive class.

A higher score should mean a wrong answer. Counts at thresholds come from :mod:`hydractl.metrics.ood`, and metrics of
the order of samples from :mod:`hydractl.metrics.sample_metrics`. To add a metric, declare it here
(``docs/adding-a-metric.md``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hydractl.metrics import ood, sample_metrics
from hydractl.metrics.declaration import Metric, metric
from hydractl.metrics.ood import Counts, Curve, Thresholds
from hydractl.metrics.ood_scores import chance_of
from hydractl.metrics.samples import Resample, Samples

CONVENTION = (
    "How well the score finds wrong answers on the ID test data: wrong answers are the positive class, as OOD samples"
    " are elsewhere; null without a wrong or without a right answer."
)


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers to labelled ID samples, ordered by an OOD score.

    Attributes:
        curve: the curve with wrong answers in place of OOD samples and right answers in place of ID samples; None if
            all answers are right, or all wrong.
        by_score: the samples with minus the score as their confidence; None without samples or without a score.
        by_probability: the samples with the probability of a right answer as their confidence; None if the score is no
            probability.
    """

    curve: Curve | None = None
    by_score: Resample | None = None
    by_probability: Resample | None = None


class OrderedAnswers:
    """The answers to labelled ID samples, ordered by one of their scores: those of the data, and of resamples.

    Args:
        samples: the ID samples.
        name: the name of the score.
    """

    def __init__(self, samples: Samples, name: str) -> None:
        """Sort the samples once, for the answers of all draws."""
        self._correct = samples.correct
        self._by_score = self._by_probability = None
        scores = samples.scores[name]
        if scores is None or not len(samples):
            return
        self._thresholds = Thresholds(scores[self._correct], scores[~self._correct])
        self._by_score = replace(samples, confidence=-scores)
        chance = chance_of(name)
        if chance == "right":
            self._by_probability = self._by_score
        elif chance == "wrong":
            self._by_probability = replace(samples, confidence=1.0 - scores)

    def of_draw(self, counts: Counts) -> Answers:
        """Return the answers of a draw that has each sample as often as ``counts`` [N] says.

        They are empty without samples, or where the score is constant for a model of one member.
        """
        if self._by_score is None:
            return Answers()
        # How well the score tells wrong answers from right ones: wrong answers take the place of OOD samples.
        curve = self._thresholds.curve(counts[self._correct], counts[~self._correct])
        by_probability = None if self._by_probability is None else Resample(self._by_probability, counts)
        return Answers(curve, Resample(self._by_score, counts), by_probability)


@metric("errors", label="err AUROC", words="AUROC of wrong answers", direction="higher")
def auroc(answers: Answers) -> float | None:
    """Probability that a wrong answer scores higher than a right one, ties counted half (rank-based)."""
    return _on_curve(ood.auroc, answers)


@metric("errors", label="err FPR95", words="FPR95 of wrong answers", direction="lower")
def fpr95(answers: Answers) -> float | None:
    """Share of right answers at or above the highest threshold that flags at least 95 % of the wrong ones; samples of
    equal score are flagged together.
    """
    return _on_curve(ood.fpr95, answers)


@metric("errors", label="err AUPR", words="AUPR of wrong answers", direction="higher")
def aupr(answers: Answers) -> float | None:
    """Area under the precision-recall curve with wrong answers positive: average precision, step-wise."""
    return _on_curve(ood.aupr, answers)


@metric("errors", label="err AURC", words="area under the risk-coverage curve by the score", direction="lower")
def aurc(answers: Answers) -> float | None:
    """Area under the risk-coverage curve: mean over i = 1..N of the error rate among the i samples of lowest score;
    samples of equal score stay in data order.

    By ``msp`` it is ``id.aurc``. Source: Geifman, Uziel and El-Yaniv 2019.
    """
    return _on_samples(sample_metrics.aurc, answers.by_score)


@metric("errors", words="ECE (equal width) of the score", direction="lower", biased=True)
def ece(answers: Answers) -> float | None:
    """Calibration error, as ``id.ece``, of a score that is a probability (minus ``msp`` and ``mcm``, 1 - ``vilu`` and
    1 - ``vilu-scaled``) taken as the confidence; null for all others.

    By ``msp`` it is ``id.ece``.
    """
    return _on_samples(sample_metrics.ece, answers.by_probability)


@metric("errors", words="ECE (equal mass) of the score", direction="lower", biased=True)
def aece(answers: Answers) -> float | None:
    """The same over bins of equal mass, as ``id.aece``."""
    return _on_samples(sample_metrics.aece, answers.by_probability)


def _on_curve(of_curve: Metric, answers: Answers) -> float | None:
    """Return an OOD metric of the curve of wrong answers; None if there is no curve."""
    if answers.curve is None:
        return None
    value: float = of_curve(answers.curve)
    return value


def _on_samples(of_samples: Callable[[Resample], float], samples: Resample | None) -> float | None:
    """Return a metric of samples; None if ``samples`` is None."""
    if samples is None:
        return None
    return of_samples(samples)
