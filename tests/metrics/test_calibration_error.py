"""ECE and adaptive ECE against hand-computed values and naive loops."""

from __future__ import annotations

import numpy as np
import pytest

from hydractl.metrics.samples import bin_of
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
    share = np.array([np.mean(correct[np.abs(conf - value) <= 1e-6]) for value in conf])
    return naive_bins(groups, conf, share)


@pytest.mark.fault(30)
def test_a_confidence_on_an_edge_falls_in_the_bin_above_it() -> None:
    assert bin_of(np.array([k / 15 for k in range(15)])).tolist() == list(range(15))
    assert bin_of(np.array([0.2, 0.4, 0.6, 0.8])).tolist() == [3, 6, 9, 12]
    below = np.nextafter([k / 15 for k in range(1, 16)], 0)
    assert bin_of(below).tolist() == list(range(15))
    assert bin_of(np.array([0.0, 1.0])).tolist() == [0, 14]


@pytest.mark.fault(30)
def test_confidences_of_exactly_one() -> None:
    ones = np.ones(40)
    assert ece(ones, np.ones(40, dtype=bool)) == 0.0 == aece(ones, np.ones(40, dtype=bool))
    assert ece(ones, np.arange(40) < 30) == 0.25
    assert aece(ones, np.arange(40) < 30) == 0.25


@pytest.mark.fault(30)
def test_neither_order_nor_rounding_decides_within_a_tie() -> None:
    # 30 equal confidences of 0.5, of which 14 are right, in whatever order: each bin of two has 14 / 15 right.
    conf = np.full(30, 0.5)
    rng = np.random.default_rng(0)
    for right in (np.arange(30) < 14, rng.permutation(30) < 14):
        assert aece(conf, right) == pytest.approx(1 / 30, abs=1e-15)
        assert aece(conf + rng.uniform(-1e-9, 1e-9, 30), right) == pytest.approx(1 / 30, abs=1e-8)
    # Two ties beside each other, the second across several ends, and a confidence of its own between them.
    conf = np.concatenate([np.full(9, 0.2), [0.3], np.full(50, 0.9)])
    right = rng.random(60) < conf
    order = rng.permutation(60)
    assert aece(conf, right) == pytest.approx(aece(conf[order], right[order]), abs=1e-14)
    assert aece(conf, right) == pytest.approx(naive_aece(conf, right), abs=1e-14)


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
