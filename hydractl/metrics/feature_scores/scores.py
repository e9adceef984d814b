"""The OOD scores on features. Each is declared with a function that fits it to training data and one that computes it.

Both functions see one member; the score of an ensemble is the mean over its members. All arithmetic is float64, except
for the training of a network. The function that computes a score runs on numpy arrays, and on tensors in an exported
graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hydractl.errors import InputError
from hydractl.metrics.arrays import ON_ARRAYS, Arrays
from hydractl.metrics.feature_scores.layers import LayerSums, by_layer
from hydractl.metrics.feature_scores.vilu import fit_vilu, vilu_probabilities
from hydractl.metrics.ood_scores import HEDGE, LAYERS, OF_LAYERS, ON_FEATURES, SCORES
from hydractl.metrics.probabilities import Block, Floats

Statistics = Mapping[str, Floats]
"""What a score keeps from fitting to training data: arrays by name."""

Score = Callable[[Arrays, Statistics, Floats, Floats], Floats]

REACT_CLIP, ASH_PRUNED = 0.9, 0.65
_LARGEST_EXPONENT = 100.0
"""The largest exponent of a scale factor. Features that are never negative stay far below it; signed ones may not."""
_SHORTEST = 1e-12
"""The smallest deviation that ``hedge`` divides by."""
_EPSILON = float(np.finfo(np.float32).eps)


@dataclass(frozen=True, eq=False)
class MemberTraining:
    """The training data as one member sees them, and the member's classifier.

    Attributes:
        features: float64 [N, D]; empty for a score that needs no training data.
        labels: [N]; None for data without labels.
        highest: the highest logit of each sample, [N].
        weight, bias: the classifier's parameters, [C, D] and [C]; its logits are ``features @ weight.T + bias``.
        neighbours: k of ``knn``.
        words: for a zero-shot model, the features of texts of words that name no class, [W, D]; None without words.
        layers: sums over the samples, of the features and then of what each block gives; empty if no score takes them.
        held_out: whether ``hedge`` holds out each sample, [N]; None for :func:`held_out_of`.
        layers_held_out: of these samples the features and what each block gives, side by side, [n, sum of widths]; None
            without ``layers``, or without ``hedge``.
    """

    features: Floats
    labels: NDArray[np.int64] | None
    highest: Floats
    weight: Floats
    bias: Floats
    neighbours: int = 50
    words: Floats | None = None
    layers: Sequence[LayerSums] = ()
    held_out: NDArray[np.bool_] | None = None
    layers_held_out: Floats | None = None


@dataclass(frozen=True)
class FeatureScore:
    """One score.

    Attributes:
        fit: computes from training data the arrays that the score keeps.
        function: computes the scores, float64 [n], from the operations on arrays, the arrays kept, the features [n, D]
            and the logits [n, C] in float64.
        convention: the sentence that defines it.
        numbers: the names of kept arrays that hold a single number, [1].
    """

    fit: Callable[[MemberTraining], Statistics]
    function: Score
    convention: str
    numbers: tuple[str, ...] = ()

    def score(self, fitted: Statistics, features: Floats, logits: Floats, arrays: Arrays = ON_ARRAYS) -> Floats:
        """Return the scores, float64 [n].

        Args:
            fitted: the arrays that ``fit`` returned.
            features: [n, D] in float64; for one of ``OF_LAYERS`` those of all layers, side by side.
            logits: [n, C] in float64.
            arrays: the operations: on numpy arrays, or on tensors of an exported graph.
        """
        return self.function(arrays, fitted, features, logits)


FEATURE_SCORES: dict[str, FeatureScore] = {}
"""The scores by name; :data:`hydractl.metrics.ood_scores.ON_FEATURES` lists them for help texts."""


def _declare(
    name: str,
    convention: str,
    fit: Callable[[MemberTraining], Statistics],
    *,
    numbers: tuple[str, ...] = (),
) -> Callable[[Score], Score]:
    """Return a decorator that declares a function as the score of a name.

    Args:
        name: the name of the score, one of ``ON_FEATURES``.
        convention: its definition, without "OOD score:" before it and "mean over members" after it.
        fit: fits it to training data.
        numbers: the names of kept arrays that hold a single number.
    """
    assert name in ON_FEATURES

    def declare(score: Score) -> Score:
        sentence = f"OOD score: {convention}; mean over members."
        FEATURE_SCORES[name] = FeatureScore(fit, score, sentence, numbers)
        return score

    return declare


def _exceed_rounding(eigenvalues: Floats) -> NDArray[np.bool_]:
    """Return which eigenvalues, [D] in rising order, are more than float32 rounding of the features could make."""
    largest = eigenvalues[-1]
    rounding = largest * len(eigenvalues) * _EPSILON**2
    exceeds_rounding: NDArray[np.bool_] = eigenvalues > rounding
    return exceeds_rounding


# --- Gaussians --------------------------------------------------------------------------------------------------------


def _whitening(centred: Floats) -> Floats:
    """Return the matrix of :func:`_whitening_of` for the covariance of centred features [N, D]."""
    return _whitening_of(centred.T @ centred / len(centred))


def _whitening_of(covariance: Floats) -> Floats:
    """Return a matrix [D, r] that makes a covariance [D, D] the identity; r is its rank.

    ``centred @ whitening`` has variance 1 in each of r uncorrelated directions. Directions in which the features spread
    by no more than float32 rounding are left out. There are such directions if a norm precedes the classifier, or if
    there are fewer samples than features.

    Raises:
        InputError: the features do not spread in any direction.
    """
    eigenvalues, eigenvectors = np.linalg.eigh(covariance)  # [D] in rising order, and [D, D], one vector a column

    exceeds_rounding = _exceed_rounding(eigenvalues)
    if not exceeds_rounding.any() or eigenvalues[-1] <= 0:
        raise InputError("the features of --train are the same for every sample", hint="give more training data")

    # Divide each direction by the standard deviation of the features along it.
    directions = eigenvectors[:, exceeds_rounding]
    deviations = np.sqrt(eigenvalues[exceeds_rounding])
    whitening: Floats = directions / deviations
    return whitening


def _fit_mahalanobis(data: MemberTraining) -> dict[str, Floats]:
    """Return what the Mahalanobis score keeps: Gaussians of the classes that share one covariance.

    Features are whitened: multiplied by a matrix that makes the covariance the identity, so that the Mahalanobis
    distance to a class becomes the plain distance to its mean.

    Returns:
        ``centre``: the mean of all features, [D]. ``whitening``: the matrix [D, r] that makes the covariance within
        classes the identity. ``means``: the mean of each of K classes, minus the centre and whitened, [K, r].
    """
    assert data.labels is not None  # checked when --train is opened
    centre = data.features.mean(axis=0)  # [D]

    # The mean of each class: add up the features of its samples, and divide by their number.
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
    """Return the squared Mahalanobis distance to the nearest class mean, [n].

    After whitening it is the squared Euclidean distance. Source: Lee et al. 2018, equation 2, on the last features
    alone; the covariance is shared by all classes.

    Args:
        arrays: the operations: on numpy arrays, or on tensors of an exported graph.
        fitted: ``centre`` [D], ``whitening`` [D, r] and the whitened ``means`` of the classes, [K, r].
        features: [n, D].
        logits: not used.
    """
    whitened = (features - fitted["centre"]) @ fitted["whitening"]  # [n, r]
    means = fitted["means"]  # [K, r]
    squared_lengths = (means * means).sum(axis=1)
    distances = _squared_distances(whitened, means, squared_lengths)  # [n, K]
    return arrays.min(distances, axis=1)


def _squared_distances(points: Floats, others: Floats, squared_lengths: Floats) -> Floats:
    """Return the squared distances [n, K] of points [n, D] from others [K, D].

    They are computed as |a|^2 - 2 a b + |b|^2, because the differences [n, K, D] would need too much memory.

    Args:
        points: [n, D].
        others: [K, D].
        squared_lengths: the squared lengths of ``others``, [K].
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
    """Return the Mahalanobis distance to the nearest class minus that to the mean of all features, both squared, [n].

    Source: Ren et al. 2021, equation 3.
    """
    whitened = (features - fitted["centre"]) @ fitted["background"]  # [n, r]
    to_mean_of_all = (whitened * whitened).sum(axis=1)
    to_nearest_class = _mahalanobis(arrays, fitted, features, logits)
    difference: Floats = to_nearest_class - to_mean_of_all
    return difference


