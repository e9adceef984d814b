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
    near_text = 2 * np.eye(CLASSES)[nearest] + 0.1 * rng.normal(size=(n, CLASSES))
    features = np.concatenate([near_text, marks], axis=1)
    return features, (nearest + wrong) % CLASSES, texts


def fitted_to(
    features: np.ndarray, labels: np.ndarray, texts: np.ndarray, score: str = "vilu"
) -> dict[str, np.ndarray]:
    """What is fitted for a model whose logits are 7 times the cosines."""
    data = MemberTraining(features, labels, np.zeros(0), 7 * texts, np.zeros(CLASSES))
    return dict(FEATURE_SCORES[score].fit(data))


def test_the_network_may_attend_as_sharply_as_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """With projections that are identities it attends by the softmax of 7 times the cosines, not of √D times."""
    monkeypatch.setattr(vilu, "_FEWEST_STEPS", 3)
    features, labels, texts = case(60, 0)
    fitted = fitted_to(features, labels, texts, "vilu-scaled")
    assert fitted["scale"].tolist() == [7.0] and "scale" not in fitted_to(features, labels, texts)
    for name in ("query", "key", "value"):
        fitted[name] = np.eye(WIDTH)
    weights = {name: torch.from_numpy(value) for name, value in fitted.items()}
    image, text = torch.from_numpy(unit(features)), torch.from_numpy(unit(texts))
    with torch.no_grad():
        weighed = (7 * image @ text.T).softmax(dim=1) @ text
        nearest = text[(image @ text.T).argmax(dim=1)]
        state = WIDTH**0.5 * torch.cat([image, weighed, nearest], dim=1)
        expected = mlp_of(weights)(state).sigmoid()
    score = FEATURE_SCORES["vilu-scaled"].score(fitted, features, features @ texts.T)
    assert score == pytest.approx(expected.squeeze(1).numpy(), rel=1e-9, abs=1e-12)


def test_the_network_is_a_cross_attention_and_an_mlp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vilu, "_FEWEST_STEPS", 3)
    features, labels, texts = case(60, 0)
    fitted = fitted_to(features, labels, texts)
    weights = {name: torch.from_numpy(value) for name, value in fitted.items()}
    attention = nn.MultiheadAttention(WIDTH, 1, bias=False, dtype=torch.float64)
    image = torch.from_numpy(WIDTH**0.5 * unit(features))
    text = torch.from_numpy(WIDTH**0.5 * unit(texts))
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([weights["query"], weights["key"], weights["value"]]))
        attention.out_proj.weight.copy_(torch.eye(WIDTH))
        weighed, _ = attention(image, text, text)
        nearest = text[(image @ text.T).argmax(dim=1)]
        expected = mlp_of(weights)(torch.cat([image, weighed, nearest], dim=1)).sigmoid()
    score = FEATURE_SCORES["vilu"].score(fitted, features, features @ texts.T)
    assert score == pytest.approx(expected.squeeze(1).numpy(), rel=1e-9, abs=1e-12)


def mlp_of(weights: dict[str, torch.Tensor]) -> nn.Sequential:
    """Torch's own layers with these weights."""
    last = len(vilu.HIDDEN)
    mlp = nn.Sequential()
    for i in range(last + 1):
        outputs, inputs = weights[f"weight.{i}"].shape
        layer = nn.Linear(inputs, outputs, dtype=torch.float64)
        layer.weight.copy_(weights[f"weight.{i}"])
        layer.bias.copy_(weights[f"bias.{i}"])
        mlp.append(layer)
        if i < last:
            mlp.append(nn.ReLU())
    return mlp


def test_it_is_fitted_in_inference_mode_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vilu, "_FEWEST_STEPS", 3)
    fitted = fitted_to(*case(60, 0))
    with torch.inference_mode():  # in which eval fits it
        again = fitted_to(*case(60, 0))
    assert list(again) == list(fitted)
    for name, values in fitted.items():
        assert np.array_equal(again[name], values)


def test_it_finds_errors_that_confidence_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vilu, "HIDDEN", (64, 32))
    fitted = fitted_to(*case(1500, 1))
    features, labels, texts = case(500, 2)
    logits = 7 * unit(features) @ texts.T
    wrong = logits.argmax(axis=1) != labels
    score = FEATURE_SCORES["vilu"].score(fitted, features, logits)
    sure = np.exp(logits).max(axis=1) / np.exp(logits).sum(axis=1)
    assert ood_metrics(score[~wrong], score[wrong]).auroc > 0.95
    assert ood_metrics(-sure[~wrong], -sure[wrong]).auroc < 0.8
    assert score.min() >= 0 and score.max() <= 1


def test_without_errors_there_is_nothing_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vilu, "_FEWEST_STEPS", 3)
    features, _, texts = case(20, 0)
    predicted = (features @ texts.T).argmax(axis=1)
    all_right = fitted_to(features, predicted, texts)
    score = FEATURE_SCORES["vilu"]
    logits = features @ texts.T
    assert set(score.score(all_right, features, logits)) == {0}
    all_wrong = fitted_to(features, (predicted + 1) % CLASSES, texts)
    assert set(score.score(all_wrong, features, logits)) == {1}


def test_weights_of_another_shape_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vilu, "_FEWEST_STEPS", 3)
    features, labels, texts = case(60, 0)
    fitted = fitted_to(features, labels, texts)
    fitted["key"] = np.zeros((3, 3))
    with pytest.raises(ValueError, match="shape"):
        FEATURE_SCORES["vilu"].score(fitted, features, features @ texts.T)
