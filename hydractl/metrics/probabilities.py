"""From the members' logits to the ensemble's probabilities: softmax per member, THEN the mean over members.

Source: Hydra Ensembles, section 4.2. All arithmetic is float64, whatever the precision of the logits. Samples are
processed in blocks, so that a float32 array of logits is never copied whole into float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from hydractl.errors import NonFiniteError

Floats = NDArray[np.float64]

CONVENTIONS = {
    "probability": "p = mean over members of the softmax of each member's logits, in float64 (never of the logits).",
}

# Float64 values in one block of samples (32 MiB): large enough for numpy to be fast, small enough for the temporaries.
_BLOCK_VALUES = 1 << 22

# Above this the difference of two logits can leave the range of float64.
_LARGEST_LOGIT = 1e300


def check_logits(member_logits: np.ndarray) -> np.ndarray:
    """Check the members' logits and return them, unchanged unless they are integers (then float64).

    Args:
        member_logits: [M, N, C] with M >= 1 and C >= 1, any float type.

    Raises:
        ValueError: the array has another shape or type.
        NonFiniteError: NaN, an infinity or a magnitude above 1e300; it names the first member and its first sample.
    """
    logits = np.asarray(member_logits)
    if logits.ndim != 3 or logits.shape[0] < 1 or logits.shape[2] < 1:
        raise ValueError(f"member logits must be [members, samples, classes], got shape {logits.shape}")
    if np.issubdtype(logits.dtype, np.integer):
        logits = logits.astype(np.float64)
    if not np.issubdtype(logits.dtype, np.floating):
        raise ValueError(f"member logits must be floating point, got {logits.dtype}")
    limit = min(_LARGEST_LOGIT, float(np.finfo(logits.dtype).max))
    # A comparison with NaN is false and numpy's max and min pass NaN on, so one test finds NaN, infinities and giants.
    good = (logits.max(axis=2) <= limit) & (logits.min(axis=2) >= -limit)
    if not good.all():
        members, samples = np.nonzero(~good)
        raise NonFiniteError(
            f"the logits of member {members[0]} are not finite at sample {samples[0]}"
            f" ({np.unique(samples).size} of {logits.shape[1]} samples are affected)",
            hint="run with float32 (--dtype float32), or check the checkpoint's weights for NaN",
        )
    return logits


def check_finite(values: np.ndarray, name: str) -> Floats:
    """Return a vector [N] as float64, and raise NonFiniteError naming its first NaN or infinity."""
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1:
        raise ValueError(f"{name} must be one number a sample, got shape {vector.shape}")
    good = np.isfinite(vector)
    if not good.all():
        raise NonFiniteError(f"{name}: not finite at sample {int(np.argmin(good))}")
    return vector


def sample_blocks(member_logits: np.ndarray) -> Iterator[Floats]:
    """Yield checked logits [M, N, C] as float64 blocks [M, n, C], in order; one empty block when N is 0."""
    members, samples, classes = member_logits.shape
    step = max(1, _BLOCK_VALUES // (members * classes))
    for start in range(0, max(samples, 1), step):
        # C order, because the order in which numpy adds up a row must not depend on the caller's memory layout.
        yield np.array(member_logits[:, start : start + step], dtype=np.float64, order="C")


def per_sample(function: Callable[[Floats], Floats]) -> Callable[[np.ndarray], Floats]:
    """Make a function of one float64 block [M, n, C] -> [n, ...] one of any checked logits [M, N, C] -> [N, ...]."""

    @functools.wraps(function)
    def on_all_samples(member_logits: np.ndarray) -> Floats:
        logits = check_logits(member_logits)
        return np.concatenate([function(block) for block in sample_blocks(logits)])

    return on_all_samples


def softmax(logits: Floats) -> Floats:
    """Softmax over the last axis.

    Not the exponential of :func:`log_softmax`: the quotient gives 1/C exactly for equal logits, so that a
    confidence that lies on a bin edge stays on it.
    """
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), dtype=np.float64)


def log_softmax(logits: Floats) -> Floats:
    """Logarithm (nats) of the softmax over the last axis; at most 0, and finite where the softmax underflows to 0."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), dtype=np.float64)


def pool_log_probs(log_probs: Floats) -> Floats:
    """Log p [N, C] of the mean over members, from the members' log-probabilities [M, N, C].

    logsumexp over members - log M. Equal members give their own values back, exactly.
    """
    highest = log_probs.max(axis=0)
    total = np.exp(log_probs - highest).sum(axis=0)
    return np.asarray(highest + (np.log(total) - np.log(float(len(log_probs)))), dtype=np.float64)


def member_log_probs(member_logits: np.ndarray) -> Floats:
    """Log-probabilities of each member, float64 [M, N, C], in nats, from logits [M, N, C] of any float type.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
    """
    return log_softmax(np.array(check_logits(member_logits), dtype=np.float64, order="C"))


@per_sample
def pooled_log_probs(block: Floats) -> Floats:
    """Log p of the ensemble, float64 [N, C], in nats, from logits [M, N, C]; finite whenever the logits are.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
    """
    return pool_log_probs(log_softmax(block))


@per_sample
def pooled_probabilities(block: Floats) -> Floats:
    """Probabilities p of the ensemble, float64 [N, C], from logits [M, N, C].

    Raises:
        NonFiniteError: a logit is NaN or infinite.
    """
    return pool_probabilities(block)


def pool_probabilities(logits: Floats) -> Floats:
    """Mean over members of the softmax, [N, C], of one float64 block [M, N, C]."""
    return np.asarray(softmax(logits).mean(axis=0), dtype=np.float64)
