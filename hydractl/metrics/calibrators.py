"""Temperature and vector scaling of the averaged prediction: pool the members first, then calibrate.

A calibration turns log p of the mean over members into ``log_softmax(log p * scale + bias)``. It never changes the
members' logits. It therefore changes the confidence, the scores ``msp`` and ``entropy``, nll, brier, ece and aece, and,
through the order of the samples, aurc and accuracy by confidence. Only the kind ``vector`` can change the predicted
class. ``energy``, ``maxlogit``, ``mi``, ``variance``, votes and disagreement describe the uncalibrated members.

Source: Guo et al. 2017 (both kinds); Rahaman and Thiery 2021 (pool, then calibrate).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hydractl.errors import InputError
from hydractl.files.model_records import Calibration
from hydractl.metrics import probabilities
from hydractl.metrics.confidence import Z_95, ConfidenceInterval
from hydractl.metrics.probabilities import LOWEST_LOG_P, Floats, powers_of

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 100.0

FEWEST_SAMPLES = 10
"""A calibration is fitted to at least so many samples."""

RIDGE = 1e-6
"""Weight of the squared distance from temperature scaling in :func:`fit_vector`, relative to the mean NLL in nats."""

CONVENTIONS = {
    "calibration": "Acts on log p of the averaged prediction (pool, then calibrate): log_softmax(log p * scale + bias);"
    " temperature scaling has the one scale 1/T, vector scaling a scale and a bias for each class. energy, maxlogit,"
    " mi, variance and disagreement are those of the members without it.",
}

_WIDEST_LOG = 300.0
"""The largest half of an interval of log T; a larger one would overflow, and says no less."""


def fit_temperature(log_probs: np.ndarray, labels: np.ndarray) -> Calibration:
    """Return the temperature T from 0.01 to 100 with the lowest mean NLL (negative log likelihood of the labels).

    The search runs over the scale s = 1/T, in which the NLL is convex. The slopes of the NLL at the two ends, s = 0.01
    (T = 100) and s = 100 (T = 0.01), decide:

    * 0 at both ends: T = 1, the NLL does not depend on T;
    * 0 or more at both ends: T = 100, the labels are no more probable than the other classes;
    * 0 or less at both ends: T = 0.01, every prediction is right, so that a lower T always lowers the NLL;
    * below 0, then above 0: the T at which the slope is 0.

    Args:
        log_probs: log p [N, C] of the averaged prediction (``pooled_log_probs``).
        labels: [N] integers in 0..C-1; there is at least one.
    """
    from scipy.optimize import brentq

    # Where all classes are equally probable, or there is one class only, no T changes anything: take 1.
    spreads = [np.ptp(block, axis=1).max() for _, block in _blocks(log_probs)]  # highest minus lowest log p
    if max(spreads) <= 1e-9:
        return Calibration.of_temperature(1.0)

    # The slope of a convex function never falls from left to right. So if it is 0 or more at the lowest scale, it is so
    # everywhere, and the NLL never falls; if it is 0 or less at the highest scale, the NLL never rises.
    lowest_scale = 1.0 / HIGHEST_TEMPERATURE
    highest_scale = 1.0 / LOWEST_TEMPERATURE
    rises_throughout = _slope_of_nll(lowest_scale, log_probs, labels) >= 0.0
    falls_throughout = _slope_of_nll(highest_scale, log_probs, labels) <= 0.0
    if rises_throughout and falls_throughout:  # flat: every label is certain at every temperature
        return Calibration.of_temperature(1.0)
    if rises_throughout:
        return Calibration.of_temperature(HIGHEST_TEMPERATURE)
    if falls_throughout:
        return Calibration.of_temperature(LOWEST_TEMPERATURE)

    # The minimum lies between the ends. Find its scale to 14 digits, two more than the temperature keeps.
    scale = brentq(_slope_of_nll, lowest_scale, highest_scale, args=(log_probs, labels), xtol=1e-14, rtol=1e-14)
    return Calibration.of_temperature(1.0 / scale)


def fit_vector(log_probs: np.ndarray, labels: np.ndarray) -> Calibration:
    """Return vector scaling: the scale and the bias of each class with the lowest mean NLL plus a small penalty.

    The calibrated p is the softmax of ``log p_k * scale_k + bias_k``. The penalty (a ridge) is on the distance from
    temperature scaling, which has the one scale 1/T and no biases: 1e-6 / 2 * (sum (scale_k - 1/T)^2 + sum bias_k^2).
    It decides what the data leave open, e.g. the scale and bias of a class without samples. NLL plus penalty is
    convex, so there is one minimum.

    Args:
        log_probs: log p [N, C] of the averaged prediction (``pooled_log_probs``).
        labels: [N] integers in 0..C-1; there is at least one.
    """
    from scipy.optimize import minimize

    classes = log_probs.shape[1]
    temperature_scaling = fit_temperature(log_probs, labels)
    inverse_temperature = temperature_scaling.scales[0]

    # The search is over one vector [2C]: the scales, then the biases. It starts at temperature scaling, from which the
    # penalty measures the distance.
    start_scales = np.full(classes, inverse_temperature)
    start_biases = np.zeros(classes)
    centre = np.concatenate([start_scales, start_biases])

    def value_and_gradient(point: Floats) -> tuple[float, Floats]:
        """Return what is minimised, mean NLL plus ridge, for scales and biases [2C], and its gradient [2C]."""
        scale = point[:classes]
        bias = point[classes:]
        nll, nll_gradient = _nll_and_gradient(log_probs, labels, scale, bias)
        from_centre = point - centre
        ridge = RIDGE / 2 * float(from_centre @ from_centre)
        ridge_gradient = RIDGE * from_centre
        return nll + ridge, nll_gradient + ridge_gradient

    # gtol: the search ends where the gradient is nearly 0. ftol is 0, so a small step does not end it: the ridge is
    # flat, and a step may hardly lower the value although the minimum is far away. maxiter: 500 steps are needed only
    # for many classes with few samples (1,000 classes of five samples: 40 s on one core); the point reached by then is
    # no worse than any before it. maxfun is so high that it never ends the search first.
    limits = {"gtol": 1e-8, "ftol": 0.0, "maxiter": 500, "maxfun": 50_000}
    result = minimize(value_and_gradient, centre, method="L-BFGS-B", jac=True, options=limits)
    return Calibration(kind="vector", scale=result.x[:classes].tolist(), bias=result.x[classes:].tolist(), stored=False)


def fit_calibration(kind: str, log_probs: np.ndarray, labels: np.ndarray) -> Calibration:
    """Fit a calibration of the kind ``temperature`` or ``vector`` to log p [N, C] and labels [N].

    :func:`hydractl.metrics.plausibility.calibration_warning` judges what comes out.

    Raises:
        InputError: there are too few samples, or all are of one class.
    """
    check_enough_to_fit(labels, "--val")
    if kind == "temperature":
        return fit_temperature(log_probs, labels)
    assert kind == "vector", kind
    return fit_vector(log_probs, labels)


def check_enough_to_fit(labels: np.ndarray, where: str) -> None:
    """Raise an error if a calibration cannot be fitted to labels [N]: fewer than ten, or all of one class.

    From one class a fit only learns how often the model is right about that class.

    Args:
        labels: the labels of the validation samples.
        where: the option that names the samples, for messages; it begins the sentence.

    Raises:
        InputError: naming the number of samples, and a way through.
    """
    n = len(labels)
    if n < FEWEST_SAMPLES:
        samples = "1 sample" if n == 1 else f"{n} samples"
        raise InputError(
            f"{where}: a temperature is fitted to at least {FEWEST_SAMPLES} samples, and here {samples} can be read",
            hint="give more samples with --val, or a temperature itself where the command has --temperature",
        )
    if np.all(labels == labels[0]):
        raise InputError(
            f"{where}: all {n} samples are of one class, and a temperature fitted to them would not suit the others",
            hint="give samples of every class with --val, or a temperature itself where the command has --temperature",
        )


def temperature_interval(calibration: Calibration, log_probs: np.ndarray) -> ConfidenceInterval:
    """Return the 95 % interval of a fitted temperature T; 0 to infinity if the NLL of the samples does not depend on T.

    With the scale s = 1/T and the calibrated probabilities q = softmax(s * log p) of a sample:

    * information of log T = sum over samples of Var_q[s * log p], the variance over the classes weighted by q;
    * standard error of log T = 1 / sqrt(information);
    * interval = T * exp(-1.96 standard errors) to T * exp(+1.96 standard errors).

    For example T = 2 with information 100: a standard error of 0.1, so 1.64 to 2.43. The information is the second
    derivative of the summed NLL by log T at its minimum (observed Fisher information). T at an end of its range is no
    minimum, and the interval does not hold there.

    Args:
        calibration: a calibration of the kind ``temperature``.
        log_probs: log p [N, C] of the averaged prediction, to which it was fitted.
    """
    scale = calibration.scales[0]  # s = 1/T
    information = 0.0
    for _, block in _blocks(log_probs):  # log p of some of the samples, [n, C]
        calibrated_probs = powers_of(block * scale).softmax  # q, [n, C]
        mean_log_p = np.einsum("nc,nc->n", calibrated_probs, block)  # sum_k q_k * log p_k, [n]
        from_mean = (block - mean_log_p[:, None]) * scale  # s * (log p_k - mean), [n, C]
        # Var_q[s * log p] = sum_k q_k * from_mean_k^2, added up over the samples.
        information += float(np.einsum("nc,nc,nc->", calibrated_probs, from_mean, from_mean))
    if information < 1e-12:  # nothing but rounding
        return ConfidenceInterval(0.0, math.inf)
    half = min(Z_95 / math.sqrt(information), _WIDEST_LOG)  # of the interval of log T, bounded so that exp is finite
    temperature = 1.0 / scale
    return ConfidenceInterval(temperature * math.exp(-half), temperature * math.exp(half))


def _blocks(log_probs: np.ndarray) -> Iterator[tuple[slice, Floats]]:
    """Yield log p [N, C] in blocks of samples: the slice of the samples of each block, and their log p, [n, C].

    The temporary arrays of one block fit in the CPU cache. A log p below :data:`LOWEST_LOG_P`, which would overflow
    when multiplied, is raised to it.
    """
    samples, classes = log_probs.shape
    step = max(1, probabilities.BLOCK_VALUES // classes)
    for start in range(0, samples, step):
        rows = slice(start, start + step)
        yield rows, np.maximum(log_probs[rows], LOWEST_LOG_P)


def _slope_of_nll(scale: float, log_probs: np.ndarray, labels: NDArray[np.int64]) -> float:
    """Return the derivative of the mean NLL by the scale s = 1/T: the mean over samples of E_q[log p] - log p_y.

    E_q is the mean over the classes weighted by the calibrated q = softmax(s * log p), and y is the label.

    Args:
        scale: s, the inverse temperature.
        log_probs: log p [N, C] before calibration.
        labels: [N].
    """
    slope = 0.0
    for rows, block in _blocks(log_probs):
        calibrated_probs = powers_of(block * scale).softmax  # q, [n, C]
        expected_log_probs = np.einsum("nc,nc->n", calibrated_probs, block)  # E_q[log p] = sum_k q_k * log p_k, [n]
        every_sample = np.arange(len(block))
        label_log_probs = block[every_sample, labels[rows]]  # log p_y, [n]
        slopes_of_samples = expected_log_probs - label_log_probs
        slope += float(slopes_of_samples.sum())
    return slope / len(labels)


def _nll_and_gradient(
    log_probs: np.ndarray, labels: NDArray[np.int64], scale: Floats, bias: Floats
) -> tuple[float, Floats]:
    """Return the mean NLL under vector scaling, and its gradient [2C]: by the C scales, then by the C biases.

    The calibrated q is the softmax over the classes k of z_k = log p_k * scale_k + bias_k. With the label y, the NLL of
    a sample is -log q_y, and its derivative by z_k is q_k - 1[k = y].

    Args:
        log_probs: log p [N, C] before calibration.
        labels: [N].
        scale: one scale for each class, [C].
        bias: one bias for each class, [C].
    """
    nll = 0.0
    scale_gradient = np.zeros_like(scale)
    bias_gradient = np.zeros_like(bias)
    for rows, block in _blocks(log_probs):
        every_sample = np.arange(len(block))
        label_entries = (every_sample, labels[rows])  # an index that picks the label's entry of each row
        scaled = block * scale + bias  # z, [n, C]
        # shifted = z - max z and powers = exp(shifted), both [n, C]; total = the sum of the powers, [n, 1].
        _, shifted, powers, total = powers_of(scaled)

        # log q_y = shifted_y - log(total)
        log_totals = np.log(total[:, 0])  # [n]
        label_log_probs = shifted[label_entries] - log_totals
        nll -= float(label_log_probs.sum())

        # dNLL/dz_k = q_k - 1[k = y], with q = powers / total, [n, C].
        derivative = np.divide(powers, total, out=powers)
        derivative[label_entries] -= 1.0
        # dNLL/dscale_k = dNLL/dz_k * log p_k and dNLL/dbias_k = dNLL/dz_k, both added up over the samples.
        scale_gradient += np.einsum("nc,nc->c", derivative, block)
        bias_gradient += derivative.sum(axis=0)
    gradient = np.concatenate([scale_gradient, bias_gradient])
    return nll / len(labels), gradient / len(labels)
