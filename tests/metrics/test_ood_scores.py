"""The OOD scores of single samples."""

from __future__ import annotations

import numpy as np
import pytest

from hydractl.metrics.ood import OOD_SCORES
from tests.spread import spread


def naive_scores(member_logits: np.ndarray) -> dict[str, np.ndarray]:
    """Every score [N] of logits [M, N, C], written out."""
    powers = np.exp(member_logits)
    members = powers / powers.sum(axis=2, keepdims=True)
    p = members.mean(axis=0)  # [N, C]
    rising = np.sort(p, axis=1)
    entropy = -(p * np.log(p)).sum(axis=1)
    member_entropies = -(members * np.log(members)).sum(axis=2)  # [M, N]
    of_predicted = np.array([members[:, i, k] for i, k in enumerate(p.argmax(axis=1))])  # [N, M]
    return {
        "msp": -p.max(axis=1),
        "entropy": entropy,
        "margin": rising[:, -2] - rising[:, -1],
        "gen": ((p * (1 - p)) ** 0.1).sum(axis=1),  # of fewer than 100 classes
        "energy": -np.log(powers.sum(axis=2)).mean(axis=0),
        "maxlogit": -member_logits.max(axis=2).mean(axis=0),
        "mi": entropy - member_entropies.mean(axis=0),
        "variance": of_predicted.var(axis=1),
    }


@pytest.mark.parametrize(("name", "members"), spread(OOD_SCORES, [1, 3]))
def test_against_naive_formulas(name: str, members: int) -> None:
    logits = np.random.default_rng(members).normal(size=(members, 60, 5)) * 3
    scores = OOD_SCORES[name](logits)
    assert scores.shape == (60,)
    assert scores.dtype == np.float64
    assert scores == pytest.approx(naive_scores(logits)[name], abs=1e-13)


def test_generalised_entropy_is_of_the_hundred_most_probable_classes() -> None:
    logits = np.random.default_rng(0).normal(size=(1, 4, 130)) * 3
    p = np.exp(logits[0]) / np.exp(logits[0]).sum(axis=1, keepdims=True)
    highest = np.sort(p, axis=1)[:, -100:]
    expected = ((highest * (1 - highest)) ** 0.1).sum(axis=1)
    assert OOD_SCORES["gen"](logits) == pytest.approx(expected, abs=1e-13)


def test_large_logits_give_finite_scores() -> None:
    logits = np.array([[[1e4, -1e4]], [[-1e4, 1e4]]], dtype=np.float32)  # p is (1/2, 1/2)
    scores = {name: float(score(logits)[0]) for name, score in OOD_SCORES.items()}
    expected = {
        "msp": -0.5,
        "entropy": np.log(2),
        "margin": 0.0,
        "gen": 2 * 0.25**0.1,
        "energy": -1e4,
        "maxlogit": -1e4,
        "mi": np.log(2),
        "variance": 0.25,
    }
    assert scores == pytest.approx(expected, abs=1e-12)


def test_one_class_has_no_second() -> None:
    assert OOD_SCORES["margin"](np.zeros((2, 3, 1))).tolist() == [-1.0] * 3


@pytest.mark.parametrize("name", ["mi", "variance"])
@pytest.mark.parametrize("members", [1, 3])
def test_scores_of_diversity_are_exactly_tied_when_members_are_equal(name: str, members: int) -> None:
    logits = np.random.default_rng(3).normal(size=(1, 200, 10)) * 4
    scores = OOD_SCORES[name](np.repeat(logits, members, axis=0))
    assert not scores.any()
