"""The parts of the corruptions against scipy, or against a few naive lines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from hydractl.data.warping import blurred, filtered, plasma, shifted_along, smoothed, warped, zoomed

RANDOM = np.random.RandomState(0)
IMAGE = RANDOM.uniform(size=(23, 31, 3))


@pytest.mark.parametrize("sides", [(3, 3), (5, 7), (17, 17), (45, 1)])
def test_filtered(sides: tuple[int, int]) -> None:
    kernel = RANDOM.uniform(size=sides)
    expected = np.stack([ndimage.correlate(IMAGE[..., c], kernel, mode="mirror") for c in range(3)], axis=-1)
    assert np.allclose(filtered(IMAGE, kernel), expected, rtol=0, atol=1e-12 * kernel.sum())


@pytest.mark.parametrize("factor", [1, 1.01, 1.1, 1.25, 2, 4.5])
def test_zoomed(factor: float) -> None:
    square = IMAGE[:23, :23]
    taken = math.ceil(23 / factor)
    start = (23 - taken) // 2
    large = ndimage.zoom(square[start : start + taken, start : start + taken], (factor, factor, 1), order=1)
    trim = (large.shape[0] - 23) // 2
    assert np.allclose(zoomed(square, factor), large[trim : trim + 23, trim : trim + 23], rtol=0, atol=1e-12)
    assert zoomed(IMAGE, factor).shape == IMAGE.shape


def test_zoomed_by_one_is_the_image() -> None:
    assert np.array_equal(zoomed(IMAGE, 1.0), IMAGE)


@pytest.mark.parametrize(("mode", "scipys"), [("reflect", "mirror"), ("symmetric", "reflect")])
def test_warped(mode: Any, scipys: str) -> None:
    rows, columns = RANDOM.uniform(-60, 80, size=(2, 23, 31))
    expected = np.stack(
        [ndimage.map_coordinates(IMAGE[..., c], [rows, columns], order=1, mode=scipys) for c in range(3)], axis=-1
    )
    assert np.allclose(warped(IMAGE, rows, columns, mode), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 6.4, 40.0])
def test_blurred(sigma: float) -> None:
    field = IMAGE[..., 0]
    expected = ndimage.gaussian_filter(field, sigma, mode="reflect", truncate=3)
    assert np.allclose(blurred(field, sigma), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sigma", [0.05, 0.7, 1.5])
def test_smoothed(sigma: float) -> None:
    expected = np.stack([ndimage.gaussian_filter(IMAGE[..., c], sigma, mode="nearest") for c in range(3)], axis=-1)
    assert np.allclose(smoothed(IMAGE, sigma), expected, rtol=0, atol=1e-12)


def test_not_blurred() -> None:
    assert np.array_equal(blurred(IMAGE[..., 0], 0), IMAGE[..., 0])


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
