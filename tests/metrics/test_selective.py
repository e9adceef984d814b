"""AURC and accuracy by coverage against hand-computed values and the definition as a loop."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.metrics.arrays import accuracy_at, aurc


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


@pytest.mark.parametrize("samples", [1, 7, 1000])
def test_accuracy_at_against_sorting(samples: int) -> None:
    rng = np.random.default_rng(samples)
    conf = rng.integers(0, 9, samples) / 8
    correct = rng.random(samples) < 0.6
    ordered = by_falling_confidence(conf, correct)
    for name, percent in (("0.80", 80), ("0.90", 90), ("0.95", 95)):
        kept = math.ceil(Fraction(percent, 100) * samples)
        assert accuracy_at(conf, correct)[name] == ordered[:kept].count(True) / kept
