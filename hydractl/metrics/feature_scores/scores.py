"""The OOD scores on features: each is one declaration, how it is fitted on training data and taken of samples.

Both are about one member; the score of an ensemble is the mean over its members. All arithmetic is float64, but for the
training of a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydractl.errors import InputError
from hydractl.metrics.feature_scores.vilu import fit_vilu, vilu_score
from hydractl.metrics.ood_scores import ON_FEATURES
from hydractl.metrics.probabilities import Floats

Statistics = Mapping[str, Floats]
"""What a score has been fitted to, by name."""

Score = Callable[[Statistics, Floats, Floats], Floats]

REACT_CLIP, ASH_PRUNED = 0.9, 0.65
_EPSILON = float(np.finfo(np.float32).eps)


@dataclass(frozen=True, eq=False)
class MemberTraining:
    """The training data as one member sees it, and its classifier.

    Attributes:
        features: float64 [N, D]; empty for a score that needs no training data.
        labels: [N], None where unlabelled.
        highest: the highest logit of each sample, [N].
        weight, bias: of the classifier, [C, D] and [C].
        neighbours: k of ``knn``.
    """

    features: Floats
    labels: NDArray[np.int64] | None
    highest: Floats
    weight: Floats
    bias: Floats
    neighbours: int = 50


@dataclass(frozen=True)
class FeatureScore:
    """One score.

    Attributes:
        fit: from training data to what is kept of them.
        score: of what was kept, features [n, D] and logits [n, C] in float64: float64 [n].
        convention: the sentence that defines it.
    """

    fit: Callable[[MemberTraining], Statistics]
    score: Score
    convention: str


FEATURE_SCORES: dict[str, FeatureScore] = {}
"""The scores by name; :data:`hydractl.metrics.ood_scores.ON_FEATURES` lists them for help texts."""


def _declare(name: str, convention: str, fit: Callable[[MemberTraining], Statistics]) -> Callable[[Score], Score]:
    """Declare the function below as the score of a name."""
    assert name in ON_FEATURES

    def declare(score: Score) -> Score:
        FEATURE_SCORES[name] = FeatureScore(fit, score, f"OOD score: {convention}; mean over members.")
        return score

    return declare


# --- Gaussians --------------------------------------------------------------------------------------------------------


def _whitening(centred: Floats) -> Floats:
    """Return the root of the pseudo-inverse of the covariance of centred features [N, D]: [D, r], r its rank.

    Directions in which the features spread by no more than rounding in float32 are left out, as a norm in front of the
    classifier, or fewer samples than features, leave some without any spread.
    """
    covariance = centred.T @ centred / len(centred)
    values, vectors = np.linalg.eigh(covariance)  # by rising eigenvalues
    largest = values[-1]
    rounding = largest * len(values) * _EPSILON**2
    kept = values > rounding
    if not kept.any() or largest <= 0:
        raise InputError("the features of --train are the same for every sample", hint="give more training data")
    return np.asarray(vectors[:, kept] / np.sqrt(values[kept]))


def _fit_mahalanobis(data: MemberTraining) -> dict[str, Floats]:
    """Return what classes of one covariance are described by.

    Returns:
        ``centre`` of all features, [D]; ``whitening`` of the covariance within classes, [D, r]; the whitened ``means``
        of the classes, [K, r].
    """
    assert data.labels is not None  # checked when --train is opened
    centre = data.features.mean(axis=0)
    _, class_of_sample, class_sizes = np.unique(data.labels, return_inverse=True, return_counts=True)
    means = np.zeros((len(class_sizes), data.features.shape[1]))  # [K, D]
    np.add.at(means, class_of_sample, data.features)
    means /= class_sizes[:, None]
    whitening = _whitening(data.features - means[class_of_sample])
    return {"centre": centre, "whitening": whitening, "means": (means - centre) @ whitening}


@_declare("mahalanobis", "squared Mahalanobis distance to the nearest class mean", _fit_mahalanobis)
def _mahalanobis(fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Lee et al. 2018, equation 2, on the last features alone; the covariance is shared by all classes."""
    whitened = (features - fitted["centre"]) @ fitted["whitening"]  # [n, r]
    means = fitted["means"]  # [K, r]
    squared_lengths = np.square(means).sum(axis=1)
    distances = _squared_distances(whitened, means, squared_lengths)  # [n, K]
    return np.asarray(distances.min(axis=1))


def _squared_distances(points: Floats, others: Floats, squared_lengths: Floats) -> Floats:
    """Return the squared distances [n, K] of points [n, D] from others [K, D], whose squared lengths are known, [K].

    Computed as |a|^2 - 2 a b + |b|^2: the differences [n, K, D] would be too much at once.
    """
    squared_lengths_of_points = np.square(points).sum(axis=1)
    twice_products = 2 * points @ others.T  # [n, K]
    return np.asarray(squared_lengths_of_points[:, None] - twice_products + squared_lengths)


def _fit_rmd(data: MemberTraining) -> dict[str, Floats]:
    """Return what :func:`_fit_mahalanobis` does, and the whitening of all features, ``background`` [D, r]."""
    fitted = _fit_mahalanobis(data)
    background = _whitening(data.features - fitted["centre"])
    return {**fitted, "background": background}


