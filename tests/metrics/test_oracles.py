"""Our metrics against those of other libraries; how a rule of theirs differs stands in the test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from hydractl.families.torchvision_operators import declare_operators
from hydractl.metrics.ood import OOD_SCORES
from hydractl.metrics.rows import id_metrics
from hydractl.metrics.samples import Samples, samples_of
from tests.metrics import arrays as ours_of
from tests.metrics.arrays import pooled_probabilities

KINDS = ("random", "tied", "sure", "equal", "few", "one")
CLASSES = 6


def case(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ID logits, their labels, OOD logits."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    n, k = {"few": (5, 4), "one": (1, 1)}.get(kind, (230, 140))
    inside, outside = rng.normal(size=(3, n, CLASSES)) * 3, rng.normal(size=(3, k, CLASSES)) * 2
    if kind == "tied":
        inside, outside = (inside / 3).round(), (outside / 2).round()
    if kind == "sure":
        inside, outside = inside * 300, outside * 30
    if kind == "equal":
        inside, outside = inside * 0, outside * 0
    return inside, rng.integers(0, CLASSES, n), outside


def scores(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """1 - confidence of ID and OOD samples: in [0, 1], because torchmetrics takes a sigmoid of anything else."""
    inside, _, outside = case(kind, seed)
    return 1 + samples_of(inside).score, 1 + samples_of(outside).score


def labelled(kind: str, seed: int) -> Samples:
    inside, labels, _ = case(kind, seed)
    return samples_of(inside, labels)


def library(name: str) -> Any:
    declare_operators()  # each of them imports torchvision
    return pytest.importorskip(name, reason=f"{name} is not installed")


DRAWS = [(kind, 0) for kind in KINDS]


def of(*kinds: str) -> pytest.MarkDecorator:
    """The kinds of data that a comparison is about; each occurs with each library."""
    return pytest.mark.parametrize(("kind", "seed"), [draw for draw in DRAWS if draw[0] in kinds])


# OOD detection


def both(one: np.ndarray, other: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores, and 1 for the OOD samples."""
    positive = np.r_[np.zeros(len(one), dtype=np.int64), np.ones(len(other), dtype=np.int64)]
    return torch.from_numpy(np.r_[one, other]), torch.from_numpy(positive)


@of("random", "tied", "one")
def test_detection_of_pytorch_ood(kind: str, seed: int) -> None:
    functional = library("pytorch_ood.metrics.functional")
    one, other = scores(kind, seed)
    values, positive = both(one, other)
    labels = -positive  # below 0: OOD
    assert functional.auroc(values, labels).item() == pytest.approx(ours_of.auroc(one, other), abs=1e-14)
    assert functional.aupr(values, labels).item() == pytest.approx(ours_of.aupr_trapezoid(one, other), abs=1e-14)
    assert functional.fpr_at_tpr(values, labels, 0.95).item() == pytest.approx(ours_of.fpr95(one, other), abs=1e-15)


# Calibration and classification


@of("random", "few")
def test_calibration_error_of_torchmetrics(kind: str, seed: int) -> None:
    """A confidence of exactly 1, of which there is none here, is in a bin of its own."""
    functional = library("torchmetrics.functional.classification")
    inside, labels, _ = case(kind, seed)
    one = labelled(kind, seed)
    probs, target = torch.from_numpy(pooled_probabilities(inside)), torch.from_numpy(labels)
    error = functional.multiclass_calibration_error(probs, target, num_classes=CLASSES, n_bins=15, norm="l1").item()
    assert error == pytest.approx(ours_of.ece(one.confidence, one.correct), abs=1e-6)
    accuracy = functional.multiclass_accuracy(probs, target, num_classes=CLASSES, average="micro").item()
    assert accuracy == pytest.approx(one.correct.mean(), abs=1e-6)


@of("random", "few")
def test_the_complement_of_aurc_is_the_aurra_of_pytorch_ood(kind: str, seed: int) -> None:
    functional = library("pytorch_ood.metrics.functional")
    one = labelled(kind, seed)
    if len(np.unique(one.confidence)) < len(one):
        return  # of ties it takes any order
    theirs = functional.aurra(torch.from_numpy(one.confidence), torch.from_numpy(one.correct))
    assert 1 - theirs == pytest.approx(ours_of.aurc(one.confidence, one.correct), abs=1e-12)


@of("random", "sure", "one")
def test_classification_of_scikit_learn(kind: str, seed: int) -> None:
    inside, labels, _ = case(kind, seed)
    probs = pooled_probabilities(inside)
    assert sk.accuracy_score(labels, probs.argmax(axis=1)) == id_metrics(inside, labels).accuracy
    if kind != "sure":  # it clips p
        assert sk.log_loss(labels, probs, labels=range(CLASSES)) == pytest.approx(
            id_metrics(inside, labels).nll, rel=1e-12
        )
    if kind != "one":  # the score of scikit-learn is of two classes
        total = sum(sk.brier_score_loss(labels == k, probs[:, k]) for k in range(CLASSES))
        assert id_metrics(inside, labels).brier == pytest.approx(total, rel=1e-12)


def test_generalised_entropy_of_pytorch_ood() -> None:
    logits = np.random.default_rng(5).normal(size=(1, 40, 150))
    theirs = library("pytorch_ood.detector").GEN.score(torch.from_numpy(logits[0]), gamma=0.1, M=100)
    assert OOD_SCORES["gen"](logits) == pytest.approx(100 * theirs.numpy(), rel=1e-9)  # theirs is a mean of the terms
