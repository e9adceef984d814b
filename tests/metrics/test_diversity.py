"""Mutual information and disagreement of the members."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from hydractl.errors import NonFiniteError
from tests.metrics.arrays import disagreement, mi, sample_mi


def naive_mi(member_logits: np.ndarray) -> np.ndarray:
    powers = np.exp(member_logits)
    p = powers / powers.sum(axis=2, keepdims=True)

    def entropy(q: np.ndarray) -> np.ndarray:
        return -(q * np.log(q)).sum(axis=-1)

    return entropy(p.mean(axis=0)) - entropy(p).mean(axis=0)


def naive_disagreement(votes: np.ndarray, classes: int) -> float:
    """Of votes [M, N]: one minus the share of pairs of members that agree, sample by sample."""
    all_pairs = comb(len(votes), 2)
    values = []
    for votes_of_sample in votes.T.tolist():
        agreeing_pairs = sum(comb(votes_of_sample.count(k), 2) for k in range(classes))
        values.append(1 - agreeing_pairs / all_pairs)
    return float(np.mean(values))


def one_hot_logits(votes: list[list[int]], classes: int = 3, size: float = 1e4) -> np.ndarray:
    return size * np.eye(classes)[np.array(votes)]


def test_mi_by_hand() -> None:
    # Two sure members that contradict each other: log 2; that agree: 0.
    logits = one_hot_logits([[0, 0], [1, 0]])
    assert sample_mi(logits) == pytest.approx(np.array([np.log(2), 0.0]), abs=1e-15)
    assert mi(logits) == pytest.approx(np.log(2) / 2, abs=1e-15)


@pytest.mark.parametrize("seed", range(4))
def test_mi_against_the_difference_of_entropies(seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(seed + 1, 50, 6)) * 3
    assert sample_mi(logits) == pytest.approx(naive_mi(logits), abs=1e-13)
    assert mi(logits) == pytest.approx(naive_mi(logits).mean(), abs=1e-13)


@pytest.mark.parametrize("members", [1, 2, 3, 7])
def test_mi_of_equal_members_is_exactly_zero(members: int) -> None:
    one = np.random.default_rng(5).normal(size=(1, 100, 10)) * 5
    assert not sample_mi(np.repeat(one, members, axis=0)).any()


def test_mi_of_nearly_equal_members_is_small_and_not_negative() -> None:
    one = np.random.default_rng(6).normal(size=(1, 500, 10))
    values = sample_mi(np.concatenate([one, one + 1e-9 * np.cos(np.arange(10))]))
    assert values.min() >= 0.0
    assert values.max() < 1e-15


def test_disagreement_by_hand() -> None:
    # Votes of three members: all the same 0; two against one 2/3; all different 1.
    assert disagreement(one_hot_logits([[0, 0, 0], [0, 0, 1], [0, 1, 2]])) == pytest.approx((0 + 2 / 3 + 1) / 3)
    assert disagreement(one_hot_logits([[0, 1], [1, 0]])) == 1.0


@pytest.mark.parametrize("members", [2, 3, 5])
def test_disagreement_against_counted_votes(members: int) -> None:
    logits = np.random.default_rng(members).normal(size=(members, 80, 4))
    assert disagreement(logits) == pytest.approx(naive_disagreement(logits.argmax(axis=2), 4), abs=1e-14)


def test_one_member_and_no_sample() -> None:
    one = np.random.default_rng(7).normal(size=(1, 5, 3))
    assert (mi(one), disagreement(one)) == (0.0, None)
    assert (mi(np.zeros((3, 0, 4))), disagreement(np.zeros((3, 0, 4)))) == (None, None)


@pytest.mark.parametrize("function", [mi, disagreement, sample_mi])
def test_a_non_finite_logit_is_an_error_and_no_vote(function) -> None:
    logits = np.zeros((2, 3, 4))
    logits[1, 2, 0] = np.nan
    with pytest.raises(NonFiniteError, match="member 1 are not finite at sample 2"):
        function(logits)
