"""OOD scores on features, against pytorch-ood and against their definitions written out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from hydractl.errors import InputError
from hydractl.families.torchvision_operators import declare_operators
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES, MemberTraining
from hydractl.metrics.ood_scores import OF_ZERO_SHOT, ON_FEATURES

CLASSES, WIDTH = 4, 12
STATISTICS = [name for name in FEATURE_SCORES if name not in OF_ZERO_SHOT]  # which is trained: test_vilu.py


def case(n: int = 300) -> tuple[MemberTraining, np.ndarray, np.ndarray]:
    """Training data, and features [50, D] and logits of samples that are partly like them."""
    rng = np.random.default_rng(3)
    means = rng.normal(size=(CLASSES, WIDTH)) * 2
    mixing = rng.normal(size=(WIDTH, WIDTH))
    labels = rng.integers(0, CLASSES, n)
    weight = rng.normal(size=(CLASSES, WIDTH))
    bias = rng.normal(size=CLASSES)
    features = means[labels] + rng.normal(size=(n, WIDTH)) @ mixing
    highest = (features @ weight.T + bias).max(axis=1)
    data = MemberTraining(features, labels, highest, weight, bias, neighbours=7)
    samples = rng.normal(size=(50, WIDTH)) * 3
    return data, samples, samples @ weight.T + bias


def ours(name: str, data: MemberTraining, samples: np.ndarray, logits: np.ndarray) -> np.ndarray:
    score = FEATURE_SCORES[name]
    return score.score(score.fit(data), samples, logits)


def naive(name: str, data: MemberTraining, samples: np.ndarray) -> list[float]:
    """Each definition, sample by sample."""
    x, y, w, b = data.features, data.labels, data.weight, data.bias
    assert y is not None
    class_means = np.array([x[y == c].mean(axis=0) for c in range(CLASSES)])
    apart_from_mean = x - class_means[y]
    within = np.linalg.pinv(apart_from_mean.T @ apart_from_mean / len(x))
    total = np.linalg.pinv(np.cov(x.T, bias=True))
    origin = -np.linalg.pinv(w) @ b
    _, _, directions = np.linalg.svd(x - origin)
    principal = directions[: WIDTH // 2]
    clip = np.percentile(x, 90)

    def distance(v: np.ndarray, mean: np.ndarray, precision: np.ndarray) -> float:
        return float((v - mean) @ precision @ (v - mean))

    def apart(u: np.ndarray, v: np.ndarray) -> float:
        return float(np.linalg.norm(u / np.linalg.norm(u) - v / np.linalg.norm(v)))

    def residual(v: np.ndarray) -> float:
        shifted = v - origin
        return float(np.linalg.norm(shifted - shifted @ principal.T @ principal))

    def energy(v: np.ndarray) -> float:
        return -float(np.log(np.exp(v @ w.T + b).sum()))

    def score(v: np.ndarray) -> float:
        if name == "mahalanobis":
            return min(distance(v, mean, within) for mean in class_means)
        if name == "rmd":
            nearest = min(distance(v, mean, within) for mean in class_means)
            return nearest - distance(v, x.mean(axis=0), total)
        if name == "knn":
            rising = sorted(apart(u, v) for u in x)
            return rising[6]
        if name == "vim":
            highest = [max(u @ w.T + b) for u in x]
            residuals = [residual(u) for u in x]
            return float(np.mean(highest) / np.mean(residuals) * residual(v)) + energy(v)
        if name == "react":
            return energy(np.minimum(v, clip))
        assert name == "ash"
        lowest_kept = sorted(v)[round(WIDTH * 0.65)]
        kept = np.where(v >= lowest_kept, v, 0)
        return energy(kept * np.exp(v.sum() / kept.sum()))

    return [score(v) for v in samples]


def test_the_names_of_help_are_those_that_are_declared() -> None:
    assert list(FEATURE_SCORES) == list(ON_FEATURES)


@pytest.mark.parametrize("name", STATISTICS)
def test_against_the_definition(name: str) -> None:
    data, samples, logits = case()
    assert ours(name, data, samples, logits) == pytest.approx(naive(name, data, samples), rel=1e-7, abs=1e-7)


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    """Whatever a library makes without naming a type is in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize("name", STATISTICS)
def test_against_pytorch_ood(name: str) -> None:
    """Theirs run in float64, but for ViM, which turns all it is given to float32."""
    declare_operators()
    theirs = pytest.importorskip("pytorch_ood.detector")
    data, samples, logits = case()
    x, y, z = (torch.from_numpy(values) for values in (data.features, data.labels, samples))
    w, b = torch.from_numpy(data.weight), torch.from_numpy(data.bias)
    scale = 1.0

    def head(maps: torch.Tensor) -> torch.Tensor:
        return maps.flatten(1) @ w.T + b

    found: Any
    # Theirs of Gaussians are of the sum of products, not of the mean; and of Mahalanobis one half.
    if name == "mahalanobis":
        found = theirs.Mahalanobis(None).fit_features(x, y).predict_features(z)
        scale = 2 * len(x)
    elif name == "rmd":
        found = theirs.RMD(None).fit_features(x, y).predict_features(z)
        scale = len(x)
    elif name == "knn":
        found = theirs.KNN(None, k=7, normalize=True).fit_features(x, y).predict_features(z)
    elif name == "vim":
        found = theirs.ViM(None, d=WIDTH // 2, w=w, b=b).fit_features(x, y).predict_features(z)
    elif name == "react":
        found = theirs.ReAct(lambda v: v, head, percentile=0.9).fit_feature_maps(x[:, :, None, None], y)
        found = found.predict_feature_maps(z[:, :, None, None])
    else:
        found = theirs.ASH(lambda v: v, head, percentile=0.65).predict_feature_maps(z[:, :, None, None])
    expected = scale * found.numpy()
    # What is added or subtracted last is as large as this.
    largest_term = np.abs(expected).max()
    relative = 1e-6  # theirs adds 1e-6 to a covariance; ours keeps the training samples of knn in float32
    if name == "rmd":
        largest_term = ours("mahalanobis", data, samples, logits).max()
    if name == "vim":
        energies = np.log(np.exp(logits).sum(axis=1))
        largest_term = np.abs(energies).max() + np.abs(expected + energies).max()
        relative = 100 * np.finfo(np.float32).eps
    tolerance = relative * largest_term
    assert ours(name, data, samples, logits) == pytest.approx(expected, rel=0, abs=tolerance)


def test_directions_without_spread_and_absent_classes_do_not_count() -> None:
    data, samples, logits = case()
    assert data.labels is not None

    def widened(features: np.ndarray) -> np.ndarray:
        """The features, a sum of some of them, and one that is always 1."""
        total = features[:, :3].sum(axis=1)
        return np.column_stack([features, total, np.ones(len(features))])

    labels_with_gaps = data.labels * 5
    sparse = MemberTraining(widened(data.features), labels_with_gaps, data.highest, data.weight, data.bias)
    for name in ("mahalanobis", "rmd"):
        expected = ours(name, data, samples, logits)
        assert ours(name, sparse, widened(samples), logits) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_what_cannot_be_fitted_is_refused() -> None:
    data, _, _ = case(5)
    with pytest.raises(InputError, match="nearest neighbour 7, and --train has 5 samples"):
        FEATURE_SCORES["knn"].fit(data)
    still = MemberTraining(np.ones((5, 3)), np.zeros(5, dtype=np.int64), data.highest, data.weight[:, :3], data.bias)
    with pytest.raises(InputError, match="the same for every sample"):
        FEATURE_SCORES["mahalanobis"].fit(still)
