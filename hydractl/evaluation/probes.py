"""Probes: classifiers of frozen features, fitted to labelled training data, to measure how good the features are.

Each kind of probe is a class. Its constructor fits it to the features of one member; it then computes logits. The
probabilities of an ensemble are the mean of its members' softmax, as always. All arithmetic is in float64.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hydractl.errors import InputError
from hydractl.metrics.feature_scores.scores import unit
from hydractl.metrics.probabilities import Floats, log_softmax, softmax

NEIGHBOURS, TEMPERATURE = 20, 0.07
NO_VOTE = float(np.finfo(np.float32).eps)
"""The probability of a class without a vote: the value to which scikit-learn's ``log_loss`` clips float32 zeros."""
PENALTY = 1.0
PENALTIES = tuple(10.0**power for power in range(-4, 5))
"""The values of C from which validation data choose, the strongest penalty (lowest C) first."""

CONVENTIONS = {
    "probe": "The row is measured by a classifier of the features that its readout gives, fitted to the training data"
    f" of --train for each member. knn: the {NEIGHBOURS} training samples of highest cosine similarity s vote with"
    f" weight exp(s / {TEMPERATURE}) for their class; the logit of a class is the logarithm of its votes, and a class"
    f" without one has the probability {NO_VOTE:.1g}. linear: multinomial logistic regression on standardised features"
    " that minimises the mean NLL + |W|^2 / (2 C n), n training samples, where C is 1, or the power of ten from 1e-4 to"
    " 1e4 of lowest NLL on --val. cost is that of the model without the probe.",
}


class Probe(Protocol):
    """A fitted probe.

    Attributes:
        weight, bias: ``[C, D]`` and ``[C]`` if its logits are linear in the features; otherwise ``[0, D]`` and ``[0]``.
        penalty: the chosen value of C; None if the probe has no penalty.
    """

    weight: Floats
    bias: Floats
    penalty: float | None

    def logits(self, features: Floats) -> Floats:
        """Return the logits, ``[n, C]``, of features, ``[n, D]``."""


class NeighbourProbe:
    """Classifies by the votes of the nearest training samples.

    Source: Wu et al. 2018, section 3.4; Caron et al. 2021 (k = 20).

    Args:
        features: the features of the training data, float64 ``[N, D]``.
        labels: the labels of the training data, ``[N]`` integers in 0..classes-1.
        classes: the number of classes C.

    Raises:
        InputError: if there are fewer training samples than neighbours.
    """

    penalty: float | None = None

    def __init__(self, features: Floats, labels: NDArray[np.int64], classes: int) -> None:
        if len(features) < NEIGHBOURS:
            raise InputError(
                f"--probe knn asks {NEIGHBOURS} neighbours, and --train has {len(features)} samples",
                hint="give more training data, or --probe linear",
            )
        self._bank = unit(features)  # training features of length 1, [N, D]
        self._labels = labels
        self._classes = classes
        # The logits are not linear in the features.
        self.weight = np.zeros((0, features.shape[1]))
        self.bias = np.zeros(0)

    def logits(self, features: Floats) -> Floats:
        """Return the logarithm of the votes for each class, ``[n, C]``; the softmax gives the shares of votes.

        Each of the nearest training samples votes for its class with the weight exp(cosine similarity / TEMPERATURE).

        Args:
            features: ``[n, D]``.
        """
        # Find the nearest training samples. argpartition puts their indices first, in any order.
        similarity = unit(features) @ self._bank.T  # [n, N]
        partitioned = np.argpartition(-similarity, NEIGHBOURS - 1, axis=1)  # [n, N]
        nearest = partitioned[:, :NEIGHBOURS]  # [n, NEIGHBOURS]
        nearest_similarity = np.take_along_axis(similarity, nearest, axis=1)  # [n, NEIGHBOURS]
        nearest_classes = self._labels[nearest]  # [n, NEIGHBOURS]

        # Add up the votes for each class. Logarithms avoid overflow, and logaddexp adds the numbers behind them.
        log_weights = nearest_similarity / TEMPERATURE
        log_votes = np.full((len(features), self._classes), -np.inf)  # [n, C]
        samples = np.arange(len(features))[:, None]  # [n, 1]
        np.logaddexp.at(log_votes, (samples, nearest_classes), log_weights)

        # A class without a vote gets the probability NO_VOTE instead of 0.
        log_sum_of_votes = np.logaddexp.reduce(log_votes, axis=1, keepdims=True)  # [n, 1]
        lowest_log_votes = log_sum_of_votes + np.log(NO_VOTE)
        return np.maximum(log_votes, lowest_log_votes)


