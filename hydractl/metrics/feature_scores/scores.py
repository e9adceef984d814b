"""The OOD scores on features: each is declared with a function that fits it to training data and one that computes it.

Both functions see one member; the score of an ensemble is the mean over its members. All arithmetic is float64, except
for the training of a network. The second one runs on numpy arrays, and on tensors in an exported graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydractl.errors import InputError
from hydractl.metrics.arrays import ON_ARRAYS, Arrays
from hydractl.metrics.feature_scores.vilu import fit_vilu, vilu_probabilities
from hydractl.metrics.ood_scores import ON_FEATURES
from hydractl.metrics.probabilities import Floats

Statistics = Mapping[str, Floats]
"""The arrays that a score keeps of the training data, by name."""

Score = Callable[[Arrays, Statistics, Floats, Floats], Floats]

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
        fit: computes from training data what the score keeps of them.
        function: computes the scores, float64 [n], by operations on arrays from what was kept, features [n, D] and
            logits [n, C] in float64.
        convention: the sentence that defines it.
        numbers: those parts of what was kept that are a single number, [1].
    """

    fit: Callable[[MemberTraining], Statistics]
    function: Score
    convention: str
    numbers: tuple[str, ...] = ()

    def score(self, fitted: Statistics, features: Floats, logits: Floats, arrays: Arrays = ON_ARRAYS) -> Floats:
        """Return the scores, float64 [n], from what was kept, features [n, D] and logits [n, C] in float64."""
        return self.function(arrays, fitted, features, logits)


FEATURE_SCORES: dict[str, FeatureScore] = {}
"""The scores by name; :data:`hydractl.metrics.ood_scores.ON_FEATURES` lists them for help texts."""


def _declare(
    name: str, convention: str, fit: Callable[[MemberTraining], Statistics], *, numbers: tuple[str, ...] = ()
) -> Callable[[Score], Score]:
    """Declare the function below as the score of a name."""
    assert name in ON_FEATURES

    def declare(score: Score) -> Score:
        sentence = f"OOD score: {convention}; mean over members."
        FEATURE_SCORES[name] = FeatureScore(fit, score, sentence, numbers)
        return score

    return declare


# --- Gaussians --------------------------------------------------------------------------------------------------------


def _whitening(centred: Floats) -> Floats:
    """Return the root of the pseudo-inverse of the covariance of centred features [N, D]: [D, r], r its rank.

    Directions in which the features spread by no more than rounding in float32 are left out: a norm in front of the
    classifier, or fewer samples than features, leaves some directions without any spread.

    Raises:
        InputError: the features do not spread in any direction.
    """
    covariance = centred.T @ centred / len(centred)
    eigenvalues, eigenvectors = np.linalg.eigh(covariance)  # rising; [D] and [D, D]
    largest = eigenvalues[-1]
    rounding = largest * len(eigenvalues) * _EPSILON**2
    exceeds_rounding = eigenvalues > rounding
    if not exceeds_rounding.any() or largest <= 0:
        raise InputError("the features of --train are the same for every sample", hint="give more training data")
    directions = eigenvectors[:, exceeds_rounding]
    deviations = np.sqrt(eigenvalues[exceeds_rounding])
    whitening: Floats = directions / deviations
    return whitening


def _fit_mahalanobis(data: MemberTraining) -> dict[str, Floats]:
    """Describe the classes as Gaussians that share one covariance.

    Returns:
        ``centre`` of all features, [D]; ``whitening`` of the covariance within classes, [D, r]; the whitened ``means``
        of the classes, [K, r].
    """
    assert data.labels is not None  # checked when --train is opened
    centre = data.features.mean(axis=0)  # [D]

    _, class_of_sample, class_sizes = np.unique(data.labels, return_inverse=True, return_counts=True)
    dimensions = data.features.shape[1]
    means = np.zeros((len(class_sizes), dimensions))  # [K, D]
    np.add.at(means, class_of_sample, data.features)
    means /= class_sizes[:, None]

    within_classes = data.features - means[class_of_sample]  # [N, D]
    whitening = _whitening(within_classes)
    whitened_means = (means - centre) @ whitening
    return {"centre": centre, "whitening": whitening, "means": whitened_means}


