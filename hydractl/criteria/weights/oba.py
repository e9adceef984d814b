"""Optimal Brain Apoptosis (Sun et al., ICLR 2025): the second-order Taylor term of the loss, weight by weight.

Setting weights ``w`` to zero changes the mean loss to second order by ``-g w + w H w / 2``. The share of weight i in
the quadratic term, whose factor 1/2 ranks nothing, is its score: ``|w_i (H w)_i|``, with H the Hessian by all weights
that may be removed. The first-order term is left out, as in Optimal Brain Damage: behind a training it is near zero.

The authors put ``H w`` together layer by layer, from how layers are connected. Here it is the gradient of ``g w``, by
differentiating twice (Pearlmutter 1994): exact for any network, at the cost of a few gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hydractl.criteria.base import Calibration
from hydractl.criteria.weights.base import WeightCriterion

if TYPE_CHECKING:
    from torch import Tensor


class OBA(WeightCriterion):
    """|weight x Hessian-vector product|."""

    name = "oba"
    needs_data = True

    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """Two passes backward over the sample; the model is left with scores in the place of its weights."""
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        parameters = [p for p in model.parameters() if p.requires_grad]
        vector = [p.detach().clone() for p in parameters]
        sums = [torch.zeros_like(p, dtype=torch.float64) for p in vector]
        # The fused kernels of attention can be differentiated only once.
        with sdpa_kernel(SDPBackend.MATH), calibration.log.progress("oba", calibration.size, "samples") as progress:
            for loss, count in calibration.losses(model):
                slopes = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
                inner = torch.stack([(g * w).sum() for g, w in zip(slopes, vector, strict=True)]).sum()
                products = torch.autograd.grad(inner, parameters, materialize_grads=True)
                for total, product in zip(sums, products, strict=True):
                    total += product.double()
                progress.advance(count)
        with torch.no_grad():
            for parameter, weight, total in zip(parameters, vector, sums, strict=True):
                parameter.copy_((weight.double() * total / calibration.size).abs())
        stock = model.stock_tensors()
        return {name: stock[name].cpu() for name in weights}


CRITERION = OBA()
