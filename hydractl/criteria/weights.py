"""Importance of single weights: which weights can be scored, the criteria, and the choice of the least important ones.

Importing this module must not import torch: help texts list the criteria.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hydractl.criteria.criterion import AnyCriterion, Calibration

if TYPE_CHECKING:
    from torch import Tensor, nn

# --- the weights ------------------------------------------------------------------------------------------------------

_EPSILON = 1e-6
"""Added to the divisor of scores, as in the code of the authors of OBA."""

_MATRICES = ("proj", "text_projection", "qkv", "out", "pos_q", "pos_k")
"""The names of matrices that a module holds itself: projections of open_clip, and the heads of hydractl."""


def matrices(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of the linear layers and convolutions of a network, by name.

    These are the parameters of two or more dimensions that are called ``...weight`` or have a name of
    :data:`_MATRICES`. So biases, norms, LayerScale, tokens, embeddings of words and positions, and tables of distances
    are left out.

    Args:
        network: a library's own network, or a network of hydractl.
    """
    from torch import nn

    by_name: dict[str, nn.Parameter] = {}
    for path, module in network.named_modules():
        if isinstance(module, nn.Embedding):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            is_named_so = name.endswith("weight") or name in _MATRICES
            if is_named_so and parameter.ndim >= 2:
                full_name = f"{path}.{name}" if path else name
                by_name[full_name] = parameter
    return by_name


