"""Rank-one factors of BatchEnsemble: a member is y = ((x o r) W^T) o s + b, with its own r, s and b, and a common W.

Every linear layer of the blocks has a pair of factors: queries, keys, values and output of the heads, and the
layers of the MLP. The factors are drawn around 1. Reading a weight returns W o (s r^T), so that the output is an
ordinary checkpoint. Unlike in the paper, W is not trained together with the members but keeps its pretrained values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hydractl.methods.batch_ensemble import BatchEnsembleOptions
from hydractl.model.projections import Packing, is_linear
from hydractl.model.runtime import HydraModel
from hydractl.training.adapters import added_names, banks_with_heads


class RankOne(nn.Module):
    """Multiplies a matrix by ``s r^T``, element by element; for a stack of matrices see :class:`RankOneProjections`.

    The factors are vectors, so that weight decay, which applies to matrices only, does not pull them to zero.

    Attributes:
        r: the factors of the inputs, ``[count * columns]``, one matrix after another.
        s: the factors of the outputs, ``[rows]``.
    """

    def __init__(self, weight: Tensor, count: int = 1) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.r = nn.Parameter(weight.new_ones(count * columns))
        self.s = nn.Parameter(weight.new_ones(rows))

    def draw(self, std: float, generator: torch.Generator) -> None:
        """Draw r and s from a normal distribution with mean 1 and this standard deviation."""
        with torch.no_grad():
            for factor in (self.r, self.s):
                noise = torch.randn(factor.shape, generator=generator)
                factor.copy_(1 + std * noise)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight ``[rows, columns]`` multiplied by the factors."""
        product = torch.outer(self.s, self.r)  # [rows, columns]
        return weight * product


class RankOneProjections(RankOne):
    """Factors for the queries, keys and values of a bank of heads, whose rows are interleaved in one matrix."""

    def __init__(self, weight: Tensor, packing: Packing) -> None:
        super().__init__(weight, count=3)
        self.packing = packing

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight of queries, keys and values, each multiplied elementwise by its own matrix s r'.

        Args:
            weight: the three weights, joined along the rows as the bank of heads has them.
        """
        s_of_projections = self.s.split(self.packing.rows)
        r_of_projections = self.r.chunk(3)
        products = []
        for s, r in zip(s_of_projections, r_of_projections, strict=True):
            product = torch.outer(s, r)  # [rows, columns]
            products.append(product)
        return weight * self.packing.join_rows(products)


@dataclass(frozen=True)
class BatchEnsemble:
    """Puts factors on all linear layers of the blocks."""

    options: BatchEnsembleOptions

    def add(self, model: HydraModel, seed: int) -> None:
        """Put trainable factors r and s on the linear layers of all blocks: a weight W becomes W * (s r'), elementwise.

        The model is changed in place. The seed draws the factors, layer by layer. A bank holds the weights of all heads
        of one attention module. See :class:`hydractl.training.adapters.Adapter`.
        """
        generator = torch.Generator().manual_seed(seed)

        def put(module: nn.Module, name: str, factors: RankOne) -> None:
            """Draw the factors and put them on a weight of a module."""
            factors.draw(self.options.std, generator)
            parametrize.register_parametrization(module, name, factors)

        # The heads of each site (attention block), then the MLPs. The order decides what the seed draws for each.
        for bank in banks_with_heads(model):
            put(bank, "qkv", RankOneProjections(bank.qkv.detach(), bank.packing))
            put(bank, "out", RankOne(bank.out.detach()))

        # Then the linear layers of the MLPs, listed before any is changed, since a factor adds a module to its layer.
        inside_blocks = tuple(f"{path}." for path in model.block_paths)
        layers: list[Any] = []
        for path, module in model.networks[0].named_modules():
            is_linear_in_block = path.startswith(inside_blocks) and is_linear(module)
            if is_linear_in_block and model.family.part(f"{path}.weight") == "mlp":
                layers.append(module)
        for layer in layers:
            put(layer, "weight", RankOne(layer.weight.detach()))

    def trains(self, model: HydraModel) -> set[str]:
        """Return the names of the parameters to train: the factors, and the biases of the layers that have factors."""
        factors = added_names(model)
        biases = set()
        for path, module in model.networks[0].named_modules():
            if not parametrize.is_parametrized(module):
                continue
            for weight in module.parametrizations:
                bias = f"{weight}_bias"  # the name in a bank of heads, e.g. qkv_bias
                if weight == "weight":
                    bias = "bias"  # the name in other layers
                if getattr(module, bias, None) is not None:
                    biases.add(f"{path}.{bias}")
        return factors | biases
