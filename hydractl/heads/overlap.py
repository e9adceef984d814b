"""Agreement of two masks, or of two removal orders (paper B.2.2). Pure Python: names and numbers, no weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from hydractl.errors import InputError
from hydractl.heads.mask import Head, HeadMask


def comparable(a: HeadMask, b: HeadMask) -> bool:
    """Whether two masks are of the same sites with the same numbers of heads."""
    return dict(a.heads) == dict(b.heads)


def mask_overlap(a: HeadMask, b: HeadMask) -> dict[str, dict[str, Any]]:
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
    return {"kept": _overlap(a.kept_heads, b.kept_heads), "removed": _overlap(a.removed_heads, b.removed_heads)}


def _overlap(a: Sequence[Head], b: Sequence[Head]) -> dict[str, Any]:
    shared, smaller = len(set(a) & set(b)), min(len(a), len(b))
    return {
        "counts": [len(a), len(b)],
        "shared": shared,
        "jaccard": jaccard(a, b),
        "overlap": shared / smaller if smaller else None,
        "divergence": jensen_shannon(Counter(site for site, _ in a), Counter(site for site, _ in b)),
    }


def jensen_shannon(a: Mapping[str, int], b: Mapping[str, int]) -> float | None:
    """Jensen-Shannon divergence in bits of two distributions given as counts; None when one of them counts nothing."""
    totals = sum(a.values()), sum(b.values())
    if not all(totals):
        return None
    terms = []
    for key in {**a, **b}:
        p, q = a.get(key, 0) / totals[0], b.get(key, 0) / totals[1]
        terms += [share * math.log2(2 * share / (p + q)) for share in (p, q) if share]
    # Rounding may lead a hair out of the range that the value has.
    return min(max(math.fsum(terms) / 2, 0.0), 1.0)


def kendall_tau(a: Sequence[Head], b: Sequence[Head]) -> float | None:
    """Kendall's tau-b of two removal orders, over the heads that both contain.

    An order has no ties, so this is (concordant - discordant) / pairs, from -1 to 1.

    Args:
        a, b: heads in the order of their removal, each head once.

    Returns:
        None for fewer than two common heads.
    """
    place = {head: position for position, head in enumerate(b)}
    places = [place[head] for head in a if head in place]
    pairs = len(places) * (len(places) - 1) // 2
    if not pairs:
        return None
    discordant = sum(first > second for first, second in combinations(places, 2))
    return (pairs - 2 * discordant) / pairs


def jaccard_at(a: Sequence[Head], b: Sequence[Head], budgets: Iterable[int]) -> dict[int, float | None]:
    """For each budget ``n``, the Jaccard index of the first ``n`` removals of two orders.

    Returns:
        By budget; None where one of the orders is shorter than that, and for a budget of 0.
    """
    longest = min(len(a), len(b))
    return {n: jaccard(a[:n], b[:n]) if 0 < n <= longest else None for n in budgets}


def jaccard(a: Iterable[Head], b: Iterable[Head]) -> float | None:
    """Size of the intersection over size of the union of two head sets; None when both are empty."""
    first, second = set(a), set(b)
    union = len(first | second)
    return len(first & second) / union if union else None
