"""Split conformal prediction sets: how large they are, and how often they hold the label.

The threshold qhat is the ceil((n + 1)(1 - alpha))-th smallest nonconformity score of the n validation labels. The set
of a sample holds every class whose score is at most qhat. If validation and test samples are exchangeable, a set holds
its label with probability 1 - alpha or more. The method is written out here: it fits and counts with one look at each
batch, and ranks in exact fractions, in less code than would be needed around a library.

Source: Vovk, Gammerman and Shafer 2005; Sadinle, Lei and Wasserman 2019 (LAC, there "LABEL"); Romano, Sesia and Candes
2020 (APS).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hydractl.files.calibrate_answer import Conformal
from hydractl.files.eval_answer import ConformalSets
from hydractl.files.model_records import Calibration
from hydractl.metrics.arrays import ON_ARRAYS, Arrays
from hydractl.metrics.probabilities import Floats, blocks

CONVENTIONS = {
    "conformal": "Split conformal sets {k: s_k <= qhat}, qhat the ceil((n + 1)(1 - alpha))-th smallest score of the n"
    " validation labels, 1 (every class) when there is none. lac: s_k = 1 - p_k; aps: s_k = the sum of p over k and the"
    " classes before it by falling p, no randomisation. coverage: share of sets that hold the label; mean_size: classes"
    " in a set; empty: share of sets with none.",
}


def nonconformity(probs: Floats, method: str, arrays: Arrays = ON_ARRAYS) -> Floats:
    """Return the nonconformity score of every class, [n, C], 0..1, from p [n, C]: how unlike the class a sample is.

    ======  =======================================================================  =====================
    method  the score of class k                                                     of p = 0.2, 0.5, 0.3
    ======  =======================================================================  =====================
    lac     1 - p_k                                                                  0.8, 0.5, 0.7
    aps     the sum of p over class k and all more probable classes                  1.0, 0.5, 0.8
    ======  =======================================================================  =====================

    By ``aps`` equally probable classes are added in the order of their index. This is the score of Romano et al. 2020
    without its random share of p_k (u = 1), which keeps the guarantee and makes the sets somewhat larger.
    """
    if method == "lac":
        return 1.0 - probs
    # aps: add up p from the most probable class to the least probable one.
    order = arrays.places_by_falling_value(probs)
    falling = arrays.taken(probs, order)
    sums = arrays.cumulated(falling)
    at_most_1 = arrays.at_most(sums, 1.0)  # a sum rounded above 1 would leave a class out if qhat is 1

    # Write each sum back to the column of its class.
    classes = probs.shape[1]
    return arrays.placed(at_most_1, order, classes)


def prediction_sets(probs: Floats, fitted: Conformal, arrays: Arrays = ON_ARRAYS) -> NDArray[np.bool_]:
    """Return which classes are in the prediction set of each sample, bool [n, C], from p [n, C]."""
    scores = nonconformity(probs, fitted.method, arrays)
    return scores <= arrays.number(fitted.qhat)


def fit_conformal(
    logits: np.ndarray,
    labels: np.ndarray,
    *,
    method: Literal["lac", "aps"] = "lac",
    alpha: float = 0.1,
    calibration: Calibration | None = None,
) -> Conformal:
    """Return the threshold of prediction sets, qhat, fitted to labelled validation data.

    qhat is a quantile of the nonconformity scores of the labels: a set then holds every class whose score is at most
    qhat, and about the share 1 - alpha of new samples has its label in the set.

    Args:
        logits: [M, N, C], any float type; a memory map is read block by block.
        labels: [N] integers in 0..C-1.
        method: the nonconformity score.
        alpha: the share of labels that the sets may miss, between 0 and 1.
        calibration: the calibration of p; None means none.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
    """
    # Collect the nonconformity score of each sample's label; qhat is a quantile of these.
    label_scores = np.empty(len(labels))
    for rows, block in blocks(logits, calibration):
        class_scores = nonconformity(block.probs, method)  # [n, C]
        every_sample = np.arange(len(class_scores))
        label_scores[rows] = class_scores[every_sample, labels[rows]]
    qhat = quantile(label_scores, alpha)
    return Conformal(method=method, alpha=alpha, qhat=qhat, n_val=len(labels))


def quantile(scores: np.ndarray, alpha: float) -> float:
    """Return the ceil((n + 1)(1 - alpha))-th smallest of n scores; 1, the highest possible score, if n is below that.

    For alpha = 0.1: of 20 scores the 19th smallest (21 * 0.9 = 18.9); of 8 scores it would be the 9th (8.1), so 1.
    """
    n = len(scores)
    # The rank is computed in exact fractions: in float64 (n + 1) * (1 - alpha) can lie just above a whole number, and
    # ceil would then give one too many. ceil((n + 1)(1 - alpha)) = (n + 1) - floor((n + 1) alpha).
    exact_alpha = Fraction(str(alpha))
    may_be_missed = int((n + 1) * exact_alpha)  # int() rounds down
    rank = (n + 1) - may_be_missed
    if rank > n:
        return 1.0
    rising = np.sort(scores)
    return float(rising[rank - 1])


def measured_sets(fitted: Conformal, sizes: NDArray[np.int64], covered: NDArray[np.bool_]) -> ConformalSets:
    """Return how often prediction sets hold the label, their mean size, and the share of empty ones.

    Without samples all three are None.

    Args:
        fitted: the threshold of the sets.
        sizes: the number of classes in the set of each sample, [N].
        covered: whether each set holds the label, [N].
    """
    samples = len(sizes)
    if not samples:
        return ConformalSets(**fitted.to_dict())
    # Sums of integers, divided once.
    return ConformalSets(
        **fitted.to_dict(),
        coverage=int(covered.sum()) / samples,
        mean_size=int(sizes.sum()) / samples,
        empty=int((sizes == 0).sum()) / samples,
    )
