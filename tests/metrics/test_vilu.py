"""ViLU against torch's own layers, and on errors that only the features show."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from hydractl.metrics.feature_scores import vilu
from hydractl.metrics.feature_scores.scores import FEATURE_SCORES, MemberTraining, unit
from hydractl.metrics.rows import ood_metrics

CLASSES, WIDTH = 4, 12


def case(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels and texts: predictions are equally sure, and wrong where the last feature is high."""
    texts = np.eye(CLASSES, WIDTH)
    rng = np.random.default_rng(seed)
    nearest = rng.integers(0, CLASSES, n)
    marks = rng.normal(size=(n, WIDTH - CLASSES))
    wrong = marks[:, -1] > 0.8
    features = np.concatenate([2 * np.eye(CLASSES)[nearest] + 0.1 * rng.normal(size=(n, CLASSES)), marks], axis=1)
    return features, (nearest + wrong) % CLASSES, texts


def fitted_to(features: np.ndarray, labels: np.ndarray, texts: np.ndarray) -> dict[str, np.ndarray]:
    data = MemberTraining(features, labels, np.zeros(0), 7 * texts, np.zeros(CLASSES))
    return dict(FEATURE_SCORES["vilu"].fit(data))


def test_the_network_is_a_cross_attention_and_an_mlp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vilu, "_FEWEST_STEPS", 3)
    features, labels, texts = case(60, 0)
    fitted = fitted_to(features, labels, texts)
    own = {name: torch.from_numpy(value) for name, value in fitted.items()}
    attention = nn.MultiheadAttention(WIDTH, 1, bias=False, dtype=torch.float64)
    linear = [nn.Linear(*own[f"weight.{i}"].shape[::-1], dtype=torch.float64) for i in range(len(vilu.HIDDEN) + 1)]
    mlp = nn.Sequential(*[part for layer in linear for part in (layer, nn.ReLU())][:-1])
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([own["query"], own["key"], own["value"]]))
        attention.out_proj.weight.copy_(torch.eye(WIDTH))
        for i, layer in enumerate(linear):
            layer.weight.copy_(own[f"weight.{i}"])
            layer.bias.copy_(own[f"bias.{i}"])
        image, text = (torch.from_numpy(WIDTH**0.5 * unit(part)) for part in (features, texts))
        weighed, _ = attention(image, text, text)
        nearest = text[(image @ text.T).argmax(dim=1)]
        expected = mlp(torch.cat([image, weighed, nearest], dim=1)).sigmoid()[:, 0]
    found = FEATURE_SCORES["vilu"].score(fitted, features, features @ texts.T)
    assert found == pytest.approx(expected.numpy(), rel=1e-9, abs=1e-12)
    with torch.inference_mode():  # in which eval fits it
        again = fitted_to(features, labels, texts)
    assert all(np.array_equal(fitted[name], again[name]) for name in fitted)


def test_it_finds_errors_that_confidence_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vilu, "HIDDEN", (64, 32))
    fitted = fitted_to(*case(1500, 1))
    features, labels, texts = case(500, 2)
    logits = 7 * unit(features) @ texts.T
    wrong = logits.argmax(axis=1) != labels
    score = FEATURE_SCORES["vilu"].score(fitted, features, logits)
    sure = np.exp(logits).max(axis=1) / np.exp(logits).sum(axis=1)
    assert ood_metrics(score[~wrong], score[wrong])["auroc"] > 0.95
    assert ood_metrics(-sure[~wrong], -sure[wrong])["auroc"] < 0.8
    assert score.min() >= 0 and score.max() <= 1


def test_without_errors_there_is_nothing_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vilu, "_FEWEST_STEPS", 3)
    features, _, texts = case(20, 0)
    right = (features @ texts.T).argmax(axis=1)
    for labels, share in ((right, 0), ((right + 1) % CLASSES, 1)):
        assert set(FEATURE_SCORES["vilu"].score(fitted_to(features, labels, texts), features, texts)) == {share}
    with pytest.raises(ValueError, match="shape"):
        vilu.vilu_score({**fitted_to(*case(60, 0)), "key": np.zeros((3, 3))}, features)
