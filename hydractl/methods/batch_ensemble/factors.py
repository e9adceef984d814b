"""Rank-one factors of BatchEnsemble: a member is y = ((x o r) W^T) o s + b, where only r, s and b are its own.

Every linear layer of the blocks has a pair of factors: queries, keys, values, gate and output of the heads, and the
layers of the MLP. They are drawn around 1. Whoever asks for a weight gets W o (s r^T), so what is written is an
ordinary checkpoint. Unlike in the paper, W is not trained along with the members: it stays as it was pretrained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hydractl.model.projections import Packing, is_linear
from hydractl.model.runtime import HydraModel
from hydractl.training.adapters import added_names, banks_with_heads


class RankOne(nn.Module):
    """Multiplies a matrix by ``s r^T``, element by element.

    Attributes:
        r: what scales the inputs of each of the matrices that lie side by side, one after another ``[n * columns]``.
        s: what scales their outputs, ``[n * rows]``. Vectors, so that no weight decay pulls them to zero.
    """

    def __init__(self, weight: Tensor, count: int = 1) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.r = nn.Parameter(weight.new_ones(count * columns))
        self.s = nn.Parameter(weight.new_ones(rows))

    def draw(self, std: float, generator: torch.Generator) -> None:
        """Draw both from a normal distribution around 1."""
        with torch.no_grad():
            for factor in (self.r, self.s):
                noise = torch.randn(factor.shape, generator=generator)
                factor.copy_(1 + std * noise)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * torch.outer(self.s, self.r)


class RankOneProjections(RankOne):
    """A pair of factors each for a bank's queries, keys and values."""

    def __init__(self, weight: Tensor, packing: Packing) -> None:
        super().__init__(weight, count=3)
        self.packing = packing

    def forward(self, weight: Tensor) -> Tensor:
        s_of_projections = self.s.split(self.packing.rows)
        r_of_projections = self.r.chunk(3)
        products = []
        for s, r in zip(s_of_projections, r_of_projections, strict=True):
            products.append(torch.outer(s, r))  # [rows, columns]
        return weight * self.packing.join_rows(products)


class BatchEnsemble:
    """Puts factors on all linear layers of the blocks.

    Args:
        std: how far from 1 they are drawn.
    """

    def __init__(self, std: float) -> None:
        self.std = std

    def add(self, model: HydraModel, seed: int) -> None:
        """Put factors on the layers, see :class:`hydractl.training.adapters.Adapter`; the seed draws them."""
        generator = torch.Generator().manual_seed(seed)

        def put(module: nn.Module, name: str, factors: RankOne) -> None:
            factors.draw(self.std, generator)
            parametrize.register_parametrization(module, name, factors)

        for bank in banks_with_heads(model):
            put(bank, "qkv", RankOneProjections(bank.qkv.detach(), bank.packing))
            put(bank, "out", RankOne(bank.out.detach()))
            if bank.gate is not None:
                put(bank, "gate", RankOne(bank.gate.detach()))
        for layer in _mlp_layers(model):
            put(layer, "weight", RankOne(layer.weight.detach()))

    def trains(self, model: HydraModel) -> set[str]:
        """Return the factors, and the biases of their layers."""
        return added_names(model) | _bias_names(model)


def _mlp_layers(model: HydraModel) -> list[Any]:
    """Return the linear layers of the MLPs of all blocks."""
    inside_blocks = tuple(f"{path}." for path in model.block_paths)
    layers = []
    for path, module in model.networks[0].named_modules():
        if not path.startswith(inside_blocks) or not is_linear(module):
            continue
        if model.family.part(f"{path}.weight", model.sites) == "mlp":
            layers.append(module)
    return layers


def _bias_names(model: HydraModel) -> set[str]:
    """Return the names of the biases beside weights that have factors."""
    names = set()
    for path, module in model.networks[0].named_modules():
        if not parametrize.is_parametrized(module):
            continue
        for weight in module.parametrizations:
            bias = "bias" if weight == "weight" else f"{weight}_bias"  # a bank has several
            if getattr(module, bias, None) is not None:
                names.add(f"{path}.{bias}")
    return names
