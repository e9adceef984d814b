"""Probes against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from hydractl.errors import InputError
from hydractl.evaluation.probes import NO_VOTE, PENALTIES, fit_probe
from hydractl.metrics.probabilities import softmax

CLASSES = 4


def data(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Classes that overlap, in features of other scales, one of them constant and two the same."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(samples) % CLASSES)
    centres = np.random.default_rng(7).normal(size=(CLASSES, 9)) * 0.6
    features = (centres[labels] + rng.normal(size=(samples, 9))) * np.logspace(-2, 2, 9) + 3.0
    return np.column_stack([features, features[:, :1], np.ones(samples)]), labels


TRAIN, VAL, TEST = data(240, 1), data(120, 2), data(60, 3)


def test_neighbours_vote_as_those_of_scikit_learn() -> None:
    probe = fit_probe("knn", *TRAIN, CLASSES)
    model = KNeighborsClassifier(
        20, metric="cosine", algorithm="brute", weights=lambda distance: np.exp((1 - distance) / 0.07)
    ).fit(*TRAIN)
    expected, votes = model.predict_proba(TEST[0]), np.exp((1 - model.kneighbors(TEST[0])[0]) / 0.07)
    assert (expected == 0).any() and ((expected > 0) & (expected < 1)).any()
    logits = probe.logits(TEST[0])
    assert softmax(logits) == pytest.approx(np.maximum(expected, NO_VOTE), abs=1e-6)
    energy = np.logaddexp.reduce(logits, axis=1)
    assert energy == pytest.approx(np.log(votes.sum(axis=1)), abs=1e-6), "says how near the neighbours are"
    with pytest.raises(InputError, match="asks 20 neighbours, and --train has 19"):
        fit_probe("knn", TRAIN[0][:19], TRAIN[1][:19], CLASSES)


def regression(c: float) -> tuple[LogisticRegression, StandardScaler]:
    scaler = StandardScaler().fit(TRAIN[0])
    return LogisticRegression(C=c, tol=1e-9, max_iter=20_000).fit(scaler.transform(TRAIN[0]), TRAIN[1]), scaler


def test_the_linear_probe_is_logistic_regression_on_standardised_features() -> None:
    probe = fit_probe("linear", *TRAIN, CLASSES)
    model, scaler = regression(1.0)
    expected = model.predict_proba(scaler.transform(TEST[0]))
    assert softmax(probe.logits(TEST[0])) == pytest.approx(expected, abs=1e-5)
    assert probe.penalty == 1.0
    assert probe.logits(TEST[0]) == pytest.approx(TEST[0] @ probe.weight.T + probe.bias)


def test_validation_data_choose_the_penalty() -> None:
    nll = {}
    for c in PENALTIES:
        model, scaler = regression(c)
        nll[c] = -model.predict_log_proba(scaler.transform(VAL[0]))[np.arange(len(VAL[1])), VAL[1]].mean()
    best = min(nll, key=nll.__getitem__)
    assert best not in (1.0, PENALTIES[0], PENALTIES[-1])
    assert fit_probe("linear", *TRAIN, CLASSES, VAL).penalty == best
