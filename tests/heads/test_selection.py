"""Which heads go first: the least important, and of equals the first of the first site."""

from __future__ import annotations

import pytest

from hydractl.heads.mask import HeadMask, HeadScores
from hydractl.heads.selection import lowest, select_per_site

HEADS = [(path, head) for path in ("a", "b") for head in range(4)]


def scores(*values: float) -> HeadScores:
    return HeadScores({"a": values[:4], "b": values[4:]})


@pytest.mark.parametrize(
    ("values", "order"),
    [
        ((1, 1, 1, 1, 1, 1, 1, 1), [0, 1, 2, 3, 4, 5, 6, 7]),
        ((2, 1, 2, 1, 1, 2, 1, 2), [1, 3, 4, 6, 0, 2, 5, 7]),
        ((0.0, -0.0, 3, 0.0, -1, 3, 0.0, -1), [4, 7, 0, 1, 3, 6, 2, 5]),
    ],
)
def test_heads_of_equal_importance_stay_in_order(values: tuple[float, ...], order: list[int]) -> None:
    assert lowest(scores(*values), HEADS) == [HEADS[place] for place in order]


def test_of_equal_heads_of_a_site_the_first_are_removed() -> None:
    present = HeadMask({"a": 4, "b": 4}, {"a": (0, 1, 2, 3), "b": (1, 2, 3)})
    left = select_per_site(scores(5, 5, 5, 5, 0, 1, 0, 0), present, {"a": 2, "b": 1})
    assert left.kept == {"a": (2, 3), "b": (1, 3)}
