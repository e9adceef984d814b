"""AURC against hand-computed values and the definition as a loop."""

from __future__ import annotations

import numpy as np
import pytest

from hydractl.errors import NonFiniteError
from hydractl.metrics.selective import aurc


def naive_aurc(conf: np.ndarray, correct: np.ndarray) -> float:
    order = sorted(range(len(conf)), key=lambda i: -conf[i])
    risks = [sum(not correct[j] for j in order[:i]) / i for i in range(1, len(order) + 1)]
    return sum(risks) / len(risks)


def test_by_hand() -> None:
    # By confidence: right, wrong, right, wrong: errors 0, 1/2, 1/3, 2/4.
    conf, correct = np.array([0.6, 0.9, 0.7, 0.8]), np.array([False, True, True, False])
    assert aurc(conf, correct) == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4, abs=1e-15)


def test_extremes_and_one_sample() -> None:
    conf = np.array([0.9, 0.8, 0.7])
    assert aurc(conf, np.ones(3, dtype=bool)) == 0.0
    assert aurc(conf, np.zeros(3, dtype=bool)) == 1.0
    assert aurc(np.array([0.4]), np.array([False])) == 1.0
    assert aurc(np.zeros(0), np.zeros(0, dtype=bool)) is None


def test_ties_stay_in_data_order() -> None:
    ones = np.ones(2)
    assert aurc(ones, np.array([True, False])) == 0.25
    assert aurc(ones, np.array([False, True])) == 0.75


@pytest.mark.parametrize("seed", range(6))
def test_against_the_naive_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    conf = rng.random(200) if seed % 2 else rng.integers(0, 6, 200) / 5
    correct = rng.random(200) < 0.3 + 0.6 * conf
    assert aurc(conf, correct) == pytest.approx(naive_aurc(conf, correct), rel=1e-12)


def test_bad_input_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="confidence: not finite at sample 0"):
        aurc(np.array([np.inf]), np.array([True]))
    with pytest.raises(ValueError, match="differ in shape"):
        aurc(np.array([0.5, 0.6]), np.array([True]))
