"""Out-of-distribution scores: one number a sample from the members' logits, higher = more OOD."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hydractl.metrics.diversity import block_mi
from hydractl.metrics.probabilities import Block, Floats, per_sample

CONVENTIONS = {
    "msp": "OOD score: minus the highest p.",
    "entropy": "OOD score: entropy of p, in nats.",
    "energy": "OOD score: mean over members of -logsumexp of the logits (temperature 1).",
    "maxlogit": "OOD score: mean over members of minus the highest logit.",
    "mi": "OOD score: H(p) - mean over members of H(p_m), in nats; constant for one member.",
    "variance": "OOD score: population variance over members of the probability of the class with the highest p;"
    " constant for one member.",
}


def msp(block: Block) -> Floats:
    """Minus the maximum softmax probability of p, [N]. Source: Hendrycks and Gimpel 2017."""
    return np.asarray(-block.probs.max(axis=1), dtype=np.float64)


def entropy(block: Block) -> Floats:
    """Entropy of p in nats, [N]."""
    return entropy_of(block.log_probs)


def entropy_of(log_probs: Floats) -> Floats:
    """Entropy in nats, [N], of distributions given as log p [N, C]."""
    # Log p is finite, so a p that underflows to 0 adds 0; 0.0 - x avoids a negative zero.
    return np.asarray(0.0 - (np.exp(log_probs) * log_probs).sum(axis=1), dtype=np.float64)


def energy(block: Block) -> Floats:
    """Mean over members of the energy -logsumexp(logits), [N]. Source: Liu et al. 2020, equation 4, T = 1."""
    return np.asarray(-block.logsumexp.mean(axis=0), dtype=np.float64)


def maxlogit(block: Block) -> Floats:
    """Mean over members of minus the highest logit, [N]. Source: Hendrycks et al. 2022."""
    return np.asarray(-block.highest.mean(axis=0), dtype=np.float64)


def variance(block: Block) -> Floats:
    """Population variance over members of the probability of the ensemble's predicted class, [N]; 0 for one member."""
    chosen = block.member_probs[:, np.arange(len(block.predicted)), block.predicted]
    # The shift changes nothing but rounding: the variance of equal members is exactly 0.
    return np.asarray((chosen - chosen[0]).var(axis=0), dtype=np.float64)


BLOCK_SCORES: dict[str, Callable[[Block], Floats]] = {
    "msp": msp,
    "entropy": entropy,
    "energy": energy,
    "maxlogit": maxlogit,
    "mi": block_mi,
    "variance": variance,
}
"""Scores by name, of one block of samples: -> float64 [n], higher = more OOD."""

OOD_SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    name: per_sample(function) for name, function in BLOCK_SCORES.items()
}
"""Scores by name: logits [M, N, C] -> float64 [N], higher = more OOD. Non-finite logits raise NonFiniteError."""
