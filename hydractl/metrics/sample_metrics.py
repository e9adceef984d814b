"""Metrics of samples: accuracy, probabilistic scores, calibration error and selective prediction of labelled ID data,
and how much the members differ on any data.

To add one, declare it here (``docs/adding-a-metric.md``). In ``aurc`` and ``accuracy_at`` samples of equal confidence
stay in data order, so that each number is reproducible; it can therefore change, within the ties, when the data are
reordered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydractl.metrics.declaration import metric
from hydractl.metrics.probabilities import Floats
from hydractl.metrics.samples import BINS, Resample, Samples

Labelled = Samples | Resample
"""Samples with labels, at least one."""

EQUAL = 1e-6
"""Confidences that differ by no more are equal in ``aece``."""

SHARES = (80, 90, 95)
"""The percentages of most confident samples on which ``accuracy_at`` is measured."""


@metric("id", label="acc", words="accuracy", direction="higher", by_severity=True)
def accuracy(samples: Labelled) -> float:
    """Share of samples whose most probable class (the lowest index on a tie) is the label."""
    correct = samples.total("correct")
    return correct / len(samples)


@metric("id", label="NLL", words="negative log likelihood", direction="lower")
def nll(samples: Labelled) -> float:
    """Mean of -log p_y in nats, computed from the logits by log-sum-exp over members."""
    # 0.0 - x, because -x of a perfect prediction would be a negative zero in the JSON.
    return 0.0 - samples.mean("label_log_probs")


@metric("id", label="Brier", words="Brier score", direction="lower", by_severity=True)
def brier(samples: Labelled) -> float:
    """Mean over samples of the sum over classes of (p_k - 1[y = k])^2, from 0 to 2.

    Source: Brier 1950, the original form; the mean over classes that some libraries give is this divided by C.
    """
    return samples.mean("brier_terms")


@metric("id", label="ECE", words="calibration error", direction="lower", by_severity=True, biased=True)
def ece(samples: Labelled) -> float:
    """Top-label l1 calibration error, 15 equal-width bins [k/15, (k+1)/15), the last one closed: sum over bins of
    n_b/N * |accuracy_b - mean confidence_b|.

    Source: Naeini et al. 2015; Guo et al. 2017.
    """
    # Sort the samples by bin, in data order within a bin, and cut them at the ends of the bins. Each bin is then added
    # up by itself, in data order.
    binned = samples.sorted_by("bins")
    ends = np.cumsum(samples.bin_sizes)
    inner_ends = ends[:-1]
    confidences = np.split(binned.confidence, inner_ends)
    corrects = np.split(binned.correct, inner_ends)
    return _weighted_gap(confidences, corrects, len(samples))


@metric("id", label="AECE", words="ECE (equal mass)", direction="lower", biased=True)
def aece(samples: Labelled) -> float:
    """The same sum over 15 equal-mass bins: samples sorted by confidence, ascending, and split into 15 runs whose
    sizes differ by at most one, the larger ones first (numpy.array_split); of equally confident ones (to 1e-6) in
    several bins each counts with the share of them that is right.

    With fewer samples than bins every sample is a bin of its own. Source: Nguyen and O'Connor 2015.
    """
    confidence, correct = samples.sorted_by("rising")
    confidences = np.array_split(confidence, BINS)
    sizes = [len(confidence) for confidence in confidences]
    shares = _shared_within_ties(confidence, correct, np.cumsum(sizes)[:-1])
    return _weighted_gap(confidences, np.array_split(shares, BINS), len(samples))


def _shared_within_ties(confidence: Floats, correct: NDArray[np.bool_], ends: NDArray[np.int64]) -> NDArray[Any]:
    """Return for each sample whether it is right, 0 or 1; of equally confident samples in several bins their mean.

    Which of equally confident samples falls into which bin, perhaps by rounding, then does not matter. For example the
    confidences 0.5 0.9 | 0.9 0.9, where a bin ends at |, and 1 1 | 0 0 right: the result is 1 1/3 | 1/3 1/3.

    Args:
        confidence: of each sample, rising, [N].
        correct: whether each sample is right, [N]; returned as it is if no tie lies in several bins.
        ends: the indices at which bins end, rising; an end is the index of the first sample of the next bin.
    """
    # The ends across which the samples on both sides are equally confident (to 1e-6).
    inside = ends[(ends > 0) & (ends < len(confidence))]
    tied = inside[confidence[inside] - confidence[inside - 1] <= EQUAL]
    if not len(tied):
        return correct

    # Give all samples of each tie, from start to stop, the mean of these samples.
    shares = correct.astype(np.float64)
    previous_stop = 0  # where the tie before ends
    for end in tied.tolist():
        if end < previous_stop:  # the tie before also lies across this end of a bin
            continue
        first_equal = int(np.searchsorted(confidence, confidence[end - 1] - EQUAL))
        start = max(previous_stop, first_equal)
        stop = int(np.searchsorted(confidence, confidence[end] + EQUAL, "right"))
        shares[start:stop] = shares[start:stop].mean()
        previous_stop = stop
    return shares


@metric("id", label="AURC", words="area under the risk-coverage curve", direction="lower")
def aurc(samples: Labelled) -> float:
    """Area under the risk-coverage curve: mean over i = 1..N of the error rate among the i most confident samples;
    samples of equal confidence stay in data order.

    Source: Geifman, Uziel and El-Yaniv 2019. Libraries that integrate the points by trapezoids differ by about 1/N.
    """
    n = len(samples)
    most_confident = np.arange(1, n + 1)  # the numbers i of most confident samples, [N]
    error_rates = samples.errors / most_confident
    return float(error_rates.mean())


@metric("id", parts=tuple(f"{percent / 100:.2f}" for percent in SHARES))
def accuracy_at(samples: Labelled) -> dict[str, float]:
    """Accuracy of the most confident share of the samples, 0.80, 0.90 and 0.95 of them, rounded up to a whole sample;
    samples of equal confidence stay in data order.
    """
    n = len(samples)
    accuracies = {}
    for part, percent in zip(accuracy_at.parts, SHARES, strict=True):  # the parts are the keys "0.80", "0.90", "0.95"
        # How many samples: percent * n / 100, rounded up in integers (minus the rounded-down negative).
        most_confident = -(-percent * n // 100)
        # Entry i of `errors` is the number of wrong answers among the i + 1 most confident samples.
        errors = int(samples.errors[most_confident - 1])
        correct = most_confident - errors
        accuracies[part] = correct / most_confident
    return accuracies


def _weighted_gap(confidences: Iterable[Floats], corrects: Iterable[NDArray[Any]], samples: int) -> float:
    """Return the calibration error: the sum over bins b of n_b/N * |accuracy_b - mean confidence_b|; empty bins add 0.

    As n_b times a mean is a sum, the term of a bin equals |right predictions - sum of confidences| / N.

    Args:
        confidences: the confidences of the samples of each bin.
        corrects: for the samples of each bin, whether the prediction is right, or the share of right ones in a tie.
        samples: N, the number of samples in all bins.
    """
    gaps = []
    for confidence, correct in zip(confidences, corrects, strict=True):
        right_predictions = float(correct.sum())
        summed_confidence = float(confidence.sum())
        gaps.append(abs(right_predictions - summed_confidence))
    return float(sum(gaps) / samples)


# --- members ----------------------------------------------------------------------------------------------------------


@metric("diversity", label="mi", words="mutual information of the members")
def mi(samples: Samples | Resample) -> float:
    """Mean over samples of H(mean over members of p_m) - mean over members of H(p_m), in nats.

    From 0 to log M; 0 for one member.
    """
    return samples.mean("mi")


@metric("diversity", label="disagr", words="disagreement of the members")
def disagreement(samples: Samples | Resample) -> float | None:
    """Mean over samples of the share of pairs of members that vote for different classes,
    1 - sum over k of C(n_k, 2) / C(M, 2); null for one member.

    A member votes for its highest logit, the lowest class index on a tie.
    """
    if not samples.member_pairs:
        return None
    pairs_in_all = len(samples) * samples.member_pairs
    return samples.total("differing_pairs") / pairs_in_all
