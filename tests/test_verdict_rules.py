"""The script that compares rules of a verdict, on candidates whose answer is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.running import script

ROUNDS = 101


@pytest.fixture(scope="module")
def rules() -> Any:
    return script(Path(__file__).resolve().parents[1] / "benchmarks" / "verdict_rules.py")


def validation(rules: Any, aurocs: dict[tuple[int, str], list[float]], spread: float = 0.002) -> Any:
    """Return candidates with these AUROCs by set, whose differences all have nearly the same small spread."""
    points = np.asarray(list(aurocs.values()))
    steps = np.linspace(-spread, spread, ROUNDS)
    resampled = np.empty((*points.shape, ROUNDS))
    for number, point in enumerate(points):
        resampled[number] = point[:, None] + steps * (number + 1) / len(points)
    rows = 1 + max(row for row, _ in aurocs)
    return rules.Validation(
        candidates=[rules.Candidate(row, score) for row, score in aurocs],
        prices=[(1.0 + row, 1 + row, row) for row in range(rows)],
        within=[True] * rows,
        points=points,
        resampled=resampled,
    )


def decided(rules: Any, seen: Any, **changes: Any) -> tuple[int, str]:
    """Return the row and the score that a setting takes, on all sets."""
    sets = list(range(seen.points.shape[1]))
    place = rules.decide(seen, sets, replace(rules.Setting(), **changes), {})
    chosen = seen.candidates[place]
    return chosen.row, chosen.score


def test_a_resampled_auroc_is_that_of_the_samples_as_often_as_they_were_drawn(rules: Any) -> None:
    random = np.random.default_rng(0)
    inside, outside = random.integers(0, 9, 40), random.integers(3, 12, 30)  # with many ties
    counts = [random.multinomial(len(values), [1 / len(values)] * len(values), size=5) for values in (inside, outside)]
    resampled = rules.auroc_resampled(inside, outside, *counts)
    for number, value in enumerate(resampled):
        drawn_inside = np.repeat(inside, counts[0][number])
        drawn_outside = np.repeat(outside, counts[1][number])
        higher = (drawn_outside[:, None] > drawn_inside).mean()
        equal = (drawn_outside[:, None] == drawn_inside).mean()
        assert value == pytest.approx(higher + equal / 2, abs=1e-12)
        assert rules.auroc(drawn_inside, drawn_outside) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    ("loss", "low", "kept"), [(0.02, 0.001, False), (0.02, -0.002, True), (0.009, 0.001, True), (-0.1, -0.2, True)]
)
def test_a_row_is_out_where_it_is_beyond_a_limit_and_significantly_worse(
    loss: float, low: float, kept: bool, rules: Any
) -> None:
    assert rules.keeps_to(0.01, loss, np.linspace(low, 2 * loss - low, ROUNDS)) is kept


def test_the_interval_of_a_loss_is_that_of_the_samples_as_often_as_they_were_drawn(rules: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    right = random.random((2, 60)) < 0.8
    arrays = {f"{row}|correct|val": right[place] for place, row in enumerate(("single", "pruned"))}
    arrays |= {f"{row}|nll|val": np.zeros(60) for row in ("single", "pruned")}
    about = {"model": "a", "family": "a", "rows": [{"name": "single"}, {"name": "pruned"}]}
    np.savez(tmp_path / "a.npz", about=np.asarray(json.dumps(about)), **arrays)
    case = rules.Case(tmp_path / "a.npz")
    places = np.arange(10, 60)
    for seed in range(20):
        drawn = np.random.default_rng(seed).integers(0, 50, (40, 50))
        counts = np.stack([np.bincount(one, minlength=50) for one in drawn])
        of_rounds = right[0, places][drawn].mean(axis=1) - right[1, places][drawn].mean(axis=1)
        lost = right[0, places].mean() - right[1, places].mean()
        expected = bool(lost <= 0.01 + 1e-9 or np.quantile(of_rounds, 0.025) <= 0)
        assert case.within(places, counts) == [True, expected]


HARM = {(0, "msp"): [0.7, 0.7], (0, "margin"): [0.95, 0.66], (0, "energy"): [0.75, 0.70]}
BLIND = {(0, "msp"): [0.7, 0.55], (0, "energy"): [0.8, 0.50]}
DEARER = {(0, "msp"): [0.7], (0, "energy"): [0.8], (1, "msp"): [0.7], (1, "energy"): [0.808]}
WITHIN = {(0, "msp"): [0.7], (0, "energy"): [0.8], (0, "vim"): [0.806]}
ROWS = {(0, "msp"): [0.7], (0, "energy"): [0.8], (1, "energy"): [0.801], (1, "vim"): [0.9]}


@pytest.mark.parametrize(
    ("aurocs", "changes", "taken"),
    [
        (HARM, {}, (0, "energy")),  # harm on one set excludes the best mean
        (HARM, {"bound": "none"}, (0, "margin")),
        (BLIND, {}, (0, "energy")),  # a blind set has no vote
        (BLIND, {"blind": 0}, (0, "msp")),
        ({(0, "msp"): [0.51], (0, "energy"): [0.58]}, {}, (0, "msp")),
        (DEARER, {}, (0, "energy")),  # a dearer row is taken for more than the margin alone
        (DEARER, {"margin": 0.005}, (1, "energy")),
        (DEARER | {(1, "energy"): [0.85]}, {}, (1, "energy")),
        (WITHIN, {}, (0, "vim")),  # the order of scores counts within the margin
        (WITHIN, {"pick": "order"}, (0, "energy")),
        (WITHIN, {"pick": "significantly"}, (0, "vim")),
        (ROWS, {}, (1, "vim")),  # with one score rows are compared under that of the single model
        (ROWS, {"scores": "one"}, (0, "energy")),
    ],
)
def test_what_a_rule_takes(aurocs: Any, changes: dict[str, Any], taken: tuple[int, str], rules: Any) -> None:
    assert decided(rules, validation(rules, aurocs), **changes) == taken
