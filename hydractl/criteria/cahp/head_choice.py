"""The choice of the heads that CAHP keeps: signatures, their representatives, the accuracy curve, and its knee."""

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
"""The largest number of pairs of classes in a signature."""

LEAST_SAMPLES = 3
"""The least number of samples of a class, for its Gaussian: from two samples Ledoit and Wolf's formula shrinks nothing,
and the covariance is singular."""

DEGREES = (2, 3, 4, 5)
"""The degrees whose knees are reported beside that of the chosen degree."""

MOST_SIZES = 40
"""The largest count of numbers of heads that are tried; in a model of no more heads, every number is tried."""

# Streams of the seed, so that the three draws do not depend on each other.
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
    if model.classes is not None and len(classes) < model.classes:
        calibration.log.warn(f"cahp: only {len(classes)} of {model.classes} classes occur in the sample drawn")

    # One part of it gives the signatures, the rest the accuracy.
    for_signatures = split_by_class(labels, np.random.default_rng([calibration.seed, _SPLIT]))
    for_accuracy = ~for_signatures
    signature_batches = chosen_samples(batches, for_signatures)
    accuracy_batches = chosen_samples(batches, for_accuracy)
    del batches
    pairs = class_pairs(len(classes), np.random.default_rng([calibration.seed, _PAIRS]))
    sites_with_heads = sorted({i for i, _ in heads})
    distances = _distances(model, calibration, signature_batches, labels[for_signatures], pairs, sites_with_heads)
    del signature_batches

    # Every size is tried with its representatives, and the knee of the accuracies decides.
    sizes = sizes_to_try(len(heads))
    medoids = [representatives(distances, size, calibration.seed) for size in sizes]
    correct = _curve(model, calibration.log, accuracy_batches, heads, medoids)
    accuracy_samples = int(for_accuracy.sum())
    size_at_knee, curve_info = _knee(calibration, sizes, correct, accuracy_samples)
    medoids_at_knee = medoids[sizes.index(size_at_knee)]

    scores: dict[int, list[float]] = {i: [] for i in sites}
    kept: dict[int, list[int]] = {i: [] for i in sites}
    for number, (i, position) in enumerate(heads):
        # The score is the share of the sizes for which the head is one of the representatives.
        sets_with_head = [members for members in medoids if number in members]
        scores[i].append(len(sets_with_head) / len(sizes))
        if number in medoids_at_knee:
            kept[i].append(position)
    info = {
        "degree": calibration.options["degree"],
        "classes": len(classes),
        "class_pairs": len(pairs),
        "samples": {"signatures": len(labels) - accuracy_samples, "accuracy": accuracy_samples},
        **curve_info,
    }
    return Decision(scores, kept, info)


# --- the sample -------------------------------------------------------------------------------------------------------


def _class_numbers(labels: Ints, model: ScoredModel) -> tuple[Ints, list[int]]:
    """Return the labels as positions among the classes that occur, ``[N]``, and those classes, ascending.

    Raises:
        InputError: there is one class only, or too few samples of a class.
    """
    classes, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise InputError("--method cahp compares classes, and the samples drawn are all of one class")
    too_few = []
    for label, count in zip(classes.tolist(), counts.tolist(), strict=True):
        if count > LEAST_SAMPLES:
            continue
        name = label
        if model.labels:
            name = model.labels[label]
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
    """Return a mask ``[N]`` of the samples that are drawn for signatures; the others measure accuracy.

    Half of each class is drawn, and at least ``LEAST_SAMPLES`` of it.
    """
    for_signatures = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        samples_of_class = np.flatnonzero(labels == label)
        shuffled = random.permutation(samples_of_class)
        half = (len(shuffled) + 1) // 2
        count = max(LEAST_SAMPLES, half)
        for_signatures[shuffled[:count]] = True
    return for_signatures


