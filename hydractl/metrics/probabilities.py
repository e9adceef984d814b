"""From the members' logits to the ensemble's probabilities: softmax per member, THEN the mean over members.

Source: Hydra Ensembles, section 4.2. All arithmetic is float64, whatever the precision of the logits. Samples are
processed in blocks, so that a float32 array of logits is never copied whole into float64 and can be a memory map. A
:class:`Block` computes each quantity of its samples at most once: a pass that wants several takes one softmax.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hydractl.errors import InputError, NonFiniteError
from hydractl.metrics.arrays import ON_ARRAYS, Arrays

Floats = NDArray[np.float64]

# Float64 values in one block of samples (1 MiB): larger blocks are slower, because their temporaries leave the cache.
BLOCK_VALUES = 1 << 17

# Above this the difference of two logits can leave the range of float64.
_LARGEST_LOGIT = 1e300


def check_shape(member_logits: np.ndarray) -> np.ndarray:
    """Return the logits as an array, without reading their values.

    Raises:
        ValueError: not [M, N, C] numbers with M >= 1 and C >= 1.
    """
    logits = np.asarray(member_logits)
    shape = logits.shape
    has_members_and_classes = len(shape) == 3 and shape[0] >= 1 and shape[2] >= 1
    if not has_members_and_classes:
        raise ValueError(f"member logits must be [members, samples, classes], got shape {shape}")
    is_floating = np.issubdtype(logits.dtype, np.floating)
    is_integer = np.issubdtype(logits.dtype, np.integer)
    if not is_floating and not is_integer:
        raise ValueError(f"member logits must be floating point, got {logits.dtype}")
    return logits


def check_logits(member_logits: np.ndarray) -> np.ndarray:
    """Check the members' logits and return them, integers as float64, all others unchanged.

    Args:
        member_logits: [M, N, C] with M >= 1 and C >= 1, any float type.

    Raises:
        ValueError: the array has another shape or type.
        NonFiniteError: NaN, an infinity or a magnitude above 1e300; it names the first member and its first sample.
    """
    logits = check_shape(member_logits)
    if np.issubdtype(logits.dtype, np.integer):
        logits = logits.astype(np.float64)
    good = _in_range(logits)  # [M, N]
    if good.all():
        return logits

    bad_members, bad_samples = np.nonzero(~good)
    affected = np.unique(bad_samples).size
    raise NonFiniteError(
        f"the logits of member {bad_members[0]} are not finite at sample {bad_samples[0]}"
        f" ({affected} of {logits.shape[1]} samples are affected)",
        hint="run with float32 (--dtype float32), or check the checkpoint's weights for NaN",
    )


def _in_range(logits: np.ndarray) -> NDArray[np.bool_]:
    """Return whether all logits of a member and sample are finite and of magnitude 1e300 at most, [M, N]."""
    largest_of_dtype = float(np.finfo(logits.dtype).max)
    limit = min(_LARGEST_LOGIT, largest_of_dtype)
    # A comparison with NaN is false, and numpy's max and min return NaN where there is one: no value escapes the test.
    highest = logits.max(axis=2)
    lowest = logits.min(axis=2)
    in_range = (highest <= limit) & (lowest >= -limit)
    return np.asarray(in_range)


def check_finite(values: np.ndarray, name: str) -> Floats:
    """Return a vector [N] as float64.

    Args:
        values: [N], any type that converts to float64.
        name: what to call the values in a message.

    Raises:
        ValueError: not one number a sample.
        NonFiniteError: naming the first sample whose value is NaN or infinite.
    """
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1:
        raise ValueError(f"{name} must be one number a sample, got shape {vector.shape}")
    is_finite = np.isfinite(vector)
    if not is_finite.all():
        first_bad = int(np.argmin(is_finite))
        raise NonFiniteError(f"{name}: not finite at sample {first_bad}")
    return vector


def check_labels(labels: np.ndarray, samples: int, classes: int) -> NDArray[np.int64]:
    """Return the labels [N] as int64.

    Raises:
        ValueError: not one integer a sample.
        InputError: labels outside 0..C-1, every such label listed.
    """
    array = np.asarray(labels)
    are_integers = np.issubdtype(array.dtype, np.integer) or array.size == 0
    if array.shape != (samples,) or not are_integers:
        raise ValueError(f"labels must be {samples} integers, got shape {array.shape} of {array.dtype}")
    is_outside = (array < 0) | (array >= classes)
    if is_outside.any():
        wrong_samples = np.flatnonzero(is_outside)
        raise InputError(
            f"{wrong_samples.size} of {samples} labels are outside the model's classes 0..{classes - 1}",
            hint="the data must use the label order of the model (--label-map)",
            problems=_counts_of_labels(array, wrong_samples),
        )
    return array.astype(np.int64)


def _counts_of_labels(labels: np.ndarray, wrong_samples: NDArray[np.int64]) -> list[str]:
    """Say how many of some samples have each label, and which is the first of them."""
    wrong_labels = labels[wrong_samples]
    values, first_places, counts = np.unique(wrong_labels, return_index=True, return_counts=True)
    first_samples = wrong_samples[first_places]
    sentences = []
    for value, count, first_sample in zip(values, counts, first_samples, strict=True):
        sentences.append(f"label {value}: {count} samples, first sample {first_sample}")
    return sentences


class Scaling(Protocol):
    """A calibration of the averaged prediction (:class:`hydractl.metrics.calibrators.Calibration`)."""

    @property
    def kind(self) -> str:
        """``temperature``, which keeps the order of classes, or ``vector``."""

    def scaled(self, log_probs: Floats, arrays: Arrays = ON_ARRAYS) -> Floats:
        """Return the calibrated log p [n, C] of log p [n, C], up to a constant for each sample."""


class Block:
    """Logits of some samples, float64 [M, n, C] in C order, and what follows from them.

    ``probs``, ``log_probs``, ``entropy`` and ``predicted`` are calibrated where a calibration is given; everything else
    describes the members as they are.

    Args:
        logits: the members' logits, float64 [M, n, C]; in a graph a tensor, and then everything else is one too.
        calibration: the calibration of p; None for none.
        arrays: the operations on arrays, or on tensors.
    """

    def __init__(self, logits: Floats, calibration: Scaling | None = None, arrays: Arrays = ON_ARRAYS) -> None:
        self.logits = logits
        self.calibration = calibration
        self.arrays = arrays

    @cached_property
    def highest(self) -> Floats:
        """The highest logit of each member, [M, n]."""
        highest, _, _, _ = self._powers
        without_class_axis: Floats = highest[:, :, 0]
        return without_class_axis

    @cached_property
    def votes(self) -> NDArray[np.int64]:
        """The class each member votes for, [M, n]: its highest logit, the lowest index on a tie."""
        return self.arrays.argmax(self.logits, axis=2)

    @cached_property
    def _powers(self) -> tuple[Floats, Floats, Floats, Floats]:
        """The four arrays of :func:`shifted_powers`, [M, n, 1], [M, n, C], [M, n, C] and [M, n, 1]."""
        return shifted_powers(self.logits, self.arrays)

    @cached_property
    def logsumexp(self) -> Floats:
        """log sum exp of each member's logits, [M, n], in nats."""
        highest, _, _, total = self._powers
        log_sums = highest + self.arrays.log(total)  # [M, n, 1]
        without_class_axis: Floats = log_sums[:, :, 0]
        return without_class_axis

    @cached_property
    def member_probs(self) -> Floats:
        """Each member's softmax, [M, n, C]."""
        _, _, powers, total = self._powers
        return powers / total

    @cached_property
    def member_log_probs(self) -> Floats:
        """Logarithm of each member's softmax, [M, n, C]; finite where the softmax underflows to 0."""
        _, shifted, _, total = self._powers
        log_total = self.arrays.log(total)
        return shifted - log_total

    @cached_property
    def member_powers(self) -> Floats:
        """The exponential of :attr:`member_log_probs`, [M, n, C]; ``member_probs`` but for rounding."""
        return self.arrays.exp(self.member_log_probs)

    @cached_property
    def pooled(self) -> Floats:
        """The mean over members of their softmax, [n, C]: p before calibration."""
        mean_over_members: Floats = self.member_probs.mean(axis=0)
        return mean_over_members

    @cached_property
    def pooled_log(self) -> Floats:
        """log of :attr:`pooled`, [n, C]; finite whenever the logits are."""
        log_probs = self.member_log_probs
        if len(log_probs) == 1:
            return log_probs[0]
        return pool_log_probs(log_probs, self.arrays)

    @cached_property
    def _scaled(self) -> Floats | None:
        """The logarithms whose softmax is the calibrated p, [n, C]; None without a calibration."""
        if self.calibration is None:
            return None
        return self.calibration.scaled(self.pooled_log, self.arrays)

    @cached_property
    def probs(self) -> Floats:
        """p, [n, C]."""
        if self._scaled is None:
            return self.pooled
        return softmax(self._scaled, self.arrays)

    @cached_property
    def log_probs(self) -> Floats:
        """log p, [n, C]; finite whenever the logits are."""
        if self._scaled is None:
            return self.pooled_log
        return log_softmax(self._scaled, self.arrays)

    @cached_property
    def confidence(self) -> Floats:
        """The highest p, [n]."""
        return self.arrays.max(self.probs, axis=1)

    @cached_property
    def rising_probs(self) -> Floats:
        """p, [n, C], of each sample in rising order."""
        return self.arrays.rising(self.probs)

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """The class of highest p, [n]; the lowest index on a tie."""
        changes_order = self.calibration is not None and self.calibration.kind == "vector"
        # A temperature changes no prediction. From its p, rounding could decide between two equally probable classes.
        probs = self.pooled
        if changes_order:
            probs = self.probs
        return self.arrays.argmax(probs, axis=1)

    @cached_property
    def entropy(self) -> Floats:
        """Entropy of p in nats, [n]."""
        # Log p is finite, so a p that underflows to 0 adds 0.
        terms = self.arrays.exp(self.log_probs) * self.log_probs
        total = terms.sum(axis=1)
        entropy: Floats = 0.0 - total  # unlike -total, never a negative zero
        return entropy

    @cached_property
    def mi(self) -> Floats:
        """Mutual information of the members in nats, [n], 0..log M.

        Computed as the mean over members of KL(p_m || p), which equals H(p) - mean H(p_m) and is exactly 0, not some
        rounding noise, when the members agree. It cannot be negative, so a negative value is rounding and is set to 0.

        Source: Depeweg et al. 2018 (entropy of the mean less mean of the entropies); Lakshminarayanan et al. 2017 (the
        sum of divergences).
        """
        if len(self.logits) == 1:
            first_class = self.logits[0, :, 0]
            return self.arrays.filled(first_class, 0.0)
        terms = self.member_powers * (self.member_log_probs - self.pooled_log)
        divergence = terms.sum(axis=2)  # of each member from the mean, [M, n]
        mean_divergence = divergence.mean(axis=0)
        return self.arrays.at_least(mean_divergence, 0.0)

    @cached_property
    def member_probs_of_predicted(self) -> Floats:
        """Each member's probability of the class of highest p before calibration, [M, n]."""
        predicted = self.arrays.argmax(self.pooled, axis=1)
        probs = self.arrays.taken(self.member_probs, predicted[None, :, None])  # [M, n, 1]
        without_class_axis: Floats = probs[:, :, 0]
        return without_class_axis


