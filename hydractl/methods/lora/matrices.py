"""Low-rank adaptation of the heads: W + (alpha / r) B A instead of W, where only A and B are trained.

Queries, keys, values and the output projection of a site (an attention block) each have their own A and B, which span
all heads of the site. B starts at zero, so that the model does not change at first; A starts as in the authors' code.
Reading a weight returns the sum, so that the output is an ordinary checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hydractl.methods.lora import LoraOptions
from hydractl.model.projections import Packing
from hydractl.model.runtime import HydraModel
from hydractl.training.adapters import added_names, banks_with_heads


class LowRank(nn.Module):
    """Adds ``scale * B A`` to a matrix; for a stack of ``count`` matrices see :class:`LowRankProjections`.

    Attributes:
        a: ``[count, rank, columns]``, not yet drawn.
        b: ``[count, rows, rank]``, zeros at first.
    """

    def __init__(self, weight: Tensor, rank: int, alpha: float, count: int = 1) -> None:
        """Create the matrices A and B, still without values in A, which :meth:`draw` fills; B is zero.

        Args:
            weight: the weight ``[count * rows, columns]`` to which (alpha / rank) B A is added.
            rank: the rank of the product B A.
            alpha: the numerator of its factor.
            count: how many weights are stacked in ``weight``, each with matrices of its own.
        """
        super().__init__()
        rows, columns = weight.shape
        rows_of_each = rows // count
        self.scale = alpha / rank
        self.a = nn.Parameter(weight.new_empty((count, rank, columns)))
        self.b = nn.Parameter(weight.new_zeros((count, rows_of_each, rank)))

    def draw(self, generator: torch.Generator) -> None:
        """Draw A in the way ``nn.Linear`` draws its weight: uniform within 1 / sqrt(columns)."""
        columns = self.a.shape[-1]
        bound = 1 / math.sqrt(columns)
        drawn = torch.empty(self.a.shape)
        drawn.uniform_(-bound, bound, generator=generator)
        with torch.no_grad():
            self.a.copy_(drawn)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight ``[rows, columns]`` plus the scaled product of the matrices."""
        product = self.scale * (self.b @ self.a)  # [1, rows, columns]
        return weight + product[0]


class LowRankProjections(LowRank):
    """Low-rank matrices for the queries, keys and values of a bank, whose rows are interleaved in one matrix.

    A bank holds the weights of the heads of one site. If heads share keys and values, these have fewer rows than the
    queries. Then B is ``[rows, rank]``, with the rows of queries, keys and values one after another.
    """

    def __init__(self, packing: Packing, weight: Tensor, rank: int, alpha: float) -> None:
        """Create the matrices A and B for the joined weight of queries, keys and values.

        There are three A, and three B of equal size. But if heads share keys and values, keys have fewer rows than
        queries, and one B has the rows of all three.

        Args:
            packing: how the three weights are joined.
            weight: the joined weight ``[rows, columns]``.
            rank, alpha: the rank of the product B A, and the numerator of its factor alpha / rank.
        """
        super().__init__(weight, rank, alpha, count=3)
        self.packing = packing
        if packing.keys is not None:
            rows, _ = weight.shape
            self.b = nn.Parameter(weight.new_zeros((rows, rank)))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight of queries, keys and values with the scaled product B A of each added.

        Args:
            weight: the three weights, joined along the rows as the bank of heads has them.
        """
        # If heads share keys and values (`packing.keys`), the parts have different numbers of rows.
        b_of_projections: Iterable[Tensor] = self.b
        if self.packing.keys is not None:
            b_of_projections = self.b.split(self.packing.rows)
        products = []
        for b, a in zip(b_of_projections, self.a, strict=True):
            product = self.scale * (b @ a)  # [rows, columns]
            products.append(product)
        return weight + self.packing.join_rows(products)


@dataclass(frozen=True)
class LoRA:
    """Puts low-rank matrices on the heads of every site, whose product is scaled by alpha / rank."""

    options: LoraOptions

    def add(self, model: HydraModel, seed: int) -> None:
        """Put trainable matrices A and B on the heads, in place: a weight W becomes W + (alpha / rank) B A.

        The seed draws A; B is zero, so the model does not change at first. A bank holds the weights of all heads of one
        attention module. See :class:`hydractl.training.adapters.Adapter`.
        """
        generator = torch.Generator().manual_seed(seed)

        def put(bank: nn.Module, name: str, matrices: LowRank) -> None:
            """Draw the matrices and add them to a weight of a bank."""
            matrices.draw(generator)
            parametrize.register_parametrization(bank, name, matrices)

        rank = self.options.rank
        alpha = self.options.alpha
        for bank in banks_with_heads(model):
            qkv = bank.qkv.detach()
            out = bank.out.detach()
            put(bank, "qkv", LowRankProjections(bank.packing, qkv, rank, alpha))
            put(bank, "out", LowRank(out, rank, alpha))

    def trains(self, model: HydraModel) -> set[str]:
        """Return the names of all A and B."""
        return added_names(model)
