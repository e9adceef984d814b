"""AURC against hand-computed values and the definition as a loop."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from hydractl.metrics.curves import risk_coverage_points
from tests.metrics.arrays import accuracy_at, aurc, predictions


def by_falling_confidence(conf: np.ndarray, correct: np.ndarray) -> list[bool]:
    """Which predictions are right, from the most confident one on; ties stay in data order."""
    order = sorted(range(len(conf)), key=lambda i: -conf[i])
    return [bool(correct[i]) for i in order]


def risk(ordered: list[bool], n: int) -> float:
    """The error rate among the first n."""
    return ordered[:n].count(False) / n


def naive_aurc(conf: np.ndarray, correct: np.ndarray) -> float:
    ordered = by_falling_confidence(conf, correct)
    risks = [risk(ordered, n) for n in range(1, len(ordered) + 1)]
    return sum(risks) / len(risks)


def test_by_hand() -> None:
    # By confidence: right, wrong, right, wrong: errors 0, 1/2, 1/3, 2/4.
    conf = np.array([0.6, 0.9, 0.7, 0.8])
    correct = np.array([False, True, True, False])
    assert aurc(conf, correct) == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4, abs=1e-15)


def test_extremes_and_one_sample() -> None:
    conf = np.array([0.9, 0.8, 0.7])
    assert aurc(conf, np.ones(3, dtype=bool)) == 0.0
    assert aurc(conf, np.zeros(3, dtype=bool)) == 1.0
    assert aurc(np.array([0.4]), np.array([False])) == 1.0
    assert aurc(np.zeros(0), np.zeros(0, dtype=bool)) is None


@pytest.mark.fault(30)
def test_ties_stay_in_data_order() -> None:
    ones = np.ones(2)
    assert aurc(ones, np.array([True, False])) == 0.25
    assert aurc(ones, np.array([False, True])) == 0.75


@pytest.mark.parametrize("kind", ["distinct", "tied"])
def test_against_the_naive_loop(kind: str) -> None:
    rng = np.random.default_rng(0)
    conf = rng.random(200)
    if kind == "tied":
        conf = (5 * conf).round() / 5
    correct = rng.random(200) < 0.3 + 0.6 * conf
    assert aurc(conf, correct) == pytest.approx(naive_aurc(conf, correct), rel=1e-12)


def test_accuracy_at_by_hand() -> None:
    # Six samples: 80 % are 4.8, 90 % 5.4 and 95 % 5.7 of them, rounded up to 5, 6 and 6.
    conf = np.array([0.9, 0.5, 0.8, 0.7, 0.6, 0.4])
    correct = np.array([True, False, True, False, True, True])
    assert accuracy_at(conf, correct) == {"0.80": 3 / 5, "0.90": 4 / 6, "0.95": 4 / 6}
    # Of 10 and of 20 samples the shares are whole numbers, and nothing is rounded up.
    assert accuracy_at(np.linspace(1, 0, 10), np.arange(10) < 8)["0.80"] == 1.0
    assert accuracy_at(np.linspace(1, 0, 20), np.arange(20) < 19) == {"0.80": 1.0, "0.90": 1.0, "0.95": 1.0}


@pytest.mark.parametrize("samples", [1, 7, 1000])
def test_accuracy_at_against_sorting(samples: int) -> None:
    rng = np.random.default_rng(samples)
    conf = rng.integers(0, 9, samples) / 8
    correct = rng.random(samples) < 0.6
    ordered = by_falling_confidence(conf, correct)
    for name, percent in (("0.80", 80), ("0.90", 90), ("0.95", 95)):
        kept = math.ceil(Fraction(percent, 100) * samples)
        assert accuracy_at(conf, correct)[name] == ordered[:kept].count(True) / kept


def test_accuracy_at_ties_stay_in_data_order() -> None:
    conf = np.full(10, 0.5)
    assert accuracy_at(conf, np.arange(10) < 8)["0.80"] == 1.0
    assert accuracy_at(conf, np.arange(10) >= 2)["0.80"] == 6 / 8


def test_nothing_without_samples() -> None:
    nothing = accuracy_at(np.zeros(0), np.zeros(0, dtype=bool))
    assert nothing == {"0.80": None, "0.90": None, "0.95": None}


@pytest.mark.parametrize("samples", [1, 201, 202, 5000])
def test_the_risk_coverage_curve_holds_risks_of_the_definition(samples: int) -> None:
    rng = np.random.default_rng(samples)
    conf = rng.random(samples).round(2)
    correct = rng.random(samples) < 0.7
    curve = risk_coverage_points(predictions(conf, correct))
    ordered = by_falling_confidence(conf, correct)
    kept = [round(share * samples) for share in curve["coverage"]]
    assert len(kept) == min(samples, 201)
    assert len(set(kept)) == len(kept)
    assert (kept[0], kept[-1]) == (1, samples)
    assert curve["coverage"] == [n / samples for n in kept]
    assert curve["risk"] == [risk(ordered, n) for n in kept]
