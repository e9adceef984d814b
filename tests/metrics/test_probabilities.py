"""The way from the members' logits to the ensemble's p and log p."""

from __future__ import annotations

import numpy as np
import pytest

from hydractl.errors import NonFiniteError
from hydractl.metrics.probabilities import pooled_log_probs
from tests.metrics.arrays import pooled_probabilities


def naive_probabilities(member_logits: np.ndarray) -> np.ndarray:
    powers = np.exp(member_logits.astype(np.float64))
    return (powers / powers.sum(axis=2, keepdims=True)).mean(axis=0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_any_float_type_is_computed_in_float64(dtype: type) -> None:
    logits: np.ndarray = (np.random.default_rng(0).normal(size=(3, 40, 7)) * 4).astype(dtype)
    expected = naive_probabilities(logits)
    for got in (pooled_probabilities(logits), np.exp(pooled_log_probs(logits))):
        assert got.dtype == np.float64
        assert got == pytest.approx(expected, rel=1e-13)


def test_large_logits_stay_finite_where_probabilities_underflow() -> None:
    logits = np.array([[[1e4, -1e4, 0.0]], [[1e4, 0.0, -1e4]]], dtype=np.float32)
    assert pooled_probabilities(logits).tolist() == [[1.0, 0.0, 0.0]]
    # Class 1: the members say -20000 and -10000; class 2 the other way round; half of exp(-10000) is what is left.
    expected = np.array([[0.0, -1e4 - np.log(2), -1e4 - np.log(2)]])
    assert pooled_log_probs(logits) == pytest.approx(expected, abs=1e-9)
    assert pooled_log_probs(logits[:1]).tolist() == [[0.0, -2e4, -1e4]]
    assert np.isfinite(pooled_log_probs(np.array([[[1e300, -1e300]]]))).all()


def test_equal_members_give_their_own_values_and_never_exceed_one() -> None:
    one = np.random.default_rng(2).normal(size=(1, 200, 5)) * 20
    assert np.array_equal(pooled_log_probs(np.repeat(one, 3, axis=0)), pooled_log_probs(one))
    assert pooled_log_probs(one).max() <= 0.0
    assert pooled_probabilities(np.repeat(one, 7, axis=0)).max() <= 1.0


@pytest.mark.parametrize("classes", [3, 15])
def test_equal_logits_give_exactly_one_over_c(classes: int) -> None:
    assert pooled_probabilities(np.full((1, 1, classes), 3.7)).tolist() == [[1 / classes] * classes]


@pytest.mark.fault(29)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_non_finite_logit_is_an_error_that_says_where(bad: float) -> None:
    logits = np.zeros((3, 6, 4), dtype=np.float32)
    logits[2, 1, 0] = bad
    logits[1, 4, 3] = bad
    logits[1, 5, 0] = bad
    for function in (pooled_log_probs, pooled_probabilities):
        with pytest.raises(NonFiniteError, match=r"member 1 are not finite at sample 4 \(3 of 6 samples"):
            function(logits)


def test_a_logit_too_large_for_float64_differences_is_an_error() -> None:
    with pytest.raises(NonFiniteError):
        pooled_log_probs(np.array([[[1e308, -1e308]]]))
