"""Probes: classifiers of frozen features, fitted to labelled training data. They measure what features are worth.

A probe is one class: fitted by its constructor to the features of one member, it gives logits. The probabilities of an
ensemble are, as ever, the mean of its members' softmax. All arithmetic is float64.
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
"""Probability of a class without a vote, as scikit-learn's ``log_loss`` clips those of float32."""
PENALTY = 1.0
PENALTIES = tuple(10.0**power for power in range(-4, 5))
"""The values of C that a validation set chooses from, the strongest penalty first."""

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
        weight, bias: ``[C, D]`` and ``[C]`` where its logits are linear in the features, else of no class.
        penalty: the C that was chosen; None for a probe without.
    """

    weight: Floats
    bias: Floats
    penalty: float | None

    def logits(self, features: Floats) -> Floats:
        """Return logits [n, C] of features [n, D]."""


class NeighbourProbe:
    """Votes of the nearest training samples. Source: Wu et al. 2018, section 3.4; Caron et al. 2021 (k = 20).

    Args:
        features: float64 [N, D] of the training data.
        labels: [N] integers in 0..classes-1.
        classes: C.

    Raises:
        InputError: fewer samples than neighbours.
    """

    penalty: float | None = None

    def __init__(self, features: Floats, labels: NDArray[np.int64], classes: int) -> None:
        if len(features) < NEIGHBOURS:
            raise InputError(
                f"--probe knn asks {NEIGHBOURS} neighbours, and --train has {len(features)} samples",
                hint="give more training data, or --probe linear",
            )
        self._bank = unit(features)
        self._labels = labels
        self._classes = classes
        self.weight = np.zeros((0, features.shape[1]))
        self.bias = np.zeros(0)

    def logits(self, features: Floats) -> Floats:
        """Return the logarithms of the votes [n, C] that features [n, D] get: their softmax is the shares of votes.

        Each of the nearest training samples votes for its class with the weight exp(similarity / TEMPERATURE).
        """
        # The nearest training samples, in no particular order.
        similarity = unit(features) @ self._bank.T  # [n, N]
        nearest_first = np.argpartition(-similarity, NEIGHBOURS - 1, axis=1)
        nearest = nearest_first[:, :NEIGHBOURS]
        nearest_similarity = np.take_along_axis(similarity, nearest, axis=1)
        classes = self._labels[nearest]  # [n, NEIGHBOURS]

        # Their votes are added up by class, as logarithms.
        log_weights = nearest_similarity / TEMPERATURE
        log_votes = np.full((len(features), self._classes), -np.inf)
        samples = np.arange(len(features))[:, None]
        np.logaddexp.at(log_votes, (samples, classes), log_weights)

        # A class without a vote gets the smallest share instead of none.
        all_log_votes = np.logaddexp.reduce(log_votes, axis=1, keepdims=True)  # [n, 1]
        least_log_votes = all_log_votes + np.log(NO_VOTE)
        return np.maximum(log_votes, least_log_votes)


class LinearProbe:
    """Multinomial logistic regression on standardised features, by scipy's L-BFGS-B.

    Args:
        features: float64 [N, D] of the training data.
        labels: [N] integers in 0..classes-1.
        classes: C.
        val: features and labels of validation data, which choose the penalty; None: it is :data:`PENALTY`.
    """

    penalty: float | None

    def __init__(
        self,
        features: Floats,
        labels: NDArray[np.int64],
        classes: int,
        val: tuple[Floats, NDArray[np.int64]] | None = None,
    ) -> None:
        regression = _Regression(features, labels)
        features_and_bias = features.shape[1] + 1
        point = np.zeros(classes * features_and_bias)
        if val is None:
            self.penalty = PENALTY
            minimum = regression.minimum(point, PENALTY)
            self.weight, self.bias = regression.unscaled(minimum)
            return

        # The penalties become weaker until the NLL on the validation data no longer falls.
        val_features, val_labels = val
        lowest_nll = np.inf
        for penalty in PENALTIES:
            point = regression.minimum(point, penalty)  # starts where that of the stronger penalty ended
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
        """Return logits [n, C] of features [n, D]."""
        return np.asarray(features @ self.weight.T + self.bias)


class _Regression:
    """The loss of a linear probe on standardised features.

    A point holds for each class a weight for every standardised feature, and a bias: [C * (D + 1)].

    Args:
        features: float64 [N, D] of the training data.
        labels: [N] integers in 0..C-1.
    """

    def __init__(self, features: Floats, labels: NDArray[np.int64]) -> None:
        centre = features.mean(axis=0)
        spread = features.std(axis=0)
        self._scale = 1.0 / np.where(spread > 0, spread, 1.0)
        self._shift = -centre * self._scale
        self._features = features * self._scale - centre * self._scale
        self._labels = labels

    def unscaled(self, point: Floats) -> tuple[Floats, Floats]:
        """Return the weight [C, D] and bias [C] for features as they are."""
        weight, bias = self._weight_and_bias(point)
        weight_unscaled = weight * self._scale
        bias_unscaled = bias + weight @ self._shift
        return weight_unscaled, bias_unscaled

    def minimum(self, start: Floats, penalty: float) -> Floats:
        """Return the point of lowest loss, looked for from a start; ``penalty`` is C: the larger, the weaker."""
        from scipy.optimize import minimize

        ridge = 1.0 / (penalty * len(self._labels))
        limits = {"gtol": 1e-7, "ftol": 0.0, "maxiter": 10_000, "maxfun": 20_000, "maxcor": 30}
        result = minimize(self._loss, start, args=(ridge,), method="L-BFGS-B", jac=True, options=limits)
        return np.asarray(result.x)

    def _loss(self, point: Floats, ridge: float) -> tuple[float, Floats]:
        """Return the mean NLL + ridge / 2 * |W|^2 at a point, and its gradient in the form of the point."""
        weight, bias = self._weight_and_bias(point)
        logits = self._features @ weight.T + bias
        squared_norm = float(np.square(weight).sum())
        loss = _mean_nll(logits, self._labels) + ridge / 2 * squared_norm

        # The gradient of the mean NLL by the logits is (p - 1[y = k]) / N, [N, C].
        samples = len(logits)
        logit_gradient = softmax(logits)
        logit_gradient[np.arange(samples), self._labels] -= 1.0
        logit_gradient /= samples

        weight_gradient = logit_gradient.T @ self._features + ridge * weight  # [C, D]
        bias_gradient = logit_gradient.sum(axis=0)  # [C]
        gradient = np.column_stack([weight_gradient, bias_gradient])
        return loss, gradient.ravel()

    def _weight_and_bias(self, point: Floats) -> tuple[Floats, Floats]:
        """Return the weight [C, D] and the bias [C] of a point."""
        both = point.reshape(-1, self._features.shape[1] + 1)  # [C, D + 1]
        weight = both[:, :-1]
        bias = both[:, -1]
        return weight, bias


def _mean_nll(logits: Floats, labels: NDArray[np.int64]) -> float:
    """Return the mean over samples of -log p of the label, from logits [N, C] and labels [N]."""
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
    """Fit the probe ``knn`` or ``linear`` of one member; the arguments are those of :class:`LinearProbe`."""
    if name == "knn":
        return NeighbourProbe(features, labels, classes)
    return LinearProbe(features, labels, classes, val)
