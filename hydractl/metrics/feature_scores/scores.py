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
    values, vectors = np.linalg.eigh(covariance)  # rising
    kept = values > values[-1] * len(values) * _EPSILON**2
    if not kept.any() or values[-1] <= 0:
        raise InputError("the features of --fit are the same for every sample", hint="give more training data")
    return np.asarray(vectors[:, kept] / np.sqrt(values[kept]))


def _fit_mahalanobis(data: MemberTraining) -> dict[str, Floats]:
    """Return the centre of all features, the whitening of the covariance within classes, and the whitened means."""
    assert data.labels is not None  # checked when --fit is opened
    centre = data.features.mean(axis=0)
    _, class_of, counts = np.unique(data.labels, return_inverse=True, return_counts=True)
    means = np.zeros((len(counts), data.features.shape[1]))
    np.add.at(means, class_of, data.features)
    means /= counts[:, None]
    whitening = _whitening(data.features - means[class_of])
    return {"centre": centre, "whitening": whitening, "means": (means - centre) @ whitening}


@_declare("mahalanobis", "squared Mahalanobis distance to the nearest class mean", _fit_mahalanobis)
def _mahalanobis(fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Lee et al. 2018, equation 2, on the last features alone; the covariance is shared by all classes."""
    whitened = (features - fitted["centre"]) @ fitted["whitening"]  # [n, r]
    means = fitted["means"]  # [classes, r]
    squares = np.square(means).sum(axis=1)
    return np.asarray(_squared_distances(whitened, means, squares).min(axis=1))


def _squared_distances(points: Floats, others: Floats, squares: Floats) -> Floats:
    """Return the squared distances [n, K] of points [n, D] from others [K, D], whose squared lengths are known.

    |a - b|^2 is written out: the differences [n, K, D] would be too much at once.
    """
    return np.asarray(np.square(points).sum(axis=1)[:, None] - 2 * points @ others.T + squares)


def _fit_rmd(data: MemberTraining) -> dict[str, Floats]:
    fitted = _fit_mahalanobis(data)
    return {**fitted, "background": _whitening(data.features - fitted["centre"])}


@_declare("rmd", "squared Mahalanobis distance to the nearest class mean less that to the mean of all", _fit_rmd)
def _rmd(fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Ren et al. 2021, equation 3."""
    background = np.square((features - fitted["centre"]) @ fitted["background"]).sum(axis=1)
    return np.asarray(_mahalanobis(fitted, features, logits) - background)


# --- neighbours -------------------------------------------------------------------------------------------------------


def unit(features: Floats) -> Floats:
    """Return features [N, D] scaled to length 1; those of length 0 stay so."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.maximum(lengths, 1e-12)


def _fit_knn(data: MemberTraining) -> Statistics:
    if len(data.features) < data.neighbours:
        raise InputError(
            f"knn looks for the nearest neighbour {data.neighbours}, and --fit has {len(data.features)} samples",
            hint="give more training data, or a smaller --knn-k",
        )
    bank = unit(data.features).astype(np.float32).astype(np.float64)  # half as large in a file
    return {"bank": bank, "squares": np.square(bank).sum(axis=1), "k": np.array([float(data.neighbours)])}


@_declare("knn", "distance to the k-th nearest training sample, of features scaled to length 1", _fit_knn)
def _knn(fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Sun et al. 2022, section 3."""
    place = int(fitted["k"][0]) - 1
    squared = _squared_distances(unit(features), fitted["bank"], fitted["squares"])
    nearest = np.partition(squared, place, axis=1)[:, place]
    return np.asarray(np.sqrt(np.maximum(nearest, 0.0)))  # rounding makes some of them negative


# --- the classifier ---------------------------------------------------------------------------------------------------


def _energy(logits: Floats) -> Floats:
    """Return -logsumexp of logits [n, C]."""
    highest = logits.max(axis=1)
    powers = np.exp(logits - highest[:, None])
    return np.asarray(-highest - np.log(powers.sum(axis=1)))


def _classified(fitted: Statistics, features: Floats) -> Floats:
    """Return the energy of the logits that the classifier gives these features."""
    return _energy(features @ fitted["weight"].T + fitted["bias"])


def _principal(features: int) -> int:
    """Return the dimensions of the principal space of ViM: those of the paper, and half of few as its authors do."""
    if features > 1500:
        return 1000
    if features >= 768:
        return 512
    return features // 2


def _fit_vim(data: MemberTraining) -> dict[str, Floats]:
    origin = -np.linalg.pinv(data.weight) @ data.bias
    shifted = data.features - origin
    _, vectors = np.linalg.eigh(shifted.T @ shifted / len(shifted))  # by rising eigenvalues: the residual comes first
    dimensions = len(vectors)
    residual = vectors[:, : dimensions - _principal(dimensions)]
    lengths = np.linalg.norm(shifted @ residual, axis=1)
    if not lengths.any():
        raise InputError("the features of --fit have no residual for vim", hint="give more training data")
    alpha = data.highest.mean() / lengths.mean()  # scales a length to a logit
    return {"origin": origin, "residual": residual, "alpha": np.array([alpha])}


@_declare("vim", "length of the features outside their principal space, scaled to a logit, plus the energy", _fit_vim)
def _vim(fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Wang et al. 2022, sections 4.2 and 4.3, before the softmax that keeps the order."""
    lengths = np.linalg.norm((features - fitted["origin"]) @ fitted["residual"], axis=1)
    return np.asarray(lengths * fitted["alpha"][0] + _energy(logits))


def _classifier(data: MemberTraining) -> dict[str, Floats]:
    return {"weight": data.weight, "bias": data.bias}


def _fit_react(data: MemberTraining) -> Statistics:
    return {**_classifier(data), "clip": np.array([np.quantile(data.features, REACT_CLIP)])}


@_declare(
    "react", "energy of the logits of features clipped at the 90th percentile of all training features", _fit_react
)
def _react(fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Sun et al. 2021, section 3."""
    return _classified(fitted, np.minimum(features, fitted["clip"][0]))


@_declare("ash", "energy of the logits of the highest 35 % of the features, scaled by ASH-S", _classifier)
def _ash(fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Djurisic et al. 2023, algorithm 3 (ASH-S), with 65 % pruned; of equal features the first are kept."""
    kept = features.shape[1] - round(features.shape[1] * ASH_PRUNED)
    places = np.argsort(-features, axis=1, kind="stable")[:, :kept]
    pruned = np.zeros_like(features)
    np.put_along_axis(pruned, places, np.take_along_axis(features, places, axis=1), axis=1)
    scale = np.exp(features.sum(axis=1) / pruned.sum(axis=1))
    return _classified(fitted, pruned * scale[:, None])


# --- errors -----------------------------------------------------------------------------------------------------------


def _fit_vilu(data: MemberTraining) -> Statistics:
    assert data.labels is not None  # checked when --fit is opened
    return fit_vilu(unit(data.features), data.labels, unit(data.weight))


@_declare("vilu", "probability that the prediction is wrong, by a network on image and class texts (ViLU)", _fit_vilu)
def _vilu(fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Lafon et al. 2025, section 3."""
    return vilu_score(fitted, unit(features))