def blocks(member_logits: np.ndarray, calibration: Scaling | None = None) -> Iterator[tuple[slice, Block]]:
    """Yield the slice of the samples in each block and their :class:`Block`, in order; one empty block when N is 0.

    The logits are read once, a block at a time, and checked as they are read.

    Args:
        member_logits: [M, N, C], any float type; a memory map is never read whole.
        calibration: None leaves p as it is.

    Raises:
        ValueError: the array has another shape or type.
        NonFiniteError: as :func:`check_logits`.
        InputError: the calibration is for another number of classes, where p is taken.
    """
    logits = check_shape(member_logits)
    members, samples, classes = logits.shape
    step = max(1, BLOCK_VALUES // (members * classes))
    for start in range(0, max(samples, 1), step):
        logits_of_block = logits[:, start : start + step]
        # C order, because the order in which numpy adds up a row must not depend on the caller's memory layout.
        values = np.array(logits_of_block, dtype=np.float64, order="C")
        in_range = _in_range(values)
        if not in_range.all():
            check_logits(logits)  # raises, and counts the affected samples of the whole array
        stop = start + values.shape[1]
        yield slice(start, stop), Block(values, calibration)


def per_sample(function: Callable[[Block], Floats]) -> Callable[[np.ndarray], Floats]:
    """Turn a function of one :class:`Block`, [n, ...], into one of logits [M, N, C], [N, ...].

    The function that comes back raises what :func:`blocks` raises.
    """

    @functools.wraps(function)
    def on_all_samples(member_logits: np.ndarray) -> Floats:
        values_of_blocks = []
        for _, block in blocks(member_logits):
            values = function(block)
            values_of_blocks.append(values)
        return np.concatenate(values_of_blocks)

    return on_all_samples


def shifted_powers(logits: Floats, arrays: Arrays = ON_ARRAYS) -> tuple[Floats, Floats, Floats, Floats]:
    """Return, over the last axis: the highest logit, the logits less it, the exponentials of those, and their sum.

    The highest logit and the sum keep the last axis, of length 1.
    """
    highest = arrays.max(logits, axis=-1, keepdims=True)
    shifted = logits - highest
    powers = arrays.exp(shifted)
    total = powers.sum(axis=-1, keepdims=True)
    return highest, shifted, powers, total


def softmax(logits: Floats, arrays: Arrays = ON_ARRAYS) -> Floats:
    """Return the softmax over the last axis.

    Not the exponential of :func:`log_softmax`: the quotient gives 1/C exactly for equal logits, so that a
    confidence that lies on a bin edge stays on it.
    """
    _, _, powers, total = shifted_powers(logits, arrays)
    return powers / total


def log_softmax(logits: Floats, arrays: Arrays = ON_ARRAYS) -> Floats:
    """Return the logarithm (nats) of the softmax over the last axis; at most 0, finite where the softmax underflows."""
    _, shifted, _, total = shifted_powers(logits, arrays)
    log_total = arrays.log(total)
    return shifted - log_total


def pool_log_probs(log_probs: Floats, arrays: Arrays = ON_ARRAYS) -> Floats:
    """Return log p [N, C] of the mean over members, from the members' log-probabilities [M, N, C].

    It is the logsumexp over members less log M. Equal members give their own values back, exactly.
    """
    members = len(log_probs)
    highest = arrays.max(log_probs, axis=0)  # [N, C]
    powers = arrays.exp(log_probs - highest)
    total = powers.sum(axis=0)
    log_members = arrays.number(float(np.log(float(members))))
    log_mean = arrays.log(total) - log_members  # exactly 0 where all members are equal
    return highest + log_mean


@per_sample
def pooled_log_probs(block: Block) -> Floats:
    """Return log p of the ensemble, float64 [N, C], in nats, from logits [M, N, C]; finite whenever the logits are.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
    """
    return block.log_probs
