"""Thresholds chosen on validation scores."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hydractl.errors import InputError, NonFiniteError, UsageError
from hydractl.metrics.threshold import (
    ThresholdEntry,
    ThresholdRule,
    choose_threshold,
    flagged,
    parse_rule,
    threshold_block,
)
from tests.metrics.arrays import fpr95
from tests.spread import spread


@pytest.mark.parametrize(
    ("text", "side", "share"),
    [
        ("ood:0.95", "ood", Fraction(19, 20)),
        ("id:0.01", "id", Fraction(1, 100)),
        ("ood:1", "ood", Fraction(1)),
        ("id:0", "id", Fraction(0)),
    ],
)
def test_rules_as_written(text: str, side: str, share: Fraction) -> None:
    assert parse_rule(text) == ThresholdRule(side, share)


def test_a_rule_is_written_as_it_was_read() -> None:
    assert str(parse_rule("ood:0.95")) == "ood:0.95"
    assert str(parse_rule("id:0.01")) == "id:0.01"


WRONG = ["", "ood", "ood:0", "ood:1.1", "id:1", "id:-0.1", "ID:0.1", "id:1/0", "id:nan"]


@pytest.mark.parametrize("text", WRONG)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="says no threshold"):
        parse_rule(text)


def test_by_hand() -> None:
    scores = np.arange(20.0)
    # 95 % of 20 are 19: all but the lowest.
    assert choose_threshold(parse_rule("ood:0.95"), scores) == 1.0
    assert choose_threshold(parse_rule("ood:1"), scores) == 0.0
    # At most 5 % of 20 is one sample: anything above 18.
    value = choose_threshold(parse_rule("id:0.05"), scores)
    assert 18.0 < value < 18.0001
    assert flagged(scores, value) == 0.05
    assert flagged(scores, choose_threshold(parse_rule("id:0"), scores)) == 0.0


def test_tied_scores_are_flagged_together() -> None:
    # At least 50 % becomes 80 %, at most 50 % becomes 20 %.
    tied = np.array([2.0] * 2 + [1.0] * 6 + [0.0] * 2)
    assert choose_threshold(parse_rule("ood:0.5"), tied) == 1.0
    assert flagged(tied, 1.0) == 0.8
    assert flagged(tied, choose_threshold(parse_rule("id:0.5"), tied)) == 0.2


@pytest.mark.parametrize(
    ("text", "digits", "seed"), spread(["ood:0.95", "ood:0.5", "id:0.01", "id:0.3"], [0, 1, 9], range(2))
)
def test_no_better_threshold_exists(text: str, digits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=rng.integers(1, 150)).round(digits)
    rule = parse_rule(text)
    value = choose_threshold(rule, scores)
    candidates = sorted({*scores, *np.nextafter(scores, np.inf)})
    share = {threshold: Fraction(int((scores >= threshold).sum()), len(scores)) for threshold in candidates}
    if rule.side == "ood":
        assert value == max(t for t in candidates if share[t] >= rule.share)
    else:
        assert value == min(t for t in candidates if share[t] <= rule.share)


def test_the_rule_of_fpr95_is_the_threshold_of_95_percent() -> None:
    rng = np.random.default_rng(9)
    inside, outside = rng.normal(size=200).round(1), rng.normal(size=130).round(1) + 1
    assert flagged(inside, choose_threshold(parse_rule("ood:0.95"), outside)) == fpr95(inside, outside)


def test_the_block_of_a_row() -> None:
    threshold: ThresholdEntry = {"score": "msp", "value": -0.5, "rule": "given"}
    got = threshold_block(threshold, np.array([-0.9, -0.5]), {"a": np.array([-0.4]), "b": np.zeros(0)})
    assert got == {
        "score": "msp",
        "value": -0.5,
        "rule": "given",
        "id_flagged": 0.5,
        "ood_flagged": {"a": 1.0, "b": None},
    }


def test_no_sample_and_bad_scores() -> None:
    with pytest.raises(InputError, match=r"ood:0\.95 needs validation samples"):
        choose_threshold(parse_rule("ood:0.95"), np.zeros(0))
    with pytest.raises(NonFiniteError):
        choose_threshold(parse_rule("id:0.1"), np.array([np.inf]))
