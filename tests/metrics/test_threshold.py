"""Thresholds chosen on validation scores."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hydractl.errors import NonFiniteError
from hydractl.files.model_records import ThresholdRecord
from hydractl.metrics.requested import Threshold
from hydractl.metrics.threshold import choose_threshold, measured_threshold
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
    asked = Threshold.read(text)
    assert (asked.side, asked.number) == (side, share)
    assert asked.rule == f"{side}:{float(share)}"


WRONG = ["", "ood", "ood:0", "ood:1.1", "id:1", "id:-0.1", "ID:0.1", "id:1/0", "id:nan"]


@pytest.mark.parametrize("text", WRONG)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be|must say"):
        Threshold.read(text)


@pytest.mark.parametrize(
    ("text", "digits", "seed"), spread(["ood:0.95", "ood:0.5", "id:0.01", "id:0.3"], [0, 1, 9], range(2))
)
def test_no_better_threshold_exists(text: str, digits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=rng.integers(1, 150)).round(digits)
    rule = Threshold.read(text)
    value = choose_threshold(rule, scores)
    candidates = sorted({*scores, *np.nextafter(scores, np.inf)})
    share = {threshold: Fraction(int((scores >= threshold).sum()), len(scores)) for threshold in candidates}
    if rule.side == "ood":
        assert value == max(t for t in candidates if share[t] >= rule.number)
    else:
        assert value == min(t for t in candidates if share[t] <= rule.number)


def test_the_block_of_a_row() -> None:
    threshold = ThresholdRecord(score="msp", value=-0.5, rule="given")
    got = measured_threshold(threshold, np.array([-0.9, -0.5]), {"a": np.array([-0.4]), "b": np.zeros(0)})
    assert got.to_dict() == {
        "score": "msp",
        "value": -0.5,
        "rule": "given",
        "id_flagged": 0.5,
        "ood_flagged": {"a": 1.0, "b": None},
    }


def test_scores_that_are_not_finite_are_an_error() -> None:
    with pytest.raises(NonFiniteError):
        choose_threshold(Threshold.read("id:0.1"), np.array([np.inf]))
