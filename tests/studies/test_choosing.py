"""The rule, on AUROCs made by construction: who is admissible, who is near the best, who is cheapest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hydractl.metrics.bootstrap import Resampled, resample, resample_auroc
from hydractl.metrics.samples import samples_of
from hydractl.studies.choosing import AUROC, Candidate, choose, own_score


def candidate(row: str, auroc: float, spread: float = 0.0, **others: Any) -> Candidate:
    """A candidate whose AUROC moves by ``spread`` from round to round, against those of others."""
    rounds = auroc + spread * np.linspace(-1, 1, 101)
    facts = {"score": "msp", "members": 1, "macs": 100, "accuracy": 0.9, "nll": 0.3, **others}
    return Candidate(row, auroc=Resampled({AUROC: auroc}, {AUROC: rounds}), **facts)


SINGLE = candidate("single", 0.80)


@pytest.mark.parametrize(
    ("others", "taken"),
    [
        ([candidate("a", 0.85, members=2, macs=130)], "a"),
        ([candidate("a", 0.81, members=2, macs=130)], "single"),  # by no more than what matters
        ([candidate("a", 0.811, members=2, macs=130)], "a"),
        ([candidate("a", 0.85, macs=130), candidate("a", 0.855, score="mi", macs=130)], "a"),
        ([candidate("a", 0.85, spread=0.1, members=2, macs=130)], "single"),  # the interval includes 0
        ([candidate("a", 0.85, macs=130, accuracy=0.889)], "single"),
        ([candidate("a", 0.85, macs=130, accuracy=0.89)], "a"),  # by no more than the limit
        ([candidate("a", 0.85, macs=130, nll=0.33)], "single"),
        ([candidate("a", 0.85, macs=130, eligible=False)], "single"),
        ([candidate("a", 0.86, macs=300), candidate("b", 0.855, spread=0.02, macs=130)], "b"),
        ([candidate("a", 0.85, macs=130, members=3), candidate("b", 0.85, macs=130, members=2)], "b"),
        ([candidate("a", 0.85, macs=130), candidate("b", 0.85, macs=130)], "a"),
        ([candidate("a", 0.86, macs=None), candidate("b", 0.86, macs=500)], "b"),
    ],
)
def test_the_rule(others: list[Candidate], taken: str) -> None:
    candidates = [SINGLE, *others]
    choice = choose(candidates, "single", 0.01)
    assert candidates[choice.chosen].row == taken
    assert [place for place, reason in enumerate(choice.reasons) if not reason] == [choice.chosen]


def test_a_score_gives_way_only_to_one_that_is_significantly_better() -> None:
    msp, energy = candidate("single", 0.80), candidate("single", 0.81, spread=0.05, score="energy")
    assert own_score([msp, energy]) is msp
    assert own_score([msp, candidate("single", 0.81, score="energy")]).score == "energy"


def test_the_resampled_auroc_alone_is_that_of_all_metrics() -> None:
    draw = np.random.default_rng(0)
    inside = samples_of(draw.normal(size=(2, 40, 3)), draw.integers(0, 3, 40), score="entropy")
    outside = {name: samples_of(draw.normal(size=(2, n, 3)), score="entropy") for name, n in (("a", 30), ("b", 9))}
    whole = resample(inside, outside, {"a": "near", "b": None}, rounds=20, seed=3)
    alone = resample_auroc(inside.score, {name: one.score for name, one in outside.items()}, rounds=20, seed=3)
    assert alone.values[AUROC] == whole.values[AUROC]
    np.testing.assert_array_equal(alone.rounds[AUROC], whole.rounds[AUROC])
