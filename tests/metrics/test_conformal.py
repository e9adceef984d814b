"""Split conformal sets: exact small cases, the guarantee, blocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hydractl.files.calibrate_answer import Conformal
from hydractl.files.model_records import Calibration
from hydractl.metrics import probabilities
from hydractl.metrics.conformal import fit_conformal, measured_sets, nonconformity, quantile
from hydractl.metrics.samples import samples_of


def counted(
    fitted: Conformal, logits: np.ndarray, labels: np.ndarray, calibration: Calibration | None = None
) -> dict[str, Any]:
    samples = samples_of(logits, labels, calibration=calibration, conformal=fitted)
    assert samples.set_sizes is not None and samples.covered is not None
    return measured_sets(fitted, samples.set_sizes, samples.covered).to_dict()


def naive_aps(row: np.ndarray, k: int) -> float:
    """The sum of p over class k and those before it, of which ties come in the order of their index."""
    up_to_k = [p for j, p in enumerate(row) if p > row[k] or (p == row[k] and j <= k)]
    return math.fsum(up_to_k)


def test_aps_against_a_sum_over_the_classes_before() -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(6), 40)
    probs[:10] = (probs[:10] * 8).round() + 1
    probs /= probs.sum(axis=1, keepdims=True)
    expected = [[naive_aps(row, k) for k in range(6)] for row in probs]
    got = nonconformity(probs, "aps")
    assert got == pytest.approx(np.array(expected), abs=1e-14)
    assert np.array_equal(nonconformity(probs, "lac"), 1 - probs)
    assert got.max() <= 1.0


def test_the_quantile_is_the_ceil_of_n_plus_one_times_one_minus_alpha() -> None:
    scores = np.arange(1, 10) / 10
    # n = 9: ceil(10 * 0.9) = 9, ceil(10 * 0.8) = 8, ceil(10 * 0.95) = 10 > 9.
    assert [quantile(scores, alpha) for alpha in (0.1, 0.2, 0.05)] == [0.9, 0.8, 1.0]
    assert quantile(scores[::-1], 0.5) == 0.5
    # 0.29 * 100 is 28.999999999999996 in float64; the rank is 71 all the same.
    assert quantile(np.arange(99) / 99, 0.29) == 70 / 99
    assert quantile(np.array([0.3]), 0.5) == 0.3 and quantile(np.array([0.3]), 0.4) == 1.0


def test_sets_by_hand() -> None:
    # p of class 0 is 0.9, 0.8, 0.7 and 0.6, every label is class 0: scores 0.1 ... 0.4; ceil(5 * 0.6) = 3.
    share = np.array([0.9, 0.8, 0.7, 0.6])
    logits = np.log(np.stack([share, 1 - share], axis=1))[None]
    fitted = fit_conformal(logits, np.zeros(4, dtype=int), method="lac", alpha=0.4)
    assert (fitted.method, fitted.alpha, fitted.n_val) == ("lac", 0.4, 4)
    assert fitted.qhat == pytest.approx(0.3, abs=1e-15)
    # 1 - p <= 0.3 (a little more, for rounding): {0}, {0}, {} and {1}.
    share = np.array([0.95, 0.75, 0.5, 0.2])
    test = np.log(np.stack([share, 1 - share], axis=1))[None]
    got = counted(fitted, test, np.array([0, 1, 0, 1]))
    assert (got["coverage"], got["mean_size"], got["empty"]) == (0.5, 0.75, 0.25)
    assert list(got) == ["method", "alpha", "qhat", "n_val", "coverage", "mean_size", "empty"]


@pytest.mark.parametrize("method", ["lac", "aps"])
def test_too_few_validation_samples_give_every_class(method: str) -> None:
    logits = np.random.default_rng(1).normal(size=(2, 5, 7)) * 5
    fitted = fit_conformal(logits, np.zeros(5, dtype=int), method=method, alpha=0.1)
    assert fitted.qhat == 1.0
    got = counted(fitted, np.random.default_rng(2).normal(size=(2, 300, 7)) * 5, np.zeros(300, dtype=int))
    assert (got["coverage"], got["mean_size"], got["empty"]) == (1.0, 7.0, 0.0)


@pytest.mark.parametrize("method", ["lac", "aps"])
def test_blocks_do_not_show(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    logits, labels = (rng.normal(size=(3, 90, 5)) * 3).astype(np.float32), rng.integers(0, 5, 90)
    fitted = fit_conformal(logits, labels, method=method)
    whole = counted(fitted, logits, labels)
    monkeypatch.setattr(probabilities, "BLOCK_VALUES", 40)
    assert fit_conformal(logits, labels, method=method) == fitted
    assert counted(fitted, logits, labels) == whole
    # Labels up to the one with the score qhat are in their own sets.
    assert whole["coverage"] >= math.ceil(91 * 0.9) / 90


def test_a_calibration_comes_before_the_scores() -> None:
    rng = np.random.default_rng(5)
    logits, labels = rng.normal(size=(1, 50, 4)), rng.integers(0, 4, 50)
    calibration = Calibration.of_temperature(0.25)
    got = fit_conformal(logits, labels, calibration=calibration)
    assert got.qhat == pytest.approx(fit_conformal(logits * 4, labels).qhat, abs=1e-13)
    assert counted(got, logits, labels, calibration=calibration)["coverage"] >= 0.9


def test_sets_of_no_samples_have_no_figures() -> None:
    logits, labels = np.zeros((1, 4, 3)), np.zeros(4, dtype=int)
    empty = counted(fit_conformal(logits, labels), logits[:, :0], labels[:0])
    assert (empty["coverage"], empty["mean_size"], empty["empty"]) == (None, None, None)
