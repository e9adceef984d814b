"""Importance of single weights: the weights that have one, the criteria, and the choice of the least important weights.

Importing this must not import torch: the help texts list the criteria.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hydractl.criteria.criterion import Calibration

if TYPE_CHECKING:
    from torch import Tensor, nn

# --- the weights ------------------------------------------------------------------------------------------------------

_MATRICES = ("proj", "text_projection", "qkv", "out", "gate", "pos_q", "pos_k")
"""The names of matrices that a module holds itself: projections of open_clip, and the heads of hydractl."""


def matrices(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of linear layers and convolutions of a network, by name.

    Biases, norms, LayerScale, tokens, embeddings of words and positions, and tables of distances are left out.

    Args:
        network: a library's own network, or one of hydractl.
    """
    from torch import nn

    by_name: dict[str, nn.Parameter] = {}
    for path, module in network.named_modules():
        if isinstance(module, nn.Embedding):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if not _is_matrix(module, name, parameter):
                continue
            full_name = name
            if path:
                full_name = f"{path}.{name}"
            by_name[full_name] = parameter
    return by_name


def _is_matrix(module: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter that a module holds itself is the matrix of a linear layer or a convolution."""
    from torch import nn

    if name == "table" and not isinstance(module.features, nn.Identity):
        # The table of heads that combines features of distances is a linear layer of the library.
        return True
    if parameter.ndim < 2:
        return False
    return name.endswith("weight") or name in _MATRICES


# --- the criteria -----------------------------------------------------------------------------------------------------


class WeightCriterion(ABC):
    """Importance of single weights: higher means keep.

    Attributes:
        name: its key in :data:`WEIGHT_CRITERIA`, and the value of ``--method`` with ``--weights``.
        needs_data: whether it measures on samples. If not, the model is never built.
    """

    name: str
    needs_data: bool

    @abstractmethod
    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """Return the scores of all weights, not negative, on the CPU, by the names and in the shapes of the tensors.

        Args:
            weights: the tensors whose weights may be removed, by their stock names.
            model: a :class:`hydractl.model.runtime.HydraModel` of one member, in which these and no other parameters
                require gradients; it may be changed in place. None for a criterion that needs no data.
            calibration: the sample.
        """


class WeightMagnitude(WeightCriterion):
    """Magnitude of single weights (Han et al. 2015, arXiv 1506.02626): ``|w|``; needs no data."""

    name = "magnitude"
    needs_data = False

    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """Score weights by their absolute values alone."""
        scores = {}
        for name, weight in weights.items():
            scores[name] = weight.float().abs()
        return scores


class OBA(WeightCriterion):
    """Optimal Brain Apoptosis (Sun et al., ICLR 2025): the second-order Taylor term of the loss, weight by weight.

    Setting weights ``w`` to zero changes the mean loss to second order by ``-g w + w H w / 2``. The score of weight i
    is its share of the quadratic term, ``|w_i (H w)_i|``, with H the Hessian by all weights that may be removed; the
    factor 1/2 changes no rank. The first-order term is left out, as in Optimal Brain Damage: after training it is near
    zero.

    The authors compute ``H w`` layer by layer, from the connections of layers. Here it is the gradient of ``g w``, by
    differentiating twice (Pearlmutter 1994): exact for any network, at the cost of a few gradients.
    """

    name = "oba"
    needs_data = True

    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """Run backward over the sample twice; the model is left with scores in the place of its weights."""
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # Constants, so that the second differentiation goes through the gradients only.
        constants = [parameter.detach().clone() for parameter in parameters]
        sums = [torch.zeros_like(constant, dtype=torch.float64) for constant in constants]  # of H w over batches

        # The fused kernels of attention can be differentiated only once.
        with sdpa_kernel(SDPBackend.MATH), calibration.log.progress("oba", calibration.size, "samples") as progress:
            for loss, count in calibration.losses(model):
                gradients = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
                products = []
                for gradient, constant in zip(gradients, constants, strict=True):
                    product = gradient * constant
                    products.append(product.sum())
                first_order = torch.stack(products).sum()  # g w
                hessian_products = torch.autograd.grad(first_order, parameters, materialize_grads=True)  # H w
                for total, hessian_product in zip(sums, hessian_products, strict=True):
                    total += hessian_product.double()
                progress.advance(count)

        # The scores take the places of the weights, and the model returns them under stock names.
        with torch.no_grad():
            for index, parameter in enumerate(parameters):
                second_order_terms = constants[index].double() * sums[index] / calibration.size
                parameter.copy_(second_order_terms.abs())
        stock = model.stock_tensors()
        return {name: stock[name].cpu() for name in weights}


class RandomWeights(WeightCriterion):
    """The control: uniform on [0, 1), drawn by the seed in the order of names; needs no data."""

    name = "random"
    needs_data = False

    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """Draw a score for every weight, removed before or not."""
        import torch

        generator = torch.Generator().manual_seed(calibration.seed)
        scores = {}
        for name in sorted(weights):
            shape = weights[name].shape
            scores[name] = torch.rand(shape, generator=generator)
        return scores


WEIGHT_CRITERIA: dict[str, WeightCriterion] = {
    WeightMagnitude.name: WeightMagnitude(),
    OBA.name: OBA(),
    RandomWeights.name: RandomWeights(),
}
"""The criteria by name."""


# --- the least important weights --------------------------------------------------------------------------------------


def lowest_weights(scores: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return masks, by name, that are True for the ``count`` weights of the lowest scores.

    Of weights with equal scores the first are marked, by name and then by position.
    """
    import numpy as np
    import torch

    if not count:
        return {name: torch.zeros_like(values, dtype=torch.bool) for name, values in scores.items()}

    # Find the score that the last marked weight has.
    flat_scores = [values.reshape(-1).numpy() for values in scores.values()]
    all_scores = np.concatenate(flat_scores)
    all_scores.partition(count - 1)
    lowest = all_scores[:count]
    limit = all_scores[count - 1].item()

    # Mark all weights below it, and of those that have it as many as are left to mark.
    below_limit = int((lowest < limit).sum())
    left_to_mark = count - below_limit
    masks = {}
    for name in sorted(scores):
        mask = scores[name] < limit
        is_at_limit = (scores[name] == limit).reshape(-1)
        positions_at_limit = is_at_limit.nonzero()[:, 0]
        to_mark = positions_at_limit[:left_to_mark]
        mask.view(-1)[to_mark] = True
        masks[name] = mask
        left_to_mark -= to_mark.numel()
    return masks
