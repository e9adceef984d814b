"""From the members' logits to the ensemble's probabilities: softmax of each member, THEN the mean over members.

Source: Hydra Ensembles, section 4.2. All arithmetic is float64, whatever the precision of the logits. Samples are
processed in blocks, so that a float32 array of logits, which may be a memory map, is never copied whole into float64. A
:class:`Block` computes each quantity of its samples at most once, so that a pass that needs several of them computes
one softmax.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydractl.errors import InputError, NonFiniteError
from hydractl.files.model_records import Calibration
from hydractl.metrics.arrays import ON_ARRAYS, Arrays

Floats = NDArray[np.float64]

# The number of float64 values in one block of samples (1 MiB). Larger blocks are slower, because their temporary arrays
# do not fit in the CPU cache.
BLOCK_VALUES = 1 << 17

# log p is raised to this, so that neither log p * scale nor the square of log p overflows float64.
LOWEST_LOG_P = -1e150

# The largest magnitude of a logit; above it the difference of two logits can overflow float64.
_LARGEST_LOGIT = 1e300


def _in_range(logits: Floats) -> NDArray[np.bool_]:
    """Return whether all C logits of a member and a sample are finite and at most 1e300 in magnitude, [M, N]."""
    # numpy's max and min return NaN if one of the values is NaN, and comparing NaN gives False, so NaN is found, too.
    in_range = (logits.max(axis=2) <= _LARGEST_LOGIT) & (logits.min(axis=2) >= -_LARGEST_LOGIT)
    return np.asarray(in_range)


def _out_of_range(logits: np.ndarray) -> NonFiniteError:
    """Return the error for logits [M, N, C] that are not all finite (or are above 1e300 in magnitude).

    It names the first member with such a logit, its first such sample, and how many samples of any member have one.
    """
    bad_members, bad_samples = np.nonzero(~_in_range(logits.astype(np.float64)))
    affected_samples = np.unique(bad_samples).size
    return NonFiniteError(
        f"the logits of member {bad_members[0]} are not finite at sample {bad_samples[0]}"
        f" ({affected_samples} of {logits.shape[1]} samples are affected)",
        hint="run with float32 (--dtype float32), or check the checkpoint's weights for NaN",
    )


def check_finite(values: np.ndarray, name: str) -> Floats:
    """Check that values are one finite number for each sample, and return them as float64 [N].

    Args:
        values: [N], any type that converts to float64.
        name: the name of the values in a message.

    Raises:
        NonFiniteError: a value is NaN or infinite; the message names the first such sample.
    """
    vector = np.asarray(values, dtype=np.float64)
    is_finite = np.isfinite(vector)
    if not is_finite.all():
        first_bad = int(np.argmin(is_finite))
        raise NonFiniteError(f"{name}: not finite at sample {first_bad}")
    return vector


def scaled(calibration: Calibration, log_probs: Floats, arrays: Arrays = ON_ARRAYS) -> Floats:
    """Return ``log p * scale + bias`` [N, C] from log p [N, C]; its softmax is the calibrated p.

    Temperature scaling has the one scale 1/T and no bias, vector scaling a scale and a bias for each class.

    Args:
        calibration: the calibration of the averaged prediction.
        log_probs: log p of the averaged prediction, [N, C].
        arrays: the operations: on numpy arrays, or on tensors of an exported graph.

    Raises:
        InputError: vector scaling was fitted for another number of classes.
    """
    classes = log_probs.shape[1]
    scales = calibration.scales
    is_vector = calibration.kind == "vector"
    if is_vector and len(scales) != classes:
        raise InputError(f"the calibration was fitted for {len(scales)} classes, the model has {classes}")
    bounded = arrays.at_least(log_probs, LOWEST_LOG_P)  # -1e150, so that the product does not overflow
    multiplied = bounded * arrays.numbers(scales)  # scales: [1] or [C]
    if is_vector:
        return multiplied + arrays.numbers(calibration.bias or ())
    return multiplied


class Powers(NamedTuple):
    """What the softmax of logits [..., C] and its logarithm follow from.

    Attributes:
        highest: the highest logit, [..., 1].
        shifted: the logits minus the highest, [..., C].
        powers: the exponentials of these differences, [..., C].
        total: the sum of the exponentials, [..., 1].
    """

    highest: Floats
    shifted: Floats
    powers: Floats
    total: Floats

    @property
    def softmax(self) -> Floats:
        """The softmax over the last axis.

        It is not computed as the exponential of its logarithm: the quotient gives exactly 1/C for equal logits, so that
        a confidence on a bin edge stays on it.
        """
        return self.powers / self.total


def powers_of(logits: Floats, arrays: Arrays = ON_ARRAYS) -> Powers:
    """Return the :class:`Powers` of logits, computed over the last axis."""
    highest = arrays.max(logits, axis=-1, keepdims=True)
    shifted = logits - highest
    powers = arrays.exp(shifted)
    return Powers(highest, shifted, powers, powers.sum(axis=-1, keepdims=True))


class Block:
    """The logits of some samples, float64 [M, n, C] in C order, and every quantity computed from them.

    ``probs``, ``log_probs``, ``entropy`` and ``predicted`` are calibrated if there is a calibration. Everything else
    describes the members without it. Each quantity is computed when it is first asked for, and kept. The exponentials
    of the members' logits are computed once, and no entropy of a member takes a logarithm of each class.

    Args:
        logits: the members' logits, float64 [M, n, C]; in a graph they are a tensor, and then all quantities are
            tensors.
        calibration: the calibration of p; None means none.
        arrays: the operations: on numpy arrays, or on tensors.
    """

    def __init__(self, logits: Floats, calibration: Calibration | None = None, arrays: Arrays = ON_ARRAYS) -> None:
        self.logits = logits
        self.calibration = calibration
        self.arrays = arrays

    @cached_property
    def highest(self) -> Floats:
        """The highest logit of each member, [M, n]."""
        highest: Floats = self._powers.highest[:, :, 0]
        return highest

    @cached_property
    def votes(self) -> NDArray[np.int64]:
        """The class that each member votes for, [M, n]: the class of its highest logit, the lowest index on a tie."""
        return self.arrays.argmax(self.logits, axis=2)

    @cached_property
    def _powers(self) -> Powers:
        """Those of the members' logits, [M, n, C] and [M, n, 1]."""
        return powers_of(self.logits, self.arrays)

    @cached_property
    def _log_total(self) -> Floats:
        """The logarithm of the sum of each member's exponentials, [M, n, 1]; minus log p of its highest class."""
        return self.arrays.log(self._powers.total)

    @cached_property
    def logsumexp(self) -> Floats:
        """log sum exp of each member's logits, [M, n], in nats."""
        log_sums = self._powers.highest + self._log_total  # [M, n, 1]
        without_class_axis: Floats = log_sums[:, :, 0]
        return without_class_axis

    @cached_property
    def member_probs(self) -> Floats:
        """Each member's softmax, [M, n, C]."""
        return self._powers.softmax

    @cached_property
    def member_log_probs(self) -> Floats:
        """The logarithm of each member's softmax, [M, n, C]; finite even if the softmax underflows to 0."""
        return self._powers.shifted - self._log_total

    @cached_property
    def member_entropy(self) -> Floats:
        """Entropy of each member's softmax in nats, [M, n]."""
        return entropy_of_shifted(self.member_probs, self._powers.shifted, self._log_total)

    @cached_property
    def pooled(self) -> Floats:
        """The mean over members of their softmax, [n, C]; this is p before calibration."""
        if len(self.logits) == 1:
            return self.member_probs[0]
        mean_over_members: Floats = self.member_probs.mean(axis=0)
        return mean_over_members

    @cached_property
    def pooled_log(self) -> Floats:
        """The logarithm of :attr:`pooled`, [n, C]; finite for all finite logits."""
        log_probs = self.member_log_probs
        if len(log_probs) == 1:
            return log_probs[0]
        return pool_log_probs(log_probs, self.arrays)

    @cached_property
    def _calibrated_powers(self) -> Powers | None:
        """Those of the logits whose softmax is the calibrated p, [n, C] and [n, 1]; None without a calibration."""
        if self.calibration is None:
            return None
        return powers_of(scaled(self.calibration, self.pooled_log, self.arrays), self.arrays)

    @cached_property
    def probs(self) -> Floats:
        """p, [n, C], calibrated if there is a calibration."""
        if self._calibrated_powers is None:
            return self.pooled
        return self._calibrated_powers.softmax

    @cached_property
    def log_probs(self) -> Floats:
        """log p, [n, C], calibrated if there is a calibration; finite for all finite logits."""
        if self._calibrated_powers is None:
            return self.pooled_log
        return self._calibrated_powers.shifted - self.arrays.log(self._calibrated_powers.total)

    @cached_property
    def confidence(self) -> Floats:
        """The highest p, [n]."""
        return self.arrays.max(self.probs, axis=1)

    @cached_property
    def rising_probs(self) -> Floats:
        """p of each sample in rising order, [n, C]."""
        return self.arrays.rising(self.probs)

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """The class of highest p, [n]; the lowest index on a tie."""
        changes_order = self.calibration is not None and self.calibration.kind == "vector"
        # A temperature does not change the prediction, so take p before it: in the calibrated p, rounding could decide
        # between two equally probable classes.
        probs = self.probs if changes_order else self.pooled
        return self.arrays.argmax(probs, axis=1)

    def log_probs_of(self, classes: NDArray[np.int64]) -> Floats:
        """Return log p of one class of each sample, e.g. its label, [n].

        Args:
            classes: the class of each sample, [n].
        """
        # A calibrated p follows from log p of all classes.
        if self.calibration is not None:
            of_classes: Floats = self.arrays.taken(self.log_probs, classes[:, None])  # [n, 1]
            return of_classes[:, 0]
        # Without a calibration only the one class is computed: log p_m of each member, then log of the mean of p_m.
        shifted_of_classes = self.arrays.taken(self._powers.shifted, classes[None, :, None])  # [M, n, 1]
        of_members = shifted_of_classes - self._log_total
        if len(of_members) == 1:
            return of_members[0, :, 0]
        return pool_log_probs(of_members, self.arrays)[:, 0]

    @cached_property
    def entropy(self) -> Floats:
        """Entropy of p in nats, [n]."""
        if self._calibrated_powers is None:
            return self._pooled_entropy
        log_total = self.arrays.log(self._calibrated_powers.total)
        return entropy_of_shifted(self.probs, self._calibrated_powers.shifted, log_total)

    @cached_property
    def _pooled_entropy(self) -> Floats:
        """Entropy of p before calibration in nats, [n]."""
        if len(self.logits) == 1:
            return self.member_entropy[0]
        return self.arrays.entropy(self.pooled)

    @cached_property
    def mi(self) -> Floats:
        """Mutual information of the members in nats, [n], 0..log M: H(p) - mean over members of H(p_m).

        It is exactly 0 if the members agree, without rounding noise. It cannot be negative, so a negative value is due
        to rounding and becomes 0.

        Source: Depeweg et al. 2018 (entropy of the mean less mean of the entropies); Lakshminarayanan et al. 2017 (the
        sum of divergences).
        """
        if len(self.logits) == 1:  # 0 for every sample, in an array of the same kind as the logits
            first_class = self.logits[0, :, 0]
            return self.arrays.filled(first_class, 0.0)
        information = self._pooled_entropy - self.member_entropy.mean(axis=0)  # H(p) - mean_m H(p_m), [n]
        # Members differ if the range of their p is above 0 for some class. It is written with max and min: an exported
        # file may hold no operator that reduces booleans, as any() does.
        probs = self.member_probs
        range_of_members = self.arrays.max(probs, axis=0) - self.arrays.min(probs, axis=0)  # [n, C]
        they_differ = self.arrays.max(range_of_members, axis=1) > 0.0  # bool, [n]
        return self.arrays.at_least(information, 0.0) * they_differ  # times False is exactly 0

    @cached_property
    def member_probs_of_predicted(self) -> Floats:
        """Each member's probability of the class of highest p before calibration, [M, n]."""
        predicted = self.arrays.argmax(self.pooled, axis=1)
        # Add a member axis and a class axis to the indices [n], so that they select from each member's [n, C].
        probs = self.arrays.taken(self.member_probs, predicted[None, :, None])  # [M, n, 1]
        without_class_axis: Floats = probs[:, :, 0]
        return without_class_axis


