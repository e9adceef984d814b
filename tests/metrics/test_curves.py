"""Reliability and score histograms in the form of the JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from hydractl.errors import NonFiniteError
from hydractl.metrics.curves import curves, histograms, reliability_bins
from hydractl.metrics.samples import samples_of
from tests.metrics.arrays import ece, predictions


def test_the_bins_of_the_reliability_curve_add_up_to_ece() -> None:
    rng = np.random.default_rng(0)
    conf = rng.random(400) * 0.8 + 0.2
    conf[:3] = [1.0, 0.2, 0.4]
    correct = rng.random(400) < conf
    curve = reliability_bins(predictions(conf, correct))
    assert curve.edges == np.linspace(0, 1, 16).tolist()
    assert curve.n[:3] == [0, 0, 0]
    for name in ("confidence", "accuracy", "low", "high"):
        assert getattr(curve, name)[:3] == [None, None, None]
    total_gap = 0.0
    for k in range(3, 15):
        is_below = (conf < curve.edges[k + 1]) | (k == 14)
        inside = (conf >= curve.edges[k]) & is_below
        samples = int(inside.sum())
        right = int(correct[inside].sum())
        assert curve.n[k] == samples
        assert curve.accuracy[k] == right / samples
        assert curve.confidence[k] == pytest.approx(conf[inside].mean(), abs=1e-15)
        interval = stats.binomtest(right, samples).proportion_ci(method="wilson")
        assert (curve.low[k], curve.high[k]) == pytest.approx((interval.low, interval.high), abs=1e-14)
        total_gap += samples * abs(curve.accuracy[k] - curve.confidence[k])
    assert total_gap / 400 == pytest.approx(ece(conf, correct), abs=1e-14)


def test_histograms_are_numpys_in_common_bins() -> None:
    rng = np.random.default_rng(1)
    data = {"id": rng.normal(size=500), "a": rng.normal(size=50), "b": np.zeros(0), "c": np.array([-9.0, 9.0])}
    got = histograms(data["id"], {name: data[name] for name in ("a", "b", "c")}).to_dict()
    assert list(got) == ["edges", "id", "a", "b", "c"]
    for name, values in data.items():
        counts, edges = np.histogram(values, bins=40, range=(-9.0, 9.0))
        assert got[name] == counts.tolist()
        assert sum(got[name]) == len(values)
        assert got["edges"] == pytest.approx(edges.tolist(), abs=1e-13)


def test_scores_far_out_squeeze_no_others_into_one_bin() -> None:
    """Squared distances of a few OOD samples are many times those of all others."""
    inside = np.linspace(100.0, 200.0, 101)  # quantiles 101 and 199
    outside = np.array([150.0, 300.0, 60_000.0, 90_000.0])
    found = histograms(inside, {"far": outside})
    assert (found.edges[0], found.edges[-1]) == pytest.approx((100.0, 199 + 3 * 98))
    assert found.ood["far"][-1] == 2 and sum(found.ood["far"]) == 4
    equal = histograms(np.ones(9), {"far": outside})
    assert (equal.edges[0], equal.edges[-1]) == (1.0, 90_000.0)


@pytest.mark.parametrize("scores", [[1e300], [-1e17], [1e17, 1e17 + 16], [0.0, 5e-324]])
def test_the_edges_of_bins_rise_however_close_and_large_scores_are(scores: list[float]) -> None:
    found = histograms(np.array(scores), {})
    assert (np.diff(found.edges) > 0).all() and sum(found.id) == len(scores)


def test_histograms_of_no_value() -> None:
    assert histograms(np.zeros(0), {}).id == [0] * 40


def test_histograms_of_scores_that_are_not_finite_are_refused() -> None:
    with pytest.raises(NonFiniteError, match="scores of id"):
        histograms(np.array([np.nan]), {})


def test_all_curves_together_are_json() -> None:
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(3, 300, 4)) * 3
    inside = samples_of(logits, rng.integers(0, 4, 300))
    outside = samples_of(logits[:, :50] / 4)
    got = curves(inside, {"x": outside})
    written = got.to_dict()
    assert list(written) == ["reliability", "scores"]
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    assert got.scores == histograms(inside.score, {"x": outside.score})


def test_curves_without_labels_or_samples_are_none() -> None:
    logits = np.random.default_rng(2).normal(size=(3, 300, 4))
    unlabelled = curves(samples_of(logits), {})
    assert unlabelled.reliability is None
    assert unlabelled.scores is not None and unlabelled.scores.ood == {}
    no_sample = samples_of(np.zeros((1, 0, 2)), np.zeros(0, dtype=int))
    empty = curves(no_sample, {"x": samples_of(logits)})
    assert empty.reliability is None
