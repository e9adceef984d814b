"""AUROC, AUPR and FPR95 against hand-computed values, naive code and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk

from hydractl.errors import NonFiniteError
from hydractl.metrics.ood import two_u
from tests.metrics.arrays import aupr, aupr_in, aupr_trapezoid, auroc, fpr95, fpr95_nearest

ALL = [auroc, aupr, aupr_trapezoid, aupr_in, fpr95, fpr95_nearest]


def case(seed: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores of ID and of OOD samples."""
    rng = np.random.default_rng(seed)
    id_scores = rng.normal(size=rng.integers(1, 90))
    ood_scores = rng.normal(size=rng.integers(1, 90)) + 0.7
    if kind == "tied":
        id_scores, ood_scores = id_scores.round(), ood_scores.round()
    if kind == "one value":
        id_scores, ood_scores = id_scores * 0, ood_scores * 0
    if kind == "swapped":
        id_scores, ood_scores = ood_scores + 5, id_scores
    return id_scores, ood_scores


def naive_nearest(id_scores: np.ndarray, ood_scores: np.ndarray) -> float:
    """Walk from the lowest threshold with recall 1 upwards, the first one nearest to 19/20 wins."""

    def distance(threshold: float) -> int:
        flagged = int((ood_scores >= threshold).sum())
        return abs(20 * flagged - 19 * len(ood_scores))  # of the recall from 19/20, in integers

    thresholds = [threshold for threshold in sorted({*id_scores, *ood_scores}) if threshold >= min(ood_scores)]
    nearest = min(thresholds, key=distance)  # the first of equally near ones
    return float(np.mean(id_scores >= nearest))


def naive_fpr95(id_scores: np.ndarray, ood_scores: np.ndarray) -> float:
    for threshold in sorted({*id_scores, *ood_scores}, reverse=True):
        if np.mean(ood_scores >= threshold) >= 0.95:
            return float(np.mean(id_scores >= threshold))
    raise AssertionError("the lowest threshold has recall 1")


KINDS = pytest.mark.parametrize("kind", ["random", "tied", "one value", "swapped"])


@KINDS
def test_against_scikit_learn_and_naive_code(kind: str) -> None:
    id_scores, ood_scores = case(0, kind)
    positive = np.concatenate([np.zeros(len(id_scores)), np.ones(len(ood_scores))])
    scores = np.concatenate([id_scores, ood_scores])
    higher = (ood_scores[:, None] > id_scores).sum()
    equal = (ood_scores[:, None] == id_scores).sum()
    assert two_u(id_scores, ood_scores) == 2 * higher + equal
    assert auroc(id_scores, ood_scores) == pytest.approx(sk.roc_auc_score(positive, scores), abs=1e-13)
    assert aupr(id_scores, ood_scores) == pytest.approx(sk.average_precision_score(positive, scores), abs=1e-13)
    precision, recall, _ = sk.precision_recall_curve(positive, scores)
    assert aupr_trapezoid(id_scores, ood_scores) == pytest.approx(sk.auc(recall, precision), abs=1e-13)
    precision, recall, _ = sk.precision_recall_curve(1 - positive, -scores)
    assert aupr_in(id_scores, ood_scores) == pytest.approx(sk.auc(recall, precision), abs=1e-13)
    false_rate, true_rate, _ = sk.roc_curve(positive, scores, drop_intermediate=False)
    assert fpr95(id_scores, ood_scores) == pytest.approx(false_rate[np.argmax(true_rate >= 0.95)], abs=1e-15)
    assert fpr95(id_scores, ood_scores) == naive_fpr95(id_scores, ood_scores)
    assert fpr95_nearest(id_scores, ood_scores) == naive_nearest(id_scores, ood_scores)


@pytest.mark.fault(30)
def test_all_scores_equal() -> None:
    id_scores, ood_scores = np.full(30, -1.0), np.full(10, -1.0)
    assert two_u(id_scores, ood_scores) == 300
    assert auroc(id_scores, ood_scores) == 0.5
    assert aupr(id_scores, ood_scores) == 0.25
    assert aupr_trapezoid(id_scores, ood_scores) == 0.625
    assert (fpr95(id_scores, ood_scores), fpr95_nearest(id_scores, ood_scores)) == (1.0, 1.0)


def test_fpr95_takes_the_first_threshold_that_reaches_19_of_20() -> None:
    # 19 OOD samples on top, two ID samples, the last OOD sample, one ID sample.
    ood_scores = np.r_[np.arange(100, 119), 10.0]
    id_scores = np.array([20.0, 15.0, 5.0])
    assert fpr95(id_scores, ood_scores) == 0.0
    # The same recall of exactly 0.95 lasts down to the lower of the two ID samples, which the library's rule takes.
    assert fpr95_nearest(id_scores, ood_scores) == 2 / 3


def test_nearest_tie_goes_to_the_higher_recall() -> None:
    # Ten OOD samples: recalls 0.9 and 1.0 are equally near to 0.95.
    ood_scores, id_scores = np.r_[np.arange(100, 109), 10.0], np.array([10.0, 0.0])
    assert fpr95_nearest(id_scores, ood_scores) == 0.5


@pytest.mark.fault(31)
@pytest.mark.parametrize("metric", ALL)
def test_an_empty_side_is_none(metric) -> None:
    none, some = np.zeros(0), np.array([0.1, 0.2])
    assert metric(none, some) is None
    assert metric(some, none) is None
    assert metric(none, none) is None
    assert two_u(none, some) == 0


@pytest.mark.parametrize("metric", [*ALL, two_u])
def test_a_score_that_is_not_finite_is_an_error(metric) -> None:
    with pytest.raises(NonFiniteError, match="OOD scores: not finite at sample 1"):
        metric(np.zeros(2), np.array([0.0, np.nan, np.inf]))
    with pytest.raises(NonFiniteError, match="ID scores: not finite at sample 0"):
        metric(np.array([-np.inf]), np.zeros(2))


def test_two_u_is_exact_beyond_32_bits() -> None:
    id_scores, ood_scores = np.zeros(100_000), np.r_[np.zeros(1), np.ones(99_999)]
    assert two_u(id_scores, ood_scores) == 2 * 100_000 * 99_999 + 100_000
