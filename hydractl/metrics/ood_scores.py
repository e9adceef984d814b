"""Out-of-distribution scores: one number a sample from the members' logits, higher = more OOD."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hydractl.metrics.diversity import sample_mi
from hydractl.metrics.probabilities import Floats, log_softmax, per_sample, pool_log_probs, pool_probabilities, softmax

CONVENTIONS = {
    "msp": "OOD score: minus the highest p.",
    "entropy": "OOD score: entropy of p, in nats.",
    "energy": "OOD score: mean over members of -logsumexp of the logits (temperature 1).",
    "maxlogit": "OOD score: mean over members of minus the highest logit.",
    "mi": "OOD score: H(p) - mean over members of H(p_m), in nats; constant for one member.",
    "variance": "OOD score: population variance over members of the probability of the class with the highest p;"
    " constant for one member.",
}


@per_sample
def msp(block: Floats) -> Floats:
    """Minus the maximum softmax probability of p, [N]. Source: Hendrycks and Gimpel 2017."""
    return np.asarray(-pool_probabilities(block).max(axis=1), dtype=np.float64)


@per_sample
def entropy(block: Floats) -> Floats:
    """Entropy of p in nats, [N]."""
    log_probs = pool_log_probs(log_softmax(block))
    # Log p is finite, so a p that underflows to 0 adds 0; 0.0 - x avoids a negative zero.
    return np.asarray(0.0 - (np.exp(log_probs) * log_probs).sum(axis=1), dtype=np.float64)


@per_sample
def energy(block: Floats) -> Floats:
    """Mean over members of the energy -logsumexp(logits), [N]. Source: Liu et al. 2020, equation 4, T = 1."""
    highest = block.max(axis=2)
    logsumexp = highest + np.log(np.exp(block - highest[:, :, None]).sum(axis=2))
    return np.asarray(-logsumexp.mean(axis=0), dtype=np.float64)


@per_sample
def maxlogit(block: Floats) -> Floats:
    """Mean over members of minus the highest logit, [N]. Source: Hendrycks et al. 2022."""
    return np.asarray(-block.max(axis=2).mean(axis=0), dtype=np.float64)


@per_sample
def variance(block: Floats) -> Floats:
    """Population variance over members of the probability of the ensemble's predicted class, [N]; 0 for one member."""
    probs = softmax(block)
    predicted = probs.mean(axis=0).argmax(axis=1)
    chosen = probs[:, np.arange(len(predicted)), predicted]
    # The shift changes nothing but rounding: the variance of equal members is exactly 0.
    return np.asarray((chosen - chosen[0]).var(axis=0), dtype=np.float64)


OOD_SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "msp": msp,
    "entropy": entropy,
    "energy": energy,
    "maxlogit": maxlogit,
    "mi": sample_mi,
    "variance": variance,
}
"""Scores by name: logits [M, N, C] -> float64 [N], higher = more OOD. Non-finite logits raise NonFiniteError."""
