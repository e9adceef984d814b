"""OOD scores on features, against pytorch-ood and against their definitions written out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hydractl.errors import InputError
from hydractl.families.torchvision_operators import declare_operators
from hydractl.metrics.feature_scores.layers import LayerSums, add_to_sums, empty_sums
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES, MemberTraining, held_out_of
from hydractl.metrics.ood_scores import ON_FEATURES
from tests.metrics.arrays import class_distances

CLASSES, WIDTH = 4, 12
TRAINED = ("vilu", "vilu-scaled")  # in test_vilu.py
NOT_THEIRS = ("neglabel", "mahalanobis-layers", "hedge")
STATISTICS = [name for name in FEATURE_SCORES if name not in (*TRAINED, "hedge")]


def sums_of(features: np.ndarray, labels: np.ndarray) -> list[LayerSums]:
    """The sums of two layers, of 5 and of all other columns, in batches."""
    (layers,) = empty_sums([[5, WIDTH - 5]], CLASSES)
    for start in range(0, len(features), 70):
        add_to_sums(layers, features[start : start + 70], labels[start : start + 70])
    return layers


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
    words = rng.normal(size=(250, WIDTH)) + 0.3 * weight[rng.integers(0, CLASSES, 250)]
    layers = sums_of(features, labels)
    data = MemberTraining(features, labels, highest, weight, bias, neighbours=7, words=words, layers=layers)
    samples = rng.normal(size=(50, WIDTH)) * 3
    return data, samples, samples @ weight.T + bias


def ours(name: str, data: MemberTraining, samples: np.ndarray, logits: np.ndarray) -> np.ndarray:
    score = FEATURE_SCORES[name]
    return score.score(score.fit(data), samples, logits)


def negative_labels(data: MemberTraining, samples: np.ndarray) -> list[float]:
    """``neglabel``, sample by sample."""
    texts = data.weight

    def cosine(u: np.ndarray, v: np.ndarray) -> float:
        return float(u @ v / np.linalg.norm(u) / np.linalg.norm(v))

    def share(v: np.ndarray, negatives: list[np.ndarray]) -> float:
        of_classes = sum(np.exp(100 * cosine(v, text)) for text in texts)
        return of_classes / (of_classes + sum(np.exp(100 * cosine(v, word)) for word in negatives))

    # The two groups of 125 words, dealt out in the order of their likeness to the classes.
    assert data.words is not None
    by_likeness = sorted(data.words, key=lambda word: np.quantile([cosine(word, text) for text in texts], 0.95))
    return [-(share(v, by_likeness[0::2]) + share(v, by_likeness[1::2])) / 2 for v in samples]


def test_negative_labels_against_the_definition() -> None:
    data, samples, logits = case()
    expected = negative_labels(data, samples)  # ours keeps features in float32
    assert ours("neglabel", data, samples, logits) == pytest.approx(expected, rel=1e-5)


def test_distances_of_layers_add_up() -> None:
    data, samples, logits = case()
    x, y = data.features, data.labels
    assert y is not None
    first, second = (class_distances(x[:, part], y, samples[:, part]) for part in (slice(5), slice(5, None)))
    assert ours("mahalanobis-layers", data, samples, logits) == pytest.approx(first + second, rel=1e-7)


def test_the_names_of_help_are_those_that_are_declared() -> None:
    assert list(FEATURE_SCORES) == list(ON_FEATURES)


@pytest.mark.parametrize(("n", "held_out"), [(300, 60), (49, 0)])
def test_the_hedge_is_the_sum_of_its_parts_standardised_on_samples_that_these_have_not_seen(
    n: int, held_out: int
) -> None:
    data, samples, logits = case(n)
    assert data.labels is not None
    # Logits of which no probability comes so near to 1 that gen would be of its rounding.
    data = replace(data, weight=data.weight / 20, bias=data.bias / 20, highest=data.highest / 20)
    logits = logits / 20
    drawn = np.random.default_rng(0).permutation(n)
    unseen, seen = (drawn[:held_out], np.sort(drawn[held_out:])) if held_out else (drawn, np.arange(n))
    part = replace(data, features=data.features[seen], labels=data.labels[seen], neighbours=7 * len(seen) // n)
    part = replace(part, highest=data.highest[seen])

    def parts(x: np.ndarray) -> np.ndarray:
        odds = np.exp(x @ data.weight.T + data.bias)
        p = odds / odds.sum(axis=1, keepdims=True)
        named = [ours(name, part, x, x @ data.weight.T + data.bias) for name in ("mahalanobis", "rmd", "knn", "vim")]
        return np.stack([((p * (1 - p)) ** 0.1).sum(axis=1), -np.log(odds.sum(axis=1)), *named])

    on_unseen = parts(data.features[unseen])
    standard = (parts(samples) - on_unseen.mean(axis=1)[:, None]) / on_unseen.std(axis=1)[:, None]
    assert ours("hedge", data, samples, logits) == pytest.approx(standard.sum(axis=0), rel=1e-9)


@pytest.mark.parametrize("n", [300, 49])
def test_the_hedge_of_all_layers_has_one_part_more(n: int) -> None:
    """Its mean and deviation, too, are of samples that no Gaussian was fitted to; plain numpy on the vectors."""
    data, samples, logits = case(n)
    labels = data.labels
    assert labels is not None
    draw = np.random.default_rng(1)
    width = data.features.shape[1]
    of_training = np.concatenate([data.features, draw.normal(size=(n, 5)), 3 + draw.normal(size=(n, 4))], axis=1)
    of_samples = np.concatenate([samples, draw.normal(size=(len(samples), 9))], axis=1)
    (sums,) = empty_sums([[width, 5, 4]], len(data.weight))
    for start in range(0, n, 20):
        batch = slice(start, start + 20)
        add_to_sums(sums, of_training[batch], labels[batch])
    unseen = held_out_of(n)
    seen = np.ones(n, dtype=bool) if n < 50 else ~unseen
    assert unseen.sum() == (60 if n == 300 else 49)
    six = FEATURE_SCORES["hedge"].fit(data)
    seven = FEATURE_SCORES["hedge"].fit(replace(data, layers=sums, layers_held_out=of_training[unseen]))
    assert all(np.array_equal(seven[name], six[name]) for name in six if name not in ("means", "deviations"))

    def distance(x: np.ndarray) -> np.ndarray:
        total = np.zeros(len(x))
        for layer in (slice(width), slice(width, width + 5), slice(width + 5, width + 9)):
            total += class_distances(of_training[seen, layer], labels[seen], x[:, layer])
        return total

    of_unseen = distance(of_training[unseen])
    part = (distance(of_samples) - of_unseen.mean()) / of_unseen.std()
    score = FEATURE_SCORES["hedge"].score
    difference = score(seven, of_samples, logits) - score(six, samples, logits)
    assert difference == pytest.approx(part, rel=1e-7, abs=1e-7)


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    """Whatever a library makes without naming a type is in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize("name", [name for name in STATISTICS if name not in NOT_THEIRS])
def test_against_pytorch_ood(name: str) -> None:
    """Theirs run in float64, but for ViM and MCM, which turn all they are given to float32."""
    declare_operators()
    theirs = pytest.importorskip("pytorch_ood.detector")
    data, samples, logits = case()
    x, y, z = (torch.from_numpy(values) for values in (data.features, data.labels, samples))
    w, b = torch.from_numpy(data.weight), torch.from_numpy(data.bias)
    scale = 1.0

    def head(maps: torch.Tensor) -> torch.Tensor:
        features = maps.flatten(1)
        return features @ w.to(features).T + b.to(features)

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
    elif name == "mcm":
        found = theirs.MCM(None, w).predict_features(z)
    else:
        found = theirs.ASH(lambda v: v, head, percentile=0.65).predict_feature_maps(z[:, :, None, None])
    expected = scale * found.numpy()
    # What is added or subtracted last is as large as this.
    largest_term = np.abs(expected).max()
    relative = 1e-6  # theirs adds 1e-6 to a covariance; ours keeps the training samples of knn in float32
    if name == "rmd":
        largest_term = ours("mahalanobis", data, samples, logits).max()
    if name == "mcm":
        relative = 100 * np.finfo(np.float32).eps
    if name == "vim":
        energies = np.log(np.exp(logits).sum(axis=1))
        largest_term = np.abs(energies).max() + np.abs(expected + energies).max()
        relative = 100 * np.finfo(np.float32).eps
    tolerance = float(relative * largest_term)
    assert ours(name, data, samples, logits) == pytest.approx(expected, rel=0, abs=tolerance)


