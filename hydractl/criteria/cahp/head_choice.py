"""The heads that CAHP keeps: signatures of heads, their representatives, the accuracy curve, and its knee."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
"""Pairs of (inputs, labels ``[B]``), kept in memory."""

MOST_PAIRS = 1000
"""The largest number of class pairs in a signature."""

LEAST_SAMPLES = 3
"""The least number of samples of a class for its Gaussian.

From two samples, Ledoit and Wolf's formula shrinks nothing, and the covariance is singular.
"""

DEGREES = (2, 3, 4, 5)
"""The degrees whose knees are reported in addition to the knee of the chosen degree."""

MOST_SIZES = 40
"""How many numbers of heads are tried at most; in a model with no more heads, every number is tried."""

# Streams of the seed, which keep the three random draws independent of each other.
_SPLIT = 1
_PAIRS = 2
_MEDOIDS = 3
_PARTS_OF_ONE = 2**32  # the resolution of distances as integers; distances are below 64, so sums fit into 64 bits
_POINTS_PER_LINE = 8
_RIDGE = 1e-6  # relative to the variance of all outputs of a head
_ROUNDING = 1e-12  # relative to their mean square
_NOTHING = 1e-9  # a smaller distance from the chord, or rise of the curve, is only rounding

HeadPlace = tuple[int, int]
"""The index of a site (attention block), and the position of a head among the heads present there."""


def choose_heads(model: ScoredModel, calibration: Calibration, sites: Sequence[int], degree: int) -> Decision:
    """Return which heads to keep, and the score of each head.

    1. Half of the sample gives each head a signature, which says how well the head separates each pair of classes.
    2. For each number k of heads (a size), the heads are clustered by their signatures. Each of the k clusters has a
       representative (medoid).
    3. The other half of the sample gives the accuracy of the model with only these k heads.
    4. The knee of the accuracies over k decides the size. The score of a head is the share of the sizes for which it is
       a representative.

    Args:
        model: a model with one member.
        calibration: the labelled sample.
        sites: the indices of the sites (attention modules) whose heads may be chosen.
        degree: the degree of the polynomial that is fitted to the accuracies.

    Raises:
        InputError: there are no heads, fewer than two classes, or too few samples of a class.
        NonFiniteError: the output of a head or a logit is not finite.
    """
    heads: list[HeadPlace] = []
    for site_index in sites:
        present = model.attentions[site_index].head_counts[0]
        heads += [(site_index, position) for position in range(present)]
    if not heads:
        raise InputError("there are no heads left to choose from")

    # Read the sample once and keep it in memory, because the model runs over it again for each size.
    batches = list(calibration.batches())
    labels_of_data = np.concatenate([batch_labels.cpu().numpy() for _, batch_labels in batches])
    labels, classes = _class_numbers(labels_of_data, model)
    if model.classes is not None and len(classes) < model.classes:
        calibration.log.warn(f"cahp: only {len(classes)} of {model.classes} classes occur in the sample drawn")

    # Divide the samples: some give the signatures, the others the accuracy.
    for_signatures = split_by_class(labels, np.random.default_rng([calibration.seed, _SPLIT]))
    for_accuracy = ~for_signatures
    signature_batches = chosen_samples(batches, for_signatures)
    accuracy_batches = chosen_samples(batches, for_accuracy)
    del batches
    pairs = class_pairs(len(classes), np.random.default_rng([calibration.seed, _PAIRS]))
    sites_with_heads = sorted({site_index for site_index, _ in heads})
    distances = _distances(model, calibration, signature_batches, labels[for_signatures], pairs, sites_with_heads)
    del signature_batches

    # Run each size with its representatives (medoids, as indices into `heads`); the knee of the accuracies decides.
    sizes = sizes_to_try(len(heads))
    medoids = [representatives(distances, size, calibration.seed) for size in sizes]
    correct = _curve(model, calibration.log, accuracy_batches, heads, medoids)
    accuracy_samples = int(for_accuracy.sum())
    size_at_knee, curve_info = _knee(calibration.log, sizes, correct, accuracy_samples, degree)
    medoids_at_knee = medoids[sizes.index(size_at_knee)]

    # Score each head, and keep the representatives of the chosen size.
    scores: dict[int, list[float]] = {site_index: [] for site_index in sites}
    kept: dict[int, list[int]] = {site_index: [] for site_index in sites}
    for head_index, (site_index, position) in enumerate(heads):
        # The score is the share of the sizes for which the head is one of the representatives.
        sets_with_head = [members for members in medoids if head_index in members]
        scores[site_index].append(len(sets_with_head) / len(sizes))
        if head_index in medoids_at_knee:
            kept[site_index].append(position)
    info = {
        "degree": degree,
        "classes": len(classes),
        "class_pairs": len(pairs),
        "samples": {"signatures": len(labels) - accuracy_samples, "accuracy": accuracy_samples},
        **curve_info,
    }
    return Decision(scores, kept, info)


# --- the sample -------------------------------------------------------------------------------------------------------


def _class_numbers(labels: Ints, model: ScoredModel) -> tuple[Ints, list[int]]:
    """Return the class number of each sample ``[N]``, and the classes that occur, ascending.

    E.g. the labels 7, 3, 7 have the classes [3, 7] and the numbers [1, 0, 1].

    Args:
        labels: the label of each sample, ``[N]``.
        model: has the names of the classes, for the message of an error.

    Raises:
        InputError: there is only one class, or a class has too few samples.
    """
    # `counts` has the number of samples of each class, [1, 2] in the example.
    classes, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise InputError("--method cahp compares classes, and the samples drawn are all of one class")

    # LEAST_SAMPLES of a class are needed for the signatures, and at least one more for the accuracy.
    too_few = []
    for label, count in zip(classes.tolist(), counts.tolist(), strict=True):
        if count > LEAST_SAMPLES:
            continue
        name = model.labels[label] if model.labels else label
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

    Half of each class is drawn, rounded up, but at least ``LEAST_SAMPLES`` (3): of 4 samples 3, of 9 samples 5.

    Args:
        labels: the class of each sample, ``[N]``.
        random: draws the samples.
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
    """Return batches with only the samples that a mask marks; batches of which nothing is left are dropped.

    E.g. of two batches of 2 samples the mask [1, 0, 0, 0] leaves one batch of 1 sample.

    Args:
        batches: the samples, as inputs and labels.
        chosen: a mask ``[N]`` over the samples of all batches, in their order.
    """
    smaller_batches: list[tuple[Any, Tensor]] = []
    start = 0
    for inputs, labels in batches:
        stop = start + len(labels)

        # The part of the mask that belongs to this batch, as indices 0 to B - 1.
        indices_in_batch = np.flatnonzero(chosen[start:stop])
        start = stop
        if not len(indices_in_batch):
            continue

        # Inputs are one tensor (images), or several by name (texts).
        index = torch.from_numpy(indices_in_batch).to(labels.device)
        chosen_inputs: Any
        if isinstance(inputs, Tensor):
            chosen_inputs = inputs[index]
        else:
            chosen_inputs = {name: tensor[index] for name, tensor in inputs.items()}
        smaller_batches.append((chosen_inputs, labels[index]))
    return smaller_batches


# --- signatures -------------------------------------------------------------------------------------------------------
#
# The output of a head is taken at the tokens that the model reads out, and each class is described by a Gaussian, in
# float64. For classes a and b with means m and covariances S, the Bhattacharyya distance is
# B = (m_a - m_b)^T S^-1 (m_a - m_b) / 8 + ln(|S| / sqrt(|S_a| |S_b|)) / 2 with S = (S_a + S_b) / 2. The
# Jeffries-Matusita distance is 2 (1 - exp(-B)): 0 if the Gaussians are the same, near 2 if they do not overlap.


def _distances(
    model: ScoredModel, calibration: Calibration, batches: Batches, labels: Ints, pairs: Ints, sites: Sequence[int]
) -> Floats:
    """Return the Euclidean distance between the signatures of every two heads, ``[heads, heads]``.

    A signature says how well the output of a head tells each pair of classes apart, see :func:`signatures`. Heads are
    in the order of the sites, then of their positions.

    Args:
        model: a model with one member.
        calibration: receives the progress.
        batches: the samples.
        labels: the class number of each sample, ``[N]``.
        pairs: the pairs of classes that make up a signature, ``[P, 2]``.
        sites: the indices of the sites that have heads, ascending.
    """
    outputs = head_outputs(model, batches, sites, calibration.log)
    signatures_of_sites = []
    with calibration.log.progress("cahp: signatures", len(sites), "sites") as progress:
        for site_index in sites:
            signatures_of_sites.append(signatures(outputs[site_index], labels, pairs))
            progress.advance()
    all_signatures = np.concatenate(signatures_of_sites)  # [heads of all sites, P]

    # One row at a time, since all differences at once, [heads, heads, P], would be large.
    distances = [np.linalg.norm(all_signatures - signature, axis=1) for signature in all_signatures]
    return np.stack(distances)


@torch.inference_mode()
def head_outputs(
    model: ScoredModel, batches: Batches, sites: Sequence[int], log: Log
) -> dict[int, npt.NDArray[np.floating]]:
    """Return the outputs of the heads at each site (attention module), before the output projection.

    They are ``[N, heads present, head_dim]`` by the index of the site, in float32 or float64. They are taken at the
    tokens from which the model computes its answer (mostly the class token); several tokens are averaged.

    Args:
        model: a model with one member.
        batches: the samples.
        sites: the indices of sites in the encoder (tower) that reads samples.
        log: receives the progress.

    Raises:
        NonFiniteError: names the first site with an output that is not finite.
    """
    # The stages of the tower say which tokens are read out.
    chain = model.chain_of_samples
    all_stages = model.family.stages(model.networks[0])
    stages_by_tower = {stages.tower: stages for stages in all_stages}
    stages = stages_by_tower[chain.tower]
    sizes_of_batches = [len(labels) for _, labels in batches]
    samples = sum(sizes_of_batches)
    blocks_to_run = range(chain.sites.start, max(sites) + 1)  # later blocks do not change these outputs

    # Put an observer on the attention of each site, which appends the outputs of its heads to `joined`. Run the blocks
    # on all batches, taking the outputs out of `joined` after each, and remove the observers again.
    joined: dict[int, list[Tensor]] = {site_index: [] for site_index in sites}  # of the batch that runs
    outputs_of_batches: dict[int, list[npt.NDArray[np.floating]]] = {site_index: [] for site_index in sites}
    try:
        for site_index in sites:
            model.attentions[site_index].observer = joined[site_index].append
        with log.progress("cahp: heads", samples, "samples") as progress:
            for inputs, labels in batches:
                state = chain.stem(inputs)
                positions = None if stages.reads is None else stages.reads(state)
                for block in blocks_to_run:
                    state = chain.block(block, state)
                for site_index in sites:
                    head_dim = model.attentions[site_index].only.head_dim
                    of_batch = _outputs_of_heads(joined[site_index].pop(), len(labels), positions, head_dim)
                    outputs_of_batches[site_index].append(of_batch)
                progress.advance(len(labels))
    finally:
        for site_index in sites:
            model.attentions[site_index].observer = None

    outputs = {}
    for site_index, of_batches in outputs_of_batches.items():
        outputs[site_index] = np.concatenate(of_batches)
        if not np.isfinite(outputs[site_index]).all():
            raise NonFiniteError(f"the output of a head of {model.sites[site_index].path} is not finite")
    return outputs


def _outputs_of_heads(
    joined: Tensor, samples: int, positions: Tensor | None, head_dim: int
) -> npt.NDArray[np.floating]:
    """Return the outputs of the heads of one site for one batch, ``[B, heads, head_dim]``, at least float32.

    Args:
        joined: the outputs of the heads side by side for all tokens, ``[B * windows, T, heads * head_dim]``.
        samples: the number of samples of the batch, B.
        positions: the indices of the tokens that the model reads out, ``[B, tokens]``; None for all tokens.
        head_dim: the width of a head.
    """
    by_sample = joined.reshape(samples, -1, joined.shape[2])  # [B, windows * T, D]
    pooled = _mean_at_tokens(by_sample, positions)  # [B, D]
    by_head = pooled.unflatten(1, (-1, head_dim))  # [B, heads, head_dim]
    dtype = torch.promote_types(by_head.dtype, torch.float32)  # numpy has no bfloat16
    outputs = by_head.to(dtype).cpu()
    return outputs.numpy()


def _mean_at_tokens(joined: Tensor, positions: Tensor | None) -> Tensor:
    """Return the mean over some tokens of each sample, ``[B, D]``.

    Args:
        joined: ``[B, T, D]``.
        positions: the indices of the tokens, ``[B, tokens]``; None for all tokens.
    """
    if positions is None:
        return joined.mean(dim=1)
    width = joined.shape[2]
    index = positions[:, :, None].expand(-1, -1, width)  # [B, tokens, D]
    at_tokens = joined.gather(1, index)  # [B, tokens, D]
    return at_tokens.mean(dim=1)


def class_pairs(classes: int, random: np.random.Generator) -> Ints:
    """Return pairs of class numbers ``[P, 2]``, ascending: all pairs, or ``MOST_PAIRS`` drawn without replacement.

    E.g. of 3 classes: [[0, 1], [0, 2], [1, 2]].
    """
    first, second = np.triu_indices(classes, 1)
    all_pairs = np.stack([first, second], axis=1).astype(np.int64)
    if len(all_pairs) <= MOST_PAIRS:
        return all_pairs
    drawn = random.choice(len(all_pairs), MOST_PAIRS, replace=False)
    in_order = np.sort(drawn)
    return all_pairs[in_order]


def signatures(outputs: npt.NDArray[np.floating], labels: Ints, pairs: Ints) -> Floats:
    """Return the signature of every head, ``[heads, P]``: how far its outputs separate each pair of classes, 0 to 2.

    The outputs of each class are described by a Gaussian with a Ledoit-Wolf covariance. An entry is the
    Jeffries-Matusita distance of the Gaussians of two classes: 0 if they are equal, 2 if they do not overlap.

    Args:
        outputs: the outputs of the heads, ``[N, heads, head_dim]``, finite.
        labels: the class number of each sample, ``[N]``; every class in ``pairs`` has at least ``LEAST_SAMPLES``.
        pairs: the pairs of classes, ``[P, 2]``.
    """
    from sklearn.covariance import LedoitWolf

    _, heads, width = outputs.shape  # the width of a head, d
    classes = int(pairs.max()) + 1  # C
    distances = np.empty((heads, len(pairs)))
    for head in range(heads):
        outputs_of_head = outputs[:, head].astype(np.float64)  # [N, head_dim]

        # The mean [C, d] and the Ledoit-Wolf covariance [C, d, d] of each class; classes without samples get zeros.
        means = np.zeros((classes, width))
        covariances = np.zeros((classes, width, width))
        for label in np.unique(labels[labels < classes]):
            gaussian = LedoitWolf(store_precision=False).fit(outputs_of_head[labels == label])
            means[label] = gaussian.location_
            covariances[label] = gaussian.covariance_

        # A head whose output is the same for all samples of a class has a singular covariance, so add a small number to
        # the variances (a ridge). It is far below the variances that matter in any other head. Its second term exceeds
        # a variance that is only rounding.
        variance = outputs_of_head.var(axis=0).mean()
        mean_square = np.square(outputs_of_head).mean()
        ridge = _RIDGE * variance + _ROUNDING * mean_square
        if ridge == 0:  # all outputs of the head are zero
            ridge = 1.0
        distances[head] = jeffries_matusita(means, covariances + ridge * np.eye(width), pairs)
    return distances


def jeffries_matusita(means: Floats, covariances: Floats, pairs: Ints) -> Floats:
    """Return the Jeffries-Matusita distance of each pair of Gaussians, ``[P]``: 0 if equal, 2 if they do not overlap.

    With S = (S_a + S_b) / 2 it is 2 (1 - exp(-B)), where B, the Bhattacharyya distance, is
    (m_a - m_b)^T S^-1 (m_a - m_b) / 8 + ln(|S| / sqrt(|S_a| |S_b|)) / 2.

    Args:
        means: the means, ``[C, d]``.
        covariances: the covariances, ``[C, d, d]``, positive definite.
        pairs: the pairs of indices into these, ``[P, 2]``.
    """
    log_determinants = _log_determinants(np.linalg.cholesky(covariances))  # [C]
    a, b = pairs.T  # the first and the second class of each pair, [P]
    factors = np.linalg.cholesky((covariances[a] + covariances[b]) / 2)  # [P, d, d]

    # The first term: with the Cholesky factor L of S (S = L L^T) and y = L^-1 (m_a - m_b), the squared Mahalanobis
    # distance (m_a - m_b)^T S^-1 (m_a - m_b) is y^T y.
    differences = means[a] - means[b]  # [P, d]
    whitened = np.linalg.solve(factors, differences[:, :, None])[:, :, 0]  # [P, d]
    mahalanobis = np.square(whitened).sum(axis=1)

    # The second term: ln(|S| / sqrt(|S_a| |S_b|)) = ln |S| - (ln |S_a| + ln |S_b|) / 2.
    mean_of_logs = (log_determinants[a] + log_determinants[b]) / 2
    log_ratio = _log_determinants(factors) - mean_of_logs

    bhattacharyya = mahalanobis / 8 + log_ratio / 2
    not_negative = np.maximum(bhattacharyya, 0)  # rounding may make a distance of zero negative
    # 2 (1 - exp(-B)), which expm1 computes without loss if B is small.
    distances: Floats = -2 * np.expm1(-not_negative)
    return distances


def _log_determinants(factors: npt.NDArray[np.floating]) -> Floats:
    """Return the log-determinants ``[...]`` of matrices, from their Cholesky factors ``[..., d, d]``."""
    diagonals = np.diagonal(factors, axis1=-2, axis2=-1)  # [..., d]
    logs = np.log(diagonals)
    return 2 * logs.sum(axis=-1)


# --- the curve --------------------------------------------------------------------------------------------------------


def sizes_to_try(heads: int) -> list[int]:
    """Return the numbers of heads to try: 1 to ``heads``, or ``MOST_SIZES`` evenly spread ones including both ends."""
    count = min(heads, MOST_SIZES)
    evenly_spread = np.linspace(1, heads, count)
    sizes = {round(size) for size in evenly_spread.tolist()}
    return sorted(sizes)


def representatives(distances: Floats, count: int, seed: int) -> set[int]:
    """Return the heads that represent all heads, as indices: the medoids of ``count`` clusters by FasterPAM.

    Args:
        distances: the distance of every two heads, ``[heads, heads]``.
        count: the number of clusters.
        seed: seeds the random start of the clustering.
    """
    from kmedoids import fasterpam

    # In a cluster of two heads, either can be the medoid. Sums of floats would leave that tie to rounding; sums of
    # integers are exact.
    exact_distances = np.rint(distances * _PARTS_OF_ONE).astype(np.int64)

    # The package takes a seed of 32 bits. Its answers depend on the number of threads, so fix that to one.
    sequence = np.random.SeedSequence([seed, _MEDOIDS])
    state = int(sequence.generate_state(1)[0])
    clustering = fasterpam(exact_distances, count, random_state=state, n_cpu=1)
    return set(clustering.medoids.tolist())


def _curve(
    model: ScoredModel, log: Log, batches: Batches, heads: Sequence[HeadPlace], medoids: Sequence[set[int]]
) -> list[int]:
    """Return, for each set of medoids (representative heads), how many samples are classified right with only these.

    Args:
        model: a model with one member.
        log: receives the progress.
        batches: the samples.
        heads: all heads that may be kept.
        medoids: the sets to try, each of indices into ``heads``.
    """
    correct = []
    with log.progress("cahp: accuracy", len(medoids), "numbers of heads") as progress:
        for members in medoids:
            with _only(model, heads, members):
                correct.append(count_correct(model, batches))
            progress.advance(note=f"{len(members)} heads")
    return correct


@contextmanager
def _only(model: ScoredModel, heads: Sequence[HeadPlace], members: set[int]) -> Iterator[None]:
    """Turn off, inside this context, the output of all heads of a model except some.

    The output of a head is multiplied by its gate, which is 0 for the heads that are turned off.

    Args:
        model: a model with one member.
        heads: all heads that are present, as (site, position), in model order.
        members: the heads to leave on, as indices into ``heads``.
    """
    parameter = next(model.parameters())
    gates: dict[int, list[float]] = {}
    for head_index, (site_index, _) in enumerate(heads):
        is_left_on = head_index in members
        gates.setdefault(site_index, []).append(float(is_left_on))

    # Set the gates, [1, heads] for each site (attention block); afterwards the model has the gates it had before.
    with gates_kept(model):
        for site_index, gate_of_site in gates.items():
            model.attentions[site_index].head_gate = torch.tensor(
                [gate_of_site], device=parameter.device, dtype=parameter.dtype
            )
        yield


@torch.inference_mode()
def count_correct(model: ScoredModel, batches: Batches) -> int:
    """Return the number of samples that a model with one member classifies right, with the gates its heads have now.

    Raises:
        NonFiniteError: a logit is not finite.
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
        heads: the number of heads at the knee; the largest number if the curve has no knee.
        distance: the distance of the knee from the chord, with both axes scaled to 0..1; None without a knee.
        fitted: the fitted accuracy at every number of heads that was tried.
    """

    heads: int
    distance: float | None
    fitted: Floats


def find_knee(heads: Sequence[int], accuracy: Sequence[float], degree: int) -> Knee:
    """Return the knee of a curve: the number of heads from which on more heads hardly raise the accuracy.

    There is no knee if the curve has fewer than three points, is flat, or is nowhere above its chord. Then the returned
    record has the largest number of heads, and None as the distance.

    A polynomial y(x) is fitted by least squares, with both axes scaled to 0..1. Its chord joins the first and the last
    point, with the slope s = y(1) - y(0). The knee is the point furthest above the chord, at the greatest
    (y(x) - y(0) - s x) / sqrt(1 + s^2); of equally distant points, the one with the fewest heads. Points below the
    chord do not count, since accuracy only begins to rise there.

    Args:
        heads: the numbers of heads that were tried, ascending.
        accuracy: the measured accuracy with each number.
        degree: the degree of the polynomial; lowered if there are too few points for it, e.g. to 2 for three points.
    """
    counts = np.asarray(heads, dtype=np.float64)
    measured = np.asarray(accuracy, dtype=np.float64)
    most = int(heads[-1])
    if len(counts) < 3:  # no point between the ends of the chord
        return Knee(most, None, measured)

    # Fit the polynomial, and scale both axes to 0..1.
    x = (counts - counts[0]) / (counts[-1] - counts[0])
    possible_degree = min(degree, len(x) - 1)
    polynomial = np.polynomial.Polynomial.fit(x, measured, possible_degree, domain=[0.0, 1.0])
    fitted = polynomial(x)
    lowest = fitted.min()
    rise = fitted.max() - lowest
    if rise <= _NOTHING:
        return Knee(most, None, fitted)
    y = (fitted - lowest) / rise

    # Find the point furthest above the chord: its vertical distance, divided by sqrt(1 + s^2). argmax returns the first
    # of equal distances.
    slope = y[-1] - y[0]
    vertical = y - y[0] - slope * x
    above_chord = vertical / np.hypot(1.0, slope)
    furthest = int(above_chord.argmax())
    distance = float(above_chord[furthest])
    if distance <= _NOTHING:
        return Knee(most, None, fitted)
    return Knee(int(heads[furthest]), distance, fitted)


def _knee(
    log: Log, sizes: Sequence[int], correct: Sequence[int], total: int, degree: int
) -> tuple[int, dict[str, object]]:
    """Return the number of heads at the knee of the accuracy, and the curve and the knees of all degrees as JSON.

    The knee is the number of heads from which on more heads hardly raise the accuracy. It is found on a polynomial that
    is fitted to the accuracies, for several degrees. The curve and the knees are logged, too.

    Args:
        log: receives them, and a warning if there is no knee.
        sizes: the numbers of heads that were tried.
        correct: the number of samples classified right with each.
        total: the number of samples.
        degree: the degree that decides.
    """
    # Fit a polynomial of each usual degree, to see how much the knee depends on the degree; one degree decides.
    accuracy = [count / total for count in correct]
    knees = {}
    heads_at_knees = {}
    for fitted_degree in sorted({*DEGREES, degree}):
        knees[fitted_degree] = find_knee(sizes, accuracy, fitted_degree)
        heads_at_knees[str(fitted_degree)] = knees[fitted_degree].heads

    # Log the curve, several points in a line, then the knee and the knees of the other degrees.
    log.info("cahp: accuracy against the number of heads kept")
    accuracy_of_size = dict(zip(sizes, accuracy, strict=True))
    points = [f"{size}: {share:.4f}" for size, share in accuracy_of_size.items()]
    for start in range(0, len(points), _POINTS_PER_LINE):
        points_of_line = points[start : start + _POINTS_PER_LINE]
        log.info("  " + "  ".join(points_of_line))
    knee = knees[degree]
    if knee.distance is None:
        log.warn(f"cahp: the curve has no knee with degree {degree}, so all {knee.heads} heads are kept")
    other_knees = []
    for other_degree, other_knee in knees.items():
        if other_degree != degree:
            other_knees.append(f"{other_knee.heads} with degree {other_degree}")
    kept = f"{knee.heads} of {sizes[-1]} heads are kept (accuracy {accuracy_of_size[knee.heads]:.4f})"
    log.info(f"cahp: {kept}, degree {degree}; {', '.join(other_knees)}")

    # The measured curve and the fitted one, point by point.
    curve = []
    for size, count, share, fitted in zip(sizes, correct, accuracy, knee.fitted.tolist(), strict=True):
        curve.append({"heads": size, "correct": count, "accuracy": share, "fitted": fitted})
    return knee.heads, {
        "curve": curve,
        "knee": {"heads": knee.heads, "distance": knee.distance},
        "knees": heads_at_knees,
    }