@_declare("rmd", "squared Mahalanobis distance to the nearest class mean less that to the mean of all", _fit_rmd)
def _rmd(fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Ren et al. 2021, equation 3."""
    whitened = (features - fitted["centre"]) @ fitted["background"]  # [n, r]
    to_mean_of_all = np.square(whitened).sum(axis=1)
    to_nearest_class = _mahalanobis(fitted, features, logits)
    return np.asarray(to_nearest_class - to_mean_of_all)


# --- neighbours -------------------------------------------------------------------------------------------------------


def unit(features: Floats) -> Floats:
    """Return features [N, D] scaled to length 1; those of length 0 stay so."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.maximum(lengths, 1e-12)


def _fit_knn(data: MemberTraining) -> Statistics:
    """Return the training features of length 1 as ``bank`` [N, D], their ``squares`` [N], and ``k`` [1]."""
    if len(data.features) < data.neighbours:
        raise InputError(
            f"knn looks for the nearest neighbour {data.neighbours}, and --train has {len(data.features)} samples",
            hint="give more training data, or a smaller --knn-k",
        )
    bank = unit(data.features).astype(np.float32).astype(np.float64)  # half as large in a file
    squared_lengths = np.square(bank).sum(axis=1)
    return {"bank": bank, "squares": squared_lengths, "k": np.array([float(data.neighbours)])}


@_declare("knn", "distance to the k-th nearest training sample, of features scaled to length 1", _fit_knn)
def _knn(fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Sun et al. 2022, section 3."""
    place = int(fitted["k"][0]) - 1
    squared_distances = _squared_distances(unit(features), fitted["bank"], fitted["squares"])  # [n, N]
    of_neighbour = np.partition(squared_distances, place, axis=1)[:, place]
    return np.asarray(np.sqrt(np.maximum(of_neighbour, 0.0)))  # rounding makes some of them negative


# --- the classifier ---------------------------------------------------------------------------------------------------


def _energy(logits: Floats) -> Floats:
    """Return -logsumexp of logits [n, C], [n]."""
    highest = logits.max(axis=1)
    powers = np.exp(logits - highest[:, None])
    return np.asarray(-highest - np.log(powers.sum(axis=1)))


def _energy_of_classified(fitted: Statistics, features: Floats) -> Floats:
    """Return the energy [n] of the logits that the classifier gives features [n, D]."""
    logits = features @ fitted["weight"].T + fitted["bias"]
    return _energy(logits)


def _principal_dimensions(features: int) -> int:
    """Return the dimensions of the principal space of ViM: those of the paper, and half of few as its authors do."""
    if features > 1500:
        return 1000
    if features >= 768:
        return 512
    return features // 2


def _fit_vim(data: MemberTraining) -> dict[str, Floats]:
    """Return the space outside the principal one, and what scales a length in it to a logit.

    Returns:
        ``origin``, the features whose logits are all 0, [D]; ``residual``, the space outside, [D, r]; ``alpha`` [1].
    """
    origin = -np.linalg.pinv(data.weight) @ data.bias
    shifted = data.features - origin
    second_moments = shifted.T @ shifted / len(shifted)  # [D, D]
    _, vectors = np.linalg.eigh(second_moments)  # by rising eigenvalues: the residual space comes first
    dimensions = len(vectors)
    residual = vectors[:, : dimensions - _principal_dimensions(dimensions)]
    lengths = np.linalg.norm(shifted @ residual, axis=1)
    if not lengths.any():
        raise InputError("the features of --train have no residual for vim", hint="give more training data")
    alpha = data.highest.mean() / lengths.mean()  # scales a length to a logit
    return {"origin": origin, "residual": residual, "alpha": np.array([alpha])}


@_declare("vim", "length of the features outside their principal space, scaled to a logit, plus the energy", _fit_vim)
def _vim(fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Wang et al. 2022, sections 4.2 and 4.3, before the softmax that keeps the order."""
    outside = (features - fitted["origin"]) @ fitted["residual"]  # [n, r]
    virtual_logit = np.linalg.norm(outside, axis=1) * fitted["alpha"][0]
    return np.asarray(virtual_logit + _energy(logits))


def _classifier(data: MemberTraining) -> dict[str, Floats]:
    return {"weight": data.weight, "bias": data.bias}


def _fit_react(data: MemberTraining) -> Statistics:
    """Return the classifier, and the quantile of all training features at which they are clipped, ``clip`` [1]."""
    clip = np.quantile(data.features, REACT_CLIP)
    return {**_classifier(data), "clip": np.array([clip])}


@_declare(
    "react", "energy of the logits of features clipped at the 90th percentile of all training features", _fit_react
)
def _react(fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Sun et al. 2021, section 3."""
    clipped = np.minimum(features, fitted["clip"][0])
    return _energy_of_classified(fitted, clipped)


@_declare("ash", "energy of the logits of the highest 35 % of the features, scaled by ASH-S", _classifier)
def _ash(fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Djurisic et al. 2023, algorithm 3 (ASH-S), with 65 % pruned; of equal features the first are kept."""
    dimensions = features.shape[1]
    kept = dimensions - round(dimensions * ASH_PRUNED)
    places = np.argsort(-features, axis=1, kind="stable")[:, :kept]  # of the highest features, [n, kept]
    highest = np.take_along_axis(features, places, axis=1)
    pruned = np.zeros_like(features)
    np.put_along_axis(pruned, places, highest, axis=1)
    scale = np.exp(features.sum(axis=1) / pruned.sum(axis=1))
    return _energy_of_classified(fitted, pruned * scale[:, None])


# --- errors -----------------------------------------------------------------------------------------------------------


def _fit_vilu(data: MemberTraining) -> Statistics:
    """Return the network trained on the features, of which the classifier's weight holds those of the class texts."""
    assert data.labels is not None  # checked when --train is opened
    return fit_vilu(unit(data.features), data.labels, unit(data.weight))


@_declare("vilu", "probability that the prediction is wrong, by a network on image and class texts (ViLU)", _fit_vilu)
def _vilu(fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Lafon et al. 2025, section 3."""
    return vilu_score(fitted, unit(features))
