"""Verdicts on predictions made by construction: better, equal, worse, and too few samples to tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hydractl.metrics.bootstrap import differences, resample
from hydractl.metrics.samples import samples_of
from hydractl.studies.verdict import ANSWERS, Chosen, judge, judge_all, verdict


def rival_and_chosen(n: int, gain: float, drop: float = 0.0) -> dict[str, Any]:
    """Paired differences of two models of two classes; the chosen one separates OOD samples better by ``gain``."""
    draw = np.random.default_rng(0)
    labels = np.zeros(n, dtype=np.int64)
    inside, outside = draw.normal(3, 1, n), draw.normal(2, 1, n)
    right = np.where(draw.random(n) < drop, -1.0, 1.0)

    def row(shift: float, signs: Any) -> Any:
        known = samples_of(np.stack([inside * signs, np.zeros(n)], axis=1)[None], labels)
        strange = samples_of(np.stack([np.abs(outside) * shift, np.zeros(n)], axis=1)[None])
        return resample(known, {"far": strange}, {"far": "far"}, rounds=100)

    return differences(row(1.0, np.ones(n)), row(1 - gain, right))


def chosen(n: int, table: dict[str, Any], **others: Any) -> Chosen:
    facts: dict[str, Any] = {"row": "whole-avg@3", "score": "energy", "temperature": 1.2, "threshold": -0.5}
    facts |= {"pruned": True, "rival": "msp", "mac_ratio": 1.3, "param_ratio": 1.1, "baseline": judge_all(table, n)}
    return Chosen(**{**facts, "n": n, "against": judge_all(table, n), **others})


@pytest.mark.parametrize(
    ("n", "gain", "drop", "answer"),
    [
        (2000, 0.1, 0.0, "helps"),
        (2000, 0.1, 0.1, "trades"),
        (2000, 0.0, 0.0, "no difference"),
        (2000, -0.1, 0.0, "worse"),
    ],
)
def test_what_many_samples_say(n: int, gain: float, drop: float, answer: str) -> None:
    found = verdict(chosen(n, rival_and_chosen(n, gain, drop)))
    assert found["answer"] == answer
    assert found["lines"][0] == ANSWERS[answer].format(row="whole-avg@3", score="energy", rival="msp")
    assert "1.30 times its mult-adds" in found["lines"][1]


def test_an_interval_wider_than_what_matters_cannot_tell_and_says_how_many_samples_could() -> None:
    found = judge("ood_avg.auroc", 0.01, (-0.05, 0.07), 100)
    assert found.kind == "unclear" and found.needed == 900  # (0.06 / 0.02) ** 2 times as many
    answer = verdict(chosen(100, {"ood_avg.auroc": {"value": 0.01, "ci": [-0.05, 0.07]}}))
    assert answer["answer"] == "cannot tell" and "about 900 samples" in answer["lines"][-1]


@pytest.mark.parametrize(
    ("metric", "value", "ci", "kind"),
    [
        ("ood_avg.auroc", 0.02, (0.01, 0.03), "better"),
        ("ood_avg.auroc", -0.02, (-0.03, -0.01), "worse"),
        ("id.nll", -0.02, (-0.03, -0.01), "better"),
        ("ood_avg.fpr95", 0.1, (0.01, 0.2), "worse"),
        ("id.accuracy", 0.0, (-0.004, 0.004), "equal"),
        ("id.accuracy", 0.0, (0.0, 0.0), "equal"),
        ("id.accuracy", -0.005, (-0.009, -0.001), "equal"),  # significant, and too small to matter
    ],
)
def test_one_difference(metric: str, value: float, ci: tuple[float, float], kind: str) -> None:
    assert judge(metric, value, ci, 1000).kind == kind


@pytest.mark.parametrize(
    ("score", "ci", "answer"),
    [
        ("energy", [0.01, 0.05], "score helps"),
        ("energy", [-0.05, -0.01], "score does not help"),
        ("energy", [-0.06, 0.05], "score unclear"),
        ("msp", [0.0, 0.0], "nothing helps"),
    ],
)
def test_where_nothing_pruned_was_chosen(score: str, ci: list[float], answer: str) -> None:
    table = {"ood_avg.auroc": {"value": sum(ci) / 2, "ci": ci}}
    own = {"row": "single", "score": score, "pruned": False, "against": {}, "why": ["Because."]}
    found = verdict(chosen(500, table, **own))
    assert found["answer"] == answer and found["lines"][1] == "Because."