def _fit_layers(data: MemberTraining) -> dict[str, Floats]:
    """Describe the classes as :func:`_fit_mahalanobis` does, for each layer.

    Returns:
        For layer i what that function returns, as ``centre.i``, ``whitening.i`` and ``means.i``.
    """
    return _fit_sums(data.layers)


def _fit_sums(layers: Iterable[LayerSums]) -> dict[str, Floats]:
    """Return what the Mahalanobis score of all layers keeps, from the sums over the vectors of each layer of width d.

    Returns:
        For layer i ``centre.i``: the mean of all vectors, [d]. ``whitening.i``: the matrix [d, r] that makes the
        covariance within classes the identity. ``means.i``: the class means, minus the centre and whitened, [K, r].
    """
    fitted = {}
    for layer, sums in enumerate(layers):
        centre, means, covariance = sums.gaussians()
        whitening = _whitening_of(covariance)
        fitted[f"centre.{layer}"] = centre
        fitted[f"whitening.{layer}"] = whitening
        fitted[f"means.{layer}"] = (means - centre) @ whitening
    return fitted


@_declare(
    LAYERS,
    "sum of the squared Mahalanobis distances to the nearest class mean, of the features and of what each block gives",
    _fit_layers,
)
def _mahalanobis_layers(arrays: Arrays, fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Return the sum over layers of the squared distance to the nearest class mean, [n].

    Source: Lee et al. 2018, whose layers are weighted by a regression on OOD samples; here all count alike, which needs
    none.

    Args:
        arrays: the operations: on numpy arrays, or on tensors of an exported graph.
        fitted: for layer i ``centre.i`` [d], ``whitening.i`` [d, r] and the whitened class means ``means.i`` [K, r].
        features: those of all layers side by side, in their order, [n, sum of widths d].
        logits: not used.
    """
    # The distance in each layer, [n] each. Its features are the next d columns, as many as its centre has numbers.
    distances = []
    start = 0
    layers = len(fitted) // 3  # three arrays each
    for layer in range(layers):
        fitted_to_layer = {part: fitted[f"{part}.{layer}"] for part in ("centre", "whitening", "means")}
        stop = start + len(fitted_to_layer["centre"])
        distances.append(_mahalanobis(arrays, fitted_to_layer, features[:, start:stop], logits))
        start = stop

    # Add them up one by one, which an exported graph can do, too.
    total = distances[0]
    for distance in distances[1:]:
        total = total + distance
    return total


# --- neighbours -------------------------------------------------------------------------------------------------------


def unit(features: Floats, arrays: Arrays = ON_ARRAYS) -> Floats:
    """Return features [N, D] scaled to length 1; features of length 0 stay 0."""
    lengths = _lengths(features, arrays)
    positive_lengths = arrays.at_least(lengths, 1e-12)
    return features / positive_lengths[:, None]


def _lengths(features: Floats, arrays: Arrays) -> Floats:
    """Return the lengths [N] of features [N, D]."""
    squares = features * features
    return arrays.sqrt(squares.sum(axis=1))


def _rounded(values: Floats) -> Floats:
    """Return values rounded to float32, which take half the space in a file."""
    return values.astype(np.float32).astype(np.float64)


def _fit_knn(data: MemberTraining) -> Statistics:
    """Keep the training features for the search of neighbours.

    Returns:
        ``bank``: the features scaled to length 1, [N, D]. ``squares``: their squared lengths, [N]. ``k``: the number of
        neighbours, [1].

    Raises:
        InputError: there are fewer than k training samples.
    """
    if len(data.features) < data.neighbours:
        raise InputError(
            f"knn looks for the nearest neighbour {data.neighbours}, and --train has {len(data.features)} samples",
            hint="give more training data, or a smaller --knn-k",
        )
    # Lengths are computed after rounding, because then they are not exactly 1.
    bank = _rounded(unit(data.features))
    squared_lengths = np.square(bank).sum(axis=1)
    k = np.array([float(data.neighbours)])
    return {"bank": bank, "squares": squared_lengths, "k": k}


@_declare(
    "knn", "distance to the k-th nearest training sample, of features scaled to length 1", _fit_knn, numbers=("k",)
)
def _knn(arrays: Arrays, fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Return the distance to the k-th nearest training sample, of features scaled to length 1, [n].

    Source: Sun et al. 2022, section 3.
    """
    squared_distances = _squared_distances(unit(features, arrays), fitted["bank"], fitted["squares"])  # [n, N]
    k = int(fitted["k"][0])
    to_neighbour = arrays.kth_lowest(squared_distances, k)  # squared, [n]
    not_negative = arrays.at_least(to_neighbour, 0.0)  # rounding can make it negative
    return arrays.sqrt(not_negative)


# --- the classifier ---------------------------------------------------------------------------------------------------


def _energy(logits: Floats, arrays: Arrays) -> Floats:
    """Return the energy -logsumexp of each sample's logits [n, C], [n]."""
    highest = arrays.max(logits, axis=1)
    shifted = logits - highest[:, None]
    powers = arrays.exp(shifted)
    total = powers.sum(axis=1)
    return -highest - arrays.log(total)


def _energy_of_classified(arrays: Arrays, fitted: Statistics, features: Floats) -> Floats:
    """Return the energy [n] of the logits that the classifier computes from features [n, D]."""
    weight = fitted["weight"]
    logits = features @ weight.T + fitted["bias"]
    return _energy(logits, arrays)


def _principal_dimensions(features: int) -> int:
    """Return the number of dimensions of ViM's principal space for this number of features.

    1000 and 512 are the paper's numbers; for fewer features its authors take half of them.
    """
    if features > 1500:
        return 1000
    if features >= 768:
        return 512
    return features // 2


def _fit_vim(data: MemberTraining) -> dict[str, Floats]:
    """Return what ViM keeps: the space outside the principal space, and a factor that turns a length into a logit.

    Training features lie mostly in the principal space, the directions in which they spread most. What a sample has
    outside it, its residual, is unusual: its length, times the factor alpha, becomes the logit of one more class.

    Returns:
        ``origin``: the features for which all logits are 0, [D]. ``residual``: a basis of the residual space, [D, r].
        ``alpha``: the factor, [1].

    Raises:
        InputError: the training features have no part in the residual space.
    """
    # At the origin W x + b = 0, in the sense of least squares.
    origin = -np.linalg.pinv(data.weight) @ data.bias
    shifted = data.features - origin  # [N, D]
    second_moments = shifted.T @ shifted / len(shifted)  # [D, D]

    # Eigenvectors come by rising eigenvalue: the first ones span the residual space, the others the principal space.
    eigenvalues, eigenvectors = np.linalg.eigh(second_moments)
    dimensions = len(eigenvectors)
    principal_dimensions = _principal_dimensions(dimensions)

    # Few training samples span only a few directions. If these all were principal, the lengths of their residuals would
    # be rounding alone, and the factor divides by these lengths.
    spanned = int(_exceed_rounding(eigenvalues).sum())
    if spanned <= principal_dimensions:
        principal_dimensions = spanned // 2
    residual = eigenvectors[:, : dimensions - principal_dimensions]

    # The factor makes the mean length of the residual equal to the mean highest logit: alpha = logit / length.
    lengths = np.linalg.norm(shifted @ residual, axis=1)  # [N]
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
    """Return the length of the features in the residual space, scaled to a logit, plus the energy, [n].

    Source: Wang et al. 2022, sections 4.2 and 4.3, without their softmax, which would not change the order.
    """
    residual = (features - fitted["origin"]) @ fitted["residual"]  # [n, r]
    alpha = arrays.number(float(fitted["alpha"][0]))
    virtual_logit = _lengths(residual, arrays) * alpha
    return virtual_logit + _energy(logits, arrays)


def _classifier(data: MemberTraining) -> dict[str, Floats]:
    """Return the parameters of the classifier, which many scores keep."""
    return {"weight": data.weight, "bias": data.bias}


def _fit_react(data: MemberTraining) -> Statistics:
    """Return the classifier, and ``clip`` [1], the quantile of all training features to which features are clipped."""
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
    """Return the energy of the logits of features that are clipped at the quantile of the training features, [n].

    Source: Sun et al. 2021, section 3.
    """
    clip = float(fitted["clip"][0])
    clipped = arrays.at_most(features, clip)
    return _energy_of_classified(arrays, fitted, clipped)


@_declare("ash", "energy of the logits of the highest 35 % of the features, scaled by ASH-S", _classifier)
def _ash(arrays: Arrays, fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Return the energy of the logits of each sample's highest features, scaled by ASH-S, [n].

    Source: Djurisic et al. 2023, algorithm 3 (ASH-S), with 65 % pruned; of equal features the first are kept.

    Args:
        arrays: the operations: on numpy arrays, or on tensors of an exported graph.
        fitted: ``weight`` [C, D] and ``bias`` [C] of the classifier.
        features: [n, D].
        logits: not used.
    """
    # Keep the highest features of each sample, and set the others to 0.
    dimensions = features.shape[1]
    number_kept = dimensions - round(dimensions * ASH_PRUNED)
    falling = arrays.places_by_falling_value(features)
    kept_indices = falling[:, :number_kept]  # of the highest features, [n, number_kept]
    highest = arrays.taken(features, kept_indices)
    pruned = arrays.placed(highest, kept_indices, dimensions)

    # Scale the rest up for what was removed: by exp(sum of features / sum of the highest ones), [n]. The factor is 1 if
    # the highest ones add up to 0, because features that are never negative are then all 0. Only signed features, for
    # which the method was not made, can have a ratio so large that it must be bounded.
    ratio = arrays.quotients(features.sum(axis=1), highest.sum(axis=1))
    factor = arrays.exp(arrays.at_most(ratio, _LARGEST_EXPONENT))
    scaled = pruned * factor[:, None]
    return _energy_of_classified(arrays, fitted, scaled)


# --- several scores together ------------------------------------------------------------------------------------------

_HEDGED = ("mahalanobis", "rmd", "knn", "vim")
"""The scores on the features alone that ``hedge`` sums, beside two on logits and that of all layers."""
_HELD_OUT = 5
"""One training sample of so many is not fitted to, and tells the mean and the deviation of each part of ``hedge``."""
_MOST_HELD_OUT = 1000
_FEWEST_HELD_OUT = 10
"""With fewer, means and deviations are those of the samples that the parts are fitted to."""


def held_out_of(samples: int) -> NDArray[np.bool_]:
    """Return which of so many training samples are held out, ``[samples]``: always the same for the same number.

    ``hedge`` fits its scores to the others, and takes the mean and the deviation of each score from the held-out ones.
    A fifth of the samples is held out, but at most 1000. If that were fewer than 10, all samples serve for both.
    """
    count = min(samples // _HELD_OUT, _MOST_HELD_OUT)
    if count < _FEWEST_HELD_OUT:
        return np.ones(samples, dtype=bool)
    in_random_order = np.random.default_rng(0).permutation(samples)
    held_out = np.zeros(samples, dtype=bool)
    held_out[in_random_order[:count]] = True
    return held_out


def _fit_hedge(data: MemberTraining) -> dict[str, Floats]:
    """Return what ``hedge``, a sum of six or seven standardised scores, keeps.

    The scores are fitted to most training samples. Their means and standard deviations are taken on the others, the
    held-out samples, as scores of samples that they were fitted to are too low. If the samples are few, all serve both.

    Returns:
        What each score on features keeps, as ``NAME.ARRAY``, e.g. ``knn.bank``; ``means`` and ``deviations`` of all
        scores, [6], or [7] with that of all layers.
    """
    # Fit to the samples that are not held out; to all if all are. k of nearest neighbours shrinks with their number.
    assert data.labels is not None  # checked when --train is opened
    samples = len(data.features)
    held_out = held_out_of(samples) if data.held_out is None else data.held_out  # [N]
    fitted_to = held_out if held_out.all() else ~held_out
    training = replace(
        data,
        features=data.features[fitted_to],
        labels=data.labels[fitted_to],
        highest=data.highest[fitted_to],
        neighbours=max(1, data.neighbours * int(fitted_to.sum()) // max(1, samples)),
    )
    fitted = {}
    for name in _HEDGED:
        for array, values in FEATURE_SCORES[name].fit(training).items():
            fitted[f"{name}.{array}"] = values

    # The held-out samples [n], for the score of all layers with the features of every layer. Its sums are over all
    # samples: take the held-out ones out of them.
    features = data.features[held_out]
    logits = features @ data.weight.T + data.bias
    if data.layers_held_out is not None:
        features = data.layers_held_out
        layers = data.layers
        if not held_out.all():
            labels = data.labels[held_out]
            layers = [sums.without(vectors, labels) for sums, vectors in by_layer(layers, features)]
        for array, values in _fit_sums(layers).items():
            fitted[f"{LAYERS}.{array}"] = values
    parts = np.stack(_parts_of_hedge(ON_ARRAYS, fitted, features, logits))  # [6 or 7, n]
    fitted["means"] = parts.mean(axis=1)
    fitted["deviations"] = np.maximum(parts.std(axis=1), _SHORTEST)
    return fitted


def _parts_of_hedge(arrays: Arrays, fitted: Statistics, features: Floats, logits: Floats) -> list[Floats]:
    """Return the scores that ``hedge`` sums, [n] each: ``gen``, ``energy``, four on features, and that of all layers.

    The last is left out where it was not fitted.

    Args:
        arrays: the operations: on numpy arrays, or on tensors of an exported graph.
        fitted: what each score keeps, as ``NAME.ARRAY``.
        features: those of the classifier [n, D], or with all layers those of every layer [n, sum of widths], of which
            the first D are the classifier's.
        logits: [n, C].
    """
    # The scores on logits.
    block = Block(logits[None], None, arrays)  # the logits as those of one member, [1, n, C]
    parts = [SCORES["gen"](block), SCORES["energy"](block)]

    # The scores on features: mahalanobis, rmd, knn and vim, and the one of all layers if its arrays are there.
    classifier_width = len(fitted["mahalanobis.centre"])  # D
    classifier_features = features[:, :classifier_width]
    has_layers = OF_LAYERS[HEDGE] in fitted
    names = [*_HEDGED, LAYERS] if has_layers else [*_HEDGED]
    for name in names:
        # The arrays of this score, without its name: knn.bank becomes bank.
        start = f"{name}."
        fitted_to_part = {key.removeprefix(start): values for key, values in fitted.items() if key.startswith(start)}
        features_of_part = features if name == LAYERS else classifier_features
        parts.append(FEATURE_SCORES[name].score(fitted_to_part, features_of_part, logits, arrays))
    return parts


@_declare(
    HEDGE,
    "sum of gen and energy of the member's logits, mahalanobis, rmd, knn, vim and mahalanobis-layers, each less its"
    " mean and over its deviation on training samples that it is not fitted to",
    _fit_hedge,
    numbers=("knn.k", "vim.alpha"),
)
def _hedge(arrays: Arrays, fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Return the sum over several OOD scores of (score - mean) / deviation, [n].

    ``means`` and ``deviations`` in ``fitted`` are those of each score on training data. The sum is for users who have
    no OOD samples by which one of the scores could be chosen.
    """
    parts = _parts_of_hedge(arrays, fitted, features, logits)  # [n] each
    means = fitted["means"]  # [scores]
    deviations = fitted["deviations"]  # [scores]
    total = (parts[0] - means[0]) / deviations[0]
    for index in range(1, len(parts)):
        total = total + (parts[index] - means[index]) / deviations[index]
    return total


# --- errors -----------------------------------------------------------------------------------------------------------


def _fit_vilu(data: MemberTraining, scale: float | None = None) -> Statistics:
    """Train the network; the rows of the classifier's weight are the features of the class texts."""
    assert data.labels is not None  # checked when --train is opened
    return fit_vilu(unit(data.features), data.labels, unit(data.weight), scale)


def _fit_scaled_vilu(data: MemberTraining) -> Statistics:
    """Train the network with an attention as sharp as the model's softmax, as the authors' code does.

    The model's logits are cosines times a factor, which is the length of the rows of the classifier's weight.
    """
    return _fit_vilu(data, float(np.linalg.norm(data.weight[0])))


@_declare(
    "vilu-scaled",
    "that of vilu, whose attention to the texts is as sharp as the softmax of the model",
    _fit_scaled_vilu,
    numbers=("constant",),
)
@_declare(
    "vilu",
    "probability that the prediction is wrong, by a network on image and class texts (ViLU)",
    _fit_vilu,
    numbers=("constant",),
)
def _vilu(arrays: Arrays, fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Return the probability that the prediction is wrong, [n].

    If all training predictions were right, or all wrong, there is no network but their constant share of errors.
    Source: Lafon et al. 2025, section 3, and for ``vilu-scaled`` their code.
    """
    if "constant" in fitted:
        share_of_errors = float(fitted["constant"][0])
        return arrays.filled(features[:, 0], share_of_errors)
    return arrays.by_network(vilu_probabilities, fitted, unit(features, arrays))


# --- class texts ------------------------------------------------------------------------------------------------------

NEGATIVE_SHARE, FEWEST_NEGATIVES = 0.15, 1000
"""The share of the words that are kept as negative labels, and the smallest number of them."""
NEGATIVE_QUANTILE = 0.95
NEGATIVES_IN_GROUP = 100
_NEGATIVE_SCALE = 100.0
"""1 / the temperature 0.01."""


def _fit_mcm(data: MemberTraining) -> Statistics:
    """Return ``texts``, the features of the class texts scaled to length 1, [C, D]."""
    return {"texts": unit(data.weight)}


@_declare("mcm", "minus the highest softmax of the cosines of image and class texts (temperature 1)", _fit_mcm)
def _mcm(arrays: Arrays, fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Return minus the highest value of the softmax over the cosines of each image with the C class texts, [n].

    Source: Ming et al. 2022 (MCM), with their temperature tau = 1.
    """
    cosines = unit(features, arrays) @ fitted["texts"].T  # [n, C]
    # Divided by the highest power, the softmax of the highest cosine is exp(0) / sum_k exp(cosine_k - highest).
    highest = arrays.max(cosines, axis=1, keepdims=True)
    powers = arrays.exp(cosines - highest)
    return -1.0 / powers.sum(axis=1)


def _fit_neglabel(data: MemberTraining) -> Statistics:
    """Choose the words that are least like the classes as negative labels, and divide them into groups.

    A sample that is more like such words than like the classes is probably OOD. The groups are of equal size and
    equally unlike the classes.

    Returns:
        ``texts``: the features of the class texts, [C, D]. ``negatives``: the features of the negative labels by group,
        [groups, group size, D]. All have length 1.
    """
    assert data.words is not None  # read before anything is fitted
    texts = unit(data.weight)  # [C, D]
    words = _rounded(unit(data.words))  # [W, D]

    # How like the classes each word is, [W]: nearly its largest cosine with a class, the 0.95 quantile.
    likeness = np.quantile(words @ texts.T, NEGATIVE_QUANTILE, axis=1)
    least_alike_first = np.argsort(likeness, kind="stable")

    # Keep a share of 0.15 of the words, but at least 1000, or all if there are fewer. A group has 100 words or more.
    number_kept = min(len(words), max(FEWEST_NEGATIVES, int(len(words) * NEGATIVE_SHARE)))
    groups = max(1, number_kept // NEGATIVES_IN_GROUP)
    group_size = number_kept // groups

    # Deal the words out like cards, the least alike first, so that all groups get equally unlike words. With 2 groups
    # group 0 gets words 0, 2, 4, ... and group 1 gets words 1, 3, 5, ... A row of the reshaped array is one turn of
    # dealing, [group_size, groups], so a row of its transpose is one group. Words left over are dropped.
    dealt_words = least_alike_first[: groups * group_size]
    word_of_turn = dealt_words.reshape(group_size, groups)
    words_of_group = word_of_turn.T
    return {"texts": texts, "negatives": words[words_of_group]}


@_declare(
    "neglabel",
    "minus the share of the classes in the softmax of cosines with class texts and words that name no class"
    " (temperature 0.01), mean over groups of words",
    _fit_neglabel,
)
def _neglabel(arrays: Arrays, fitted: Statistics, features: Floats, logits: Floats) -> Floats:
    """Return minus the share of the classes in the softmax over classes and negative labels, mean over groups, [n].

    Source: Jiang et al. 2024 (NegLabel), with their grouping.

    Args:
        arrays: the operations: on numpy arrays, or on tensors of an exported graph.
        fitted: ``texts`` [C, D], the features of the class texts, and ``negatives`` [G, S, D], the features of negative
            labels in G groups of S; all of length 1.
        features: the features of the images, [n, D].
        logits: not used.
    """
    images = unit(features, arrays)
    cosines = images @ fitted["texts"].T  # [n, C]
    class_powers = arrays.exp(cosines * _NEGATIVE_SCALE).sum(axis=1)[:, None]  # [n, 1]

    # All negative labels in one product: put the groups one after another, [G * S, D]. Then add up the powers by group.
    negatives = fitted["negatives"]  # [G, S, D]
    groups, size, width = negatives.shape
    negative_cosines = images @ negatives.reshape(groups * size, width).T  # [n, G * S]
    powers = arrays.exp(negative_cosines * _NEGATIVE_SCALE)
    group_powers = powers.reshape(-1, groups, size).sum(axis=2)  # [n, G]

    # For each group, the share of the classes in the softmax over the classes and this group, [n, G].
    shares = class_powers / (class_powers + group_powers)
    return -shares.mean(axis=1)
