"""How much the members differ: mutual information and disagreement of their votes."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from hydractl.metrics.probabilities import Floats, check_logits, log_softmax, per_sample, pool_log_probs

CONVENTIONS = {
    "mi": "Mean over samples of H(mean over members of p_m) - mean over members of H(p_m), in nats.",
    "disagreement": "Mean over samples of the share of pairs of members that vote for different classes,"
    " 1 - sum over k of C(n_k, 2) / C(M, 2); null for one member.",
}


@per_sample
def sample_mi(block: Floats) -> Floats:
    """Mutual information of each sample [N], in nats (0..log M), from logits [M, N, C].

    Computed as the mean over members of KL(p_m || p), which equals H(p) - mean H(p_m) and is exactly 0, not some
    rounding noise, when the members agree. It cannot be negative, so a negative value is rounding and is set to 0.

    Raises:
        NonFiniteError: a logit is NaN or infinite.

    Source: Depeweg et al. 2018 (entropy of the mean less mean of the entropies); Lakshminarayanan et al. 2017 (the sum
    of divergences).
    """
    log_probs = log_softmax(block)
    divergence = (np.exp(log_probs) * (log_probs - pool_log_probs(log_probs))).sum(axis=2)
    return np.asarray(np.maximum(divergence.mean(axis=0), 0.0), dtype=np.float64)


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
    votes = check_logits(member_logits).argmax(axis=2)
    members, samples = votes.shape
    if members < 2 or not samples:
        return None
    # 1 - sum_k C(n_k, 2) / C(M, 2) is the share of differing pairs; counted in integers, it is exact.
    differing = sum(int(np.count_nonzero(one != other)) for one, other in combinations(votes, 2))
    return float(differing / (samples * (members * (members - 1) // 2)))