class LinearProbe:
    """Multinomial logistic regression on standardised features, fitted with scipy's L-BFGS-B.

    Args:
        features: the features of the training data, float64 ``[N, D]``.
        labels: the labels of the training data, ``[N]`` integers in 0..classes-1.
        classes: the number of classes C.
        val: features and labels of the validation data on which the penalty is chosen; None means :data:`PENALTY`.
    """

    penalty: float | None

    def __init__(
        self,
        features: Floats,
        labels: NDArray[np.int64],
        classes: int,
        val: tuple[Floats, NDArray[np.int64]] | None = None,
    ) -> None:
        """Fit the weight and the bias, with the default penalty, or with the best one on validation data."""
        regression = _Regression(features, labels)
        # A point is the vector of all parameters: for each class D weights and a bias.
        parameters_per_class = features.shape[1] + 1
        origin = np.zeros(classes * parameters_per_class)
        if val is None:
            self.penalty = PENALTY
            minimum = regression.minimum(origin, PENALTY)
            self.weight, self.bias = regression.unscaled(minimum)
            return

        # Try weaker and weaker penalties, until the NLL on the validation data does not fall any more.
        val_features, val_labels = val
        lowest_nll = np.inf
        point = origin
        for penalty in PENALTIES:
            point = regression.minimum(point, penalty)  # start from the minimum of the previous, stronger penalty
            weight, bias = regression.unscaled(point)
            val_logits = val_features @ weight.T + bias
            nll = _mean_nll(val_logits, val_labels)
            if nll >= lowest_nll:
                break
            lowest_nll = nll
            self.weight = weight
            self.bias = bias
            self.penalty = penalty

    def logits(self, features: Floats) -> Floats:
        """Return the logits, ``[n, C]``, of features, ``[n, D]``."""
        return np.asarray(features @ self.weight.T + self.bias)


class _Regression:
    """The loss of a linear probe on standardised features.

    A point is the vector of all parameters, ``[C * (D + 1)]``: for each class a weight for every standardised feature,
    and a bias.

    Args:
        features: the features of the training data, float64 ``[N, D]``.
        labels: the labels of the training data, ``[N]`` integers in 0..C-1.
    """

    def __init__(self, features: Floats, labels: NDArray[np.int64]) -> None:
        centre = features.mean(axis=0)
        spread = features.std(axis=0)
        # Standardised features are features * scale + shift. A constant feature keeps the scale 1.
        self._scale = 1.0 / np.where(spread > 0, spread, 1.0)
        self._shift = -centre * self._scale
        self._features = features * self._scale - centre * self._scale
        self._labels = labels

    def unscaled(self, point: Floats) -> tuple[Floats, Floats]:
        """Return the weight, ``[C, D]``, and the bias, ``[C]``, at a point, for features that are not standardised."""
        weight, bias = self._weight_and_bias(point)
        weight_unscaled = weight * self._scale
        bias_unscaled = bias + weight @ self._shift
        return weight_unscaled, bias_unscaled

    def minimum(self, start: Floats, penalty: float) -> Floats:
        """Return the point with the lowest loss.

        Args:
            start: the point at which the search starts.
            penalty: C; the larger it is, the weaker is the penalty.
        """
        from scipy.optimize import minimize

        ridge = 1.0 / (penalty * len(self._labels))
        limits = {"gtol": 1e-7, "ftol": 0.0, "maxiter": 10_000, "maxfun": 20_000, "maxcor": 30}
        result = minimize(self._loss, start, args=(ridge,), method="L-BFGS-B", jac=True, options=limits)
        return np.asarray(result.x)

    def _loss(self, point: Floats, ridge: float) -> tuple[float, Floats]:
        """Return the loss, mean NLL + ridge / 2 * |W|^2, and its gradient at a point.

        Args:
            point: ``[C * (D + 1)]``.
            ridge: the factor of the penalty; biases are not penalised.

        Returns:
            The loss, and the gradient in the order of the point, ``[C * (D + 1)]``.
        """
        weight, bias = self._weight_and_bias(point)
        logits = self._features @ weight.T + bias  # [N, C]
        squared_norm = float(np.square(weight).sum())
        loss = _mean_nll(logits, self._labels) + ridge / 2 * squared_norm

        # The gradient by the logits, [N, C], is (p - 1) / N for the class of the label, and p / N for all others.
        samples = len(logits)
        logit_gradient = softmax(logits)
        logit_gradient[np.arange(samples), self._labels] -= 1.0
        logit_gradient /= samples

        # The gradient by the parameters, arranged like a point: each class has its weights and then its bias.
        weight_gradient = logit_gradient.T @ self._features + ridge * weight  # [C, D]
        bias_gradient = logit_gradient.sum(axis=0)  # [C]
        gradient = np.column_stack([weight_gradient, bias_gradient])  # [C, D + 1]
        return loss, gradient.ravel()

    def _weight_and_bias(self, point: Floats) -> tuple[Floats, Floats]:
        """Return the weight, ``[C, D]``, and the bias, ``[C]``, of a point."""
        parameters_by_class = point.reshape(-1, self._features.shape[1] + 1)  # [C, D + 1]
        weight = parameters_by_class[:, :-1]
        bias = parameters_by_class[:, -1]
        return weight, bias


def _mean_nll(logits: Floats, labels: NDArray[np.int64]) -> float:
    """Return the mean over samples of -log p of the label, from logits ``[N, C]`` and labels ``[N]``."""
    log_probs = log_softmax(logits)
    label_log_probs = log_probs[np.arange(len(labels)), labels]  # [N]
    return -float(label_log_probs.mean())


def fit_probe(
    name: str,
    features: Floats,
    labels: NDArray[np.int64],
    classes: int,
    val: tuple[Floats, NDArray[np.int64]] | None = None,
) -> Probe:
    """Fit the probe ``knn`` or ``linear`` of one member; the other arguments are those of :class:`LinearProbe`."""
    if name == "knn":
        return NeighbourProbe(features, labels, classes)
    return LinearProbe(features, labels, classes, val)
