"""Probes: classifiers of frozen features, fitted to labelled training data. They measure what features are worth.

A probe is one class: fitted by its constructor to the features of one member, it gives logits. The probabilities of an
ensemble are, as ever, the mean of its members' softmax. All arithmetic is float64.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hydractl.errors import InputError
from hydractl.metrics.feature_scores import unit
from hydractl.metrics.probabilities import Floats, log_softmax, softmax

NEIGHBOURS, TEMPERATURE = 20, 0.07
NO_VOTE = float(np.finfo(np.float32).eps)
"""Probability of a class without a vote, as scikit-learn's ``log_loss`` clips those of float32."""
PENALTY = 1.0
PENALTIES = tuple(10.0**power for power in range(-4, 5))
"""The values of C that a validation set chooses from, the strongest penalty first."""

CONVENTIONS = {
    "probe": "The row is measured by a classifier of the features that its readout gives, fitted to the training data"
    f" of --fit for each member. knn: the {NEIGHBOURS} training samples of highest cosine similarity s vote with weight"
    f" exp(s / {TEMPERATURE}) for their class; the logit of a class is the logarithm of its votes, and a class without"
    f" one has the probability {NO_VOTE:.1g}. linear: multinomial logistic regression on standardised features that"
    " minimises the mean NLL + |W|^2 / (2 C n), n training samples, where C is 1, or the power of ten from 1e-4 to 1e4"
    " of lowest NLL on --val. cost is that of the model without the probe.",
}


class Probe(Protocol):
    """A fitted probe.

    Attributes:
        weight, bias: ``[C, D]`` and ``[C]`` where its logits are linear in the features, else of no class.
        facts: the settings that were chosen, as they stand in the row.
    """

    weight: Floats
    bias: Floats
    facts: dict[str, Any]

    def logits(self, features: Floats) -> Floats:
        """Return logits [n, C] of features [n, D]."""


class Neighbours:
    """Votes of the nearest training samples. Source: Wu et al. 2018, section 3.4; Caron et al. 2021 (k = 20).

    Args:
        features: float64 [N, D] of the training data.
        labels: [N] integers in 0..classes-1.
        classes: C.

    Raises:
        InputError: fewer samples than neighbours.
    """

    def __init__(self, features: Floats, labels: NDArray[np.int64], classes: int) -> None:
        if len(features) < NEIGHBOURS:
            raise InputError(
                f"--probe knn asks {NEIGHBOURS} neighbours, and --fit has {len(features)} samples",
                hint="give more training data, or --probe linear",
            )
        self._bank, self._labels, self._classes = unit(features), labels, classes
        self.weight, self.bias = np.zeros((0, features.shape[1])), np.zeros(0)
        self.facts: dict[str, Any] = {}

    def logits(self, features: Floats) -> Floats:
        """Return the logarithms of the votes [n, C] that features [n, D] get: their softmax is the shares of votes."""
        similarity = unit(features) @ self._bank.T
        near = np.argpartition(-similarity, NEIGHBOURS - 1, axis=1)[:, :NEIGHBOURS]
        votes = np.full((len(features), self._classes), -np.inf)
        weights = np.take_along_axis(similarity, near, axis=1) / TEMPERATURE
        np.logaddexp.at(votes, (np.arange(len(features))[:, None], self._labels[near]), weights)
        return np.maximum(votes, np.logaddexp.reduce(votes, axis=1, keepdims=True) + np.log(NO_VOTE))


class Linear:
    """Multinomial logistic regression on standardised features, by scipy's L-BFGS-B.

    Args:
        features: float64 [N, D] of the training data.
        labels: [N] integers in 0..classes-1.
        classes: C.
        val: features and labels of validation data, which choose the penalty; None: it is :data:`PENALTY`.
    """

    def __init__(
        self,
        features: Floats,
        labels: NDArray[np.int64],
        classes: int,
        val: tuple[Floats, NDArray[np.int64]] | None = None,
    ) -> None:
        centre, spread = features.mean(axis=0), features.std(axis=0)
        self._scale = 1.0 / np.where(spread > 0, spread, 1.0)
        self._shift, self._samples = -centre * self._scale, features * self._scale - centre * self._scale
        self._labels, best = labels, np.inf
        point = np.zeros(classes * (features.shape[1] + 1))
        for penalty in (PENALTY,) if val is None else PENALTIES:  # each starts where the stronger one before it ended
            point = self._fitted(point, penalty)
            weight, bias = self._unscaled(point)
            error = 0.0 if val is None else _nll(val[0] @ weight.T + bias, val[1])
            if error >= best:
                break
            best, self.weight, self.bias = error, weight, bias
            self.facts: dict[str, Any] = {"c": penalty}
        del self._samples, self._labels

    def logits(self, features: Floats) -> Floats:
        """Return logits [n, C] of features [n, D]."""
        return np.asarray(features @ self.weight.T + self.bias)

    def _unscaled(self, point: Floats) -> tuple[Floats, Floats]:
        """Return the weight and bias for features as they are."""
        standard = point.reshape(-1, len(self._scale) + 1)  # [C * (D + 1)] -> [C, D + 1]
        return standard[:, :-1] * self._scale, standard[:, -1] + standard[:, :-1] @ self._shift

    def _fitted(self, start: Floats, penalty: float) -> Floats:
        from scipy.optimize import minimize

        ridge = 1.0 / (penalty * len(self._labels))

        def objective(point: Floats) -> tuple[float, Floats]:
            both = point.reshape(-1, self._samples.shape[1] + 1)  # [C * (D + 1)] -> [C, D + 1]
            weight, logits = both[:, :-1], self._samples @ both[:, :-1].T + both[:, -1]
            error = softmax(logits)
            error[np.arange(len(error)), self._labels] -= 1.0
            error /= len(error)
            gradient = np.column_stack([error.T @ self._samples + ridge * weight, error.sum(axis=0)])
            return _nll(logits, self._labels) + ridge / 2 * float(np.square(weight).sum()), gradient.ravel()

        limits = {"gtol": 1e-7, "ftol": 0.0, "maxiter": 10_000, "maxfun": 20_000, "maxcor": 30}
        return np.asarray(minimize(objective, start, method="L-BFGS-B", jac=True, options=limits).x)


def _nll(logits: Floats, labels: NDArray[np.int64]) -> float:
    return -float(log_softmax(logits)[np.arange(len(labels)), labels].mean())


def fit_probe(
    name: str,
    features: Floats,
    labels: NDArray[np.int64],
    classes: int,
    val: tuple[Floats, NDArray[np.int64]] | None = None,
) -> Probe:
    """Fit the probe of a name, ``knn`` or ``linear``, of one member; the arguments are those of :class:`Linear`."""
    return Neighbours(features, labels, classes) if name == "knn" else Linear(features, labels, classes, val)
