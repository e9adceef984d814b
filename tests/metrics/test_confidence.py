"""Confidence intervals, against scipy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from hydractl.metrics.confidence import mean_interval, share_difference_interval, share_interval


@pytest.mark.parametrize(("count", "total"), [(0, 1), (30, 30), (7, 11), (1, 10**6)])
def test_the_interval_of_a_share_is_the_score_interval_of_scipy(count: int, total: int) -> None:
    expected = stats.binomtest(count, total).proportion_ci(method="wilson")
    assert share_interval(count, total) == pytest.approx((expected.low, expected.high), abs=1e-14)


def test_the_interval_of_a_share_ends_at_exactly_0_and_1() -> None:
    assert share_interval(0, 5).low == 0.0
    assert share_interval(5, 5).high == 1.0


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((9, 10, 3, 10), (0.1705, 0.8090)),
        ((5, 56, 0, 29), (-0.0381, 0.1926)),
        ((0, 10, 0, 10), (-0.2775, 0.2775)),
        ((10, 10, 0, 10), (0.6075, 1.0000)),
    ],
)
def test_newcombe_as_his_table_has_it(counts: tuple[int, int, int, int], expected: tuple[float, float]) -> None:
    """Newcombe 1998, table II, method 10."""
    assert share_difference_interval(*counts) == pytest.approx(expected, abs=6e-5)


def test_the_interval_of_a_mean_is_that_of_its_standard_error() -> None:
    values = np.array([1.0, 2.5, 4.0, 7.0])
    low, high = stats.norm.interval(0.95, loc=values.mean(), scale=stats.sem(values))
    assert mean_interval(values) == pytest.approx((low, high), rel=1e-14)


def test_the_interval_of_a_single_value_says_nothing() -> None:
    assert mean_interval(np.array([3.0])) == (-math.inf, math.inf)
