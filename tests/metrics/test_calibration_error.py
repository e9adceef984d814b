"""ECE and adaptive ECE against hand-computed values and naive loops."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hydractl.metrics.samples import bin_edges, bin_of
from tests.metrics.arrays import aece, ece
from tests.spread import spread


def naive_bins(groups: list[list[int]], conf: np.ndarray, correct: np.ndarray) -> float:
    total = 0.0
    for group in groups:
        if group:
            total += len(group) / len(conf) * abs(np.mean(correct[group]) - np.mean(conf[group]))
    return total


def naive_ece(conf: np.ndarray, correct: np.ndarray) -> float:
    edges = np.linspace(0, 1, 16)
    groups: list[list[int]] = [[] for _ in range(15)]
    for i, value in enumerate(conf):
        last_edge_below = max(k for k in range(15) if edges[k] <= value)
        groups[last_edge_below].append(i)
    return naive_bins(groups, conf, correct)


def naive_aece(conf: np.ndarray, correct: np.ndarray) -> float:
    order = sorted(range(len(conf)), key=lambda i: conf[i])
    size, larger = divmod(len(order), 15)
    groups, start = [], 0
    for k in range(15):
        stop = start + size + (k < larger)
        groups.append(order[start:stop])
        start = stop
    return naive_bins(groups, conf, correct)


def test_edges_are_the_documented_numbers() -> None:
    assert np.array_equal(bin_edges(), np.linspace(0, 1, 16))
    # The nearest float64 to k/15, worked out in exact fractions.
    assert bin_edges().tolist() == [float(Fraction(k, 15)) for k in range(16)]


@pytest.mark.fault(30)
def test_a_confidence_on_an_edge_falls_in_the_bin_above_it() -> None:
    assert bin_of(np.array([k / 15 for k in range(15)])).tolist() == list(range(15))
    assert bin_of(np.array([0.2, 0.4, 0.6, 0.8])).tolist() == [3, 6, 9, 12]
    below = np.nextafter([k / 15 for k in range(1, 16)], 0)
    assert bin_of(below).tolist() == list(range(15))
    assert bin_of(np.array([0.0, 1.0])).tolist() == [0, 14]


def test_ece_at_edges_by_hand() -> None:
    # 0.6 and 0.65 share bin 9, 0.59 is in bin 8: |1 - 0.59| / 3 + |1 - 1.25| / 3. With 0.6 in bin 8: 0.5133.
    conf, correct = np.array([0.59, 0.6, 0.65]), np.array([True, False, True])
    assert ece(conf, correct) == pytest.approx((0.41 + 0.25) / 3, abs=1e-15)


def test_ece_by_hand() -> None:
    # Bin 13 [13/15, 14/15): conf 0.9, 0.9, one right: 2/4 * 0.4; bin 14: conf 1 and 1, both wrong: 2/4 * 1.
    conf, correct = np.array([0.9, 1.0, 0.9, 1.0]), np.array([True, False, False, False])
    assert ece(conf, correct) == pytest.approx(0.7, abs=1e-15)


@pytest.mark.fault(30)
def test_confidences_of_exactly_one() -> None:
    ones = np.ones(40)
    assert ece(ones, np.ones(40, dtype=bool)) == 0.0 == aece(ones, np.ones(40, dtype=bool))
    assert ece(ones, np.arange(40) < 30) == 0.25
    # Ten bins of three right ones, then five bins of two wrong ones, each of those wholly off: 10 / 40.
    assert aece(ones, np.arange(40) < 30) == 0.25


def test_aece_by_hand() -> None:
    # 16 samples: the first bin takes the two least confident, every other bin one.
    conf = np.linspace(0.5, 0.95, 16)
    correct = np.ones(16, dtype=bool)
    correct[1] = False
    expected = (abs(1 - conf[0] - conf[1]) + (1 - conf[2:]).sum()) / 16
    assert aece(conf, correct) == pytest.approx(expected, abs=1e-15)
    assert aece(conf[::-1], correct[::-1]) == pytest.approx(expected, abs=1e-15)


def test_aece_with_fewer_samples_than_bins_has_one_sample_a_bin() -> None:
    conf, correct = np.array([0.7, 0.5, 0.9]), np.array([True, False, True])
    assert aece(conf, correct) == pytest.approx((0.3 + 0.5 + 0.1) / 3, abs=1e-15)


@pytest.mark.fault(30)
def test_aece_ties_stay_in_data_order() -> None:
    # 30 equal confidences of 0.5, right ones first: bins of two are all right or all wrong, each 0.5 off;
    # alternating, each bin is half right and nothing is off.
    conf = np.full(30, 0.5)
    assert aece(conf, np.arange(30) < 14) == pytest.approx(0.5, abs=1e-15)
    assert aece(conf, np.arange(30) % 2 == 0) == 0.0


@pytest.mark.parametrize(("samples", "kind"), spread([1, 2, 14, 15, 16, 29, 500], ["random", "tied", "edges"]))
def test_against_naive_loops(samples: int, kind: str) -> None:
    rng = np.random.default_rng(samples)
    conf = rng.random(samples)
    if kind == "tied":
        conf = rng.integers(0, 5, samples) / 4
    if kind == "edges":
        conf = rng.integers(0, 16, samples) / 15
    correct = rng.random(samples) < conf
    assert ece(conf, correct) == pytest.approx(naive_ece(conf, correct), abs=1e-14)
    assert aece(conf, correct) == pytest.approx(naive_aece(conf, correct), abs=1e-14)


def test_one_sample_and_none() -> None:
    assert ece(np.array([0.75]), np.array([True])) == 0.25 == aece(np.array([0.75]), np.array([True]))
    assert ece(np.zeros(0), np.zeros(0, dtype=bool)) is None
    assert aece(np.zeros(0), np.zeros(0, dtype=bool)) is None
