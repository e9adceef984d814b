"""What is odd about results: by an interval, not by a figure."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hydractl.files.calibrate_answer import Conformal
from hydractl.metrics.calibrators import fit_calibration, fit_temperature
from hydractl.metrics.confidence import share_interval
from hydractl.metrics.plausibility import (
    ExpectedAccuracy,
    accuracy_warning,
    calibration_warning,
    few_for_sets_warning,
    full_sets_warning,
    loss_warning,
    nll_warning,
    threshold_warning,
)
from hydractl.metrics.requested import Threshold

LABELS = np.arange(400) % 4


def answers(right: int, labels: np.ndarray = LABELS) -> np.ndarray:
    """Predictions of which so many are right; the others are the next class."""
    predicted = (labels + 1) % 4
    predicted[:right] = labels[:right]
    return predicted


def confused(draw: np.random.Generator, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Predictions of which a sixth are wrong, half of them confident, and for the next class alone; confidences."""
    is_wrong = draw.random(len(labels)) < 1 / 6
    predicted = np.where(is_wrong, (labels + 1) % 4, labels)
    return predicted, np.where(is_wrong, draw.random(len(labels)), 0.4 + 0.6 * draw.random(len(labels)))


@pytest.mark.fault(101)
@pytest.mark.parametrize("names", [None, ["a", "b", "c", "d"]])
def test_labels_of_two_classes_that_are_swapped(names: list[str] | None) -> None:
    predicted, _ = confused(np.random.default_rng(1), LABELS)
    assert accuracy_warning(predicted, LABELS, 4, names) is None
    swapped = np.array([0, 3, 2, 1])[LABELS]
    said = "the labels 1 and 3 look swapped" if names is None else "the labels b and d look swapped"
    assert said in str(accuracy_warning(predicted, swapped, 4, names))
    assert accuracy_warning(predicted[:8], swapped[:8], 4, names) is None  # two samples of each say little
    # Three samples with label d say little, although two of them are predicted as b.
    labels = np.repeat([0, 1, 2, 3], [200, 50, 200, 3])
    predicted_once = np.where(labels == 1, 3, labels)
    predicted_once[-2:] = 1
    assert accuracy_warning(predicted_once, labels, 4, names) is None
    # A model that takes every b for a d does not swap them.
    assert accuracy_warning(np.where(LABELS == 1, 3, predicted), LABELS, 4, names) is None


@pytest.mark.fault(101)
@pytest.mark.parametrize("share", [0.0, 0.25, 0.4])
def test_labels_that_are_drawn_at_random(share: float) -> None:
    draw = np.random.default_rng(2)
    labels = np.arange(2000) % 4
    predicted, confidence = confused(draw, labels)
    given = np.where(draw.random(2000) < share, draw.integers(0, 4, 2000), labels)
    doubt = accuracy_warning(predicted, given, 4, confidence=confidence)
    assert (doubt is not None) == (share > 0)
    if doubt is not None:
        estimate = float(doubt.split()[1].rstrip("%")) / 100
        assert estimate == pytest.approx(share, abs=0.08)
    assert accuracy_warning(predicted[:100], given[:100], 4, confidence=confidence[:100]) is None  # too few to tell


@pytest.mark.fault(101)
def test_few_samples_do_not_tell_which_pairs_are_rare() -> None:
    """Half of all pairs never occur, and each of the others hardly once."""
    draw = np.random.default_rng(4)
    labels = np.arange(600) % 30
    predicted = np.where(draw.random(600) < 0.35, (labels + draw.integers(1, 16, 600)) % 30, labels)
    assert accuracy_warning(predicted, labels, 30, confidence=draw.random(600)) is None


@pytest.mark.fault(101)
def test_a_model_that_errs_is_not_taken_for_labels_at_random() -> None:
    """However often it errs, if it knows some classes apart, or is as often wrong as right."""
    draw = np.random.default_rng(3)
    labels = np.arange(4000) % 4
    for wrong in (0.1, 0.3, 0.45, 0.6):
        predicted = np.where(draw.random(4000) < wrong, labels ^ 1, labels)
        assert "drawn" not in str(accuracy_warning(predicted, labels, 4, confidence=draw.random(4000)))
    # Two thirds of its errors are a neighbour, the others are at random.
    chance = draw.random(4000)
    often = np.where(chance < 0.3, labels ^ 1, np.where(chance < 0.5, draw.integers(0, 4, 4000), labels))
    assert accuracy_warning(often, labels, 4, confidence=draw.random(4000)) is None
    guessing = np.where(draw.random(4000) < 0.3, labels, draw.integers(0, 4, 4000))
    assert accuracy_warning(guessing, labels, 4, confidence=draw.random(4000)) is None


def test_an_accuracy_is_doubted_where_the_interval_excludes_more_than_the_largest_class() -> None:
    highest = next(right for right in range(400) if share_interval(right, 400).high > 0.25)
    assert "is not above 0.250, the share of the largest class" in str(
        accuracy_warning(answers(highest - 1), LABELS, 4)
    )
    assert accuracy_warning(answers(highest), LABELS, 4) is None
    assert accuracy_warning(answers(0)[:8], LABELS[:8], 4) is None  # too few to tell
    assert accuracy_warning(np.ones(50, dtype=int), np.zeros(50, dtype=int), 4) is None  # all of one class


@pytest.mark.parametrize(
    ("places", "moves"),
    [([3, 2, 1, 0], "label 0 as 3, 1 as 2, 2 as 1, 3 as 0"), ([1, 2, 3, 0], "label 0 as 1, 1 as 2, 2 as 3, 3 as 0")],
)
def test_the_order_of_labels_that_fits_is_named(places: list[int], moves: str) -> None:
    predicted = np.array(places)[LABELS]
    predicted[:40] = LABELS[:40]
    doubt = str(accuracy_warning(predicted, LABELS, 4))
    assert f"with another order of the labels ({moves}) it would be 0.9" in doubt


