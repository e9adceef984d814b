"""Reliability, ROC and score histograms in the form of the JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from hydractl.errors import NonFiniteError
from hydractl.metrics.curves import curves, histograms, reliability_bins, roc_points, wilson
from hydractl.metrics.samples import samples_of
from tests.metrics.arrays import auroc, ece, predictions


def test_the_bins_of_the_reliability_curve_add_up_to_ece() -> None:
    rng = np.random.default_rng(0)
    conf = rng.random(400) * 0.8 + 0.2
    conf[:3] = [1.0, 0.2, 0.4]
    correct = rng.random(400) < conf
    curve = reliability_bins(predictions(conf, correct))
    assert curve["edges"] == np.linspace(0, 1, 16).tolist()
    assert sum(curve["n"]) == 400 and curve["n"][:3] == [0, 0, 0]
    for name in ("confidence", "accuracy", "low", "high"):
        assert [value is None for value in curve[name]] == [n == 0 for n in curve["n"]]
    gaps = [n * abs(a - c) for n, a, c in zip(curve["n"], curve["accuracy"], curve["confidence"], strict=True) if n]
    assert sum(gaps) / 400 == pytest.approx(ece(conf, correct), abs=1e-14)
    for k in range(3, 15):
        inside = (conf >= curve["edges"][k]) & ((conf < curve["edges"][k + 1]) | (k == 14))
        assert curve["n"][k] == inside.sum()
        assert curve["accuracy"][k] == correct[inside].mean()
        assert curve["confidence"][k] == pytest.approx(conf[inside].mean(), abs=1e-15)
        interval = stats.binomtest(int(correct[inside].sum()), int(inside.sum())).proportion_ci(method="wilson")
        assert (curve["low"][k], curve["high"][k]) == pytest.approx((interval.low, interval.high), abs=1e-14)


def test_wilson_intervals_against_scipy_and_at_the_ends() -> None:
    for hits, n in [(0, 1), (1, 1), (0, 30), (30, 30), (7, 11), (1, 10**6)]:
        expected = stats.binomtest(hits, n).proportion_ci(method="wilson")
        assert wilson(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-14)
    assert wilson(0, 5)[0] == 0.0 and wilson(5, 5)[1] == 1.0


def scores(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(size=6000), rng.normal(size=4000) + 1.2
    if kind == "tied":
        inside, outside = inside.round(1), outside.round(1)
    if kind == "sharp":
        inside, outside = -(rng.random(6000) ** 30), rng.random(4000) - 0.02
    if kind == "few":
        inside, outside = inside[:3], outside[:2]
    if kind == "one value":
        inside, outside = inside * 0, outside * 0
    if kind == "uneven":
        inside = inside[:5]
    return inside, outside


@pytest.mark.parametrize("kind", ["random", "tied", "sharp", "few", "one value", "uneven"])
@pytest.mark.parametrize("seed", range(3))
def test_the_thinned_roc_curve_keeps_ends_points_and_area(kind: str, seed: int) -> None:
    inside, outside = scores(kind, seed)
    curve = roc_points(inside, outside)
    assert curve is not None and len(curve["fpr"]) == len(curve["tpr"]) <= 201
    points = list(zip(curve["fpr"], curve["tpr"], strict=True))
    assert points[0] == (0.0, 0.0) and points[-1] == (1.0, 1.0)
    assert (np.diff(curve["fpr"]) >= 0).all() and (np.diff(curve["tpr"]) >= 0).all()
    assert sk.auc(curve["fpr"], curve["tpr"]) == pytest.approx(auroc(inside, outside), abs=1e-3)
    positive = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    whole = sk.roc_curve(positive, np.r_[inside, outside], drop_intermediate=False)
    assert {(round(x, 12), round(y, 12)) for x, y in points} <= {
        (round(x, 12), round(y, 12)) for x, y in zip(whole[0], whole[1], strict=True)
    }
    if len(whole[0]) <= 201:
        assert len(points) == len(whole[0])
    else:
        assert len(points) > 100


def test_a_convex_roc_curve_stays_convex() -> None:
    # 1,000 tied groups with a falling share of OOD samples.
    inside = np.repeat(-np.arange(1000.0), 1 + np.arange(1000) // 100)
    outside = np.repeat(-np.arange(1000.0), 10 - np.arange(1000) // 100)
    curve = roc_points(inside, outside)
    assert curve is not None and len(curve["fpr"]) > 150
    slopes = np.diff(curve["tpr"]) / np.diff(curve["fpr"])
    assert (np.diff(slopes) <= 1e-9 * slopes[:-1]).all()


def test_no_roc_curve_without_a_side() -> None:
    assert roc_points(np.zeros(0), np.zeros(3)) is None and roc_points(np.zeros(3), np.zeros(0)) is None


def test_histograms_are_numpys_in_common_bins() -> None:
    rng = np.random.default_rng(1)
    data = {"id": rng.normal(size=500), "a": rng.normal(size=50) * 3, "b": np.zeros(0), "c": np.array([-20.0, 20.0])}
    got = histograms(data)
    assert list(got) == ["edges", "id", "a", "b", "c"]
    for name, values in data.items():
        counts, edges = np.histogram(values, bins=40, range=(-20.0, 20.0))
        assert got[name] == counts.tolist() and sum(got[name]) == len(values)
        assert got["edges"] == pytest.approx(edges.tolist(), abs=1e-13)


def test_histograms_of_one_value_and_of_none() -> None:
    got = histograms({"id": np.full(7, -1.0), "a": np.full(2, -1.0)})
    counts, edges = np.histogram(np.full(7, -1.0), bins=40)
    assert got["id"] == counts.tolist() and got["edges"] == edges.tolist() and sum(got["a"]) == 2
    assert histograms({"id": np.zeros(0)})["id"] == [0] * 40
    assert sum(histograms({"id": np.full(3, 1e300)})["id"]) == 3
    with pytest.raises(NonFiniteError, match="scores of id"):
        histograms({"id": np.array([np.nan])})


def test_all_curves_together_are_json() -> None:
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(size=(3, 300, 4)) * 3, rng.integers(0, 4, 300)
    inside, outside = samples_of(logits, labels), samples_of(logits[:, :50] / 4)
    got = curves(inside, {"x": outside})
    assert list(got) == ["reliability", "risk_coverage", "roc", "scores"]
    assert json.loads(json.dumps(got, allow_nan=False)) == got
    assert got["roc"] == {"x": roc_points(inside.score, outside.score)}
    unlabelled = curves(samples_of(logits), {})
    assert unlabelled["reliability"] is None and unlabelled["risk_coverage"] is None and unlabelled["roc"] == {}
    empty = curves(samples_of(np.zeros((1, 0, 2)), np.zeros(0, dtype=int)), {"x": outside})
    assert empty["reliability"] is None and empty["roc"] == {"x": None}
