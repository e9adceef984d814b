"""Metrics of answers against those of other libraries; how a rule of theirs differs stands in the test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from hydractl.families.torchvision_operators import declare_operators
from hydractl.metrics.rows import id_metrics
from hydractl.metrics.samples import samples_of
from tests.metrics import arrays as ours_of
from tests.metrics.arrays import pooled_probabilities

CLASSES = 6
SAMPLES = {"random": 230, "sure": 230, "few": 5, "one": 1}


def case(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Logits of three members, and labels."""
    rng = np.random.default_rng(len(kind))
    logits = rng.normal(size=(3, SAMPLES[kind], CLASSES)) * (900 if kind == "sure" else 3)
    return logits, rng.integers(0, CLASSES, SAMPLES[kind])


def library(name: str) -> Any:
    declare_operators()  # each of them imports torchvision
    return pytest.importorskip(name, reason=f"{name} is not installed")


@pytest.mark.parametrize("kind", ["random", "few"])
def test_calibration_error_of_torchmetrics(kind: str) -> None:
    """A confidence of exactly 1, of which there is none here, is in a bin of its own."""
    functional = library("torchmetrics.functional.classification")
    logits, labels = case(kind)
    samples = samples_of(logits, labels)
    probs, target = torch.from_numpy(pooled_probabilities(logits)), torch.from_numpy(labels)
    error = functional.multiclass_calibration_error(probs, target, num_classes=CLASSES, n_bins=15, norm="l1").item()
    assert error == pytest.approx(ours_of.ece(samples.confidence, samples.correct), abs=1e-6)


@pytest.mark.parametrize("kind", ["random", "few"])
def test_the_complement_of_aurc_is_the_aurra_of_pytorch_ood(kind: str) -> None:
    """Of ties, of which there are none here, it takes any order."""
    functional = library("pytorch_ood.metrics.functional")
    samples = samples_of(*case(kind))
    theirs = functional.aurra(torch.from_numpy(samples.confidence), torch.from_numpy(samples.correct))
    assert 1 - theirs == pytest.approx(ours_of.aurc(samples.confidence, samples.correct), abs=1e-12)


@pytest.mark.parametrize("kind", ["random", "sure", "one"])
def test_classification_of_scikit_learn(kind: str) -> None:
    logits, labels = case(kind)
    probs = pooled_probabilities(logits)
    got = id_metrics(logits, labels)
    assert sk.accuracy_score(labels, probs.argmax(axis=1)) == got.accuracy
    if kind != "sure":  # it clips p
        assert sk.log_loss(labels, probs, labels=range(CLASSES)) == pytest.approx(got.nll, rel=1e-12)
    if kind != "one":  # the score of scikit-learn is of two classes
        total = sum(sk.brier_score_loss(labels == k, probs[:, k]) for k in range(CLASSES))
        assert got.brier == pytest.approx(total, rel=1e-12)
