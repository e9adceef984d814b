"""Temperature and vector scaling, against scipy's optimisers and scikit-learn."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import optimize, special

from hydractl.errors import InputError
from hydractl.files.model_records import Calibration
from hydractl.metrics import probabilities
from hydractl.metrics.calibrators import (
    RIDGE,
    fit_calibration,
    fit_temperature,
    fit_vector,
    temperature_interval,
)
from hydractl.metrics.probabilities import scaled
from hydractl.model.prediction import Chosen
from tests.spread import marked_long, marked_release


def case(seed: int, n: int, classes: int, sharper: float) -> tuple[np.ndarray, np.ndarray]:
    """log p that is ``sharper`` times too sure, with labels drawn from the right p."""
    rng = np.random.default_rng(seed)
    right = special.log_softmax(rng.normal(size=(n, classes)) * 1.5, axis=1)
    labels = np.array([rng.choice(classes, p=np.exp(row)) for row in right])
    return special.log_softmax(right * sharper, axis=1), labels


def nll(logits: np.ndarray, labels: np.ndarray) -> float:
    log_p = special.log_softmax(logits, axis=1)
    return float(-log_p[np.arange(len(labels)), labels].mean())


CASES = [(0, 500, 5, 4.0), (1, 800, 10, 0.3), (2, 60, 3, 1.0), (3, 400, 40, 2.0)]


@pytest.mark.parametrize("parameters", CASES)
def test_the_temperature_is_that_of_a_bounded_search(parameters: tuple[int, int, int, float]) -> None:
    log_p, labels = case(*parameters)
    fitted = fit_temperature(log_p, labels)

    def objective(log_scale: float) -> float:
        return nll(log_p * np.exp(log_scale), labels)

    bounds = (np.log(0.01), np.log(100))
    best = optimize.minimize_scalar(objective, bounds=bounds, method="bounded", options={"xatol": 1e-10})
    assert fitted.temperature == pytest.approx(np.exp(-best.x), rel=1e-6)
    reached = nll(log_p / fitted.temperature, labels)
    assert reached <= best.fun + 1e-14
    assert nll(scaled(fitted, log_p), labels) == pytest.approx(reached, rel=1e-12)


@pytest.mark.parametrize(
    "parameters", [CASES[0], CASES[2], *marked_long([(CASES[1],)]), *marked_release([(CASES[3],)])]
)
def test_vector_scaling_is_the_minimum_that_bfgs_finds(parameters: tuple[int, int, int, float]) -> None:
    log_p, labels = case(*parameters)
    classes = log_p.shape[1]
    fitted = fit_vector(log_p, labels)
    by_temperature = fit_temperature(log_p, labels)
    centre = np.concatenate([np.full(classes, by_temperature.scales[0]), np.zeros(classes)])

    def objective(point: np.ndarray) -> float:
        scale, bias = np.split(point, 2)
        ridge = RIDGE / 2 * ((point - centre) ** 2).sum()
        return nll(log_p * scale + bias, labels) + ridge

    ours = np.concatenate([fitted.scale, fitted.bias])
    gradient = optimize.approx_fprime(ours, objective, 1e-7)
    assert np.abs(gradient).max() < 1e-6
    theirs = optimize.minimize(objective, centre, method="L-BFGS-B", options={"maxfun": 10**6, "maxiter": 200})
    assert objective(ours) <= theirs.fun + 1e-12
    assert nll(scaled(fitted, log_p), labels) <= nll(scaled(by_temperature, log_p), labels) + 1e-12


def test_the_size_of_the_blocks_hardly_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    log_p, labels = case(*CASES[2])
    whole = fit_temperature(log_p, labels)
    vector = fit_vector(log_p, labels)
    monkeypatch.setattr(probabilities, "BLOCK_VALUES", 20)
    assert fit_temperature(log_p, labels).temperature == pytest.approx(whole.temperature, rel=1e-10)
    assert fit_vector(log_p, labels).scale == pytest.approx(vector.scale, rel=1e-4)


SURE = special.log_softmax(np.random.default_rng(4).normal(size=(40, 4)) * 3, axis=1)
CERTAIN = np.array([[0.0, -1e290], [-2e300, 0.0]])


def check_degenerate(log_p: np.ndarray, labels: list[int], temperature: float) -> None:
    """The temperature is the documented one, and vector scaling stays finite and moderate."""
    fitted = fit_temperature(log_p, np.array(labels))
    assert fitted.temperature == temperature
    vector = fit_vector(log_p, np.array(labels))
    numbers = np.array([*vector.scale, *vector.bias])
    assert np.abs(numbers).max() < 1e4  # which no NaN is
    assert np.isfinite(scaled(vector, log_p)).all()


@pytest.mark.parametrize("samples", [1, 40])
def test_all_right_is_the_lowest_temperature_and_all_wrong_the_highest(samples: int) -> None:
    log_p = SURE[:samples]
    check_degenerate(log_p, log_p.argmax(axis=1).tolist(), 0.01)
    check_degenerate(log_p, log_p.argmin(axis=1).tolist(), 100.0)


def test_one_class_has_no_temperature() -> None:
    check_degenerate(np.zeros((3, 1)), [0, 0, 0], 1.0)


def test_uniform_predictions_have_no_temperature() -> None:
    check_degenerate(np.log(np.full((5, 4), 0.25)), [0] * 5, 1.0)
    rounded = np.log(np.full((5, 3), 1 / 3)) + 1e-16 * np.arange(3)
    check_degenerate(rounded, [0, 1, 2, 0, 1], 1.0)


def test_certain_predictions_have_no_temperature_where_they_are_right() -> None:
    check_degenerate(CERTAIN, [0, 1], 1.0)
    check_degenerate(CERTAIN, [1, 0], 100.0)


def test_a_class_without_samples_keeps_the_common_temperature() -> None:
    log_p, labels = case(5, 600, 4, 3.0)
    improbable = np.full((600, 1), -60.0)
    log_p = special.log_softmax(np.concatenate([log_p, improbable], axis=1), axis=1)
    common = fit_temperature(log_p, labels)
    fitted = fit_vector(log_p, labels)
    assert fitted.scale[4] == pytest.approx(common.scales[0], abs=0.05)
    assert fitted.bias[4] == pytest.approx(0, abs=0.05)


@pytest.mark.fault(88)
@pytest.mark.parametrize("kind", ["temperature", "vector"])
def test_fault_88_too_few_samples_and_one_class_are_refused(kind: str) -> None:
    log_p, labels = case(5, 600, 4, 3.0)
    with pytest.raises(InputError, match="and here 1 sample can be read") as error:
        fit_calibration(kind, log_p[:1], labels[:1])
    assert "--temperature" in str(error.value.hint)
    with pytest.raises(InputError, match="and here 9 samples can be read"):
        fit_calibration(kind, log_p[:9], labels[:9])
    fit_calibration(kind, log_p[:10], labels[:10])
    is_of_class_2 = labels == 2
    with pytest.raises(InputError, match="are of one class"):
        fit_calibration(kind, log_p[is_of_class_2], labels[is_of_class_2])


@pytest.mark.fault(88)
@pytest.mark.parametrize("samples", [30, 600])
def test_fault_88_the_interval_of_a_temperature_is_that_of_the_curvature(samples: int) -> None:
    log_p, labels = case(5, samples, 4, 3.0)
    fitted = fit_temperature(log_p, labels)
    low, high = temperature_interval(fitted, log_p)

    def nll(log_temperature: float) -> float:
        scaled_log_p = special.log_softmax(log_p * math.exp(-log_temperature), axis=1)
        return -float(scaled_log_p[np.arange(samples), labels].sum())

    # The second derivative by finite differences.
    assert fitted.temperature is not None
    at, step = math.log(fitted.temperature), 1e-3
    curvature = (nll(at + step) - 2 * nll(at) + nll(at - step)) / step**2
    half = 1.96 / math.sqrt(curvature)
    assert math.log(high) - at == pytest.approx(half, rel=1e-3)
    assert at - math.log(low) == pytest.approx(half, rel=1e-3)


@pytest.mark.fault(88)
def test_fault_88_samples_that_say_nothing_of_a_temperature_have_no_finite_interval() -> None:
    uniform = np.log(np.full((20, 4), 0.25))
    assert temperature_interval(fit_temperature(uniform, np.arange(20) % 4), uniform) == (0, math.inf)


VAL = {"spec": "val.npz", "n": 500, "fingerprint": "0"}


@pytest.mark.parametrize(("kind", "null"), [("temperature", ["scale", "bias"]), ("vector", ["temperature"])])
def test_json_and_back(kind: str, null: list[str]) -> None:
    fitted = fit_calibration(kind, *case(*CASES[0]))
    document = json.loads(json.dumps({**fitted.to_dict(), "fitted_on": VAL}))
    again = Chosen.of({"calibration": document}).calibration
    assert again is not None and again.to_dict() == {**document, "stored": True}
    assert list(document) == ["kind", "temperature", "scale", "bias", "fitted_on", "stored"]
    assert [name for name, value in document.items() if value is None] == null


def test_a_temperature_is_the_same_again_and_again() -> None:
    for temperature in np.random.default_rng(6).uniform(0.01, 100, 2000):
        first = Calibration.of_temperature(temperature)
        again = Calibration.of_temperature(1.0 / first.scales[0])
        assert again == first
        assert first.temperature == pytest.approx(temperature, rel=1e-11)
    assert Calibration.of_temperature(1.5).temperature == 1.5


BAD = [
    {},
    {"kind": "temperature", "temperature": 0.0},
    {"kind": "temperature", "temperature": float("nan")},
    {"kind": "temperature", "temperature": None},
    {"kind": "vector", "scale": [1.0, 2.0], "bias": [0.0]},
    {"kind": "vector", "scale": [], "bias": []},
    {"kind": "vector", "scale": [float("inf")], "bias": [0.0]},
    {"kind": "vector", "scale": "ab", "bias": "cd"},
    {"kind": "platt", "scale": [1.0], "bias": [0.0]},
]


@pytest.mark.parametrize("document", BAD)
def test_bad_documents_are_refused(document: dict) -> None:
    with pytest.raises(InputError, match="what calibrate has chosen is broken"):
        Chosen.of({"calibration": document})


def test_a_vector_of_other_classes_is_refused() -> None:
    with pytest.raises(InputError, match="fitted for 2 classes, the model has 4"):
        scaled(Calibration(kind="vector", scale=[1.0, 1.0], bias=[0.0, 0.0]), SURE)
