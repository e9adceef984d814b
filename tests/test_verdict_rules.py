"""The script that compares rules of a verdict, on candidates whose answer is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 101


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import verdict_rules

    return verdict_rules


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


def test_harm_on_one_set_excludes_the_best_mean(rules: Any) -> None:
    seen = validation(rules, {(0, "msp"): [0.7, 0.7], (0, "margin"): [0.95, 0.66], (0, "energy"): [0.75, 0.70]})
    assert decided(rules, seen) == (0, "energy")
    assert decided(rules, seen, bound="none") == (0, "margin")


def test_a_blind_set_has_no_vote(rules: Any) -> None:
    seen = validation(rules, {(0, "msp"): [0.7, 0.55], (0, "energy"): [0.8, 0.50]})
    assert decided(rules, seen) == (0, "energy")
    assert decided(rules, seen, blind=0) == (0, "msp")
    only_blind = validation(rules, {(0, "msp"): [0.51], (0, "energy"): [0.58]})
    assert decided(rules, only_blind) == (0, "msp")


def test_a_dearer_row_is_taken_for_more_than_the_margin_alone(rules: Any) -> None:
    aurocs = {(0, "msp"): [0.7], (0, "energy"): [0.8], (1, "msp"): [0.7], (1, "energy"): [0.808]}
    assert decided(rules, validation(rules, aurocs)) == (0, "energy")
    assert decided(rules, validation(rules, aurocs), margin=0.005) == (1, "energy")
    dearer = validation(rules, aurocs | {(1, "energy"): [0.85]})
    assert decided(rules, dearer) == (1, "energy")
    dearer.within[1] = False
    assert decided(rules, dearer) == (0, "energy")


def test_the_order_of_scores_counts_within_the_margin(rules: Any) -> None:
    seen = validation(rules, {(0, "msp"): [0.7], (0, "energy"): [0.8], (0, "vim"): [0.806]})
    assert decided(rules, seen) == (0, "vim")
    assert decided(rules, seen, pick="order") == (0, "energy")
    assert decided(rules, seen, pick="significantly") == (0, "vim")


def test_with_one_score_rows_are_compared_under_that_of_the_single_model(rules: Any) -> None:
    aurocs = {(0, "msp"): [0.7], (0, "energy"): [0.8], (1, "energy"): [0.801], (1, "vim"): [0.9]}
    seen = validation(rules, aurocs)
    assert decided(rules, seen) == (1, "vim")
    assert decided(rules, seen, scores="one") == (0, "energy")
