"""Importance of single weights: which weights have one, the criteria, and which weights are the lowest.

Importing this must not import torch: the help texts list the criteria.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hydractl.criteria.criterion import Calibration

if TYPE_CHECKING:
    from torch import Tensor, nn

# --- which weights ----------------------------------------------------------------------------------------------------

_MATRICES = ("proj", "text_projection", "qkv", "out", "gate", "pos_q", "pos_k")
"""The names of matrices that a module holds itself: projections of open_clip, and the heads of hydractl."""


def matrices(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of linear layers and convolutions of a network, a library's own or one that runs, by name.

    Biases, norms, LayerScale, tokens, embeddings of words and positions, and tables of distances are none.
    """
    from torch import nn

    by_name: dict[str, nn.Parameter] = {}
    for path, module in network.named_modules():
        if isinstance(module, nn.Embedding):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if _is_matrix(module, name, parameter):
                by_name[f"{path}.{name}" if path else name] = parameter
    return by_name


def _is_matrix(module: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter that a module holds itself is the matrix of a linear layer or a convolution."""
    from torch import nn

    if name == "table" and not isinstance(module.features, nn.Identity):
        # Behind features of distances the table of heads is a linear layer of the library.
        return True
    return parameter.ndim > 1 and (name.endswith("weight") or name in _MATRICES)


# --- the criteria -----------------------------------------------------------------------------------------------------


class WeightCriterion(ABC):
    """Importance of single weights: higher means keep.

    Attributes:
        name: in :data:`WEIGHT_CRITERIA`, and of ``--method`` with ``--weights``.
        needs_data: whether it measures on samples. If not, the model is never built.
    """

    name: str
    needs_data: bool

    @abstractmethod
    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """Return a score of each weight, not negative, on the CPU.

        Args:
            weights: those that may be removed, by their stock names.
            model: a :class:`hydractl.model.runtime.HydraModel` of one member, of which these require gradients, all
                others not; None for a criterion that needs no data.
            calibration: the sample; the model may be changed in place.
        """


class WeightMagnitude(WeightCriterion):
    """Magnitude of single weights (Han et al. 2015, arXiv 1506.02626): ``|w|``; needs no data."""

    name = "magnitude"
    needs_data = False

    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """Score weights by their absolute values alone."""
        return {name: weight.float().abs() for name, weight in weights.items()}


class OBA(WeightCriterion):
    """Optimal Brain Apoptosis (Sun et al., ICLR 2025): the second-order Taylor term of the loss, weight by weight.

    Setting weights ``w`` to zero changes the mean loss to second order by ``-g w + w H w / 2``. The share of weight i
    in the quadratic term, whose factor 1/2 ranks nothing, is its score: ``|w_i (H w)_i|``, with H the Hessian by all
    weights that may be removed. The first-order term is left out, as in Optimal Brain Damage: behind a training it is
    near zero.

    The authors put ``H w`` together layer by layer, from how layers are connected. Here it is the gradient of ``g w``,
    by differentiating twice (Pearlmutter 1994): exact for any network, at the cost of a few gradients.
    """

    name = "oba"
    needs_data = True

    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """Run backward over the sample twice; the model is left with scores in the place of its weights."""
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # Constants, so that the second differentiation goes through the gradients only.
        weights_before = [parameter.detach().clone() for parameter in parameters]
        sums = [torch.zeros_like(weight, dtype=torch.float64) for weight in weights_before]
        # The fused kernels of attention can be differentiated only once.
        with sdpa_kernel(SDPBackend.MATH), calibration.log.progress("oba", calibration.size, "samples") as progress:
            for loss, count in calibration.losses(model):
                gradients = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
                first_order_terms = [(g * w).sum() for g, w in zip(gradients, weights_before, strict=True)]
                first_order = torch.stack(first_order_terms).sum()  # g w
                hessian_products = torch.autograd.grad(first_order, parameters, materialize_grads=True)  # H w
                for total, product in zip(sums, hessian_products, strict=True):
                    total += product.double()
                progress.advance(count)
        with torch.no_grad():
            for parameter, weight, total in zip(parameters, weights_before, sums, strict=True):
                second_order_terms = weight.double() * total / calibration.size
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
        return {name: torch.rand(weights[name].shape, generator=generator) for name in sorted(weights)}


WEIGHT_CRITERIA: dict[str, WeightCriterion] = {
    WeightMagnitude.name: WeightMagnitude(),
    OBA.name: OBA(),
    RandomWeights.name: RandomWeights(),
}
"""The criteria by name."""


# --- the lowest of them -----------------------------------------------------------------------------------------------


def lowest_weights(scores: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Mark the ``count`` weights of the lowest scores; of equal ones the first by name, then by position."""
    import numpy as np
    import torch

    if not count:
        return {name: torch.zeros_like(values, dtype=torch.bool) for name, values in scores.items()}
    lowest_first = np.concatenate([values.reshape(-1).numpy() for values in scores.values()])
    lowest_first.partition(count - 1)
    limit = lowest_first[count - 1].item()
    # How many of the weights whose score is the limit are still to be marked.
    below_limit = int((lowest_first[:count] < limit).sum())
    equal_left = count - below_limit
    masks = {}
    for name in sorted(scores):
        is_lowest = scores[name] < limit
        positions_at_limit = (scores[name] == limit).reshape(-1).nonzero()[:, 0]
        marked = positions_at_limit[:equal_left]
        is_lowest.view(-1)[marked] = True
        masks[name] = is_lowest
        equal_left -= marked.numel()
    return masks
