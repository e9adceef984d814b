"""Bootstrap intervals: every round is the metric of the literally repeated samples."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from hydractl.metrics.bootstrap import Resampled, draw, intervals, paired_differences, resample, resample_aurocs
from hydractl.metrics.rows import row_blocks, row_keys
from hydractl.metrics.samples import Samples, samples_of

GROUPS = {"n": "near", "f.1": "far", "other": None}
Case = tuple[tuple[np.ndarray, np.ndarray], dict[str, np.ndarray]]


def case(kind: str, seed: int = 0, members: int = 3) -> Case:
    """Logits and labels of ID samples, and the logits of three OOD sets by name."""
    rng = np.random.default_rng(seed)
    n, n_outside = {"few": (4, 3), "one": (1, 1)}.get(kind, (120, 70))
    logits = rng.normal(size=(members, n, 5)) * 3
    outside = {name: rng.normal(size=(members, n_outside + i, 5)) * 2 for i, name in enumerate(GROUPS)}
    change = {"tied": np.round, "equal": np.zeros_like, "sure": lambda values: 50 * values}.get(kind, np.copy)
    changed = {name: change(values) for name, values in outside.items()}
    return (change(logits), rng.integers(0, 5, n)), changed


BIASED = ("id.ece", "id.aece", "errors.ece", "errors.aece")


def lookup(row: dict, key: str) -> object:
    """The value of a dotted key, by walking over every way to cut it."""
    if key in row:
        return row[key]
    for name in row:
        if key.startswith(f"{name}.") and isinstance(row[name], dict):
            return lookup(row[name], key[len(name) + 1 :])
    raise KeyError(key)


def scored(logits: np.ndarray, labels: np.ndarray | None = None) -> Samples:
    """Samples with other scores beside the leading one: of logits, and a probability and a distance of features."""
    fitted = {"vilu": np.abs(np.cos(logits.sum(axis=(0, 2)))).round(1), "knn": logits[0, :, 0].round()}
    return samples_of(logits, labels, scores=SCORES, fitted_scores=fitted)


def run(data: Case, **options: Any) -> Resampled:
    (logits, labels), outside = data
    outside_samples = {name: scored(values) for name, values in outside.items()}
    return resample(scored(logits, labels), outside_samples, GROUPS, **options)


SCORES = ["msp", "energy", "vilu", "knn"]
METRICS = [key for key in row_keys(GROUPS, SCORES) if not key.endswith(".n")]
EXACT = ("id.accuracy", "id.ece", "id.aece", "id.aurc")


def repeated(counts: np.ndarray) -> np.ndarray:
    """The place of each sample as often as it is drawn."""
    return np.repeat(np.arange(len(counts)), counts)


@pytest.mark.parametrize("kind", ["random", "tied", "few", "one"])
def test_each_round_is_the_metric_of_the_repeated_samples(kind: str) -> None:
    data = case(kind)
    (logits, labels), outside = data
    got = run(data, rounds=6, seed=3)
    id_draws = draw(3, "id", len(labels))
    ood_draws = {name: draw(3, name, values.shape[1]) for name, values in outside.items()}
    for i in range(6):
        rows = repeated(next(id_draws))
        inside_drawn = scored(logits[:, rows], labels[rows])
        outside_drawn = {}
        for name, values in outside.items():
            outside_drawn[name] = scored(values[:, repeated(next(ood_draws[name]))])
        row = row_blocks(inside_drawn, outside_drawn, GROUPS).to_dict()
        for key in METRICS:
            if got.values[key] is None:
                assert "errors." in key and key not in got.rounds
                continue
            value = lookup(row, key)
            expected = np.nan if value is None else value  # a round without a wrong answer
            tolerance = 0 if key in EXACT else 1e-12
            assert got.rounds[key][i] == pytest.approx(expected, rel=tolerance, abs=tolerance, nan_ok=True), key


def test_draws_depend_on_the_seed_the_name_and_the_size_alone() -> None:
    for seed, name in ((1, "id"), (2, "id"), (1, "ID")):
        words = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype="<u4").tolist()
        generator, draws = np.random.default_rng([seed, *words]), draw(seed, name, 50)
        for _ in range(3):
            assert np.array_equal(next(draws), np.bincount(generator.integers(0, 50, 50), minlength=50))


def test_all_metrics_have_an_interval_and_values_of_the_row() -> None:
    data = case("random")
    (logits, labels), outside = data
    got = run(data, rounds=60)
    samples = {name: scored(values) for name, values in outside.items()}
    row = row_blocks(scored(logits, labels), samples, GROUPS).to_dict()
    assert got.values == {key: lookup(row, key) for key in METRICS}
    for key, interval in intervals(got).items():
        if got.values[key] is None:
            assert interval is None and key.startswith(("scores.energy.errors", "scores.knn.errors"))
            continue
        low, high = np.percentile(got.rounds[key], [2.5, 97.5])
        if key.endswith("ece"):
            above = np.median(got.rounds[key]) - got.values[key]
            low, high = max(low - above, 0), high - above
        assert interval == pytest.approx([low, high], abs=1e-14)


def test_differences_are_paired() -> None:
    data = case("random")
    (logits, labels), outside = data
    first = run(data, rounds=40)
    better = (logits + np.eye(5)[labels], labels), outside
    other = run(better, rounds=40)
    got = paired_differences(first, other)
    accuracy = got["id.accuracy"]
    assert accuracy["value"] == other.values["id.accuracy"] - first.values["id.accuracy"] > 0
    apart = other.rounds["id.accuracy"] - first.rounds["id.accuracy"]
    assert accuracy["ci"] == pytest.approx(np.percentile(apart, [2.5, 97.5]).tolist(), abs=1e-15)
    for key, same in paired_differences(first, first).items():
        assert same == ({"value": 0, "ci": [0, 0]} if key in first.rounds else {"value": None, "ci": None})


def calibrated(seed: int, n: int = 300) -> Resampled:
    """Rounds of a classifier into two classes whose probabilities are true, so that its expected ECE is all noise."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.5, 1, n)
    labels = (rng.random(n) > confidence).astype(int)
    logits = np.stack([np.log(confidence), np.log1p(-confidence)], axis=-1)
    return resample(samples_of(logits[None], labels), {}, {}, rounds=150, seed=seed)


