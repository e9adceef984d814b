"""How much the members differ: mutual information and disagreement of their votes, of all and of each pair."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydractl.metrics.probabilities import Block, Floats, blocks, per_sample

CONVENTIONS = {
    "mi": "Mean over samples of H(mean over members of p_m) - mean over members of H(p_m), in nats.",
    "disagreement": "Mean over samples of the share of pairs of members that vote for different classes,"
    " 1 - sum over k of C(n_k, 2) / C(M, 2); null for one member.",
    "pairs": "mi and disagreement of each two members a < b alone, members counted from 0; empty for one member.",
}


def block_mi(block: Block) -> Floats:
    """Mutual information of each sample [N], in nats (0..log M).

    Computed as the mean over members of KL(p_m || p), which equals H(p) - mean H(p_m) and is exactly 0, not some
    rounding noise, when the members agree. It cannot be negative, so a negative value is rounding and is set to 0.

    Source: Depeweg et al. 2018 (entropy of the mean less mean of the entropies); Lakshminarayanan et al. 2017 (the sum
    of divergences).
    """
    if len(block.logits) == 1:
        return np.zeros(block.logits.shape[1])
    divergence = (block.member_powers * (block.member_log_probs - block.log_probs)).sum(axis=2)
    return np.asarray(np.maximum(divergence.mean(axis=0), 0.0), dtype=np.float64)


def block_pair_mi(block: Block) -> Floats:
    """Mutual information of each pair of members (a < b, in the order of ``itertools.combinations``), [P, N]."""
    probs, log_probs = block.member_powers, block.member_log_probs
    members = len(log_probs)
    if members == 2:
        return block_mi(block)[None]
    found = np.empty((members * (members - 1) // 2, log_probs.shape[1]))
    for row, (a, b) in zip(found, combinations(range(members), 2), strict=True):
        # With d = |log p_a - log p_b| and p the mean of the two, the larger of log p_a and log p_b is
        # log 2 - log(1 + exp(-d)) above log p, and the smaller one d less: one exponential and one logarithm.
        apart = np.abs(log_probs[a] - log_probs[b])
        above = np.log(2.0) - np.log(1.0 + np.exp(-apart))
        both = (probs[a] + probs[b]) * above - np.minimum(probs[a], probs[b]) * apart
        row[:] = np.maximum(both.sum(axis=1) / 2, 0.0)
    return found


sample_mi = per_sample(block_mi)
"""The same from logits [M, N, C], whatever their number; NonFiniteError where a logit is NaN or infinite."""


def mi(member_logits: np.ndarray) -> float | None:
    """Mean over samples of the mutual information, in nats (0..log M; 0 for one member); None without samples.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
    """
    values = sample_mi(member_logits)
    return float(values.mean()) if values.size else None


def disagreement(member_logits: np.ndarray) -> float | None:
    """Mean over samples of the share of pairs of members with different votes, 0..1.

    None for one member or no sample. A member votes for its highest logit, the lowest class index on a tie.

    Raises:
        NonFiniteError: a logit is NaN or infinite.
    """
    return vote_disagreement(np.concatenate([block.votes for _, block in blocks(member_logits)], axis=1))


def vote_disagreement(votes: np.ndarray) -> float | None:
    """The same from the classes voted for, [M, N]."""
    members, samples = votes.shape
    if members < 2 or not samples:
        return None
    return int(differing_pairs(votes).sum()) / (samples * (members * (members - 1) // 2))


def differing_pairs(votes: np.ndarray) -> NDArray[np.int64]:
    """How many pairs of members vote for different classes, [N], from votes [M, N]."""
    # 1 - sum_k C(n_k, 2) / C(M, 2) is the share of differing pairs; counted in integers, it is exact.
    differing = np.zeros(votes.shape[1], dtype=np.int64)
    for one, other in combinations(votes, 2):
        differing += one != other
    return differing


def pairs(votes: np.ndarray, pair_mi: np.ndarray) -> list[dict[str, Any]]:
    """``a``, ``b``, ``mi`` and ``disagreement`` of each pair of members.

    Args:
        votes: [M, N].
        pair_mi: mean mutual information of each pair, [P], in the order of ``itertools.combinations``.
    """
    found = zip(combinations(range(len(votes)), 2), pair_mi, strict=True)
    if not votes.shape[1]:
        return [{"a": a, "b": b, "mi": None, "disagreement": None} for (a, b), _ in found]
    return [
        {"a": a, "b": b, "mi": float(value), "disagreement": vote_disagreement(votes[[a, b]])}
        for (a, b), value in found
    ]
