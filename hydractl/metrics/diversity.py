"""How much the members differ: mutual information and disagreement of their votes, of all and of each pair."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

from hydractl.metrics.declaration import metric
from hydractl.metrics.samples import Resample, Samples

CONVENTIONS = {
    "pairs": "mi and disagreement of each two members a < b alone, members counted from 0; empty for one member.",
}


@metric(
    "diversity",
    "Mean over samples of H(mean over members of p_m) - mean over members of H(p_m), in nats.",
    label="mi",
    words="mutual information of the members",
)
def mi(samples: Samples | Resample) -> float:
    """Mean over samples of the mutual information, in nats (0..log M; 0 for one member)."""
    return samples.mean("mi")


@metric(
    "diversity",
    "Mean over samples of the share of pairs of members that vote for different classes,"
    " 1 - sum over k of C(n_k, 2) / C(M, 2); null for one member.",
    label="disagr",
    words="disagreement of the members",
)
def disagreement(samples: Samples | Resample) -> float | None:
    """Mean over samples of the share of pairs of members with different votes, 0..1; None for one member.

    A member votes for its highest logit, the lowest class index on a tie.
    """
    if not samples.member_pairs:
        return None
    return samples.total("differing_pairs") / (len(samples) * samples.member_pairs)


def pairs(samples: Samples) -> list[dict[str, Any]]:
    """``a``, ``b``, ``mi`` and ``disagreement`` of each pair of members; empty where nobody asked for pairs."""
    if not len(samples.pair_mi):
        return []
    each = zip(combinations(range(len(samples.votes)), 2), samples.pair_mi, strict=True)
    if not len(samples):
        return [{"a": a, "b": b, "mi": None, "disagreement": None} for (a, b), _ in each]
    return [
        {
            "a": a,
            "b": b,
            "mi": float(value),
            "disagreement": disagreement(replace(samples, votes=samples.votes[[a, b]])),
        }
        for (a, b), value in each
    ]
