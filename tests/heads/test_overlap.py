"""Overlap of masks and agreement of removal orders, against SciPy and against values worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from scipy.spatial.distance import jensenshannon

from hydractl.heads.mask import Head, HeadMask, Site, all_heads
from hydractl.heads.overlap import mask_overlap

SITES = [Site(f"blocks.{i}.attn", heads, 4, 16) for i, heads in enumerate((4, 4, 2, 12))]
FULL = HeadMask.full(SITES)
A, B, C, D = (site.path for site in SITES)


def without(*removed: Head) -> HeadMask:
    return FULL.without(removed)


def overlap(a: int, b: int, shared: int, *measures: float | None) -> dict[str, Any]:
    return {
        "counts": [a, b],
        "shared": shared,
        **dict(zip(("jaccard", "overlap", "divergence"), measures, strict=True)),
    }


def test_two_masks_by_hand() -> None:
    found = mask_overlap(without((A, 0), (A, 1), (B, 3)), without((A, 1), (A, 2), (B, 3), (C, 0)))
    # Removed: 2 of 5 shared; by site (2, 1, 0) and (2, 1, 1). Kept: 19 and 18 of 22, 17 of them the same.
    removed = jensenshannon([2, 1, 0], [2, 1, 1], base=2) ** 2
    kept = jensenshannon([2, 3, 2, 12], [2, 3, 1, 12], base=2) ** 2
    assert found["removed"] == overlap(3, 4, 2, 2 / 5, 2 / 3, pytest.approx(removed, abs=1e-15))
    assert found["kept"] == overlap(19, 18, 17, 17 / 20, 17 / 18, pytest.approx(kept, abs=1e-15))


def test_extremes() -> None:
    some = without((A, 0), (B, 1))
    assert mask_overlap(some, some)["removed"] == overlap(2, 2, 2, 1.0, 1.0, 0.0)
    # Other heads of the same sites, then heads of other sites.
    assert mask_overlap(some, without((A, 3), (B, 2)))["removed"] == overlap(2, 2, 0, 0.0, 0.0, 0.0)
    assert mask_overlap(some, without((C, 0), (C, 1), (D, 5)))["removed"] == overlap(2, 3, 0, 0.0, 0.0, 1.0)
    assert mask_overlap(FULL, some)["removed"] == overlap(0, 2, 0, 0.0, None, None)
    assert mask_overlap(FULL, FULL)["removed"] == overlap(0, 0, 0, None, None, None)
    nothing = without(*all_heads(SITES))
    assert mask_overlap(nothing, FULL)["kept"] == overlap(0, 22, 0, 0.0, None, None)