@_declare("mahalanobis", "squared Mahalanobis distance to the nearest class mean", _fit_mahalanobis)
def _mahalanobis(arrays: Arrays, fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Lee et al. 2018, equation 2, on the last features alone; the covariance is shared by all classes."""
    whitened = (features - fitted["centre"]) @ fitted["whitening"]  # [n, r]
    means = fitted["means"]  # [K, r]
    squared_lengths = (means * means).sum(axis=1)
    distances = _squared_distances(whitened, means, squared_lengths)  # [n, K]
    return arrays.min(distances, axis=1)


def _squared_distances(points: Floats, others: Floats, squared_lengths: Floats) -> Floats:
    """Return the squared distances [n, K] of points [n, D] from others [K, D], whose squared lengths are known, [K].

    They are computed as |a|^2 - 2 a b + |b|^2, because the differences [n, K, D] would need too much memory.
    """
    squared_lengths_of_points = (points * points).sum(axis=1)
    twice_products = 2 * points @ others.T  # [n, K]
    squared_distances: Floats = squared_lengths_of_points[:, None] - twice_products + squared_lengths
    return squared_distances


def _fit_rmd(data: MemberTraining) -> dict[str, Floats]:
    """Return the arrays of :func:`_fit_mahalanobis`, and ``background`` [D, r], the whitening of all features."""
    fitted = _fit_mahalanobis(data)
    centred = data.features - fitted["centre"]
    background = _whitening(centred)
    return {**fitted, "background": background}


@_declare("rmd", "squared Mahalanobis distance to the nearest class mean less that to the mean of all", _fit_rmd)
def _rmd(arrays: Arrays, fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Ren et al. 2021, equation 3."""
    whitened = (features - fitted["centre"]) @ fitted["background"]  # [n, r]
    to_mean_of_all = (whitened * whitened).sum(axis=1)
    to_nearest_class = _mahalanobis(arrays, fitted, features, logits)
    difference: Floats = to_nearest_class - to_mean_of_all
    return difference


# --- neighbours -------------------------------------------------------------------------------------------------------


def unit(features: Floats, arrays: Arrays = ON_ARRAYS) -> Floats:
    """Return features [N, D] scaled to length 1; those of length 0 remain 0."""
    lengths = _lengths(features, arrays)
    positive_lengths = arrays.at_least(lengths, 1e-12)
    return features / positive_lengths[:, None]


def _lengths(features: Floats, arrays: Arrays) -> Floats:
    """Return the lengths [N] of features [N, D]."""
    squares = features * features
    return arrays.sqrt(squares.sum(axis=1))


def _fit_knn(data: MemberTraining) -> Statistics:
    """Keep the training features for the search.

    Returns:
        ``bank``, the features scaled to length 1, [N, D]; ``squares``, their squared lengths after rounding, [N]; ``k``
        [1].

    Raises:
        InputError: there are fewer than k training samples.
    """
    if len(data.features) < data.neighbours:
        raise InputError(
            f"knn looks for the nearest neighbour {data.neighbours}, and --train has {len(data.features)} samples",
            hint="give more training data, or a smaller --knn-k",
        )
    # Rounded to float32, which takes half the space in a file, before the lengths are computed.
    rounded = unit(data.features).astype(np.float32)
    bank = rounded.astype(np.float64)
    squared_lengths = np.square(bank).sum(axis=1)
    k = np.array([float(data.neighbours)])
    return {"bank": bank, "squares": squared_lengths, "k": k}


def smaller_bank(fitted: Statistics, samples: int) -> Statistics:
    """Return what ``knn`` keeps, with so many samples of its bank at most, evenly spaced.

    Raises:
        InputError: these are fewer than its neighbours.
    """
    bank = fitted["bank"]
    if samples >= len(bank):
        return fitted
    neighbours = int(fitted["k"][0])
    if samples < neighbours:
        raise InputError(
            f"knn looks for the nearest neighbour {neighbours}, and --knn-bank keeps {samples} samples",
            hint="a larger --knn-bank, or a smaller --knn-k",
        )
    kept = np.arange(samples) * len(bank) // samples
    return {**fitted, "bank": bank[kept], "squares": fitted["squares"][kept]}


@_declare(
    "knn", "distance to the k-th nearest training sample, of features scaled to length 1", _fit_knn, numbers=("k",)
)
def _knn(arrays: Arrays, fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Sun et al. 2022, section 3."""
    squared_distances = _squared_distances(unit(features, arrays), fitted["bank"], fitted["squares"])  # [n, N]
    k = int(fitted["k"][0])
    to_neighbour = arrays.kth_lowest(squared_distances, k)  # squared, [n]
    not_negative = arrays.at_least(to_neighbour, 0.0)  # rounding makes some of them negative
    return arrays.sqrt(not_negative)


# --- the classifier ---------------------------------------------------------------------------------------------------


def _energy(logits: Floats, arrays: Arrays) -> Floats:
    """Return the energy, -logsumexp, of logits [n, C], [n]."""
    highest = arrays.max(logits, axis=1)
    shifted = logits - highest[:, None]
    powers = arrays.exp(shifted)
    total = powers.sum(axis=1)
    return -highest - arrays.log(total)


def _energy_of_classified(arrays: Arrays, fitted: Statistics, features: Floats) -> Floats:
    """Return the energy [n] of the logits that the classifier gives features [n, D]."""
    weight = fitted["weight"]
    logits = features @ weight.T + fitted["bias"]
    return _energy(logits, arrays)


def _principal_dimensions(features: int) -> int:
    """Return the number of dimensions of ViM's principal space for so many features.

    1000 and 512 are those of the paper; its authors take half of the features where there are fewer.
    """
    if features > 1500:
        return 1000
    if features >= 768:
        return 512
    return features // 2


def _fit_vim(data: MemberTraining) -> dict[str, Floats]:
    """Fit the residual space, which is orthogonal to the principal space, and the factor that makes a length a logit.

    Returns:
        ``origin``, the features whose logits are all 0, [D]; ``residual``, a basis of the residual space, [D, r];
        ``alpha``, the factor, [1].

    Raises:
        InputError: the training features have no part in the residual space.
    """
    origin = -np.linalg.pinv(data.weight) @ data.bias
    shifted = data.features - origin  # [N, D]
    second_moments = shifted.T @ shifted / len(shifted)  # [D, D]

    _, eigenvectors = np.linalg.eigh(second_moments)  # by rising eigenvalues: the residual space comes first
    dimensions = len(eigenvectors)
    residual_dimensions = dimensions - _principal_dimensions(dimensions)
    residual = eigenvectors[:, :residual_dimensions]

    lengths = np.linalg.norm(shifted @ residual, axis=1)
    if not lengths.any():
        raise InputError("the features of --train have no residual for vim", hint="give more training data")
    alpha = data.highest.mean() / lengths.mean()
    return {"origin": origin, "residual": residual, "alpha": np.array([alpha])}


@_declare(
    "vim",
    "length of the features outside their principal space, scaled to a logit, plus the energy",
    _fit_vim,
    numbers=("alpha",),
)
def _vim(arrays: Arrays, fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Wang et al. 2022, sections 4.2 and 4.3, without their softmax, which would not change the order."""
    residual = (features - fitted["origin"]) @ fitted["residual"]  # [n, r]
    alpha = arrays.number(float(fitted["alpha"][0]))
    virtual_logit = _lengths(residual, arrays) * alpha
    return virtual_logit + _energy(logits, arrays)


def _classifier(data: MemberTraining) -> dict[str, Floats]:
    return {"weight": data.weight, "bias": data.bias}


def _fit_react(data: MemberTraining) -> Statistics:
    """Return the classifier, and ``clip`` [1], the quantile of all training features at which features are clipped."""
    classifier = _classifier(data)
    clip = np.quantile(data.features, REACT_CLIP)
    return {**classifier, "clip": np.array([clip])}


@_declare(
    "react",
    "energy of the logits of features clipped at the 90th percentile of all training features",
    _fit_react,
    numbers=("clip",),
)
def _react(arrays: Arrays, fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Sun et al. 2021, section 3."""
    clip = float(fitted["clip"][0])
    clipped = arrays.at_most(features, clip)
    return _energy_of_classified(arrays, fitted, clipped)


@_declare("ash", "energy of the logits of the highest 35 % of the features, scaled by ASH-S", _classifier)
def _ash(arrays: Arrays, fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Djurisic et al. 2023, algorithm 3 (ASH-S), with 65 % pruned; of equal features the first are kept."""
    # Keep the highest features of each sample, and set the others to 0.
    dimensions = features.shape[1]
    kept = dimensions - round(dimensions * ASH_PRUNED)
    falling = arrays.places_by_falling_value(features)
    places = falling[:, :kept]  # of the highest features, [n, kept]
    highest = arrays.taken(features, places)
    pruned = arrays.placed(highest, places, dimensions)

    # Scale the kept features by the ratio of the sums before and after.
    sums_before = features.sum(axis=1)
    sums_after = pruned.sum(axis=1)
    scale = arrays.exp(sums_before / sums_after)
    scaled = pruned * scale[:, None]
    return _energy_of_classified(arrays, fitted, scaled)


# --- errors -----------------------------------------------------------------------------------------------------------


def _fit_vilu(data: MemberTraining) -> Statistics:
    """Return the trained network; the rows of the classifier's weight are the features of the class texts."""
    assert data.labels is not None  # checked when --train is opened
    images = unit(data.features)
    texts = unit(data.weight)
    return fit_vilu(images, data.labels, texts)


def _fit_scaled_vilu(data: MemberTraining) -> Statistics:
    """Return the network whose attention is as sharp as the softmax of the model, as in the authors' code.

    The length of the rows of the classifier's weight is the factor of the cosines in the logits.
    """
    assert data.labels is not None  # checked when --train is opened
    images = unit(data.features)
    texts = unit(data.weight)
    scale = float(np.linalg.norm(data.weight[0]))
    return fit_vilu(images, data.labels, texts, scale)


@_declare(
    "vilu",
    "probability that the prediction is wrong, by a network on image and class texts (ViLU)",
    _fit_vilu,
    numbers=("constant",),
)
def _vilu(arrays: Arrays, fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Lafon et al. 2025, section 3."""
    if "constant" in fitted:
        share_of_errors = float(fitted["constant"][0])
        return arrays.filled(features[:, 0], share_of_errors)
    return arrays.by_network(vilu_probabilities, fitted, unit(features, arrays))


@_declare(
    "vilu-scaled",
    "that of vilu, whose attention to the texts is as sharp as the softmax of the model",
    _fit_scaled_vilu,
    numbers=("constant",),
)
def _scaled_vilu(arrays: Arrays, fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Source: Lafon et al. 2025, section 3, and their code."""
    return _vilu(arrays, fitted, features, logits)
