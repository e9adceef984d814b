"""Masks: set algebra."""

from __future__ import annotations

import pytest

from hydractl.heads.mask import HeadMask, Site, all_heads

SITES = [Site("blocks.0.attn", 3, 4, 12), Site("blocks.1.attn", 2, 4, 12), Site("blocks.10.attn", 4, 4, 12)]
PATHS = [s.path for s in SITES]
A, B, C = PATHS


def mask(*kept: tuple[int, ...]) -> HeadMask:
    return HeadMask({s.path: s.heads for s in SITES}, dict(zip(PATHS, kept, strict=True)))


# --- set algebra ------------------------------------------------------------------------------------------------------


@pytest.mark.fault(22)
def test_a_mask_with_none_one_and_all_heads() -> None:
    some = mask((), (1,), (0, 1, 2, 3))
    assert some.kept_heads == [(B, 1), (C, 0), (C, 1), (C, 2), (C, 3)]
    assert some.removed_heads == [(A, 0), (A, 1), (A, 2), (B, 0)]
    assert (some.is_full, some.counts()) == (False, [0, 1, 4])


def test_removing_keeps_the_original_numbers_and_adds_up() -> None:
    full = HeadMask.full(SITES)
    first = full.without([(A, 1), (C, 0)])
    assert first == mask((0, 2), (0, 1), (1, 2, 3))
    second = first.without(iter([(A, 2), (A, 1)]))
    assert second == mask((0,), (0, 1), (1, 2, 3))
    assert full.is_full, "masks never change"
    assert full.without(all_heads(SITES)).counts() == [0, 0, 0]


def test_kept_and_removed_are_a_partition_and_intersection_is_that_of_sets() -> None:
    one, two = mask((0, 2), (), (0, 1, 3)), mask((1, 2), (0, 1), (3,))
    for some in (one, two):
        assert sorted(some.kept_heads + some.removed_heads) == sorted(all_heads(SITES))
    both = one.intersect(two)
    assert both == mask((2,), (), (3,)) == two.intersect(one)
    assert both == HeadMask.full(SITES).without(one.removed_heads).without(two.removed_heads)
    assert set(both.kept_heads) == set(one.kept_heads) & set(two.kept_heads)
    assert one.intersect(one) == one == one.intersect(HeadMask.full(SITES))


def test_a_part_of_a_mask_and_back() -> None:
    whole = mask((0, 2), (), (1,))
    paths = list(whole.heads)
    part = whole.at([paths[2], paths[0]])
    assert list(part.heads) == [paths[0], paths[2]] and part.counts() == [2, 1]  # in model order
    assert whole.updated(part) == whole
    assert whole.updated(part.without([(paths[0], 2)])).counts() == [1, 0, 1]
    assert whole.updated(whole.at([])) == whole