def chosen_samples(batches: Batches, chosen: npt.NDArray[np.bool_]) -> list[tuple[Any, Tensor]]:
    """Return batches with the chosen samples alone; batches of which nothing is left are dropped.

    Args:
        batches: the samples.
        chosen: a mask ``[N]`` over the samples of all batches, in their order.
    """
    smaller_batches: list[tuple[Any, Tensor]] = []
    start = 0
    for inputs, labels in batches:
        stop = start + len(labels)
        places = np.flatnonzero(chosen[start:stop])
        start = stop
        if not len(places):
            continue
        index = torch.from_numpy(places).to(labels.device)
        chosen_inputs: Any
        if isinstance(inputs, Tensor):
            chosen_inputs = inputs[index]
        else:
            chosen_inputs = {name: tensor[index] for name, tensor in inputs.items()}
        smaller_batches.append((chosen_inputs, labels[index]))
    return smaller_batches


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
    signatures_of_sites = []
    with calibration.log.progress("cahp: signatures", len(sites), "sites") as progress:
        for i in sites:
            signatures_of_sites.append(signatures(outputs[i], labels, pairs))
            progress.advance()
    all_signatures = np.concatenate(signatures_of_sites)  # [heads of all sites, P]
    distances = []
    for signature in all_signatures:
        differences = all_signatures - signature
        distances.append(np.linalg.norm(differences, axis=1))
    return np.stack(distances)


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
    all_stages = model.family.stages(model.networks[0])
    stages_by_tower = {stages.tower: stages for stages in all_stages}
    stages = stages_by_tower[chain.tower]
    sizes_of_batches = [len(labels) for _, labels in batches]
    samples = sum(sizes_of_batches)
    blocks_to_run = range(chain.sites.start, max(sites) + 1)  # the blocks behind the last site change no output

    observers = {}
    for i in sites:
        head_dim = model.attentions[i].only.head_dim
        observers[i] = _HeadObserver(head_dim)
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

    outputs = {}
    for i, observer in observers.items():
        outputs[i] = np.concatenate(observer.outputs)
        if not np.isfinite(outputs[i]).all():
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
        """Prepare for a batch.

        Args:
            samples: B, the number of its samples.
            positions: the tokens that the model reads out, ``[B, tokens]``; None for all tokens.
        """
        self._samples = samples
        self._positions = positions

    def __call__(self, joined: Tensor) -> None:
        """Keep the outputs of the heads of one batch, given side by side, ``[B * windows, T, D]``."""
        by_sample = joined.reshape(self._samples, -1, joined.shape[2])  # [B, windows * T, D]
        pooled = _mean_at_tokens(by_sample, self._positions)  # [B, D]
        by_head = pooled.unflatten(1, (-1, self._head_dim))  # [B, heads, head_dim]
        dtype = torch.promote_types(by_head.dtype, torch.float32)  # numpy has no bfloat16
        outputs = by_head.to(dtype).cpu()
        self.outputs.append(outputs.numpy())


def _mean_at_tokens(joined: Tensor, positions: Tensor | None) -> Tensor:
    """Return the mean ``[B, D]`` of ``[B, T, D]`` over the tokens of each sample at some positions; None for all."""
    if positions is None:
        return joined.mean(dim=1)
    width = joined.shape[2]
    index = positions[:, :, None].expand(-1, -1, width)  # [B, tokens, D]
    at_tokens = joined.gather(1, index)  # [B, tokens, D]
    return at_tokens.mean(dim=1)


def class_pairs(classes: int, random: np.random.Generator) -> Ints:
    """Return pairs of classes ``[P, 2]``: all, or ``MOST_PAIRS`` drawn without replacement where there are more."""
    first, second = np.triu_indices(classes, 1)
    all_pairs = np.stack([first, second], axis=1).astype(np.int64)
    if len(all_pairs) <= MOST_PAIRS:
        return all_pairs
    drawn = random.choice(len(all_pairs), MOST_PAIRS, replace=False)
    in_order = np.sort(drawn)
    return all_pairs[in_order]


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
        outputs_of_head = outputs[:, head].astype(np.float64)  # [N, head_dim]
        means, covariances = _gaussians(outputs_of_head, labels, classes)
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
    # The covariance of a head with one output for all samples of a class has no inverse. The ridge is far below the
    # variances that count in any other head; its second part exceeds a variance that is nothing but rounding.
    variance = samples.var(axis=0).mean()
    mean_square = np.square(samples).mean()
    ridge = _RIDGE * variance + _ROUNDING * mean_square
    if ridge == 0:  # all outputs of the head are zero
        ridge = 1.0
    return means, covariances + ridge * np.eye(width)


