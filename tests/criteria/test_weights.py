"""Criteria of single weights, against the libraries' own models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from hydractl.criteria import Calibration
from hydractl.criteria.weights import WEIGHT_CRITERIA, lowest_weights, matrices
from hydractl.files.checkpoint import DictTensors
from hydractl.log import Log
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source, open_source
from tests.criteria.test_criteria import Y, clip_logits, loss_of, of_three
from tests.pico import images, source_of, stock

TINY = "timm:vit_tiny_patch16_224?pretrained=0&img_size=4&patch_size=2&embed_dim=4&depth=1&num_heads=2&mlp_ratio=1"
FAMILIES = ("qk-norm", "swinv2", "torchvision", "bert", "gpt2", "deberta-v3", "clip")


def check_oba(source: Source, calibration: Calibration, expected: Mapping[str, Tensor], rel: float = 1e-4) -> None:
    """Compare the scores, as the verb asks for them, with signed ones."""
    names = matrices(source.family.build(source.description.config))
    model = HydraModel(source.description, source.tensors, dtype=torch.float64).requires_grad_(False)
    for parameter in matrices(model.networks[0]).values():
        parameter.requires_grad_(True)
    weights = {name: source.tensors.read(name) for name in names}
    scores = WEIGHT_CRITERIA["oba"].score(weights, model, calibration)
    assert scores.keys() == expected.keys()
    magnitudes = {name: signed.abs() for name, signed in expected.items()}
    largest = max(float(magnitude.max()) for magnitude in magnitudes.values())
    for name, magnitude in magnitudes.items():
        assert torch.allclose(scores[name], magnitude, rtol=rel, atol=rel * largest), name


def test_oba_is_the_sum_over_a_row_of_the_hessian_times_both_weights() -> None:
    """``|sum_j w_i H_ij w_j|`` with the whole Hessian of a small model, by torch.func on the library's own."""
    source = open_source(f"{TINY}&num_classes=3")
    network: Any = source.family.drawn(source.description.config).double()
    draw = torch.Generator().manual_seed(0)
    state = {}
    for name, tensor in network.state_dict().items():
        state[name] = torch.randn(tensor.shape, generator=draw).double() / 2
    weights = {}
    for path, module in network.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            weights[f"{path}.weight"] = state[f"{path}.weight"]
    x = torch.randn(6, 3, 4, 4, generator=draw).double()
    y = torch.arange(6) % 3

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(functional_call(network, {**state, **weights}, (x,)), y)

    with sdpa_kernel(SDPBackend.MATH):
        whole: Any = hessian(loss)(weights)
    expected = {}
    for name, weight in weights.items():
        total = torch.zeros_like(weight)
        for other_name, other in weights.items():
            # [*shape, *other shape] times the other weight
            total += torch.tensordot(whole[name][other_name], other, other.dim())
        expected[name] = weight * total
    batches = [(x[:4], y[:4]), (x[4:], y[4:])]
    calibration = Calibration(lambda: iter(batches), 6, 0, Log())
    check_oba(replace(source, tensors=DictTensors(state), digest="tiny"), calibration, expected)


@pytest.mark.parametrize("variant", FAMILIES)
def test_oba_of_every_library_is_the_change_of_its_gradient_along_the_weights(variant: str) -> None:
    reference = stock(variant).double()
    source = source_of(reference, variant)
    weights = {name: reference.get_parameter(name) for name in matrices(reference)}
    before = {name: weight.detach().clone() for name, weight in weights.items()}

    def gradients(step: float) -> tuple[Tensor, ...]:
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(before[name] * (1 + step))
        if variant == "clip":
            loss = F.cross_entropy(clip_logits(reference, images().double()), Y)
        else:
            loss = loss_of(reference, variant)
        return torch.autograd.grad(loss, list(weights.values()), materialize_grads=True, allow_unused=True)

    forward = gradients(1e-6)
    backward = gradients(-1e-6)
    expected = {}
    for name, ahead, behind in zip(weights, forward, backward, strict=True):
        expected[name] = before[name] * (ahead - behind) / 2e-6
    calibration = of_three(variant, 2, 1)
    if variant == "clip":
        calibration = Calibration(lambda: iter([(images().double(), Y)]), 3, 0, Log())
    check_oba(source, calibration, expected, 1e-3)


def test_what_can_be_removed_are_the_matrices_of_layers() -> None:
    """Written out for each library; tokens, positions, words, biases and norms are none."""
    expected: dict[str, set[str]] = {
        "torchvision": {"conv_proj", "self_attention.in_proj_", "self_attention.out_proj", "mlp.0", "mlp.3", "heads"},
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