def test_no_order_is_named_where_none_fits() -> None:
    draw = np.random.default_rng(0)
    doubt = accuracy_warning(draw.integers(0, 4, 400) // 2 * 2, LABELS | 1, 4)
    assert doubt is not None and "order" not in doubt


def test_an_accuracy_is_doubted_far_below_what_is_expected() -> None:
    expected = ExpectedAccuracy(0.95, 300)
    assert "is far below 0.950, which training recorded" in str(
        accuracy_warning(answers(160), LABELS, 4, None, expected)
    )
    assert accuracy_warning(answers(300), LABELS, 4, None, expected) is None  # other data of the same task
    assert accuracy_warning(answers(160), LABELS, 4, None, ExpectedAccuracy(0.9, 4)) is None  # four samples say little


def test_losses_worse_than_no_prediction() -> None:
    uniform = math.log(4)
    losses = np.array([uniform + 1, uniform - 0.1, uniform + 2, uniform + 1])
    assert "1.386, that of the uniform prediction" in str(nll_warning(-np.tile(losses, 10), 4))
    assert nll_warning(-losses + 1, 4) is None and nll_warning(-losses[:1], 4) is None
    assert (
        "lower --lr" in str(loss_warning(np.full(15, 1e5), 4)) and loss_warning(np.full(15, uniform - 0.01), 4) is None
    )


def sets_of(qhat: float, n_val: int) -> Conformal:
    return Conformal(method="lac", alpha=0.1, qhat=qhat, n_val=n_val)


def test_sets_of_all_classes() -> None:
    assert full_sets_warning(sets_of(1.0, 7), 4.0, 4) is None  # said when they are fitted
    few = few_for_sets_warning(sets_of(1.0, 7), 4)
    assert "7 validation samples are fewer than the 9" in str(few)
    assert "allow more misses" in str(full_sets_warning(sets_of(1.0, 90), 4.0, 4))
    assert full_sets_warning(sets_of(0.9, 90), 3.99, 4) is None
    assert full_sets_warning(sets_of(0.9, 90), None, 4) is None


def calibrated_log_p(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Log probabilities of four classes, and labels drawn by them: the best temperature is about 1."""
    random = np.random.default_rng(1)
    logits = random.normal(size=(samples, 4)) * 2
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    drawn = random.random((samples, 1))
    return log_p, (drawn > np.exp(log_p).cumsum(axis=1)[:, :-1]).sum(axis=1)


@pytest.mark.fault(88)
def test_fault_88_a_temperature_is_doubted_at_an_end_and_where_few_samples_decide_it() -> None:
    log_p, labels = calibrated_log_p(300)
    assert calibration_warning(fit_temperature(log_p, labels), log_p, labels) is None
    few = calibration_warning(fit_temperature(log_p[:12], labels[:12]), log_p[:12], labels[:12])
    assert "is uncertain" in str(few) and "by 12 validation samples" in str(few)
    best = log_p.argmax(axis=1)
    assert "predicted right" in str(calibration_warning(fit_temperature(log_p, best), log_p, best))
    worst = log_p.argmin(axis=1)
    assert "are these their labels?" in str(calibration_warning(fit_temperature(log_p, worst), log_p, worst))


@pytest.mark.fault(88)
def test_fault_88_numbers_of_classes_that_have_no_sample() -> None:
    log_p, labels = calibrated_log_p(300)
    assert calibration_warning(fit_calibration("vector", log_p, labels), log_p, labels) is None
    of_two = labels < 2
    two = fit_calibration("vector", log_p[of_two], labels[of_two])
    assert "of which 2 of 4 classes have none" in str(calibration_warning(two, log_p[of_two], labels[of_two]))


@pytest.mark.fault(88)
@pytest.mark.parametrize(
    ("asked", "value", "scores", "words"),
    [
        ("id:0.05", 0.5, np.linspace(0, 0.51, 100), None),
        ("id:0.05", 2.0, np.linspace(0, 1, 100), "flags none of the 100 samples"),
        ("id:0", 2.0, np.linspace(0, 1, 100), None),
        ("ood:0.95", 0.0, np.zeros(100), "flags all of the 100 samples"),
        ("ood:1", 0.0, np.linspace(0, 1, 100), None),
        ("id:0.1", 0.85, np.linspace(0, 1, 19), "is a quantile of 19 samples"),
        ("id:0.1", 0.85, np.linspace(0, 1, 20), None),
        ("score:2", 2.0, np.linspace(0, 1, 5), "score:2 flags none of the 5 samples"),
        ("score:-1", -1.0, np.linspace(0, 1, 5), "score:-1 flags all of the 5 samples"),
        ("score:0.5", 0.5, np.linspace(0, 1, 5), None),
    ],
)
def test_fault_88_a_threshold_is_doubted_that_tells_nothing_apart(
    asked: str, value: float, scores: np.ndarray, words: str | None
) -> None:
    doubt = threshold_warning(Threshold.read(asked), value, scores, "--val")
    if words is None:
        assert doubt is None
    else:
        assert words in str(doubt)


@pytest.mark.fault(88)
def test_fault_88_prediction_sets_of_fewer_than_20_samples_are_doubted() -> None:
    assert "a quantile of 19 samples" in str(few_for_sets_warning(sets_of(0.9, 19), 4))
    assert few_for_sets_warning(sets_of(0.9, 20), 4) is None
