"""The script that compares rules of a verdict, on candidates whose answer is known."""

from __future__ import annotations

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
