"""Criteria of single weights, against the libraries' own models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.criteria import Calibration
from hydractl.criteria.weights import OBA, biases, lowest_weights, matrices
from hydractl.log import Log
from tests.criteria.test_criteria import Y, of_three, wide_logits
from tests.pico import model_of, source_of, stock

FAMILIES = ("qk-norm", "bert", "gpt2", "deberta-v3", "clip")


def layers(network: Any) -> dict[str, nn.Parameter]:
    """What OBA may remove: matrices and biases."""
    return matrices(network) | biases(network)


def of_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the mean cross-entropy with respect to the logits."""
    return (logits.softmax(-1) - F.one_hot(labels, logits.shape[-1])) / len(labels)


@pytest.mark.parametrize("variant", FAMILIES)
def test_oba_of_every_library_is_the_change_of_a_gradient_along_the_weights(variant: str) -> None:
    reference = stock(variant).double()
    source = source_of(reference, variant)
    weights = {name: reference.get_parameter(name) for name in layers(reference)}
    before = {name: weight.detach().clone() for name, weight in weights.items()}

    constant = of_loss(wide_logits(reference, variant).detach(), Y)

    def gradients(step: float) -> tuple[Tensor, ...]:
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(before[name] * (1 + step))
        weighted = (constant * wide_logits(reference, variant)).sum()
        return torch.autograd.grad(weighted, list(weights.values()), materialize_grads=True, allow_unused=True)

    forward = gradients(1e-6)
    backward = gradients(-1e-6)
    expected = {}
    for name, ahead, behind in zip(weights, forward, backward, strict=True):
        expected[name] = before[name] * (ahead - behind) / 2e-6
    model = model_of(source, dtype=torch.float64).requires_grad_(False)
    for parameter in layers(model.networks[0]).values():
        parameter.requires_grad_(True)
    scores = OBA().score(before, model, of_three(variant, 2, 1))
    assert scores.keys() == expected.keys()
    for name, product in expected.items():
        size = product.abs()
        largest = float(size.max())
        rounding = 1e-3 * largest / (largest + 1e-6)
        score = (size / (largest + 1e-6) + before[name].abs()).float()
        assert torch.allclose(scores[name], score, rtol=1e-3, atol=rounding + 1e-6), name


def test_the_products_of_all_steps_count_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their mean is scored with the weights that are left; what one step takes for large, the next may take back."""
    products = iter([{"a": torch.tensor([1.0, -8.0, 2.0])}, {"a": torch.tensor([3.0, 4.0, -2.0])}])
    monkeypatch.setattr("hydractl.criteria.weights._products", lambda *_: next(products))
    criterion, calibration = OBA(), Calibration(lambda: iter(()), 0, 0, Log())
    first = criterion.score({"a": torch.tensor([0.5, 0.1, -0.25])}, None, calibration)["a"]
    torch.testing.assert_close(first, torch.tensor([1 / 8 + 0.5, 1 + 0.1, 2 / 8 + 0.25]))
    second = criterion.score({"a": torch.tensor([0.5, 0.0, -0.25])}, None, calibration)["a"]
    torch.testing.assert_close(second, torch.tensor([1 + 0.5, 1.0, 0.25]))


def test_what_can_be_removed_are_the_matrices_of_layers() -> None:
    """Written out for each library; tokens, positions, words, biases and norms are none."""
    expected: dict[str, set[str]] = {
        "gpt2": {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "score"},
        "clip": {
            "visual.conv1",
            "visual.proj",
            "text_projection",
            "attn.in_proj_",
            "attn.out_proj",
            "mlp.c_fc",
            "mlp.c_proj",
        },
        "bert": {
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
            "intermediate.dense",
            "output.dense",
            "pooler.dense",
            "classifier",
        },
    }
    for variant, ends in expected.items():
        names = {name.removesuffix("weight").removesuffix(".") for name in matrices(stock(variant))}
        for name in names:
            assert name.endswith(tuple(ends)) or "heads" in name, variant
        for end in ends:
            assert any(end in name for name in names), variant


def test_the_lowest_weights_are_those_of_a_sort_and_of_equal_ones_the_first() -> None:
    draw = torch.Generator().manual_seed(0)
    scores = {name: torch.randint(0, 5, (4, 3), generator=draw).float() for name in ("c", "a", "b")}
    in_order = []
    for name, scores_of_matrix in scores.items():
        for place, score in enumerate(scores_of_matrix.flatten().tolist()):
            in_order.append((score, name, place))
    in_order.sort()
    for count in (0, 1, 7, 20, 35, 36):
        expected: dict[str, Any] = {name: [False] * 12 for name in scores}
        for _, name, place in in_order[:count]:
            expected[name][place] = True
        masks = lowest_weights(scores, count)
        assert {name: mask.flatten().tolist() for name, mask in masks.items()} == expected
