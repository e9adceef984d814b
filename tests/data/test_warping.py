"""Motion blur and the plasma fractal of the corruptions against a few naive lines."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hydractl.data.corruptions import plasma, shifted_along

IMAGE = np.random.RandomState(0).uniform(size=(23, 31, 3))


def test_motion_to_the_right_is_a_mean_over_what_comes() -> None:
    weights = [math.exp(-(i**2) / (2 * 1.5**2)) for i in range(7)]
    expected = np.zeros_like(IMAGE)
    for x in range(31):
        for i, weight in enumerate(weights):
            expected[:, x] += weight * IMAGE[:, min(x + i, 30)]
    expected /= sum(weights)
    assert np.allclose(shifted_along(IMAGE, 3, 1.5, 0), expected, rtol=0, atol=1e-12)


def test_motion_down_and_right() -> None:
    point = np.zeros((21, 21, 1))
    point[10, 10] = 1
    found = shifted_along(point, 2, 100.0, 45)[..., 0]  # five equal weights, at 0, 0.7, 1.4, 2.1, 2.8 on both axes
    expected = np.zeros((21, 21))
    for i in (0, 1, 1, 2, 3):
        expected[10 - i, 10 - i] += 0.2
    assert np.allclose(found, expected, atol=1e-3)
    assert found.sum() == pytest.approx(1)


def test_plasma_spans_everything_and_decays() -> None:
    smooth = plasma(64, 64, 3.0, np.random.RandomState(1))
    rough = plasma(64, 64, 1.4, np.random.RandomState(1))
    for field in (smooth, rough):
        assert (field.min(), field.max()) == (0, 1)
    # A slow decay leaves more of the fine parts.
    assert roughness(rough) > 1.5 * roughness(smooth)


def roughness(field: np.ndarray) -> float:
    steps = np.abs(np.diff(field, axis=0))
    return float(steps.mean() / field.std())