def jeffries_matusita(means: Floats, covariances: Floats, pairs: Ints) -> Floats:
    """Return the Jeffries-Matusita distance of each pair of Gaussians.

    Args:
        means: ``[C, d]``.
        covariances: ``[C, d, d]``, positive definite.
        pairs: ``[P, 2]``.

    Returns:
        ``[P]``, each in 0..2.
    """
    log_determinants = _log_determinants(np.linalg.cholesky(covariances))  # [C]
    distances = np.empty(len(pairs))
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        end = start + _PAIRS_AT_ONCE
        a, b = pairs[start:end].T  # [p] each
        mean_covariances = (covariances[a] + covariances[b]) / 2  # [p, d, d]
        factors = np.linalg.cholesky(mean_covariances)

        # The squared Mahalanobis distance of the means.
        differences = means[a] - means[b]  # [p, d]
        whitened = np.linalg.solve(factors, differences[:, :, None])[:, :, 0]  # [p, d]
        mahalanobis = np.square(whitened).sum(axis=1)

        # The logarithm of the ratio of determinants.
        mean_of_logs = (log_determinants[a] + log_determinants[b]) / 2
        spread = _log_determinants(factors) - mean_of_logs

        bhattacharyya = mahalanobis / 8 + spread / 2
        not_negative = np.maximum(bhattacharyya, 0)  # rounding may leave a distance of zero slightly below it
        distances[start:end] = -2 * np.expm1(-not_negative)
    return distances


def _log_determinants(factors: npt.NDArray[np.floating]) -> Floats:
    """Return the log-determinants ``[...]`` of matrices from their Cholesky factors ``[..., d, d]``."""
    diagonals = np.diagonal(factors, axis1=-2, axis2=-1)  # [..., d]
    logs = np.log(diagonals)
    return 2 * logs.sum(axis=-1)


# --- the curve --------------------------------------------------------------------------------------------------------


def sizes_to_try(heads: int) -> list[int]:
    """Return the numbers of heads to try: 1 to ``heads``, or ``MOST_SIZES`` of these spread evenly, with both ends."""
    count = min(heads, MOST_SIZES)
    evenly_spread = np.linspace(1, heads, count)
    sizes = {round(size) for size in evenly_spread.tolist()}
    return sorted(sizes)


def representatives(distances: Floats, count: int, seed: int) -> set[int]:
    """Return the medoids of ``count`` clusters by FasterPAM, started from a draw by ``seed``.

    Args:
        distances: of each two heads, ``[heads, heads]``.
        count: the number of clusters.
        seed: of the draw.

    Returns:
        The places of the medoids among the heads.
    """
    from kmedoids import fasterpam

    # Either of two heads can represent both, a tie that sums of floats would leave to rounding; integers are exact.
    exact_distances = np.rint(distances * _PARTS_OF_ONE).astype(np.int64)
    # The package takes a seed of 32 bits, and its answers depend on the number of threads.
    sequence = np.random.SeedSequence([seed, _MEDOIDS])
    state = int(sequence.generate_state(1)[0])
    clustering = fasterpam(exact_distances, count, random_state=state, n_cpu=1)
    return set(clustering.medoids.tolist())


def _curve(
    model: ScoredModel, log: Log, batches: Batches, heads: Sequence[HeadPlace], medoids: Sequence[set[int]]
) -> list[int]:
    """Return, for each set of medoids, the number of samples that are classified right with only these heads."""
    correct = []
    with log.progress("cahp: accuracy", len(medoids), "numbers of heads") as progress:
        for members in medoids:
            with _only(model, heads, members):
                correct.append(count_correct(model, batches))
            progress.advance(note=f"{len(members)} heads")
    return correct


@contextmanager
def _only(model: ScoredModel, heads: Sequence[HeadPlace], members: set[int]) -> Iterator[None]:
    """Gate off, inside this context, all of these heads except the members, which are places among the heads."""
    parameter = next(model.parameters())
    gates: dict[int, list[float]] = {}
    for number, (i, _) in enumerate(heads):
        if i not in gates:
            gates[i] = []
        is_open = number in members
        gates[i].append(float(is_open))
    with gates_kept(model):
        for i, gate in gates.items():
            model.attentions[i].head_gate = torch.tensor([gate], device=parameter.device, dtype=parameter.dtype)
        yield


@torch.inference_mode()
def count_correct(model: ScoredModel, batches: Batches) -> int:
    """Return the number of samples that a model of one member classifies right.

    Raises:
        NonFiniteError: where a logit is not finite.
    """
    correct = 0
    for inputs, labels in batches:
        logits = model.member_logits(inputs)[0]  # [B, classes]
        if not bool(logits.isfinite().all()):
            raise NonFiniteError("a logit is not finite while the model runs with some of its heads")
        answers = logits.argmax(dim=-1)
        is_correct = answers == labels
        correct += int(is_correct.sum())
    return correct


