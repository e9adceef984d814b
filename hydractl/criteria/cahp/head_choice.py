"""How many heads CAHP keeps, and which: their signatures, representatives of these, their accuracy, and its knee."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hydractl.criteria.criterion import Calibration, Decision, ScoredModel, gates_kept
from hydractl.errors import InputError, NonFiniteError
from hydractl.log import Log

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Batches = Sequence[tuple[Any, Tensor]]
"""(inputs, labels ``[B]``), kept in memory."""

MOST_PAIRS = 1000
LEAST_SAMPLES = 3
"""The least number of samples of a class, for its Gaussian: from two samples Ledoit and Wolf's formula shrinks nothing,
and the covariance is singular."""

DEGREES = (2, 3, 4, 5)
"""The degrees whose knees are reported beside that of the degree asked for."""

MOST_SIZES = 40
"""The most numbers of heads that are tried; a model with no more heads than that has every number tried."""

# What is drawn by the seed, each independently of the others.
_SPLIT = 1
_PAIRS = 2
_MEDOIDS = 3
_PARTS_OF_ONE = 2**32  # the grid of distances; they are below 64, so their sums stay far within 64 bits
_POINTS_PER_LINE = 8
_RIDGE = 1e-6  # relative to the variance of all outputs of a head
_ROUNDING = 1e-12  # relative to their mean square
_PAIRS_AT_ONCE = 256
_NOTHING = 1e-9  # a distance from the chord, or a rise of the curve, below this is rounding

HeadPlace = tuple[int, int]
"""(index of the site, position of the head among those present)."""


def choose_heads(model: ScoredModel, calibration: Calibration, sites: Sequence[int]) -> Decision:
    """Choose the heads: one pass over a part of the sample for the signatures, then one over the rest for each size.

    Raises:
        InputError: where there are no heads, fewer than two classes, or too few samples of a class.
        NonFiniteError: where the output of a head or a logit is not finite.
    """
    heads: list[HeadPlace] = []
    for i in sites:
        present = model.attentions[i].head_counts[0]
        heads += [(i, position) for position in range(present)]
    if not heads:
        raise InputError("there are no heads left to choose from")
    # The sample is read once and stays in memory, because each number of heads runs over it again.
    batches = list(calibration.batches())
    labels_of_data = np.concatenate([batch_labels.cpu().numpy() for _, batch_labels in batches])
    labels, classes = _class_numbers(labels_of_data, model)
    if len(classes) < (model.classes or 0):
        calibration.log.warn(f"cahp: only {len(classes)} of {model.classes} classes occur in the sample drawn")

    for_signatures = split_by_class(labels, np.random.default_rng([calibration.seed, _SPLIT]))
    pairs = class_pairs(len(classes), np.random.default_rng([calibration.seed, _PAIRS]))
    sites_with_heads = sorted({i for i, _ in heads})
    signature_batches = chosen_samples(batches, for_signatures)
    accuracy_batches = chosen_samples(batches, ~for_signatures)
    del batches
    distances = _distances(model, calibration, signature_batches, labels[for_signatures], pairs, sites_with_heads)
    del signature_batches

    sizes = sizes_to_try(len(heads))
    medoids = [representatives(distances, size, calibration.seed) for size in sizes]
    correct = _curve(model, calibration.log, accuracy_batches, heads, medoids)
    accuracy_samples = int((~for_signatures).sum())
    size_at_knee, curve_info = _knee(calibration, sizes, correct, accuracy_samples)
    info = {
        "degree": calibration.options["degree"],
        "classes": len(classes),
        "class_pairs": len(pairs),
        "samples": {"signatures": len(labels) - accuracy_samples, "accuracy": accuracy_samples},
        **curve_info,
    }
    scores: dict[int, list[float]] = {i: [] for i in sites}
    kept: dict[int, list[int]] = {i: [] for i in sites}
    medoids_at_knee = medoids[sizes.index(size_at_knee)]
    for number, (i, position) in enumerate(heads):
        # The share of the sizes for which the head is one of the representatives.
        times_chosen = sum(number in medoids_of_size for medoids_of_size in medoids)
        scores[i].append(times_chosen / len(sizes))
        if number in medoids_at_knee:
            kept[i].append(position)
    return Decision(scores, kept, info)


# --- the sample -------------------------------------------------------------------------------------------------------


def _class_numbers(labels: Ints, model: ScoredModel) -> tuple[Ints, list[int]]:
    """Return the labels as positions among the classes that occur, and those classes."""
    classes, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise InputError("--method cahp compares classes, and the samples drawn are all of one class")
    too_few = []
    for class_number, count in zip(classes.tolist(), counts.tolist(), strict=True):
        if count <= LEAST_SAMPLES:
            name = model.labels[class_number] if model.labels else class_number
            too_few.append(f"class {name}: {count}")
    if too_few:
        raise InputError(
            f"--method cahp needs {LEAST_SAMPLES + 1} samples of each class; among the {len(labels)} drawn, "
            f"{len(too_few)} of {len(classes)} classes have fewer",
            hint="draw more with --samples, or give data with more samples of these classes",
            problems=too_few,
        )
    return numbers.astype(np.int64), classes.tolist()


def split_by_class(labels: Ints, random: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Draw the samples that make signatures, bool ``[N]``; the others measure accuracy.

    They are half of each class, and at least ``LEAST_SAMPLES`` of it.
    """
    for_signatures = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        shuffled = random.permutation(np.flatnonzero(labels == label))
        half = max(LEAST_SAMPLES, (len(shuffled) + 1) // 2)
        for_signatures[shuffled[:half]] = True
    return for_signatures


def chosen_samples(batches: Batches, chosen: npt.NDArray[np.bool_]) -> list[tuple[Any, Tensor]]:
    """Return the chosen samples, counted through all batches in order; batches of which nothing is left are dropped."""
    parts: list[tuple[Any, Tensor]] = []
    start = 0
    for inputs, labels in batches:
        places = np.flatnonzero(chosen[start : start + len(labels)])
        start += len(labels)
        if not len(places):
            continue
        index = torch.from_numpy(places).to(labels.device)
        if isinstance(inputs, Tensor):
            parts.append((inputs[index], labels[index]))
        else:
            parts.append(({name: tensor[index] for name, tensor in inputs.items()}, labels[index]))
    return parts


# --- signatures -------------------------------------------------------------------------------------------------------
#
# A head's output is taken at the tokens that the model reads out, and each class described by a Gaussian in float64.
# For classes a and b with means m and covariances S, the Bhattacharyya distance is
# B = (m_a - m_b)^T S^-1 (m_a - m_b) / 8 + ln(|S| / sqrt(|S_a| |S_b|)) / 2 with S = (S_a + S_b) / 2, and the
# Jeffries-Matusita distance is 2 (1 - exp(-B)): 0 where the Gaussians are the same, 2 where they do not meet.


def _distances(
    model: ScoredModel, calibration: Calibration, batches: Batches, labels: Ints, pairs: Ints, sites: Sequence[int]
) -> Floats:
    """Return the Euclidean distance between the signatures of each two heads, ``[heads, heads]``."""
    outputs = head_outputs(model, batches, sites, calibration.log)
    parts = []
    with calibration.log.progress("cahp: signatures", len(sites), "sites") as progress:
        for i in sites:
            parts.append(signatures(outputs[i], labels, pairs))
            progress.advance()
    all_signatures = np.concatenate(parts)  # [heads of all sites, P]
    rows = [np.linalg.norm(all_signatures - signature, axis=1) for signature in all_signatures]
    return np.stack(rows)


@torch.inference_mode()
def head_outputs(
    model: ScoredModel, batches: Batches, sites: Sequence[int], log: Log
) -> dict[int, npt.NDArray[np.floating]]:
    """Return the outputs of the heads of a model of one member, before the output projection.

    They are taken at the tokens that the model reads out (the class token of most); where it reads several, their mean.

    Args:
        sites: of the tower that reads samples.

    Returns:
        By site ``[N, heads present, head_dim]``, at least float32.

    Raises:
        NonFiniteError: naming the first site with an output that is not finite.
    """
    chain = model.chain_of_samples
    stages_of_towers = {stages.tower: stages for stages in model.family.stages(model.networks[0])}
    stages = stages_of_towers[chain.tower]
    observers = {i: _HeadObserver(model.attentions[i].only.head_dim) for i in sites}
    samples = sum(len(labels) for _, labels in batches)
    blocks_to_run = range(chain.sites.start, max(sites) + 1)
    try:
        for i, observer in observers.items():
            model.attentions[i].observer = observer
        with log.progress("cahp: heads", samples, "samples") as progress:
            for inputs, labels in batches:
                state = chain.stem(inputs)
                positions = None
                if stages.reads is not None:
                    positions = stages.reads(state)
                for observer in observers.values():
                    observer.begin_batch(len(labels), positions)
                for block in blocks_to_run:
                    state = chain.block(block, state)
                progress.advance(len(labels))
    finally:
        for i in sites:
            model.attentions[i].observer = None
    outputs = {i: np.concatenate(observer.outputs) for i, observer in observers.items()}
    for i, outputs_of_site in outputs.items():
        if not np.isfinite(outputs_of_site).all():
            raise NonFiniteError(f"the output of a head of {model.sites[i].path} is not finite")
    return outputs


class _HeadObserver:
    """Collects the outputs of the heads of one site, batch after batch.

    Args:
        head_dim: width of a head.
    """

    def __init__(self, head_dim: int) -> None:
        self._head_dim = head_dim
        self._samples = 0
        self._positions: Tensor | None = None
        self.outputs: list[npt.NDArray[np.floating]] = []

    def begin_batch(self, samples: int, positions: Tensor | None) -> None:
        """Prepare for a batch of so many samples, and the tokens ``[B, tokens]`` that the model reads; None: all."""
        self._samples = samples
        self._positions = positions

    def __call__(self, joined: Tensor) -> None:
        """Take the joined outputs of the heads, ``[B * windows, T, D]``."""
        by_sample = joined.reshape(self._samples, -1, joined.shape[2])  # [B, windows * T, D]
        pooled = _mean_at_tokens(by_sample, self._positions)  # [B, D]
        by_head = pooled.unflatten(1, (-1, self._head_dim))  # [B, heads, head_dim]
        at_least_float32 = by_head.to(torch.promote_types(by_head.dtype, torch.float32))
        self.outputs.append(at_least_float32.cpu().numpy())


def _mean_at_tokens(joined: Tensor, positions: Tensor | None) -> Tensor:
    """Average over some tokens of each sample, or over all with None: ``[B, T, D]`` to ``[B, D]``."""
    if positions is None:
        return joined.mean(dim=1)
    index = positions[:, :, None].expand(-1, -1, joined.shape[2])  # [B, tokens, D]
    return joined.gather(1, index).mean(dim=1)


def class_pairs(classes: int, random: np.random.Generator) -> Ints:
    """Return all pairs of classes ``[P, 2]``, or where there are more, ``MOST_PAIRS`` drawn without replacement."""
    all_pairs = np.stack(np.triu_indices(classes, 1), axis=1).astype(np.int64)
    if len(all_pairs) <= MOST_PAIRS:
        return all_pairs
    drawn = random.choice(len(all_pairs), MOST_PAIRS, replace=False)
    return all_pairs[np.sort(drawn)]


def signatures(outputs: npt.NDArray[np.floating], labels: Ints, pairs: Ints) -> Floats:
    """Compute the separability signature of every head: its Jeffries-Matusita distance for each pair of classes.

    Args:
        outputs: ``[N, heads, head_dim]``, finite.
        labels: the class of each sample, ``[N]``; every class of ``pairs`` has ``LEAST_SAMPLES`` or more.
        pairs: ``[P, 2]``.

    Returns:
        ``[heads, P]``, each in 0..2.
    """
    heads = outputs.shape[1]
    classes = int(pairs.max()) + 1
    distances = np.empty((heads, len(pairs)))
    for head in range(heads):
        means, covariances = _gaussians(outputs[:, head].astype(np.float64), labels, classes)
        distances[head] = jeffries_matusita(means, covariances, pairs)
    return distances


def _gaussians(samples: Floats, labels: Ints, classes: int) -> tuple[Floats, Floats]:
    """Return mean ``[C, d]`` and Ledoit-Wolf covariance ``[C, d, d]`` of each class."""
    from sklearn.covariance import LedoitWolf

    width = samples.shape[1]
    means = np.zeros((classes, width))
    covariances = np.zeros((classes, width, width))
    for label in np.unique(labels[labels < classes]):
        gaussian = LedoitWolf(store_precision=False).fit(samples[labels == label])
        means[label] = gaussian.location_
        covariances[label] = gaussian.covariance_
    # A head that says the same to all samples of a class would have no inverse. The ridge is far below what counts in
    # any other head; its second part drowns a variance that is nothing but rounding.
    ridge = _RIDGE * samples.var(axis=0).mean() + _ROUNDING * np.square(samples).mean()
    if ridge == 0:  # the head says nothing but zeros
        ridge = 1.0
    return means, covariances + ridge * np.eye(width)


def jeffries_matusita(means: Floats, covariances: Floats, pairs: Ints) -> Floats:
    """Return the distance of each pair of Gaussians.

    Args:
        means: ``[C, d]``.
        covariances: ``[C, d, d]``, positive definite.
        pairs: ``[P, 2]``.

    Returns:
        ``[P]``, each in 0..2.
    """
    log_determinants = _log_determinants(np.linalg.cholesky(covariances))
    distances = np.empty(len(pairs))
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        end = start + _PAIRS_AT_ONCE
        a, b = pairs[start:end].T
        mean_covariances = (covariances[a] + covariances[b]) / 2
        factors = np.linalg.cholesky(mean_covariances)
        differences = (means[a] - means[b])[:, :, None]  # [p, d, 1]
        whitened = np.linalg.solve(factors, differences)[:, :, 0]  # [p, d]
        spread = _log_determinants(factors) - (log_determinants[a] + log_determinants[b]) / 2
        bhattacharyya = np.square(whitened).sum(axis=1) / 8 + spread / 2
        # Rounding may leave a distance of zero a little below it.
        not_negative = np.maximum(bhattacharyya, 0)
        distances[start:end] = -2 * np.expm1(-not_negative)
    return distances


def _log_determinants(factors: npt.NDArray[np.floating]) -> Floats:
    """Return the log-determinants of matrices from their Cholesky factors ``[..., d, d]``."""
    diagonals = np.diagonal(factors, axis1=-2, axis2=-1)  # [..., d]
    return 2 * np.log(diagonals).sum(axis=-1)


# --- the curve --------------------------------------------------------------------------------------------------------


def sizes_to_try(heads: int) -> list[int]:
    """Return 1 to ``heads``, or with more than ``MOST_SIZES`` of these as many spread evenly, the ends among them."""
    evenly_spread = np.linspace(1, heads, min(heads, MOST_SIZES))
    sizes = {round(size) for size in evenly_spread.tolist()}
    return sorted(sizes)


def representatives(distances: Floats, count: int, seed: int) -> set[int]:
    """Return the medoids of ``count`` clusters by FasterPAM, started from a draw by ``seed``."""
    from kmedoids import fasterpam

    # Either of two heads can stand for both, a tie that sums of floats would leave to rounding; integers are exact.
    exact = np.rint(distances * _PARTS_OF_ONE).astype(np.int64)
    # The package takes 32 bits of a seed, and gives other answers on other numbers of threads.
    state = int(np.random.SeedSequence([seed, _MEDOIDS]).generate_state(1)[0])
    clustering = fasterpam(exact, count, random_state=state, n_cpu=1)
    return set(clustering.medoids.tolist())


def _curve(
    model: ScoredModel, log: Log, batches: Batches, heads: Sequence[HeadPlace], medoids: Sequence[set[int]]
) -> list[int]:
    """Count the samples classified right with only the medoids, for each number of them."""
    correct = []
    with log.progress("cahp: accuracy", len(medoids), "numbers of heads") as progress:
        for members in medoids:
            with _only(model, heads, members):
                correct.append(count_correct(model, batches))
            progress.advance(note=f"{len(members)} heads")
    return correct


@contextmanager
def _only(model: ScoredModel, heads: Sequence[HeadPlace], members: set[int]) -> Iterator[None]:
    """Gate off all of these heads but the members, inside this context."""
    parameter = next(model.parameters())
    gates: dict[int, list[float]] = {}
    for number, (i, _) in enumerate(heads):
        is_open = number in members
        gates.setdefault(i, []).append(float(is_open))
    with gates_kept(model):
        for i, gate in gates.items():
            model.attentions[i].head_gate = torch.tensor([gate], device=parameter.device, dtype=parameter.dtype)
        yield


@torch.inference_mode()
def count_correct(model: ScoredModel, batches: Batches) -> int:
    """Count the samples that a model of one member classifies right.

    Raises:
        NonFiniteError: where a logit is not finite.
    """
    correct = 0
    for inputs, labels in batches:
        logits = model.member_logits(inputs)[0]
        if not bool(logits.isfinite().all()):
            raise NonFiniteError("a logit is not finite while the model runs with some of its heads")
        answers = logits.argmax(dim=-1)
        correct += int((answers == labels).sum())
    return correct


# --- the knee ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Knee:
    """The knee of one fitted curve.

    Attributes:
        heads: the number of heads there; the largest where the curve has no knee.
        distance: from the chord, in a square of side 1; None where the curve has no knee.
        fitted: the fitted accuracy at every number of heads.
    """

    heads: int
    distance: float | None
    fitted: Floats


def find_knee(heads: Sequence[int], accuracy: Sequence[float], degree: int) -> Knee:
    """Fit a polynomial by least squares and take the point of it that is furthest above its chord.

    The chord joins the first and the last point of the fitted curve, both axes scaled to 0..1. Only points above it
    count: below it lie those numbers of heads from which on accuracy begins to rise. Among equally distant points, the
    one with the fewest heads is taken.

    Args:
        heads: numbers of heads, ascending.
        accuracy: what was measured with each.
        degree: of the polynomial; one less than there are points, where it is not smaller.
    """
    counts = np.asarray(heads, dtype=np.float64)
    measured = np.asarray(accuracy, dtype=np.float64)
    most = int(heads[-1])
    if len(counts) < 3:  # no point between the ends of the chord
        return Knee(most, None, measured)
    x = (counts - counts[0]) / (counts[-1] - counts[0])
    polynomial = np.polynomial.Polynomial.fit(x, measured, min(degree, len(x) - 1), domain=[0.0, 1.0])
    fitted = polynomial(x)
    lowest = fitted.min()
    rise = fitted.max() - lowest
    if rise <= _NOTHING:
        return Knee(most, None, fitted)
    y = (fitted - lowest) / rise
    slope = y[-1] - y[0]
    above_chord = (y - y[0] - slope * x) / np.hypot(1.0, slope)
    furthest = int(above_chord.argmax())
    if above_chord[furthest] <= _NOTHING:
        return Knee(most, None, fitted)
    return Knee(int(heads[furthest]), float(above_chord[furthest]), fitted)


def _knee(
    calibration: Calibration, sizes: Sequence[int], correct: Sequence[int], total: int
) -> tuple[int, dict[str, Any]]:
    """Return the number of heads at the knee, and as JSON the curve and the knees of all degrees."""
    degree = calibration.options["degree"]
    accuracy = [count / total for count in correct]
    degrees_to_fit = sorted({*DEGREES, degree})
    knees = {fitted_degree: find_knee(sizes, accuracy, fitted_degree) for fitted_degree in degrees_to_fit}
    _report(calibration.log, sizes, accuracy, knees, degree)
    knee = knees[degree]
    curve = []
    for size, count, share, fitted in zip(sizes, correct, accuracy, knee.fitted.tolist(), strict=True):
        curve.append({"heads": size, "correct": count, "accuracy": share, "fitted": fitted})
    return knee.heads, {
        "curve": curve,
        "knee": {"heads": knee.heads, "distance": knee.distance},
        "knees": {str(fitted_degree): other.heads for fitted_degree, other in knees.items()},
    }


def _report(log: Log, sizes: Sequence[int], accuracy: Sequence[float], knees: Mapping[int, Knee], degree: int) -> None:
    """Log the curve, the knee, and the knees of other degrees."""
    log.info("cahp: accuracy against the number of heads kept")
    points = [f"{size}: {share:.4f}" for size, share in zip(sizes, accuracy, strict=True)]
    for start in range(0, len(points), _POINTS_PER_LINE):
        log.info("  " + "  ".join(points[start : start + _POINTS_PER_LINE]))
    knee = knees[degree]
    if knee.distance is None:
        log.warn(f"cahp: the curve has no knee with degree {degree}, so all {knee.heads} heads are kept")
    at_knee = accuracy[list(sizes).index(knee.heads)]
    others = []
    for other_degree, other in knees.items():
        if other_degree != degree:
            others.append(f"{other.heads} with degree {other_degree}")
    log.info(
        f"cahp: {knee.heads} of {sizes[-1]} heads are kept (accuracy {at_knee:.4f}), degree {degree}; "
        f"{', '.join(others)}"
    )
