"""Gradients, Hessian products and pruning steps, against torch's own Hessian and a model that was pruned."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from examples.analyses import curvature
from hydractl.heads.mask import all_heads
from hydractl.model.runtime import HydraModel
from tests.pico import images, logits, shared_stock, source_of, stock, zero_columns

VARIANTS = ["class-token", "qk-norm", "pre-norm-no-bias"]


def flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in parts])


def test_products_and_the_diagonal_are_those_of_the_mean_over_all_batches() -> None:
    """Of a quadratic form, whose Hessian is known; the diagonal is right on average, and the same for a seed."""
    draw = torch.Generator().manual_seed(0)
    root = torch.randn(5, 5, generator=draw, dtype=torch.float64)
    hessian = root @ root.T
    parameters = [torch.randn(size, generator=draw, dtype=torch.float64, requires_grad=True) for size in (2, 3)]

    def losses() -> Iterator[tuple[Tensor, int]]:
        point = torch.cat(parameters)
        for samples in (5, 4):
            yield samples * point @ hessian @ point / 2, samples

    vector = [torch.tensor([1.0, -2.0]).double(), torch.tensor([0.5, 3.0, -1.0]).double()]
    product = curvature.hessian_product(losses, parameters, vector)
    assert torch.allclose(flat(product), hessian @ flat(vector))
    found = flat(curvature.hessian_diagonal(losses, parameters, 200, seed=1))
    # One draw misses by the sum of the squares off the diagonal of each row.
    error = (hessian.square().sum(1) - hessian.diagonal().square()).sqrt() / 200**0.5
    assert bool(((found - hessian.diagonal()).abs() < 4 * error).all())
    one, two = (flat(curvature.hessian_diagonal(losses, parameters, 3, seed=2)) for _ in range(2))
    assert torch.equal(one, two)


def pico(variant: str) -> tuple[HydraModel, list[tuple[Tensor, Tensor]]]:
    source = source_of(shared_stock(variant), variant)
    model = HydraModel(source.description, source.tensors, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2])
    return model, [(images().double(), labels), (images(seed=2).double(), labels)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_step_leads_to_the_pruned_model(variant: str) -> None:
    model, batches = pico(variant)
    removed = [head for number, head in enumerate(all_heads(model.sites)) if number % 3 == 0]
    # The library's own model with the columns of these heads zeroed.
    reference = zero_columns(stock(variant), removed).double()
    with torch.no_grad():
        expected = float(
            torch.stack([torch.nn.functional.cross_entropy(logits(reference, x), y) for x, y in batches]).mean()
        )
    losses = curvature.losses_of(model, batches)
    parameters = curvature.head_parameters(model)
    step = curvature.pruning_step(model, removed)
    before = curvature.loss(losses)
    slope = float(curvature.inner(curvature.gradient(losses, parameters), step))
    curve = float(curvature.inner(step, curvature.hessian_product(losses, parameters, step)))
    # A short way along the step the loss is its second-order expansion: the rest is of the third order.
    errors = []
    for share in (1e-2, 1e-3):
        move(parameters, step, share)
        errors.append(abs(curvature.loss(losses) - (before + share * slope + share**2 * curve / 2)))
        move(parameters, step, -share)
    assert errors[1] < 2e-3 * errors[0] + 1e-13
    move(parameters, step, 1.0)
    assert abs(expected - before) > 1e-4
    assert curvature.loss(losses) == pytest.approx(expected, abs=1e-9)
    assert sum(p.requires_grad for p in model.parameters()) == len(parameters)


def move(parameters: list[Tensor], step: list[Tensor], share: float) -> None:
    with torch.no_grad():
        for parameter, part in zip(parameters, step, strict=True):
            parameter += share * part