# --- the knee ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Knee:
    """The knee of one fitted curve.

    Attributes:
        heads: the number of heads at the knee; the largest number where the curve has no knee.
        distance: of the knee from the chord, both axes scaled to 0..1; None where the curve has no knee.
        fitted: the fitted accuracy at every number of heads that was tried.
    """

    heads: int
    distance: float | None
    fitted: Floats


def find_knee(heads: Sequence[int], accuracy: Sequence[float], degree: int) -> Knee:
    """Fit a polynomial by least squares and return the point of it that is furthest above its chord.

    The chord joins the first and the last point of the fitted curve, both axes scaled to 0..1. Only points above it
    count: a point below it is one where accuracy only begins to rise. Among equally distant points, the one with the
    fewest heads is returned.

    Args:
        heads: the numbers of heads that were tried, ascending.
        accuracy: the measured accuracy with each.
        degree: of the polynomial; at most one less than the number of points is used.
    """
    counts = np.asarray(heads, dtype=np.float64)
    measured = np.asarray(accuracy, dtype=np.float64)
    most = int(heads[-1])
    if len(counts) < 3:  # no point between the ends of the chord
        return Knee(most, None, measured)

    # Fit, and scale both axes to 0..1.
    x = (counts - counts[0]) / (counts[-1] - counts[0])
    possible_degree = min(degree, len(x) - 1)
    polynomial = np.polynomial.Polynomial.fit(x, measured, possible_degree, domain=[0.0, 1.0])
    fitted = polynomial(x)
    lowest = fitted.min()
    rise = fitted.max() - lowest
    if rise <= _NOTHING:
        return Knee(most, None, fitted)
    y = (fitted - lowest) / rise

    # Find the point furthest above the chord.
    slope = y[-1] - y[0]
    vertical = y - y[0] - slope * x
    above_chord = vertical / np.hypot(1.0, slope)
    furthest = int(above_chord.argmax())
    distance = float(above_chord[furthest])
    if distance <= _NOTHING:
        return Knee(most, None, fitted)
    return Knee(int(heads[furthest]), distance, fitted)


def _knee(
    calibration: Calibration, sizes: Sequence[int], correct: Sequence[int], total: int
) -> tuple[int, dict[str, object]]:
    """Return the number of heads at the knee, and as JSON the curve and the knees of all degrees.

    Args:
        calibration: its options say which degree decides.
        sizes: the numbers of heads that were tried.
        correct: the number of samples classified right with each.
        total: the number of samples.
    """
    degree = int(calibration.options["degree"])
    accuracy = [count / total for count in correct]
    knees = {}
    heads_at_knees = {}
    for fitted_degree in sorted({*DEGREES, degree}):
        knees[fitted_degree] = find_knee(sizes, accuracy, fitted_degree)
        heads_at_knees[str(fitted_degree)] = knees[fitted_degree].heads
    _report(calibration.log, sizes, accuracy, knees, degree)

    knee = knees[degree]
    fitted = knee.fitted.tolist()
    curve = []
    for index, size in enumerate(sizes):
        point = {
            "heads": size,
            "correct": correct[index],
            "accuracy": accuracy[index],
            "fitted": fitted[index],
        }
        curve.append(point)
    return knee.heads, {
        "curve": curve,
        "knee": {"heads": knee.heads, "distance": knee.distance},
        "knees": heads_at_knees,
    }


def _report(log: Log, sizes: Sequence[int], accuracy: Sequence[float], knees: Mapping[int, Knee], degree: int) -> None:
    """Log the curve, the knee, and the knees of other degrees."""
    log.info("cahp: accuracy against the number of heads kept")
    accuracy_of_size = dict(zip(sizes, accuracy, strict=True))
    points = [f"{size}: {share:.4f}" for size, share in accuracy_of_size.items()]
    for start in range(0, len(points), _POINTS_PER_LINE):
        points_of_line = points[start : start + _POINTS_PER_LINE]
        log.info("  " + "  ".join(points_of_line))

    knee = knees[degree]
    if knee.distance is None:
        log.warn(f"cahp: the curve has no knee with degree {degree}, so all {knee.heads} heads are kept")
    accuracy_at_knee = accuracy_of_size[knee.heads]
    other_knees = []
    for other_degree, other_knee in knees.items():
        if other_degree != degree:
            other_knees.append(f"{other_knee.heads} with degree {other_degree}")
    listed = ", ".join(other_knees)
    log.info(
        f"cahp: {knee.heads} of {sizes[-1]} heads are kept (accuracy {accuracy_at_knee:.4f}), degree {degree}; {listed}"
    )