@pytest.mark.fault(72)
def test_the_interval_of_a_calibration_error_holds_the_value_and_its_difference() -> None:
    rows = [calibrated(seed) for seed in range(6)]
    excluded = 0
    for row in rows:
        for key in BIASED:
            value = row.values[key]
            low, high = intervals(row)[key]
            assert 0 <= low < value < high
            excluded += bool(np.quantile(row.rounds[key], 0.025) > value + 1e-4)
    assert excluded, "else plain percentiles would do"
    for row in rows[1:]:
        compared = paired_differences(rows[0], row)
        for key in BIASED:
            value, (low, high) = compared[key]["value"], compared[key]["ci"]
            assert low < value < high
    # No other metric is moved.
    low, high = intervals(rows[0])["id.nll"]
    assert [low, high] == np.quantile(rows[0].rounds["id.nll"], [0.025, 0.975]).tolist()


def test_metrics_without_a_value_have_no_interval() -> None:
    data = case("random", members=1)
    got = run(data, rounds=5)
    assert intervals(got)["diversity.id.disagreement"] is None
    assert intervals(got)["diversity.id.mi"] == [0.0, 0.0]
    (logits, labels), outside = data
    none = resample(samples_of(logits), {"n": samples_of(outside["n"][:, :0])}, {"n": "near"}, rounds=5)
    assert "id.accuracy" not in none.values
    assert {key for key, value in intervals(none).items() if value is not None} == {"diversity.id.mi"}
    several = run(case("random"), rounds=5)
    assert paired_differences(got, several)["diversity.id.disagreement"] == {"value": None, "ci": None}
    empty = resample(samples_of(logits[:, :0], labels[:0]), {"n": samples_of(outside["n"])}, {"n": "near"}, rounds=5)
    assert {key for key, value in intervals(empty).items() if value is not None} == {"diversity.n.mi"}


def test_progress_is_told_of_every_round() -> None:
    told: list[int] = []
    (logits, labels), _ = case("few")
    resample(samples_of(logits, labels), {}, {}, rounds=7, advance=told.append)
    assert told == [1] * 7


@pytest.mark.parametrize("kind", ["tied", "few", "one"])
def test_the_aurocs_of_several_scores_are_those_of_the_whole_rows_to_the_last_bit(kind: str) -> None:
    (logits, labels), outside = case(kind)
    names = ["energy", "msp", "mi"]
    inside = samples_of(logits, labels, scores=names)
    others = {name: samples_of(values, scores=names) for name, values in outside.items()}
    whole = resample(inside, others, GROUPS, rounds=40, seed=5)
    fast = resample_aurocs(inside, others, names, rounds=40, seed=5)
    assert list(fast) == names
    for score, found in fast.items():
        for name in GROUPS:
            key = f"scores.{score}.ood.{name}.auroc"
            assert found.values[name] == whole.values[key]
            assert found.rounds[name].tolist() == whole.rounds[key].tolist()


def test_some_metrics_have_the_rounds_that_they_have_among_all() -> None:
    data = case("random")
    every = run(data, rounds=5)
    some = run(data, rounds=5, names={"accuracy", "nll", "auroc"})
    assert set(some.values) == {key for key in METRICS if key.endswith((".auroc", "id.accuracy", "id.nll"))}
    assert set(some.rounds) == set(some.values)
    for key, value in some.values.items():
        assert value == every.values[key]
        assert some.rounds[key].tolist() == every.rounds[key].tolist()


def test_an_auroc_without_samples_on_a_side_has_no_value() -> None:
    (logits, labels), _ = case("few")
    some, none = samples_of(logits, labels), samples_of(logits[:, :0], labels[:0])
    for inside, outside in ((some, none), (none, some)):
        empty = resample_aurocs(inside, {"far": outside}, ["msp"], rounds=2)["msp"]
        assert empty.values == {"far": None}
        assert empty.rounds == {}
