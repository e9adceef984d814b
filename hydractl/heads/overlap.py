"""Agreement of two masks, or of two removal orders (paper B.2.2). Pure Python: names and numbers, no weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import TypedDict

from hydractl.errors import InputError
from hydractl.heads.mask import Head, HeadMask


def comparable(a: HeadMask, b: HeadMask) -> bool:
    """Return whether two masks are of the same sites with the same numbers of heads."""
    return dict(a.heads) == dict(b.heads)


class SetOverlap(TypedDict):
    """Two sets of heads compared; see :func:`mask_overlap`."""

    counts: list[int]
    shared: int
    jaccard: float | None
    overlap: float | None
    divergence: float | None


class MaskOverlap(TypedDict):
    """Two masks compared by what they keep and by what they remove."""

    kept: SetOverlap
    removed: SetOverlap


def mask_overlap(a: HeadMask, b: HeadMask) -> MaskOverlap:
    """Compare two masks by what they keep (``kept``) and by what they remove (``removed``).

    Returns:
        For both, as in ``hydractl.overlap/1``: ``counts``, heads in the first set and in the second; ``shared``, heads
        in both; ``jaccard``, shared heads over heads in either; ``overlap``, shared heads over those of the smaller
        set; and ``divergence``, the Jensen-Shannon divergence in bits (0..1) of the two distributions of heads over
        sites, which is 0 for sets with the same share of heads at every site, whichever heads those are. A number that
        an empty set leaves without meaning is None.

    Raises:
        InputError: if they are not of the same sites and head counts.
    """
    if not comparable(a, b):
        raise InputError("the masks are of different models: their sites or head counts differ")
    return {
        "kept": _overlap(a.kept_heads, b.kept_heads),
        "removed": _overlap(a.removed_heads, b.removed_heads),
    }


def _overlap(a: Sequence[Head], b: Sequence[Head]) -> SetOverlap:
    """Compare two sets of heads, as :func:`mask_overlap` does."""
    shared = len(set(a) & set(b))
    smaller = min(len(a), len(b))
    overlap: float | None = None
    if smaller:
        overlap = shared / smaller
    heads_by_site_a = Counter(site for site, _ in a)
    heads_by_site_b = Counter(site for site, _ in b)
    return {
        "counts": [len(a), len(b)],
        "shared": shared,
        "jaccard": jaccard(a, b),
        "overlap": overlap,
        "divergence": jensen_shannon(heads_by_site_a, heads_by_site_b),
    }


def jensen_shannon(a: Mapping[str, int], b: Mapping[str, int]) -> float | None:
    """Return the Jensen-Shannon divergence in bits of two distributions given as counts.

    It is None when one of them counts nothing.
    """
    total_a = sum(a.values())
    total_b = sum(b.values())
    if not total_a or not total_b:
        return None
    terms = []
    for key in {**a, **b}:
        p = a.get(key, 0) / total_a
        q = b.get(key, 0) / total_b
        if p:
            terms.append(p * math.log2(2 * p / (p + q)))
        if q:
            terms.append(q * math.log2(2 * q / (p + q)))
    divergence = math.fsum(terms) / 2
    # Rounding may lead a hair out of the range that the value has.
    return min(max(divergence, 0.0), 1.0)


def kendall_tau(a: Sequence[Head], b: Sequence[Head]) -> float | None:
    """Return Kendall's tau-b of two removal orders, over the heads that both contain.

    An order has no ties, so this is (concordant - discordant) / pairs, from -1 to 1.

    Args:
        a, b: heads in the order of their removal, each head once.

    Returns:
        None for fewer than two common heads.
    """
    place_in_b = {head: position for position, head in enumerate(b)}
    places = [place_in_b[head] for head in a if head in place_in_b]
    pairs = len(places) * (len(places) - 1) // 2
    if not pairs:
        return None
    discordant = sum(first > second for first, second in combinations(places, 2))
    concordant = pairs - discordant
    return (concordant - discordant) / pairs


def jaccard_at(a: Sequence[Head], b: Sequence[Head], budgets: Iterable[int]) -> dict[int, float | None]:
    """Return for each budget ``n`` the Jaccard index of the first ``n`` removals of two orders.

    Returns:
        By budget; None where one of the orders is shorter than that, and for a budget of 0.
    """
    longest = min(len(a), len(b))
    indices = {}
    for budget in budgets:
        index = None
        if 0 < budget <= longest:
            index = jaccard(a[:budget], b[:budget])
        indices[budget] = index
    return indices


def jaccard(a: Iterable[Head], b: Iterable[Head]) -> float | None:
    """Return the size of the intersection over that of the union of two head sets; None when both are empty."""
    first = set(a)
    second = set(b)
    union = len(first | second)
    if not union:
        return None
    return len(first & second) / union
