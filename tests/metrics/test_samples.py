"""The one pass over logits that all metrics start from."""

from __future__ import annotations

import tracemalloc
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from hydractl.errors import NonFiniteError
from hydractl.files.model_records import Calibration
from hydractl.metrics import probabilities
from hydractl.metrics.ood import OOD_SCORES
from hydractl.metrics.samples import Samples, samples_of
from tests.metrics.arrays import pooled_probabilities
from tests.spread import spread

SHAPES = [(3, 101, 6), (1, 40, 10), (2, 1, 3), (5, 60, 2), (2, 7, 1)]


def case(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(shape)
    logits = (rng.normal(size=shape) * 4).astype(np.float32)
    logits[:, ::5] *= 100
    return logits, rng.integers(0, shape[2], shape[1])


def naive_softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def equal(first: Samples, second: Samples) -> bool:
    names = [field.name for field in fields(Samples) if field.name != "scores"]
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in [*names, "score"])


def entropy(p: np.ndarray) -> np.ndarray:
    """In nats over the last axis; a p of 0 adds 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.nan_to_num(p * np.log(p)).sum(axis=-1)


def brier_terms(p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of p [N, C], [N]."""
    return ((p - np.eye(p.shape[1])[labels]) ** 2).sum(axis=1)


@pytest.mark.parametrize(("score", "shape"), spread(OOD_SCORES, SHAPES))
def test_samples_against_naive_formulas(score: str, shape: tuple[int, int, int]) -> None:
    logits, labels = case(shape)
    got = samples_of(logits, labels, scores=[score])
    if len(logits) == 1 and score in ("mi", "variance"):
        assert got.score is None
    else:
        assert np.array_equal(got.score, OOD_SCORES[score](logits))
    assert np.array_equal(got.mi, OOD_SCORES["mi"](logits))
    assert np.array_equal(got.votes, logits.argmax(axis=2)) and got.votes.dtype == np.int32
    predicted = pooled_probabilities(logits).argmax(axis=1)
    assert np.array_equal(got.predicted, predicted) and np.array_equal(got.correct, predicted == labels)
    p = naive_softmax(logits.astype(np.float64)).mean(axis=0)
    of_labels = p[np.arange(len(labels)), labels]
    assert got.confidence == pytest.approx(p.max(axis=1), rel=1e-13)
    assert got.entropy == pytest.approx(entropy(p), abs=1e-12)
    assert got.brier_terms == pytest.approx(brier_terms(p, labels), abs=1e-13)
    assert np.exp(got.label_log_probs) == pytest.approx(of_labels, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(("shape", "values"), spread(SHAPES, [1, 37, 300]))
def test_the_size_of_the_blocks_does_not_show(
    shape: tuple[int, int, int], values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, labels = case(shape)
    whole = samples_of(logits, labels, scores=["energy"])
    monkeypatch.setattr(probabilities, "BLOCK_VALUES", values)
    blocks = samples_of(logits, labels, scores=["energy"])
    assert equal(blocks, whole)


def test_a_memory_map_is_read_block_by_block(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 20_000, 50)).astype(np.float32)
    logits.tofile(tmp_path / "logits")
    mapped = np.memmap(tmp_path / "logits", dtype=np.float32, mode="r", shape=logits.shape)
    labels = rng.integers(0, 50, 20_000)
    samples_of(mapped[:, :10], labels[:10])
    tracemalloc.start()
    got = samples_of(mapped, labels)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 12 MB of logits as float32, 24 as float64; what is kept is 80 bytes a sample, the rest are blocks of 1 MiB.
    assert peak < 20_000 * 90 + 14 * 2**20
    assert equal(got, samples_of(logits, labels))


def test_data_without_labels() -> None:
    got = samples_of(case((3, 20, 4))[0])
    assert (got.labels, got.label_log_probs, got.brier_terms) == (None, None, None)
    with pytest.raises(ValueError, match="no labels"):
        _ = got.correct


def test_no_sample() -> None:
    got = samples_of(np.zeros((3, 0, 4)), np.zeros(0, dtype=int), scores=["variance"])
    assert len(got) == 0
    assert got.votes.shape == (3, 0)
    assert got.correct.shape == (0,)


def test_logits_that_are_not_finite_are_counted_in_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = case((3, 101, 6))
    # Two blocks hold such logits; the numbers are those of the whole array.
    logits[2, 100, 5], logits[1, 3, 2] = np.nan, np.inf
    monkeypatch.setattr(probabilities, "BLOCK_VALUES", 3 * 6 * 10)
    with pytest.raises(NonFiniteError, match=r"member 1 are not finite at sample 3 \(2 of 101 samples"):
        samples_of(logits, labels)


def test_integer_logits_are_taken_as_floats() -> None:
    logits = np.random.default_rng(1).integers(-5, 5, (2, 9, 3))
    assert equal(samples_of(logits), samples_of(logits.astype(np.float64)))


CALIBRATED = {"msp", "entropy", "margin", "gen"}
CALIBRATIONS = {
    "temperature": Calibration.of_temperature(2.5),
    "vector": Calibration(kind="vector", scale=[0.5, 0.8, 1.1, 1.4, 1.7, 2.0], bias=[3.0, 1.8, 0.6, -0.6, -1.8, -3.0]),
}


@pytest.mark.parametrize(("score", "kind"), spread(OOD_SCORES, ["temperature", "vector"]))
def test_a_calibration_acts_on_the_averaged_prediction_alone(score: str, kind: str) -> None:
    logits, labels = case((3, 101, 6))
    calibration = CALIBRATIONS[kind]
    plain = samples_of(logits, labels, scores=[score])
    got = samples_of(logits, labels, scores=[score], calibration=calibration)
    log_p = np.log(naive_softmax(logits.astype(np.float64)).mean(axis=0).clip(1e-320))
    exact = probabilities.pooled_log_probs(logits)
    log_p = np.where(log_p > -600, log_p, exact)  # the naive logarithm underflows
    p = naive_softmax(log_p * np.array(calibration.scales) + np.array(calibration.bias or 0.0))
    of_labels = p[np.arange(101), labels]
    assert got.confidence == pytest.approx(p.max(axis=1), rel=1e-12)
    assert got.brier_terms == pytest.approx(brier_terms(p, labels), abs=1e-12)
    assert np.exp(got.label_log_probs) == pytest.approx(of_labels, rel=1e-10, abs=1e-200)
    assert np.array_equal(got.predicted, p.argmax(axis=1))
    assert np.array_equal(got.predicted, plain.predicted) == (kind == "temperature")
    for name in ("mi", "votes"):
        assert np.array_equal(getattr(got, name), getattr(plain, name))
    assert np.array_equal(got.score, plain.score) == (score not in CALIBRATED)
    if score == "msp":
        assert np.array_equal(got.score, -got.confidence)
    if score == "entropy":
        assert np.array_equal(got.score, got.entropy)
        assert got.entropy == pytest.approx(entropy(p), abs=1e-10)


def test_extreme_logits_stay_finite_with_an_extreme_temperature() -> None:
    logits = np.array([[[1e300, -1e300], [0.0, 0.0]], [[-1e300, 1e300], [1.0, 1.0]]])
    for temperature in (0.01, 100.0):
        calibration = Calibration.of_temperature(temperature)
        got = samples_of(logits, np.array([0, 1]), scores=["entropy"], calibration=calibration)
        for values in (got.entropy, got.mi, got.score, got.label_log_probs, got.brier_terms):
            assert np.isfinite(values).all()
        assert got.confidence.tolist() == [0.5, 0.5]


def test_a_temperature_changes_no_prediction_where_two_classes_are_all_but_tied() -> None:
    rng = np.random.default_rng(0)
    logits = np.repeat(rng.normal(size=(1, 400, 1)), 3, axis=2) + rng.integers(0, 4, (1, 400, 3)) * 2e-16
    plain = samples_of(logits)
    assert len(set(plain.predicted.tolist())) == 3
    for temperature in (0.01, 0.3, 3.0, 100.0):
        got = samples_of(logits, calibration=Calibration.of_temperature(temperature))
        assert np.array_equal(got.predicted, plain.predicted)
    anew = probabilities.powers_of(probabilities.pooled_log_probs(logits) / 100).softmax.argmax(axis=1)
    assert not np.array_equal(anew, plain.predicted)  # what rounding would make of it
