"""Our metrics against other libraries, and against their rules written out.

Each rule that differs from ours, or whose library cannot be counted on here, is written out in a few lines below, named
after library and version. These lines are always held against ours; where the library is installed they are also
held against it. torch-uncertainty needs lightning, and two of its versions cannot be installed at once, so 0.12.1 is
written out alone.
"""

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
    return pytest.importorskip(name, reason=f"{name} is not installed; its rules are tested as written out here")


DRAWS = [(kind, 0) for kind in KINDS]


def of(*kinds: str) -> pytest.MarkDecorator:
    """The kinds of data that a comparison is about; each occurs with each library."""
    return pytest.mark.parametrize(("kind", "seed"), [draw for draw in DRAWS if draw[0] in kinds])


# OOD detection


def both(one: np.ndarray, other: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores, and 1 for the OOD samples."""
    positive = np.r_[np.zeros(len(one), dtype=np.int64), np.ones(len(other), dtype=np.int64)]
    return torch.from_numpy(np.r_[one, other]), torch.from_numpy(positive)


def fpr95_torch_uncertainty_0_13_0(values: torch.Tensor, positive: torch.Tensor) -> float:
    """``FPR95``: the first complete group of tied scores with recall >= 0.95, in float32."""
    order = values.argsort(descending=True)
    values, positive = values[order], positive[order]
    last = torch.cat([torch.where(values[1:] != values[:-1])[0], torch.tensor([len(values) - 1])])
    found = positive.cumsum(0)[last]
    recall = found / positive.sum()
    return ((last + 1 - found) / (1 - positive).sum())[torch.where(recall >= 0.95)[0][0]].item()


def fpr95_torch_uncertainty_0_12_1(values: torch.Tensor, positive: torch.Tensor) -> float:
    """``FPR95``: the threshold with the recall nearest to 0.95, in float32, from recall 1 upwards."""
    order = values.argsort(descending=True, stable=True)
    values, positive = values[order], positive[order]
    last = torch.cat([torch.where(torch.diff(values))[0], torch.tensor([len(values) - 1])])
    found = positive.cumsum(0)[last]
    flagged = 1 + last - found
    recall = found / found[-1]
    complete = int(torch.searchsorted(found, found[-1]))
    recall = torch.cat([recall[: complete + 1].flip(0), torch.tensor([1.0])])
    flagged = torch.cat([flagged[: complete + 1].flip(0), torch.tensor([0.0])])
    return (flagged[torch.argmin(torch.abs(recall - 0.95))] / (1 - positive).sum()).item()


def recalls_are_equally_near(outside: np.ndarray) -> bool:
    """Whether two recalls have the same distance from 0.95, so that rounding decides for 0.12.1."""
    ranks = np.unique(outside, return_counts=True)[1][::-1].cumsum()
    distance = np.sort(np.abs(20 * ranks - 19 * len(outside)))
    return len(distance) > 1 and distance[0] == distance[1]


@of("tied", "few", "one")
def test_fpr95_is_the_rule_of_torch_uncertainty_0_13(kind: str, seed: int) -> None:
    one, other = scores(kind, seed)
    ours = ours_of.fpr95(one, other)
    assert fpr95_torch_uncertainty_0_13_0(*both(one, other)) == pytest.approx(ours, abs=1e-7)


@of("random", "tied", "sure")
def test_fpr95_nearest_is_the_rule_of_torch_uncertainty_0_12(kind: str, seed: int) -> None:
    one, other = scores(kind, seed)
    if recalls_are_equally_near(other):
        return  # held in test_ood_detection, where our rule for such a tie is written out
    ours = ours_of.fpr95_nearest(one, other)
    assert fpr95_torch_uncertainty_0_12_1(*both(one, other)) == pytest.approx(ours, abs=1e-7)


@of("tied", "sure", "one")
def test_fpr95_of_torch_uncertainty_0_13_itself(kind: str, seed: int) -> None:
    metrics = library("torch_uncertainty.metrics")
    one, other = scores(kind, seed)
    values, positive = both(one, other)
    metric = metrics.FPR95(pos_label=1)
    metric.update(values, positive)
    assert metric.compute().item() == fpr95_torch_uncertainty_0_13_0(values, positive)


@of("random", "tied", "equal")
def test_detection_of_torchmetrics(kind: str, seed: int) -> None:
    functional = library("torchmetrics.functional.classification")
    one, other = scores(kind, seed)
    values, positive = both(one, other)
    assert functional.binary_auroc(values, positive).item() == pytest.approx(ours_of.auroc(one, other), abs=1e-6)
    precision = functional.binary_average_precision(values, positive).item()
    assert precision == pytest.approx(ours_of.aupr(one, other), abs=1e-6)


def test_torchmetrics_takes_a_sigmoid_of_scores_outside_0_and_1() -> None:
    functional = library("torchmetrics.functional.classification")
    # Two energies that a sigmoid in float32 cannot tell apart.
    one, other = np.array([-40.0, -39.0], dtype=np.float32), np.array([-38.0, 200.0], dtype=np.float32)
    values = torch.from_numpy(np.r_[one, other, 199.0]).float()
    positive = torch.tensor([0, 0, 1, 1, 0])
    assert functional.binary_auroc(values, positive).item() != pytest.approx(ours_of.auroc(np.r_[one, 199.0], other))


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


def ece_torchmetrics_1_9(confidence: np.ndarray, correct: np.ndarray) -> float:
    """``multiclass_calibration_error(norm="l1", n_bins=15)``: a confidence of exactly 1 is in a bin of its own."""
    total = 0.0
    index = np.searchsorted(np.linspace(0, 1, 16), confidence, side="right")
    for k in set(index.tolist()):
        inside = index == k
        total += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    return total


@of("random", "sure", "equal")
def test_ece_differs_from_torchmetrics_by_the_bin_of_confidence_one(kind: str, seed: int) -> None:
    one = labelled(kind, seed)
    ours, theirs = ours_of.ece(one.confidence, one.correct), ece_torchmetrics_1_9(one.confidence, one.correct)
    sure = one.confidence == 1
    # Splitting a bin can only raise the sum, by no more than twice what the smaller part holds.
    last = one.confidence >= 14 / 15
    least = min(np.count_nonzero(sure), np.count_nonzero(last & ~sure))
    assert ours - 1e-12 <= theirs <= ours + 2 * least / len(one) + 1e-12
    if not sure.any():
        assert theirs == pytest.approx(ours, abs=1e-12)


@of("random", "sure", "one")
def test_calibration_error_of_torchmetrics_itself(kind: str, seed: int) -> None:
    functional = library("torchmetrics.functional.classification")
    inside, labels, _ = case(kind, seed)
    one = labelled(kind, seed)
    probs, target = torch.from_numpy(pooled_probabilities(inside)), torch.from_numpy(labels)
    error = functional.multiclass_calibration_error(probs, target, num_classes=CLASSES, n_bins=15, norm="l1").item()
    assert error == pytest.approx(ece_torchmetrics_1_9(one.confidence, one.correct), abs=1e-6)
    accuracy = functional.multiclass_accuracy(probs, target, num_classes=CLASSES, average="micro").item()
    assert accuracy == pytest.approx(one.correct.mean(), abs=1e-6)


@of("random", "sure", "few")
def test_classification_of_torch_uncertainty_0_13_itself(kind: str, seed: int) -> None:
    metrics = library("torch_uncertainty.metrics")
    inside, labels, _ = case(kind, seed)
    one = labelled(kind, seed)
    probs, target = torch.from_numpy(pooled_probabilities(inside)), torch.from_numpy(labels)
    members = torch.softmax(torch.from_numpy(inside), dim=-1).transpose(0, 1)  # [N, M, C]

    def value(metric: Any, *arguments: torch.Tensor) -> float:
        metric.update(*arguments)
        return float(metric.compute())

    brier = value(metrics.BrierScore(num_classes=CLASSES), probs, target)
    assert brier == pytest.approx(id_metrics(inside, labels).brier, abs=1e-6)
    if len(labels) >= 15 and len(np.unique(one.confidence)) == len(one):  # of ties it takes any order
        adaptive = metrics.AdaptiveCalibrationError(task="multiclass", num_classes=CLASSES, num_bins=15, norm="l1")
        assert value(adaptive, probs, target) == pytest.approx(ours_of.aece(one.confidence, one.correct), abs=1e-6)
    if kind != "sure":  # it takes the logarithm of p, which underflows
        nll = value(metrics.CategoricalNLL(), probs, target)
        assert nll == pytest.approx(id_metrics(inside, labels).nll, abs=1e-6)
    assert value(metrics.MutualInformation(), members) == pytest.approx(ours_of.mi(inside), abs=1e-6)
    assert value(metrics.Disagreement(), members) == pytest.approx(ours_of.disagreement(inside), abs=1e-6)
    if len(labels) > 1 and kind in ("random", "few"):
        assert value(metrics.AURC(), probs, target) == pytest.approx(
            aurc_torch_uncertainty_0_13_0(one.confidence, one.correct), abs=1e-6
        )


def aurc_torch_uncertainty_0_13_0(confidence: np.ndarray, correct: np.ndarray) -> float:
    """``AURC``: the same risks by trapezoids over coverages 1/N..1, divided by 1 - 1/N."""
    wrong = ~correct[np.argsort(-confidence, kind="stable")]
    n = len(wrong)
    risk = np.cumsum(wrong) / np.arange(1, n + 1)
    return float(((risk[1:] + risk[:-1]) / 2).sum() / n / (1 - 1 / n))


@of("random", "tied", "sure")
def test_aurc_differs_from_the_trapezoids_by_its_ends(kind: str, seed: int) -> None:
    one = labelled(kind, seed)
    n = len(one)
    if n < 2:
        return  # theirs is NaN
    ours, theirs = (
        ours_of.aurc(one.confidence, one.correct),
        aurc_torch_uncertainty_0_13_0(one.confidence, one.correct),
    )
    assert ours is not None
    most = one.correct[np.argmax(one.confidence)]
    ends = ((0.0 if most else 1.0) + (1 - one.correct.mean())) / 2
    assert theirs == pytest.approx((n * ours - ends) / (n - 1), abs=1e-12)
    assert abs(theirs - ours) <= 1 / (n - 1)


@of("random", "few")
def test_the_complement_of_aurc_is_the_aurra_of_pytorch_ood(kind: str, seed: int) -> None:
    functional = library("pytorch_ood.metrics.functional")
    one = labelled(kind, seed)
    if len(np.unique(one.confidence)) < len(one):
        return  # of ties it takes any order
    theirs = functional.aurra(torch.from_numpy(one.confidence), torch.from_numpy(one.correct))
    assert 1 - theirs == pytest.approx(ours_of.aurc(one.confidence, one.correct), abs=1e-12)


@of("random")
def test_equal_mass_bins_of_pytorch_ood_where_the_sizes_agree(kind: str, seed: int) -> None:
    functional = library("pytorch_ood.metrics.functional")
    one = labelled(kind, seed)
    n = len(one) // 15 * 15
    conf, correct = one.confidence[:n], one.correct[:n]
    if not n or len(np.unique(conf)) < n:
        return  # too few for 15 bins, or ties, of which it takes any order
    theirs = functional.calibration_error(torch.from_numpy(conf), torch.from_numpy(correct), p="1", beta=n // 15)
    assert theirs == pytest.approx(ours_of.aece(conf, correct), abs=1e-12)


@of("random", "sure", "one")
def test_classification_of_scikit_learn(kind: str, seed: int) -> None:
    inside, labels, _ = case(kind, seed)
    probs = pooled_probabilities(inside)
    assert sk.accuracy_score(labels, probs.argmax(axis=1)) == id_metrics(inside, labels).accuracy
    if kind != "sure":  # it clips p
        assert sk.log_loss(labels, probs, labels=range(CLASSES)) == pytest.approx(
            id_metrics(inside, labels).nll, rel=1e-12
        )
    for k in range(CLASSES):  # the binary score of scikit-learn is half of ours for two classes
        part = sk.brier_score_loss(labels == k, probs[:, k], pos_label=True) if len(set(labels == k)) > 1 else None
        naive = np.mean((probs[:, k] - (labels == k)) ** 2)
        assert part is None or part == pytest.approx(naive, rel=1e-12)
    total = sum(np.mean((probs[:, k] - (labels == k)) ** 2) for k in range(CLASSES))
    assert id_metrics(inside, labels).brier == pytest.approx(total, rel=1e-12)


def test_generalised_entropy_of_pytorch_ood() -> None:
    logits = np.random.default_rng(5).normal(size=(1, 40, 150))
    theirs = library("pytorch_ood.detector").GEN.score(torch.from_numpy(logits[0]), gamma=0.1, M=100)
    assert OOD_SCORES["gen"](logits) == pytest.approx(100 * theirs.numpy(), rel=1e-9)  # theirs is a mean of the terms