def biases(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the biases of the layers of :func:`matrices`, by name; empty if the network has no biases.

    The bias of ``mlp.fc1.weight`` is ``mlp.fc1.bias``, and that of a matrix ``bank.out``, which is no layer, is
    ``bank.out_bias``. A matrix without a bias is skipped.

    Args:
        network: a library's own network, or a network of hydractl.
    """
    parameters = dict(network.named_parameters(remove_duplicate=False))
    by_name = {}
    for name in matrices(network):
        # The names that the bias may have. It lies beside the matrix in the same layer.
        if name.endswith("weight"):
            names = [name.removesuffix("weight") + "bias"]
        else:
            names = [f"{name}_bias"]
        # Or it lies beside the layer: of one layer for queries, keys and values, if keys have no bias. The biases of
        # `attn.qkv.weight` then are `attn.q_bias` and `attn.v_bias`.
        path, _, _ = name.rpartition(".")
        owner, _, layer = path.rpartition(".")
        if layer == "qkv":
            names += [f"{owner}.{part}_bias" for part in "qkv"]
        for candidate in names:
            if candidate in parameters and parameters[candidate].ndim == 1:
                by_name[candidate] = parameters[candidate]
    return by_name


def prunable(network: nn.Module, *, with_biases: bool) -> dict[str, nn.Parameter]:
    """Return the weights that a criterion can remove, by name: :func:`matrices`, and their biases if asked for."""
    layers = matrices(network)
    if with_biases:
        layers.update(biases(network))
    return layers


# --- the criteria -----------------------------------------------------------------------------------------------------


class WeightCriterion(AnyCriterion, ABC):
    """Importance of single weights: higher means keep.

    Attributes:
        name: the key in :data:`WEIGHT_CRITERIA`, and the value of ``--method`` with ``--weights``.
        removes_biases: whether biases of layers may be removed too.
        steps: in how many steps weights are removed; the remaining weights are scored anew at each step.
    """

    removes_biases: ClassVar[bool] = False
    steps: ClassVar[int] = 1

    @abstractmethod
    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """Return the scores of all weights, on the CPU, none of them negative, by the names of their tensors.

        Args:
            weights: the tensors whose weights may be removed, by their stock names.
            model: a :class:`hydractl.model.runtime.HydraModel` with one member, in which only these parameters require
                gradients. It may be changed in place, since every step has a new one. None if the criterion needs no
                data.
            calibration: the sample.

        Returns:
            For each tensor its scores, in the same shape.
        """


class WeightMagnitude(WeightCriterion):
    """Magnitude of single weights (Han et al. 2015, arXiv 1506.02626): ``|w|``; needs no data."""

    name = "magnitude"
    needs_data = False

    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """Score weights by their absolute values alone."""
        scores = {name: weight.float().abs() for name, weight in weights.items()}
        return scores


class OBA(WeightCriterion):
    """Optimal Brain Apoptosis (Sun et al., ICLR 2025), as its authors released it for single weights.

    Let s be the sum of the logits, each weighted by the gradient of the loss with respect to it, where that gradient is
    a constant. The product of a weight is ``w_i (H w)_i``, with H the second derivatives of s by all weights and biases
    that may be removed. This is the part of the loss's Hessian that comes from the network, without the curvature of
    the loss itself. The size of the product is averaged over all steps so far and divided by the largest in its tensor.
    The score is this share plus the magnitude of the weight. Only the authors' code divides and adds like this.

    The authors compute ``H w`` from the connections of layers. Here it is the gradient of ``g w``, where g is the
    gradient of s, by differentiating twice (Pearlmutter 1994). The numbers are the same if the operations between
    layers are piecewise linear; otherwise they include the curvature of activations, norms and softmax.
    """

    name = "oba"
    needs_data = True
    removes_biases = True
    steps = 49

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._steps = 0

    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """Return the scores by the names of the tensors; afterwards the model has products instead of its weights.

        Weights are removed in several steps, and each step calls this again. With p the product w (H w) of a weight,
        and mean(p) its mean over all steps so far, the score is
        |mean(p)| / max |mean(p)| + |w|; the maximum is over its tensor.
        """
        products = _products(model, calibration)
        self._steps += 1
        scores = {}

        # The sums over steps are kept in this object.
        for name, weight in weights.items():
            total = self._sums.get(name, 0) + products[name].double()
            self._sums[name] = total
            sizes = total.abs() / self._steps  # |mean(p)|
            share_of_largest = sizes / (sizes.max() + _EPSILON)
            score = share_of_largest + weight.double().abs()
            scores[name] = score.float()
        return scores


def _products(model: Any, calibration: Calibration) -> dict[str, Tensor]:
    """Return the products ``w (H w)`` of all trained weights w, by the library's names, on the CPU.

    Trained are the parameters that require gradients; a tensor of products has the shape of its parameter. For each
    weight this is about how much it and all other weights together bend the loss. H itself would be far too large; H w
    needs only two backward passes. H is the mean over the samples of the second derivatives of the logits, weighted by
    the gradient of the loss, see :class:`OBA`. The parameters of the model are overwritten by the products.
    """
    import torch
    from torch.nn import functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    # Copies of the weights as constants (w below), so that the second differentiation goes only through the gradients.
    constants = [parameter.detach().clone() for parameter in parameters]
    sums = [torch.zeros_like(constant, dtype=torch.float64) for constant in constants]  # H w, summed over batches

    # Fused attention kernels can be differentiated only once, so use the plain one.
    with sdpa_kernel(SDPBackend.MATH), calibration.log.progress("oba", calibration.size, "samples") as progress:
        for inputs, labels in calibration.batches():
            logits = model.member_logits(inputs)[0]  # [B, classes]

            # s: the logits weighted by the gradient of the summed cross-entropy, which is p - y.
            probabilities = logits.detach().softmax(dim=-1)
            one_hot_labels = F.one_hot(labels, logits.shape[-1])
            weighted_logits = ((probabilities - one_hot_labels) * logits).sum()

            # g, the gradient of s, with a graph for the second differentiation.
            gradients = torch.autograd.grad(weighted_logits, parameters, create_graph=True, materialize_grads=True)
            # g w, whose gradient is H w since w is constant here.
            products = []
            for gradient, constant in zip(gradients, constants, strict=True):
                product = gradient * constant
                products.append(product.sum())
            first_order = torch.stack(products).sum()
            hessian_products = torch.autograd.grad(first_order, parameters, materialize_grads=True)
            for total, hessian_product in zip(sums, hessian_products, strict=True):
                total += hessian_product.double()
            progress.advance(len(labels))

    # Write the products over the weights, so that the model, which knows the library's names, returns them by these.
    with torch.no_grad():
        for parameter, constant, total in zip(parameters, constants, sums, strict=True):
            parameter.copy_(constant.double() * total / calibration.size)
    return {name: tensor.cpu() for name, tensor in model.stock_tensors().items()}


class RandomWeights(WeightCriterion):
    """The control: uniform on [0, 1), drawn by the seed in the order of names; needs no data."""

    name = "random"
    needs_data = False

    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """Return random scores, uniform on [0, 1); every weight gets one, whether it is removed already or not."""
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
"""The criteria by name; each pruning creates its own object."""


# --- the least important weights --------------------------------------------------------------------------------------


def lowest_weights(scores: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return masks, by name, that are True for the ``count`` weights with the lowest scores of all tensors together.

    Of equal scores, the first are marked, by name and then by position. E.g. of the scores a = [3, 1] and b = [1, 1],
    the lowest two are a[1] and b[0].
    """
    import numpy as np
    import torch

    if not count:
        return {name: torch.zeros_like(values, dtype=torch.bool) for name, values in scores.items()}

    # Find the limit: the score at place `count`, counted from the lowest; with a count of 2 the 2nd lowest.
    # Partitioning finds it without sorting.
    flat_scores = [values.reshape(-1).numpy() for values in scores.values()]
    all_scores = np.concatenate(flat_scores)
    all_scores.partition(count - 1)  # from now on the first `count` are the lowest
    lowest = all_scores[:count]
    limit = all_scores[count - 1].item()

    # Mark all weights below the limit, of which there are fewer than `count`. Of the weights at the limit, mark the
    # first ones, as many as are left to mark.
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
