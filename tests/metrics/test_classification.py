"""Accuracy, Brier score and NLL against hand-computed values, naive code and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk

from hydractl.errors import InputError
from hydractl.metrics.rows import id_metrics
from tests.metrics.arrays import accuracy, brier, nll, pooled_probabilities


def random_case(seed: int, samples: int = 300, classes: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Logits [3, N, C] and labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(3, samples, classes)) * 3
    return logits, rng.integers(0, classes, samples)


def test_hand_computed_values() -> None:
    probs = np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]])
    labels = np.array([0, 2])
    assert accuracy(probs, labels) == 0.5
    # 0.25 + 0.0625 + 0.0625 = 0.375 and 0.015625 + 0.5625 + 0.765625 = 1.34375.
    assert brier(probs, labels) == pytest.approx((0.375 + 1.34375) / 2, abs=1e-15)
    assert nll(probs, labels) == pytest.approx((np.log(2) + np.log(8)) / 2, abs=1e-15)


def test_extremes() -> None:
    sure = np.array([[1.0, 0.0]])
    right = np.array([0])
    wrong = np.array([1])
    assert (accuracy(sure, right), brier(sure, right)) == (1.0, 0.0)
    assert (accuracy(sure, wrong), brier(sure, wrong)) == (0.0, 2.0)
    perfect = nll(sure, right)
    assert perfect == 0.0
    assert not np.signbit(perfect)


def test_a_tie_goes_to_the_lowest_class() -> None:
    assert accuracy(np.array([[0.25, 0.375, 0.375]] * 2), np.array([1, 2])) == 0.5


def test_a_wrong_prediction_whose_probability_underflows_has_a_finite_nll() -> None:
    logits = np.array([[[1e4, 0.0]], [[1e4, 0.0]]])
    assert pooled_probabilities(logits)[0, 1] == 0.0
    assert id_metrics(logits, np.array([1]))["nll"] == 1e4


def test_against_scikit_learn_and_a_naive_loop() -> None:
    logits, labels = random_case(0)
    probs = pooled_probabilities(logits)
    assert accuracy(probs, labels) == sk.accuracy_score(labels, probs.argmax(axis=1))
    log_loss = sk.log_loss(labels, probs, labels=range(6))
    assert id_metrics(logits, labels)["nll"] == pytest.approx(log_loss, rel=1e-12)
    total = 0.0
    for row, label in zip(probs, labels, strict=True):
        for k, p in enumerate(row):
            total += (p - (k == label)) ** 2
    assert brier(probs, labels) == pytest.approx(total / len(labels), rel=1e-12)


def test_brier_of_two_classes_is_twice_the_binary_one() -> None:
    logits, labels = random_case(9, classes=2)
    probs = pooled_probabilities(logits)
    binary = sk.brier_score_loss(labels, probs[:, 1])
    assert brier(probs, labels) == pytest.approx(2 * binary, rel=1e-12)


def test_one_class_only() -> None:
    probs, labels = np.ones((3, 1)), np.zeros(3, dtype=np.int64)
    assert (accuracy(probs, labels), brier(probs, labels), nll(probs, labels)) == (1.0, 0.0, 0.0)


def test_no_sample_is_none() -> None:
    none = np.zeros((0, 3))
    labels = np.zeros(0, dtype=np.int64)
    assert (accuracy(none, labels), brier(none, labels), nll(none, labels)) == (None, None, None)


@pytest.mark.parametrize("function", [accuracy, brier, nll])
def test_labels_outside_the_classes_are_all_listed(function) -> None:
    with pytest.raises(InputError, match=r"3 of 4 labels are outside the model's classes 0\.\.2") as caught:
        function(np.full((4, 3), 1 / 3), np.array([0, 7, -1, 7]))
    assert caught.value.problems == ["label -1: 1 samples, first sample 2", "label 7: 2 samples, first sample 1"]
