"""Words for a difference: by where its interval lies, and how they change while samples are added."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from hydractl.report.eval_tables import signed_number
from hydractl.studies.measured_rows import MeasuredRow
from hydractl.studies.words import (
    ACCURACY,
    AUROC,
    KINDS,
    NLL,
    WORDS,
    judge,
    judge_all,
    samples_needed,
    samples_to_see,
    word,
)

BECOMES = {
    "better": {"better"},
    "slightly better": {"slightly better", "better"},
    "worse": {"worse"},
    "slightly worse": {"slightly worse", "worse"},
    "no difference": {"no difference", "slightly better", "slightly worse"},
    "cannot tell": set(WORDS),
}
"""What a word may become where an interval shrinks into itself."""


@pytest.mark.parametrize(
    ("metric", "value", "ci", "kind"),
    [
        (AUROC, 0.0193, (0.0164, 0.0222), "better"),
        (AUROC, 0.0167, (0.0153, 0.0183), "better"),  # the same effect, measured on more data
        (AUROC, 0.02, (0.005, 0.035), "slightly better"),
        (AUROC, 0.005, (0.001, 0.009), "slightly better"),  # inside the margin, and certainly there
        (AUROC, -0.02, (-0.03, -0.011), "worse"),
        (AUROC, -0.02, (-0.03, -0.005), "slightly worse"),
        (AUROC, 0.001, (-0.009, 0.01), "no difference"),
        (AUROC, 0.0, (0.0, 0.0), "no difference"),  # equal predictions
        (AUROC, 0.01, (-0.012, 0.032), "cannot tell"),
        ("id.nll", -0.03, (-0.04, -0.021), "better"),  # lower is better
        ("id.nll", 0.03, (0.001, 0.05), "slightly worse"),
        ("ood_avg.fpr95", 0.1, (0.06, 0.2), "worse"),
    ],
)
def test_one_difference(metric: str, value: float, ci: tuple[float, float], kind: str) -> None:
    assert judge(metric, {"value": value, "ci": ci}, 1000).kind == kind


def test_nothing_turns_back_where_an_interval_shrinks_into_itself() -> None:
    draw = np.random.default_rng(0)
    seen = set()
    for _ in range(2000):
        low, high = np.sort(draw.uniform(-0.03, 0.03, 2))
        inner_low, inner_high = np.sort(draw.uniform(low, high, 2))
        before, after = word(low, high, 0.01), word(inner_low, inner_high, 0.01)
        assert after in BECOMES[before], (low, high, inner_low, inner_high)
        seen.add((before, after))
    assert len(seen) == sum(map(len, BECOMES.values())) and {before for before, _ in seen} == set(WORDS)


@pytest.mark.parametrize(
    ("value", "half_width", "n", "needed"),
    [
        (0.010, 0.022, 1000, 4840),  # until the interval excludes 0
        (0.000, 0.022, 1000, 4840),  # until it lies within the margin
        (0.008, 0.016, 100, 400),
        (0.003, 0.014, 100, 400),  # within the margin comes first: 0.007 is left of it
    ],
)
def test_how_many_samples_would_tell(value: float, half_width: float, n: int, needed: int) -> None:
    found = judge(AUROC, {"value": value, "ci": (value - half_width, value + half_width)}, n)
    assert found.kind == "cannot tell" and found.needed == pytest.approx(needed, rel=0.03)
    shrunk = 0.999 * half_width * np.sqrt(n / found.needed)
    assert word(value - shrunk, value + shrunk, KINDS[AUROC].margin) != "cannot tell"


@pytest.mark.parametrize("share", [0.01, 0.05])
def test_samples_to_see_are_those_of_an_exact_interval(share: float) -> None:
    enough = samples_to_see(share)
    ends = [binomtest(0, n).proportion_ci(0.95, "exact").high for n in (enough - 1, enough)]
    assert ends[0] > share >= ends[1]


@pytest.mark.parametrize(
    ("n", "kind", "needed"),
    [
        (60, "cannot tell", 370),  # up to 6 % of samples that were not seen may be right by one row only
        (367, "cannot tell", 370),
        (368, "no difference", None),
    ],
)
def test_equal_answers_to_few_samples_do_not_show_equal_accuracy(n: int, kind: str, needed: int | None) -> None:
    found = judge(ACCURACY, {"value": 0.0, "ci": (0.0, 0.0)}, n)
    assert (found.kind, found.needed) == (kind, needed)


def test_a_row_beside_itself_has_no_figures_that_are_the_same_on_any_data() -> None:
    """Under another score and the same temperature: the NLL may still differ in its last digit."""
    same = {"value": 0.0, "ci": [0.0, 0.0]}
    table = {ACCURACY: same, NLL: {"value": 2.8e-17, "ci": [0.0, 2.8e-17]}, AUROC: {"value": 0.1, "ci": [0.05, 0.15]}}
    assert list(judge_all(table, lambda metric: 60, same_row=True)) == [AUROC]
    assert judge_all(table, lambda metric: 60).keys() == table.keys()


def test_a_difference_has_four_digits_and_no_power_of_ten() -> None:
    assert [signed_number(x) for x in (0.1, -0.00006, 1.58e-6, -2.78e-17)] == ["+0.1000", "-0.0001", "0.0000", "0.0000"]


def test_fewer_samples_are_never_asked_for_than_there_are() -> None:
    assert samples_needed(0.01, -0.0000001, 0.0200001, 0.01, 50) > 50


def test_the_nearer_end_of_an_interval_that_is_not_symmetric_decides() -> None:
    """Half of its width is below the value, but it holds 0: the lower end is the farther one."""
    needed = samples_needed(0.0141, -0.0011, 0.0262, 0.01, 350)
    assert needed == pytest.approx(350 * (0.0152 / 0.0141) ** 2, rel=0.04)
    assert samples_needed(-0.0141, -0.0262, 0.0011, 0.01, 350) == needed


def test_samples_are_counted_in_the_sets_that_a_metric_is_measured_on() -> None:
    sizes = {"near": 700, "far": 300, None: 200}
    outside: Any = {str(group): range(size) for group, size in sizes.items()}
    inside: Any = range(5000)
    row = MeasuredRow(Any, None, inside, outside, {str(group): group for group in sizes})
    counted = {metric: row.smallest_set(metric) for metric in KINDS}
    assert counted == {
        **dict.fromkeys(("id.accuracy", "id.nll", "id.ece"), 5000),
        **dict.fromkeys(("ood_avg.auroc", "ood_avg.fpr95"), 200),
        "near_avg.auroc": 700,
        "far_avg.auroc": 300,
    }


def test_differences_without_a_value_are_not_judged() -> None:
    table = {AUROC: {"value": 0.1, "ci": [0, 1]}, "id.nll": {"value": None, "ci": None}}
    assert list(judge_all(table, lambda metric: 10)) == [AUROC]