@pytest.mark.parametrize("samples_to_fit", [3, WIDTH // 2])
def test_vim_divides_by_no_rounding_where_few_samples_span_no_more_than_its_principal_space(
    samples_to_fit: int,
) -> None:
    data, samples, logits = case(samples_to_fit)
    factor = float(FEATURE_SCORES["vim"].fit(data)["alpha"][0])
    many, _, _ = case()
    usual = float(FEATURE_SCORES["vim"].fit(many)["alpha"][0])
    assert abs(factor) < 1000 * abs(usual)
    assert np.abs(ours("vim", data, samples, logits)).max() < 1000 * np.abs(logits).max()


def widened(features: np.ndarray) -> np.ndarray:
    """The features, a sum of some of them as float32 rounds it, and one that is always 1."""
    total = features[:, :3].sum(axis=1).astype(np.float32)
    return np.column_stack([features, total, np.ones(len(features))])


def test_directions_without_spread_and_absent_classes_do_not_count() -> None:
    data, samples, logits = case()
    assert data.labels is not None
    labels_with_gaps = data.labels * 5
    sparse = replace(data, features=widened(data.features), labels=labels_with_gaps)
    for name in ("mahalanobis", "rmd"):
        expected = ours(name, data, samples, logits)
        assert ours(name, sparse, widened(samples), logits) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_what_cannot_be_fitted_is_refused() -> None:
    data, _, _ = case(5)
    with pytest.raises(InputError, match="nearest neighbour 7, and --train has 5 samples"):
        FEATURE_SCORES["knn"].fit(data)
    still = replace(data, features=np.ones((5, WIDTH)))
    with pytest.raises(InputError, match="the same for every sample"):
        FEATURE_SCORES["mahalanobis"].fit(still)


def test_features_that_are_all_0_have_the_energy_of_the_bias() -> None:
    data, _, _ = case()
    zeros = np.zeros((3, WIDTH))
    with np.errstate(all="raise"):
        got = ours("ash", data, zeros, zeros @ data.weight.T + data.bias)
    expected = -float(np.log(np.exp(data.bias).sum()))
    assert got.tolist() == pytest.approx([expected] * 3, rel=1e-15)


def test_features_of_either_sign_never_overflow() -> None:
    data, _, _ = case()
    features = np.full((1, WIDTH), -100.0)
    features[0, :5] = -1e-12  # the highest: their sum is a tiny part of the whole
    for sign in (1, -1):
        got = ours("ash", data, sign * features, sign * features @ data.weight.T + data.bias)
        assert np.isfinite(got).all()


def test_more_words_are_cut_to_those_least_like_the_classes_in_groups_of_equal_size() -> None:
    data, _, _ = case()
    rng = np.random.default_rng(0)
    words = rng.normal(size=(8000, WIDTH))
    many = replace(data, words=words)
    negatives = FEATURE_SCORES["neglabel"].fit(many)["negatives"]
    assert negatives.shape == (12, 100, WIDTH)  # 15 % of 8,000
    texts = data.weight / np.linalg.norm(data.weight, axis=1, keepdims=True)
    units = words / np.linalg.norm(words, axis=1, keepdims=True)
    likeness = np.quantile(units @ texts.T, 0.95, axis=1)
    kept = np.quantile(negatives.reshape(-1, WIDTH) @ texts.T, 0.95, axis=1)
    assert np.sort(kept) == pytest.approx(np.sort(likeness)[:1200], abs=1e-6)
    few = replace(data, words=words[:30])
    assert FEATURE_SCORES["neglabel"].fit(few)["negatives"].shape == (1, 30, WIDTH)
