"""Agreement of two masks, or of two removal orders (paper B.2.2). Pure Python: names and numbers, no weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hydractl.heads.mask import Head, HeadMask


def mask_overlap(a: HeadMask, b: HeadMask) -> dict[str, Mapping[str, object]]:
    """Compare two masks of the same sites by what they keep (``kept``) and by what they remove (``removed``).

    Returns:
        For both: ``counts``, the numbers of heads in the first and in the second set;
        ``shared``, the number of heads in both; ``jaccard``, shared heads over heads in either set; ``overlap``, shared
        heads over those of the smaller set; ``divergence``, the Jensen-Shannon divergence in bits (0..1) of the two
        distributions of heads over sites. The divergence is 0 for sets with the same share of heads at every site,
        whichever heads these are. A number that has no meaning because a set is empty is None.
    """
    return {
        "kept": _compare_sets(a.kept_heads, b.kept_heads),
        "removed": _compare_sets(a.removed_heads, b.removed_heads),
    }


def _compare_sets(a: Sequence[Head], b: Sequence[Head]) -> dict[str, object]:
    """Compare two sets of heads, each listed without repetition.

    Returns:
        The numbers of heads in each and in both, and how similar the sets are, see :func:`mask_overlap`. A number that
        has no meaning because a set is empty is None.
    """
    shared = len(set(a).intersection(b))

    # The overlap coefficient: which share of the smaller set is in the larger one, too.
    smaller_size = min(len(a), len(b))
    overlap: float | None = shared / smaller_size if smaller_size else None

    # The divergence tells how differently the two sets are spread over the sites.
    sites_of_a = Counter(site for site, _ in a)
    sites_of_b = Counter(site for site, _ in b)
    return {
        "counts": [len(a), len(b)],
        "shared": shared,
        "jaccard": jaccard(a, b),
        "overlap": overlap,
        "divergence": jensen_shannon(sites_of_a, sites_of_b),
    }


def jensen_shannon(a: Mapping[str, int], b: Mapping[str, int]) -> float | None:
    """Return the Jensen-Shannon divergence of two distributions given as counts: 0 bits if equal, 1 if disjoint.

    With shares p and q and their mean m = (p + q) / 2, it is half the sum over keys of p log2(p / m) + q log2(q / m).
    None if the counts of one distribution are all 0.
    """
    total_a = sum(a.values())
    total_b = sum(b.values())
    if not total_a or not total_b:
        return None

    # Collect the terms of all keys; a share of 0 adds nothing. p / m is 2 p / (p + q).
    terms = []
    for key in {**a, **b}:
        p = a.get(key, 0) / total_a
        q = b.get(key, 0) / total_b
        if p:
            p_to_mean = 2 * p / (p + q)
            terms.append(p * math.log2(p_to_mean))
        if q:
            q_to_mean = 2 * q / (p + q)
            terms.append(q * math.log2(q_to_mean))
    divergence = math.fsum(terms) / 2

    # Rounding may leave the range 0..1.
    return min(max(divergence, 0.0), 1.0)


def jaccard(a: Iterable[Head], b: Iterable[Head]) -> float | None:
    """Return the size of the intersection over the size of the union of two sets of heads; None if both are empty."""
    heads_of_a = set(a)
    heads_of_b = set(b)
    in_either = heads_of_a | heads_of_b
    return len(heads_of_a & heads_of_b) / len(in_either) if in_either else None
