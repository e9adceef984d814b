"""Mutual information and disagreement of the members."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from tests.metrics.arrays import disagreement, mi, sample_mi


def naive_disagreement(votes: np.ndarray, classes: int) -> float:
    """Of votes [M, N]: one minus the share of pairs of members that agree, sample by sample."""
    all_pairs = comb(len(votes), 2)
    values = []
    for votes_of_sample in votes.T.tolist():
        agreeing_pairs = sum(comb(votes_of_sample.count(k), 2) for k in range(classes))
        values.append(1 - agreeing_pairs / all_pairs)
    return float(np.mean(values))


def test_mi_of_nearly_equal_members_is_small_and_not_negative() -> None:
    one = np.random.default_rng(6).normal(size=(1, 500, 10))
    values = sample_mi(np.concatenate([one, one + 1e-9 * np.cos(np.arange(10))]))
    assert values.min() >= 0.0
    assert values.max() < 1e-15


@pytest.mark.parametrize("members", [2, 3, 5])
def test_disagreement_against_counted_votes(members: int) -> None:
    logits = np.random.default_rng(members).normal(size=(members, 80, 4))
    assert disagreement(logits) == pytest.approx(naive_disagreement(logits.argmax(axis=2), 4), abs=1e-14)
    assert mi(logits) == pytest.approx(sample_mi(logits).mean(), abs=1e-13)
