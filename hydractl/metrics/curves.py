"""The curves of one model: reliability and score histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hydractl.files.eval_answer import EvalCurves, ReliabilityCurve, ScoreHistograms
from hydractl.metrics.confidence import share_interval
from hydractl.metrics.probabilities import Floats, check_finite
from hydractl.metrics.samples import BINS, Samples, bin_edges

SCORE_BINS = 40
_WIDTHS_BEYOND = 3
"""How far bins of scores reach beyond the ID scores, in widths of these."""

CONVENTIONS = {
    "reliability": "The bins of ece: edges, samples, mean confidence and accuracy of each, and the Wilson 95 % interval"
    " of the accuracy (low, high); null where a bin is empty.",
    "scores": "In curves, histograms of the OOD score: 40 bins of equal width, [edge_k, edge_k+1), the last one"
    " closed. Beyond the 1 % and the 99 % quantile of the ID scores they reach three times as far as these are apart,"
    " at most to the lowest and the highest score of all data sets; the outer bins hold what lies further out. Beside"
    " them, OOD metrics by each OOD score asked for; null where a score is constant for a single model.",
}


def curves(inside: Samples, outside: Mapping[str, Samples]) -> EvalCurves:
    """Return all curves of a model; ``scores`` is None if the model has no OOD score.

    Args:
        inside: the ID samples; without labels or without samples, ``reliability`` is None.
        outside: the samples of each OOD data set, by its name.
    """
    reliability = None
    if inside.labels is not None and len(inside) > 0:
        reliability = reliability_bins(inside)
    # Histograms of the first OOD score. It is None if it is constant for the model, and then on the OOD sets, too.
    if inside.score is None:
        return EvalCurves(reliability=reliability)
    ood_scores = {}
    for name, samples in outside.items():
        assert samples.score is not None
        ood_scores[name] = samples.score
    return EvalCurves(reliability=reliability, scores=histograms(inside.score, ood_scores))


def reliability_bins(samples: Samples) -> ReliabilityCurve:
    """Return the reliability curve of labelled samples: confidence and accuracy in each of the 15 bins of ``ece``.

    In a bin without samples, the mean confidence, the accuracy and the ends of its 95 % interval are None.
    """
    # For each bin: the number of samples, the number of right answers, and the sum of the confidences; all [BINS].
    sizes = samples.bin_sizes
    bins_of_correct = samples.bins[samples.correct]
    correct_counts = np.bincount(bins_of_correct, minlength=BINS)
    summed_confidences = np.bincount(samples.bins, weights=samples.confidence, minlength=BINS)

    # Only bins with samples get a mean, an accuracy and its interval.
    confidence: list[float | None] = [None] * BINS
    accuracy: list[float | None] = [None] * BINS
    low: list[float | None] = [None] * BINS
    high: list[float | None] = [None] * BINS
    for index in np.flatnonzero(sizes).tolist():
        size = int(sizes[index])
        correct = int(correct_counts[index])
        confidence[index] = float(summed_confidences[index] / size)
        accuracy[index] = correct / size
        low[index], high[index] = share_interval(correct, size)
    return ReliabilityCurve(
        edges=bin_edges().tolist(), n=sizes.tolist(), confidence=confidence, accuracy=accuracy, low=low, high=high
    )


def histograms(id_scores: np.ndarray, ood_scores: Mapping[str, np.ndarray]) -> ScoreHistograms:
    """Return the histogram of the scores of each data set, in bins common to all.

    Args:
        id_scores: the scores of the ID samples, [N].
        ood_scores: the scores [K] of each OOD data set, by its name.

    Raises:
        NonFiniteError: a score is NaN or infinite.
    """
    scores = {"id": id_scores, **ood_scores}
    checked = {name: check_finite(values, f"scores of {name}") for name, values in scores.items()}

    # Make bins of equal width. Single scores far out must not squeeze all others into one bin.
    not_empty = [values for values in checked.values() if values.size]
    low, high = _range_of(not_empty, checked["id"])
    edges = np.linspace(low, high, SCORE_BINS + 1)

    # Count the scores of each set by bin: bin k is [edge_k, edge_k+1), and the last bin holds its upper edge, too. The
    # bin of a score is the number of inner edges that are at most the score, so the outer bins have what lies beyond.
    counts_by_set: dict[str, list[int]] = {}
    inner_edges = edges[1:-1]
    for name, values in checked.items():
        bins = np.searchsorted(inner_edges, values, side="right")
        counts_by_set[name] = np.bincount(bins, minlength=SCORE_BINS).tolist()
    return ScoreHistograms(edges=edges.tolist(), **counts_by_set)


def _range_of(arrays: Sequence[Floats], inside: Floats) -> tuple[float, float]:
    """Return the ends of the range of a histogram: from the lowest to the highest score, without far outliers.

    Outliers lie further beyond the 1 % or the 99 % quantile of the ID scores than three times the distance between the
    two quantiles: with quantiles of 2 and 4, below 2 - 3 * 2 = -4 or above 4 + 3 * 2 = 10. The ends are always apart;
    without any scores they are 0 and 1.

    Args:
        arrays: the scores of each data set that has samples.
        inside: the scores of the ID set, [N].
    """
    if not arrays:
        return 0.0, 1.0
    lows = [float(values.min()) for values in arrays]
    highs = [float(values.max()) for values in arrays]
    low = min(lows)
    high = max(highs)

    # Cut the range where outliers begin. ID scores that are all equal do not tell what is far.
    if inside.size:
        lower_quantile, upper_quantile = (float(end) for end in np.quantile(inside, (0.01, 0.99)))
        beyond = _WIDTHS_BEYOND * (upper_quantile - lower_quantile)
        if beyond > 0:
            low = max(low, lower_quantile - beyond)
            high = min(high, upper_quantile + beyond)

    # Move ends apart that are equal, as numpy.histogram does, or so close for their size that in float64 the edges of
    # bins between them would be equal.
    narrowest = max(1e-300, 1e-13 * max(abs(low), abs(high)))
    if high - low > narrowest:
        return low, high
    margin = max(0.5, narrowest)
    return low - margin, high + margin