def blocks(member_logits: np.ndarray, calibration: Calibration | None = None) -> Iterator[tuple[slice, Block]]:
    """Yield each block of samples as its slice and its :class:`Block`, in order; one empty block if N is 0.

    The logits are read once, a block at a time, and checked as they are read.

    Args:
        member_logits: [M, N, C], any float type; a memory map is never read whole.
        calibration: the calibration of p; None means none.

    Raises:
        NonFiniteError: a logit is NaN, infinite or above 1e300 in magnitude.
        InputError: the calibration is for another number of classes; raised by the block when p is asked for.
    """
    members, samples, classes = member_logits.shape
    # A block has as many samples as fit BLOCK_VALUES logits, but at least one.
    samples_in_block = max(1, BLOCK_VALUES // (members * classes))
    for start in range(0, max(samples, 1), samples_in_block):
        try:
            block = block_of(member_logits[:, start : start + samples_in_block], calibration)
        except NonFiniteError:  # its message is of this block only: raise one that counts the samples of all blocks
            raise _out_of_range(member_logits) from None
        stop = start + block.logits.shape[1]  # the last block may be shorter
        yield slice(start, stop), block


def block_of(member_logits: np.ndarray, calibration: Calibration | None) -> Block:
    """Return all samples as one :class:`Block`; for few samples, and what is raised, see :func:`blocks`."""
    # Copy in C order: numpy adds up a row in the order of memory, and rounding must not depend on the caller's.
    values = np.array(member_logits, dtype=np.float64, order="C")
    if not _in_range(values).all():
        raise _out_of_range(member_logits)
    return Block(values, calibration)


def per_sample(function: Callable[[Block], Floats]) -> Callable[[np.ndarray], Floats]:
    """Turn a function of a :class:`Block`, which returns [n, ...], into one of logits [M, N, C] that returns [N, ...].

    The new function raises what :func:`blocks` raises.
    """

    @functools.wraps(function)
    def on_all_samples(member_logits: np.ndarray) -> Floats:
        values_of_blocks = [function(block) for _, block in blocks(member_logits)]
        return np.concatenate(values_of_blocks)

    return on_all_samples


def entropy_of_shifted(probs: Floats, shifted: Floats, log_total: Floats) -> Floats:
    """Return the entropy in nats over the last axis, whose length is lost.

    With log p = shifted - log total, and p that add up to 1, the entropy is log total - sum of p * shifted.

    Args:
        probs: p, the softmax.
        shifted: the logits minus the highest, see :class:`Powers`.
        log_total: the logarithm of the sum of the exponentials, with the last axis of length 1.
    """
    mean_shift = (probs * shifted).sum(axis=-1)
    entropy: Floats = log_total[..., 0] - mean_shift
    return entropy


def pool_log_probs(log_probs: Floats, arrays: Arrays) -> Floats:
    """Return log p [N, C] of the mean over M members, from the members' log-probabilities log p_m [M, N, C].

    log p = log(1/M sum_m exp(log p_m)) = highest + log(sum_m exp(log p_m - highest)) - log M, where the highest log p_m
    is subtracted so that no power overflows. If all members are equal, their values come back exactly.
    """
    members = len(log_probs)
    highest = arrays.max(log_probs, axis=0)  # [N, C]
    powers = arrays.exp(log_probs - highest)  # [M, N, C]
    # Add up one member after another: numpy adds up a single number of each member in another order.
    total = functools.reduce(operator.add, powers)
    log_members = arrays.number(float(np.log(float(members))))
    log_mean = arrays.log(total) - log_members  # exactly 0 if all members are equal
    return highest + log_mean


@per_sample
def pooled_log_probs(block: Block) -> Floats:
    """Return log p of the ensemble, float64 [N, C], in nats, from logits [M, N, C]; finite for all finite logits.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
    """
    return block.log_probs
