"""Motion blur and the plasma fractal of the corruptions against a few naive lines."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hydractl.data.corruptions import plasma, shifted_along, zoomed

IMAGE = np.random.RandomState(0).uniform(size=(23, 31, 3))


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.25, 2, 4.5])
def test_an_enlarged_image_keeps_its_shape_and_its_range(factor: float) -> None:
    large = zoomed(IMAGE, factor)
    assert large.shape == IMAGE.shape and large.min() >= IMAGE.min() and large.max() <= IMAGE.max()
    assert factor != 1 or np.array_equal(large, IMAGE)


def test_motion_to_the_right_is_a_mean_over_what_comes() -> None:
    weights = [math.exp(-(i**2) / (2 * 1.5**2)) for i in range(7)]
    expected = np.zeros_like(IMAGE)
    for y in range(23):
        for x in range(31):
            expected[y, x] = sum(w * IMAGE[y, min(x + i, 30)] for i, w in enumerate(weights)) / sum(weights)
    assert np.allclose(shifted_along(IMAGE, 3, 1.5, 0), expected, rtol=0, atol=1e-12)


def test_motion_down_and_right() -> None:
    point = np.zeros((21, 21, 1))
    point[10, 10] = 1
    found = shifted_along(point, 2, 100.0, 45)[..., 0]  # five equal weights, at 0, 0.7, 1.4, 2.1, 2.8 on both axes
    expected = np.zeros((21, 21))
    for i in (0, 1, 1, 2, 3):
        expected[10 - i, 10 - i] += 0.2
    assert np.allclose(found, expected, atol=1e-3) and found.sum() == pytest.approx(1)


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (20, 33)])
def test_plasma(size: tuple[int, int]) -> None:
    field = plasma(*size, 2.0, np.random.RandomState(1))
    assert field.shape == size and field.min() >= 0 and field.max() <= 1
    assert np.array_equal(field, plasma(*size, 2.0, np.random.RandomState(1)))


def test_plasma_spans_everything_and_decays() -> None:
    fields = [plasma(64, 64, decay, np.random.RandomState(1)) for decay in (3.0, 1.4)]
    assert all(field.min() == 0 and field.max() == 1 for field in fields)
    rough = [np.abs(np.diff(field, axis=0)).mean() / field.std() for field in fields]
    assert rough[1] > 1.5 * rough[0]  # a slow decay leaves more of the fine parts
