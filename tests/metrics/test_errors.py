"""Metrics of wrong answers, against scikit-learn, against sums written out, and where they have no value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hydractl.metrics.bootstrap import intervals, paired_differences, resample
from hydractl.metrics.rows import row_blocks
from hydractl.metrics.samples import Samples, samples_of
from tests.metrics.test_calibration_error import naive_aece, naive_ece
from tests.metrics.test_selective import naive_aurc


def answered(seed: int = 0, n: int = 200, classes: int = 4, members: int = 2) -> Samples:
    """Labelled samples of which some are answered wrong, with every kind of score beside the leading one."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    logits = rng.normal(size=(members, n, classes)) * 2
    logits[:, np.arange(n), labels] += 2
    chance_of_an_error = rng.random(n).round(1)  # ties
    fitted = {"vilu": chance_of_an_error, "knn": rng.normal(size=n).round(1)}
    return samples_of(logits, labels, scores=["msp", "energy", "vilu", "knn"], fitted_scores=fitted)


def errors(samples: Samples, score: str = "") -> dict[str, Any]:
    row = row_blocks(samples, {}, {}).to_dict()
    return row["scores"][score]["errors"] if score else row["errors"]


@pytest.mark.parametrize("score", ["msp", "energy", "vilu", "knn"])
def test_against_scikit_learn(score: str) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    samples = answered()
    values = samples.scores[score]
    assert values is not None
    wrong = ~samples.correct
    got = errors(samples, score)
    assert got["auroc"] == pytest.approx(sklearn.roc_auc_score(wrong, values), abs=1e-12)
    assert got["aupr"] == pytest.approx(sklearn.average_precision_score(wrong, values), abs=1e-12)
    fpr, tpr, _ = sklearn.roc_curve(wrong, values, drop_intermediate=False)
    assert got["fpr95"] == pytest.approx(fpr[np.argmax(tpr >= 0.95)], abs=1e-12)
    assert got["aurc"] == pytest.approx(naive_aurc(-values, samples.correct), abs=1e-12)


def test_by_msp_they_are_those_of_the_confidence() -> None:
    row = row_blocks(answered(), {}, {}).to_dict()
    for key in ("aurc", "ece", "aece"):
        assert row["errors"][key] == row["id"][key] == row["scores"]["msp"]["errors"][key]


def test_the_calibration_error_of_a_probability_of_errors() -> None:
    samples = answered()
    chances = samples.scores["vilu"]
    assert chances is not None
    got = errors(samples, "vilu")
    assert got["ece"] == pytest.approx(naive_ece(1 - chances, samples.correct), abs=1e-12)
    assert got["aece"] == pytest.approx(naive_aece(1 - chances, samples.correct), abs=1e-12)
    for score in ("energy", "knn"):
        assert errors(samples, score)["ece"] is None and errors(samples, score)["aece"] is None


def test_where_they_have_no_value() -> None:
    samples = answered()
    row = row_blocks(replace(samples, labels=None), {}, {})
    assert row.errors is None and row.scores["energy"].errors is None
    all_right = replace(samples, labels=samples.predicted)
    got = errors(all_right)
    assert got["auroc"] is got["fpr95"] is got["aupr"] is None and got["aurc"] == 0.0 and got["ece"] > 0
    all_wrong = replace(samples, labels=samples.predicted + 1)
    assert errors(all_wrong)["auroc"] is None and errors(all_wrong)["aurc"] == 1.0
    without_a_score = replace(samples, scores={"msp": None})
    assert set(errors(without_a_score).values()) == {None}
    empty = samples_of(np.zeros((2, 0, 3)), np.zeros(0, dtype=np.int64))
    assert set(errors(empty).values()) == {None}


@pytest.mark.parametrize(("wrong", "has_interval"), [(1, False), (5, True)])
def test_an_interval_needs_errors_in_most_rounds(wrong: int, has_interval: bool) -> None:
    samples = answered()
    labels = samples.predicted.copy()
    labels[:wrong] = (labels[:wrong] + 1) % 4
    few = replace(samples, labels=labels)
    got = resample(few, {}, {}, rounds=400, names={"auroc", "aurc"})
    assert (intervals(got)["errors.auroc"] is not None) is has_interval
    assert intervals(got)["errors.aurc"] is not None
    difference = paired_differences(got, got)["errors.auroc"]
    assert difference == {"value": 0.0, "ci": [0.0, 0.0] if has_interval else None}


def test_a_better_score_of_errors_has_a_difference_above_0() -> None:
    samples = answered()
    wrong = ~samples.correct
    perfect = replace(samples, scores={"knn": wrong.astype(float)})
    got = paired_differences(resample(samples, {}, {}, rounds=200), resample(perfect, {}, {}, rounds=200))
    low, high = got["errors.auroc"]["ci"] or (0, 0)
    assert 0 < low <= high
    assert got["errors.ece"] == {"value": None, "ci": None}  # one of the two is no probability
