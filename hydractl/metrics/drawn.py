"""Curves and answers of samples that are drawn again and again: what needs an order is sorted once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hydractl.metrics.errors import Answers, by_probability, by_score
from hydractl.metrics.ood import Curve
from hydractl.metrics.probabilities import Floats
from hydractl.metrics.samples import Resample, Samples

Counts = NDArray[np.int64]
"""How often each sample of a data set is drawn."""


class DrawnCurve:
    """The curve of the ID samples against one OOD data set, on resamples.

    The thresholds are those of the whole data; a draw changes only how many samples each threshold flags.

    Args:
        id_scores: OOD scores of the ID samples, [N].
        ood_scores: OOD scores of the OOD samples, [K].
    """

    def __init__(self, id_scores: Floats, ood_scores: Floats) -> None:
        """Sort the scores [N] and [K] once, for the curves of all draws."""
        # The thresholds are the distinct scores of all samples. They stay the same for every draw.
        all_scores = np.concatenate([id_scores, ood_scores])
        thresholds = np.unique(all_scores)[::-1]  # falling, [T]

        # A draw only changes how often each sample counts. So keep, for the ID samples and then for the OOD samples,
        # the indices that sort them by rising score, [N] or [K], and the number of samples below each threshold, [T].
        self._id_order = np.argsort(id_scores, kind="stable")
        rising_id_scores = id_scores[self._id_order]
        self._id_below = np.searchsorted(rising_id_scores, thresholds, side="left")
        self._ood_order = np.argsort(ood_scores, kind="stable")
        rising_ood_scores = ood_scores[self._ood_order]
        self._ood_below = np.searchsorted(rising_ood_scores, thresholds, side="left")

    def curve_of_draw(self, inside: Counts, outside: Counts) -> Curve | None:
        """Return the curve of one draw; None if it holds no ID sample or no OOD sample.

        Args:
            inside: how often each ID sample is drawn, [N].
            outside: how often each OOD sample is drawn, [K].
        """
        if not inside.any() or not outside.any():
            return None
        ood_counts = outside[self._ood_order]
        id_counts = inside[self._id_order]
        true_positives = _drawn_at_or_above(ood_counts, self._ood_below)
        false_positives = _drawn_at_or_above(id_counts, self._id_below)
        return Curve(true_positives, false_positives)


class DrawnAnswers:
    """The answers to labelled ID samples on resamples, ordered by one score.

    Args:
        inside: the ID samples.
        name: the name of the score.
        scores: the score of each ID sample, [N].
    """

    def __init__(self, inside: Samples, name: str, scores: Floats) -> None:
        """Prepare the curve and the samples once, for the answers of all draws."""
        self._correct = inside.correct
        self._curve = DrawnCurve(scores[inside.correct], scores[~inside.correct])
        self._by_score = by_score(inside, scores)
        self._by_probability = by_probability(inside, name, scores)

    def answers_of_draw(self, counts: Counts) -> Answers:
        """Return the answers of one draw; ``counts`` says how often each ID sample is drawn, [N]."""
        # How well the score tells wrong answers from right ones: wrong answers take the place of OOD samples in the
        # curve.
        curve = self._curve.curve_of_draw(counts[self._correct], counts[~self._correct])
        samples = self._by_probability
        drawn_by_probability = None if samples is None else Resample(samples, counts)
        return Answers(curve, Resample(self._by_score, counts), drawn_by_probability)


def _drawn_at_or_above(counts: Counts, below: Counts) -> Counts:
    """Return the number of drawn samples at or above each threshold, [T].

    Args:
        counts: how often each sample is drawn, [N]; the samples are in order of rising score.
        below: the number of samples of the whole data below each threshold, [T].
    """
    n = len(counts)
    drawn_among_first = np.zeros(n + 1, dtype=np.int64)  # entry i: of the first i samples
    np.cumsum(counts, out=drawn_among_first[1:])
    return drawn_among_first[n] - drawn_among_first[below]
