"""Importance of single weights: the weights that have one, the criteria, and the choice of the least important weights.

Importing this must not import torch: the help texts list the criteria.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hydractl.criteria.criterion import Calibration

if TYPE_CHECKING:
    from torch import Tensor, nn

# --- the weights ------------------------------------------------------------------------------------------------------

_EPSILON = 1e-6
"""Added to what scores are divided by, as in the code of the authors of OBA."""

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


def biases(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the biases of the layers of :func:`matrices`, by name; of a network without biases none.

    Args:
        network: a library's own network, or one of hydractl.
    """
    parameters = dict(network.named_parameters(remove_duplicate=False))
    by_name = {}
    for name in matrices(network):
        for candidate in _names_of_biases(name):
            if candidate in parameters and parameters[candidate].ndim == 1:
                by_name[candidate] = parameters[candidate]
    return by_name


def _names_of_biases(matrix: str) -> list[str]:
    """Return the names that the biases of a matrix may have: beside it, or beside the layer that holds it."""
    path, _, name = matrix.rpartition(".")
    if name.endswith("weight"):
        beside_matrix = matrix.removesuffix("weight") + "bias"
    else:
        beside_matrix = f"{matrix}_bias"
    names = [beside_matrix]
    owner, _, layer = path.rpartition(".")
    if layer == "qkv":  # of one layer for queries, keys and values, whose biases lie beside it where keys have none
        names += [f"{owner}.{part}_bias" for part in "qkv"]
    return names


# --- the criteria -----------------------------------------------------------------------------------------------------


class WeightCriterion(ABC):
    """Importance of single weights: higher means keep.

    Attributes:
        name: its key in :data:`WEIGHT_CRITERIA`, and the value of ``--method`` with ``--weights``.
        needs_data: whether it measures on samples. If not, the model is never built.
        removes_biases: whether biases of layers may be removed too.
        steps: the number of steps in which weights are removed, each scored anew.
    """

    name: ClassVar[str]
    needs_data: ClassVar[bool]
    removes_biases: ClassVar[bool] = False
    steps: ClassVar[int] = 1

    @abstractmethod
    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """Return the scores of all weights, not negative, on the CPU, by the names and in the shapes of the tensors.

        Args:
            weights: the tensors whose weights may be removed, by their stock names.
            model: a :class:`hydractl.model.runtime.HydraModel` of one member, in which these and no other parameters
                require gradients; it may be changed in place: every step has a new one. None for a criterion that
                needs no data.
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
    """Optimal Brain Apoptosis (Sun et al., ICLR 2025), as its authors released it for single weights.

    Let s be the logits, weighted by the gradient of the loss with respect to them and summed, where that gradient is a
    constant. The product of a weight is ``w_i (H w)_i``, with H the second derivatives of s by all weights and biases
    that may be removed: of the Hessian of the loss the part that comes from the network, without the curvature of the
    loss itself. The score is the size of the product, averaged over all steps so far, as a share of the largest of its
    tensor, and the magnitude of the weight. Dividing and adding are of the authors' code alone.

    The authors put ``H w`` together from the connections of layers. Here it is the gradient of ``g w``, where g is that
    of s, by differentiating twice (Pearlmutter 1994): the same numbers where what lies between layers is piecewise
    linear, and with the curvature of activations, norms and softmax where it is not.
    """

    name = "oba"
    needs_data = True
    removes_biases = True
    steps = 49

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._steps = 0

    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """Run backward over the sample twice; the model is left with products in the place of its weights."""
        products = _products(model, calibration)
        self._steps += 1
        scores = {}
        for name, weight in weights.items():
            total = self._sums.get(name, 0) + products[name].double()
            self._sums[name] = total
            sizes = total.abs() / self._steps
            share_of_largest = sizes / (sizes.max() + _EPSILON)
            score = share_of_largest + weight.double().abs()
            scores[name] = score.float()
        return scores


def _products(model: Any, calibration: Calibration) -> dict[str, Tensor]:
    """Return ``w (H w)`` of every parameter that requires a gradient, by stock names, on the CPU.

    H is the mean over the samples of the second derivatives of the logits, weighted by the gradient of the loss, see
    :class:`OBA`.
    """
    import torch
    from torch.nn import functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Constants, so that the second differentiation goes through the gradients only.
    constants = [parameter.detach().clone() for parameter in parameters]
    sums = [torch.zeros_like(constant, dtype=torch.float64) for constant in constants]  # of H w over batches

    # The fused kernels of attention can be differentiated only once.
    with sdpa_kernel(SDPBackend.MATH), calibration.log.progress("oba", calibration.size, "samples") as progress:
        for inputs, labels in calibration.batches():
            logits = model.member_logits(inputs)[0]  # [B, classes]
            probabilities = logits.detach().softmax(dim=-1)
            of_labels = F.one_hot(labels, logits.shape[-1])
            weighted = ((probabilities - of_labels) * logits).sum()  # s, by the gradient of the summed cross-entropy
            gradients = torch.autograd.grad(weighted, parameters, create_graph=True, materialize_grads=True)
            products = []
            for gradient, constant in zip(gradients, constants, strict=True):
                product = gradient * constant
                products.append(product.sum())
            first_order = torch.stack(products).sum()  # g w
            hessian_products = torch.autograd.grad(first_order, parameters, materialize_grads=True)  # H w
            for total, hessian_product in zip(sums, hessian_products, strict=True):
                total += hessian_product.double()
            progress.advance(len(labels))

    # The products take the places of the weights, and the model returns them under stock names.
    with torch.no_grad():
        for parameter, constant, total in zip(parameters, constants, sums, strict=True):
            parameter.copy_(constant.double() * total / calibration.size)
    return {name: tensor.cpu() for name, tensor in model.stock_tensors().items()}


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


WEIGHT_CRITERIA: dict[str, type[WeightCriterion]] = {
    criterion.name: criterion for criterion in (WeightMagnitude, OBA, RandomWeights)
}
"""The criteria by name; each pruning has an object of its own."""


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
