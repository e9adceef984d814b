"""Watching: its figures against published values, scipy and all pairs, and what it says of inputs as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest, chi2_contingency

from hydractl.errors import InputError
from hydractl.files.watching_records import WatchedWindowRecord
from hydractl.metrics.confidence import share_difference_interval
from hydractl.metrics.watching import (
    ALARM_LEVEL,
    FEWEST,
    MOST_VALUES,
    WINDOW,
    Reference,
    Watch,
    WatchedInputs,
    WatchOfAll,
    auroc_estimate,
    class_shift,
    compare_with_reference,
    merged_cells,
    reference_of,
    share_shift,
    stored_reference,
)

THRESHOLD = 1.645


def drawn(seed: int, n: int, shifted: int = 0, step: float = 3.0) -> np.ndarray:
    """Scores of ID samples, of which so many are moved up by a step."""
    scores = np.random.default_rng(seed).normal(size=n)
    scores[:shifted] += step
    return scores


def reference(n: int = 2000, seed: int = 0) -> Reference:
    scores = drawn(seed, n)
    classes = {str(index): n // 4 for index in range(4)}
    classes["0"] += n - sum(classes.values())
    return reference_of(scores, np.full(n, 0.75), classes, int((scores >= THRESHOLD).sum()))


def inputs_of(scores: np.ndarray, classes: int = 4) -> WatchedInputs:
    inputs = WatchedInputs()
    for place, score in enumerate(scores):
        inputs.add(float(score), bool(score >= THRESHOLD), str(place % classes), 0.5)
    return inputs


# --- the figures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((9, 10, 3, 10), (0.1705, 0.8090)),
        ((5, 56, 0, 29), (-0.0381, 0.1926)),
        ((0, 10, 0, 10), (-0.2775, 0.2775)),
        ((10, 10, 0, 10), (0.6075, 1.0000)),
    ],
)
def test_newcombe_as_his_table_has_it(counts: tuple[int, int, int, int], expected: tuple[float, float]) -> None:
    """Newcombe 1998, table II, method 10."""
    assert share_difference_interval(*counts) == pytest.approx(expected, abs=6e-5)


def test_the_end_for_alarms_is_newcombes_at_its_level() -> None:
    shift = share_shift(90, 1000, 28, 600)
    level = 1 - 2 * ALARM_LEVEL
    low = binomtest(90, 1000).proportion_ci(level, method="wilson").low
    other_high = binomtest(28, 600).proportion_ci(level, method="wilson").high
    expected = shift.difference - np.hypot(0.09 - low, other_high - 28 / 600)
    assert shift.low == pytest.approx(expected, abs=1e-12)
    assert shift.difference == pytest.approx(0.09 - 28 / 600)


def test_delong_against_all_pairs_with_ties() -> None:
    generator = np.random.default_rng(3)
    inside = generator.integers(0, 6, 40).astype(np.float64)
    outside = generator.integers(2, 8, 30).astype(np.float64)
    higher = (outside[None] > inside[:, None]) + 0.5 * (outside[None] == inside[:, None])  # [40, 30]
    variance = higher.mean(axis=1).var(ddof=1) / 40 + higher.mean(axis=0).var(ddof=1) / 30
    estimate = auroc_estimate(inside, outside)
    assert estimate.value == pytest.approx(higher.mean(), abs=1e-12)
    half = 1.959963984540054 * np.sqrt(variance)
    assert estimate.interval(40, 30) == pytest.approx((higher.mean() - half, higher.mean() + half), abs=1e-12)


def test_classes_against_scipy() -> None:
    inputs = {"a": 300, "b": 420, "c": 280}
    known = {"a": 700, "b": 650, "c": 650}
    shift = class_shift(inputs, known)
    assert shift is not None
    expected = chi2_contingency([[300, 420, 280], [700, 650, 650]], correction=False)
    assert (shift.chi_squared, shift.degrees) == (pytest.approx(expected.statistic), expected.dof)
    assert shift.p == pytest.approx(expected.pvalue, rel=1e-9)
    halves = [abs(inputs[name] / 1000 - known[name] / 2000) / 2 for name in inputs]
    assert shift.total_variation == pytest.approx(sum(halves))
    assert shift.ci == pytest.approx(share_difference_interval(420, 1000, 650, 2000))


def test_rare_classes_are_put_together_until_five_are_expected_of_either_set() -> None:
    inputs = {"rare": 1, "new": 3, "few": 4, "many": 92}
    known = {"rare": 2, "none": 0, "few": 18, "many": 180}
    cells = merged_cells(inputs, known)
    assert cells.tolist() == [[8, 20], [92, 180]]
    totals = cells.sum(axis=0)
    expected = cells.sum(axis=1, keepdims=True) * totals / totals.sum()
    assert expected.min() >= 5
    assert class_shift({"only": 300}, {"only": 500, "never": 0}) is None
    assert class_shift({}, {"a": 300, "b": 300}) is None


def test_a_difference_of_classes_that_may_be_chance_has_an_interval_from_0() -> None:
    shift = class_shift({"a": 252, "b": 248}, {"a": 500, "b": 500})
    assert shift is not None and shift.p > 0.05 and shift.ci[0] == 0.0


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_clean_inputs_have_not_shifted() -> None:
    window = compare_with_reference(reference(), inputs_of(drawn(11, 1000)))
    assert (window.verdict, window.alarms, window.needed_inputs) == ("no shift", [], None)
    assert window.confidence == 0.5


@pytest.mark.parametrize(("change", "alarms"), [("scores", ["share", "auroc"]), ("classes", ["classes"])])
def test_an_alarm_names_its_figures(change: str, alarms: list[str]) -> None:
    shifted = 500 if change == "scores" else 0
    classes = 3 if change == "classes" else 4
    window = compare_with_reference(reference(), inputs_of(drawn(11, 1000, shifted), classes))
    assert (window.verdict, window.alarms) == ("alarm", alarms)


def test_significant_is_not_enough_within_the_margin() -> None:
    """Of 200,000 inputs a difference of 0.8 points is no chance, and no alarm."""
    known = reference_of(np.zeros(10_000), np.ones(10_000), {"a": 5000, "b": 5000}, 500)
    inputs = WatchedInputs(n=200_000, flagged=11_600)
    inputs.scores.extend([0.0] * 200_000)
    inputs.classes.update({"a": 104_000, "b": 96_000})
    window = compare_with_reference(known, inputs)
    assert window.share is not None and window.share.ci[0] is not None and window.share.ci[0] > 0
    assert window.classes is not None and window.classes.p < ALARM_LEVEL
    assert window.verdict == "no shift"


def test_fewer_flagged_than_the_reference_is_no_alarm() -> None:
    window = compare_with_reference(reference(), inputs_of(drawn(11, 1000) - 1.0))
    assert window.auroc is not None and window.auroc.ci[1] is not None and window.auroc.ci[1] < 0.5
    assert window.verdict == "no shift"


def test_too_few_to_tell() -> None:
    window = compare_with_reference(reference(), inputs_of(drawn(1, FEWEST - 1, 150)))
    assert (window.verdict, window.share) == ("too few to tell", None)
    assert compare_with_reference(reference(), inputs_of(drawn(1, FEWEST, 150))).verdict == "alarm"


def verdict_of_share(flagged: int, n: int) -> WatchedWindowRecord:
    """The window of inputs that differ from a reference in nothing but how many are flagged."""
    known = reference_of(np.zeros(2000), np.ones(2000), {"a": 2000}, 100)
    inputs = WatchedInputs(n=n, flagged=flagged)
    inputs.scores.extend([0.0] * n)
    inputs.classes.update({"a": n})
    return compare_with_reference(known, inputs)


def test_as_many_inputs_as_are_said_to_be_needed_raise_the_alarm() -> None:
    window = verdict_of_share(80, 1000)
    assert window.verdict == "cannot tell" and window.needed_inputs is not None
    needed = window.needed_inputs
    assert verdict_of_share(round(0.08 * needed), needed).verdict == "alarm"
    fewer = round(0.9 * needed)  # it is rounded up to two digits
    assert verdict_of_share(round(0.08 * fewer), fewer).verdict == "cannot tell"


def test_as_many_are_needed_for_scores_and_classes() -> None:
    def by_scores(n: int) -> WatchedWindowRecord:
        quantiles = (np.arange(n) + 0.5) / n
        known = reference_of((np.arange(2000) + 0.5) / 2000, np.ones(2000), {"a": 2000}, None)
        inputs = WatchedInputs(n=n)
        inputs.scores.extend(quantiles**0.75)
        inputs.classes.update({"a": n})
        return compare_with_reference(known, inputs)

    def by_classes(n: int) -> WatchedWindowRecord:
        known = reference_of(np.zeros(2000), np.ones(2000), {"a": 1000, "b": 1000}, None)
        inputs = WatchedInputs(n=n)
        inputs.scores.extend([0.0] * n)
        inputs.classes.update({"a": round(0.56 * n), "b": n - round(0.56 * n)})
        return compare_with_reference(known, inputs)

    windows: list[Callable[[int], WatchedWindowRecord]] = [by_scores, by_classes]
    for window_of in windows:
        window = window_of(300 if window_of is by_scores else 600)
        assert window.verdict == "cannot tell" and window.needed_inputs is not None
        assert window_of(round(1.02 * window.needed_inputs)).verdict == "alarm"
        assert window_of(round(0.7 * window.needed_inputs)).verdict == "cannot tell"


def test_a_reference_that_is_too_small_is_said_to_be() -> None:
    known = reference_of(np.zeros(200), np.ones(200), {"a": 200}, 10)
    inputs = WatchedInputs(n=4000, flagged=400)
    inputs.scores.extend([0.0] * 4000)
    inputs.classes.update({"a": 4000})
    window = compare_with_reference(known, inputs)
    assert (window.verdict, window.needed_inputs) == ("cannot tell", None)
    assert window.advice.endswith("the reference, of 200 samples, is too small")


# --- as they come -----------------------------------------------------------------------------------------------------


def test_windows_one_after_another_and_the_whole() -> None:
    scores = np.concatenate([drawn(11, WINDOW), drawn(22, WINDOW, 500), drawn(23, 250)])
    watch = WatchOfAll(reference())
    for place, score in enumerate(scores):
        watch.add(float(score), bool(score >= THRESHOLD), place % 4, 0.5)
    watched = watch.finished()
    assert [(window.first, window.n) for window in watched.windows] == [(0, 1000), (1000, 1000), (2000, 250)]
    assert [window.verdict for window in watched.windows] == ["no shift", "alarm", "no shift"]
    whole = compare_with_reference(reference(), inputs_of(scores))
    assert watched.whole == whole and (watched.whole.first, watched.whole.n) == (0, 2250)
    assert watched.alarms == 2 and watched.reference.n == 2000


def test_a_service_is_told_of_every_thousandth_input() -> None:
    watch = Watch(reference())
    told = []
    for place, score in enumerate(drawn(31, 2500, 1200)):
        window = watch.add(float(score), bool(score >= THRESHOLD), str(place % 4))
        if window is not None:
            told.append((place, window.verdict))
            assert watch.latest is window
    assert told == [(999, "alarm"), (1999, "alarm")]
    assert (watch.inputs, watch.windows, watch.alarms) == (2500, 2, 2)
    assert sum(watch.classes.values()) == 2500


def test_without_a_reference_inputs_are_counted() -> None:
    watch = Watch(None)
    for _ in range(WINDOW):
        assert watch.add(None, None, 3) is None
    assert (watch.inputs, watch.flagged, watch.classes["3"], watch.last_window()) == (WINDOW, 0, WINDOW, None)


# --- the reference ----------------------------------------------------------------------------------------------------


def test_a_reference_is_read_as_it_was_written() -> None:
    known = reference()
    read = stored_reference(known.to_json())
    assert read is not None
    assert np.array_equal(read.scores, np.sort(drawn(0, 2000))) and read.classes == known.classes
    assert (read.n, read.flagged, read.confidence) == (2000, known.flagged, 0.75)
    assert stored_reference(None) is None


def test_of_many_samples_quantiles_are_kept() -> None:
    n = 3 * MOST_VALUES
    known = reference_of(np.arange(n)[::-1].astype(np.float64), np.ones(n), {"a": n}, None)
    assert known.n == n and np.array_equal(known.scores, np.arange(1, n, 3))


@pytest.mark.parametrize(
    "change",
    [
        {"n": 2001},
        {"flagged": -1},
        {"flagged": True},
        {"classes": {"0": 1999}},
        {"classes": {"0": 2001, "1": -1}},
        {"n": 10**400},
        {"confidence": float("nan")},
        {"scores": "no base64!"},
        {"scores": "AAAA"},
        {"scores": [1.0]},
        {"data": 3},
    ],
)
def test_a_broken_reference_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="its reference for watching is broken"):
        stored_reference({**reference().to_json(), **change})


def test_scores_that_fall_or_are_not_finite_are_refused() -> None:
    known = reference()
    for scores in (known.scores[::-1], np.full(2000, np.nan)):
        broken = Reference(2000, scores, known.confidences, 0.75, known.classes, None)
        with pytest.raises(InputError, match="broken"):
            stored_reference(broken.to_json())
