"""Gradients and curvature of the loss along a pruning step: the two conditions of Proposition 1 (paper 3.2, B.1).

The proposition says that pruning costs more on noisy data n than on clean data t where the step d from the full to the
pruned weights meets ``grad L_n . d >= 0`` and ``H_n - H_t`` is positive definite. The step of a removed head is minus
all its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from hydractl.criteria.cahp.head_choice import Batches
from hydractl.heads.mask import Head
from hydractl.model.runtime import HydraModel

Losses = Callable[[], Iterator[tuple[Tensor, int]]]
"""Summed losses of the batches of a data set and their sizes, the same each time."""


def losses_of(model: HydraModel, batches: Batches) -> Losses:
    """The cross-entropy of the first member of a model on a labelled set."""

    def losses() -> Iterator[tuple[Tensor, int]]:
        for inputs, labels in batches:
            # The fused kernels of attention have no second derivative.
            with sdpa_kernel(SDPBackend.MATH):
                yield F.cross_entropy(model.member_logits(inputs)[0], labels, reduction="sum"), len(labels)

    return losses


def head_parameters(model: HydraModel) -> list[Tensor]:
    """All parameters that belong to heads of a dense model of one member, which then ask for gradients, and only they.

    Of each site the stacked query, key and value rows, their biases, and the output columns.
    """
    model.requires_grad_(False)
    found: list[Tensor] = []
    for attention in model.attentions:
        bank = attention.only.bank
        found += [p for p in (bank.qkv, bank.qkv_bias, bank.out) if p is not None]
    return [p.requires_grad_(True) for p in found]


def pruning_step(model: HydraModel, removed: Iterable[Head]) -> list[Tensor]:
    """The step from the full weights to those without some heads, in the order of :func:`head_parameters`.

    Minus the weights of the removed heads, zero elsewhere.
    """
    gone = set(removed)
    steps: list[Tensor] = []
    for site, attention in zip(model.sites, model.attentions, strict=True):
        bank = attention.only.bank
        parameter = bank.qkv.detach()
        off = parameter.new_tensor([float((site.path, head) in gone) for head in range(site.heads)])
        for one in (bank.qkv, bank.qkv_bias, bank.out):
            if one is None:
                continue
            along = 1 if one is bank.out else 0  # heads lie in the columns of the output projection, else in rows
            each = off.repeat_interleave(one.shape[along] // site.heads)
            shape = (1, -1) if along else (-1, *[1] * (one.dim() - 1))
            steps.append(-one.detach() * each.reshape(shape))
    return steps


def loss(losses: Losses) -> float:
    """The mean loss."""
    with torch.no_grad():
        pairs = [(float(total), count) for total, count in losses()]
    return sum(total for total, _ in pairs) / sum(count for _, count in pairs)


def gradient(losses: Losses, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of the mean loss, one tensor for each parameter."""
    found, samples = [torch.zeros_like(p) for p in parameters], 0
    for total, count in losses():
        for sum_, part in zip(found, torch.autograd.grad(total, parameters), strict=True):
            sum_ += part
        samples += count
    return [one / samples for one in found]


def hessian_product(losses: Losses, parameters: Sequence[Tensor], vector: Sequence[Tensor]) -> list[Tensor]:
    """The Hessian of the mean loss times a vector, exactly, without the Hessian (Pearlmutter 1994)."""
    found, samples = [torch.zeros_like(p) for p in parameters], 0
    for total, count in losses():
        slopes = torch.autograd.grad(total, parameters, create_graph=True)
        # A loss that is linear in a parameter has no second derivative there.
        products = torch.autograd.grad(inner(slopes, vector), parameters, allow_unused=True)
        for sum_, part in zip(found, products, strict=True):
            if part is not None:
                sum_ += part
        samples += count
    return [one / samples for one in found]


def hessian_diagonal(losses: Losses, parameters: Sequence[Tensor], draws: int, seed: int) -> list[Tensor]:
    """An estimate of the diagonal of the Hessian: the mean over draws of ``v * Hv``, v of random signs (Hutchinson).

    The same seed draws the same signs, so that the difference of two estimates has less noise than either.
    """
    generator = torch.Generator().manual_seed(seed)
    found = [torch.zeros_like(p) for p in parameters]
    for _ in range(draws):
        signs = [
            torch.randint(0, 2, p.shape, generator=generator).to(p.device, p.dtype).mul_(2).sub_(1) for p in parameters
        ]
        for sum_, sign, part in zip(found, signs, hessian_product(losses, parameters, signs), strict=True):
            sum_ += sign * part
    return [one / draws for one in found]


def inner(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """The inner product of two vectors given in parts."""
    return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()
