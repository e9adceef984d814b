"""Bootstrap intervals: every round is the metric of the literally repeated samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hydractl.metrics import bootstrap
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


def run(data: Case, **options: Any) -> Resampled:
    (logits, labels), outside = data
    outside_samples = {name: samples_of(values) for name, values in outside.items()}
    return resample(samples_of(logits, labels), outside_samples, GROUPS, **options)


COUNTS = ["id.n", *(f"ood.{name}.n" for name in GROUPS)]
METRICS = [key for key in row_keys(GROUPS) if key not in COUNTS]


def repeated(counts: np.ndarray) -> np.ndarray:
    """The place of each sample as often as it is drawn."""
    return np.repeat(np.arange(len(counts)), counts)


@pytest.mark.parametrize("kind", ["random", "tied", "few", "one"])
def test_each_round_is_the_metric_of_the_repeated_samples(kind: str) -> None:
    data = case(kind)
    (logits, labels), outside = data
    got = run(data, rounds=25, seed=3)
    id_draws = draw(3, "id", len(labels))
    ood_draws = {name: draw(3, name, values.shape[1]) for name, values in outside.items()}
    for i in range(25):
        rows = repeated(next(id_draws))
        inside_drawn = samples_of(logits[:, rows], labels[rows])
        outside_drawn = {}
        for name, values in outside.items():
            outside_drawn[name] = samples_of(values[:, repeated(next(ood_draws[name]))])
        row = row_blocks(inside_drawn, outside_drawn, GROUPS)
        for key in METRICS:
            if got.values[key] is None:
                assert key.startswith("errors.") and key not in got.rounds
                continue
            value = lookup(row, key)
            expected = np.nan if value is None else value  # a round without a wrong answer
            assert got.rounds[key][i] == pytest.approx(expected, rel=1e-12, abs=1e-12, nan_ok=True), key


def test_exact_metrics_are_equal_to_the_last_bit() -> None:
    data = case("tied")
    (logits, labels), _ = data
    got = run(data, rounds=10)
    generator = draw(0, "id", len(labels))
    for i in range(10):
        rows = repeated(next(generator))
        literal = row_blocks(samples_of(logits[:, rows], labels[rows]), {}, {})["id"]
        for metric in ("accuracy", "ece", "aece", "aurc"):
            assert got.rounds[f"id.{metric}"][i] == literal[metric]


def test_all_metrics_have_an_interval_and_values_of_the_row() -> None:
    data = case("random")
    (logits, labels), outside = data
    got = run(data, rounds=200)
    outside_samples = {name: samples_of(values) for name, values in outside.items()}
    row = row_blocks(samples_of(logits, labels), outside_samples, GROUPS)
    assert got.values == {key: lookup(row, key) for key in METRICS}
    for key, interval in intervals(got, 0.9).items():
        low, high = np.percentile(got.rounds[key], [5, 95])
        if key in BIASED:
            above = np.median(got.rounds[key]) - got.values[key]
            low, high = max(low - above, 0), high - above
        assert interval == pytest.approx([low, high], abs=1e-14)
    wide = intervals(got, 0.99)
    narrow = intervals(got, 0.5)
    for key, (low, high) in wide.items():
        assert low <= narrow[key][0] <= narrow[key][1] <= high


def test_the_interval_of_the_accuracy_is_that_of_the_binomial() -> None:
    rng = np.random.default_rng(8)
    labels = (rng.random(2000) < 0.3).astype(int)
    always_class_0 = np.tile([1.0, 0.0], (1, 2000, 1))
    got = resample(samples_of(always_class_0, labels), {}, {}, rounds=1000, names={"accuracy"})
    p = 1 - labels.mean()
    low, high = intervals(got)["id.accuracy"]
    spread = 1.96 * np.sqrt(p * (1 - p) / 2000)
    assert (low, high) == pytest.approx((p - spread, p + spread), abs=0.2 * spread)


def test_the_same_draws_for_every_model_and_none_for_another_seed() -> None:
    first = draw(1, "id", 50)
    other = draw(1, "id", 50)
    different = set()
    for _ in range(5):
        counts = next(first)
        assert np.array_equal(counts, next(other))
        assert counts.sum() == 50
        different.add(tuple(counts))
    assert len(different) == 5
    counts = next(draw(1, "id", 50))
    assert not np.array_equal(counts, next(draw(2, "id", 50)))
    assert not np.array_equal(counts, next(draw(1, "ID", 50)))


def test_another_data_set_or_order_leaves_the_draws_of_the_others_alone() -> None:
    data = case("random")
    whole = run(data, rounds=5)
    inside, outside = data
    fewer = {"other": outside["other"], "n": outside["n"]}
    less = run((inside, fewer), rounds=5)
    for key in ("id.ece", "ood.n.auroc", "diversity.other.mi"):
        assert np.array_equal(less.rounds[key], whole.rounds[key])


def test_differences_are_paired() -> None:
    data = case("random")
    (logits, labels), outside = data
    first = run(data, rounds=100)
    better = (logits + np.eye(5)[labels], labels), outside
    other = run(better, rounds=100)
    got = paired_differences(first, other)
    accuracy = got["id.accuracy"]
    assert accuracy["value"] == other.values["id.accuracy"] - first.values["id.accuracy"] > 0
    apart = other.rounds["id.accuracy"] - first.rounds["id.accuracy"]
    assert accuracy["ci"] == pytest.approx(np.percentile(apart, [2.5, 97.5]).tolist(), abs=1e-15)
    unpaired = intervals(other)["id.accuracy"][1] - intervals(first)["id.accuracy"][0]
    assert accuracy["ci"][1] < unpaired
    for same in paired_differences(first, first).values():
        assert same == {"value": 0, "ci": [0, 0]}
    with pytest.raises(ValueError, match="different numbers of rounds"):
        paired_differences(first, run(data, rounds=99))


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
    names = ["msp", "energy", "mi"]
    inside = samples_of(logits, labels, score="energy", beside=names)
    others = {name: samples_of(values, score="energy", beside=names) for name, values in outside.items()}
    whole = resample(inside, others, GROUPS, rounds=40, seed=5)
    fast = resample_aurocs(inside.scores, {name: samples.scores for name, samples in others.items()}, rounds=40, seed=5)
    assert list(fast) == names
    for score, found in fast.items():
        for name in GROUPS:
            key = f"scores.{score}.ood.{name}.auroc"
            assert found.values[name] == whole.values[key]
            assert found.rounds[name].tolist() == whole.rounds[key].tolist()
    # The score that leads is among those beside it, and measured once.
    for key in ("ood.n.aupr_in", "near_avg.auroc", "ood_avg.fpr95"):
        assert whole.rounds[key].tolist() == whole.rounds[f"scores.energy.{key}"].tolist()
        assert whole.rounds[key].tolist() == run_alone(inside, others, key)


def test_some_metrics_have_the_rounds_that_they_have_among_all() -> None:
    data = case("random")
    every = run(data, rounds=5)
    some = run(data, rounds=5, names={"accuracy", "nll", "auroc"})
    of_sets = [f"ood.{name}.auroc" for name in GROUPS]
    averages = ["near_avg.auroc", "far_avg.auroc", "ood_avg.auroc"]
    assert set(some.values) == {"id.accuracy", "id.nll", "errors.auroc", *of_sets, *averages}
    assert set(some.rounds) == set(some.values)
    for key, value in some.values.items():
        assert value == every.values[key]
        assert some.rounds[key].tolist() == every.rounds[key].tolist()


def run_alone(inside: Samples, outside: dict[str, Samples], key: str) -> list[float]:
    """A metric of the score that leads, without any beside it."""
    alone = {name: replace(samples, scores={}) for name, samples in outside.items()}
    return resample(replace(inside, scores={}), alone, GROUPS, rounds=40, seed=5).rounds[key].tolist()


@pytest.mark.parametrize("block", [1, 300])
def test_the_aurocs_of_many_rounds_do_not_depend_on_how_many_are_counted_together(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    inside = {"s": rng.normal(size=60).round(1)}
    outside = {"far": {"s": rng.normal(size=45).round(1)}}
    together = resample_aurocs(inside, outside, rounds=21, seed=1)["s"]
    monkeypatch.setattr(bootstrap, "_BLOCK", block)
    apart = resample_aurocs(inside, outside, rounds=21, seed=1)["s"]
    assert apart.values == together.values
    assert apart.rounds["far"].tolist() == together.rounds["far"].tolist()


def test_an_auroc_without_samples_on_a_side_has_no_value() -> None:
    some, none = np.arange(3.0), np.zeros(0)
    for inside, outside in ((some, none), (none, some)):
        empty = resample_aurocs({"s": inside}, {"far": {"s": outside}}, rounds=2)["s"]
        assert empty.values == {"far": None}
        assert empty.rounds == {}
