"""A Laplace approximation over the last linear layers, stored with the weights and part of every forward pass.

The posterior of such a layer's weights, with the bias as one more column, is a Gaussian around the stored weights
(MacKay 1992; Ritter et al. 2018; Kristiadi et al. 2020, arXiv 2002.10118; Daxberger et al. 2021, arXiv 2106.14806). Its
precision is a Kronecker-factored curvature plus a prior, ``n A (x) B + prior I``. The eigenvectors of A and B make it
diagonal, so nothing is approximated beyond the two factors.

* In a classifier, logits of mean f and variance V become ``f / sqrt(1 + pi / 8 V)``, the probit approximation (MacKay
  1992; Gibbs 1998). From there on these count as the logits.
* A model that compares images with texts follows BayesVLM (Baumann et al. 2024, arXiv 2412.06014). Its features before
  normalisation are Gaussian, g of the image and h of the text, with means m and covariances S. The closed form of their
  cosine is::

      mean       mg . mh / sqrt(E|g|^2 E|h|^2),    E|g|^2 = |mg|^2 + tr Sg
      variance   (tr Sg Sh + mg' Sh mg + mh' Sg mh) / (E|g|^2 E|h|^2)

  Multiplied by the factor of the logits, these are f and V. The bias of a SigLIP, which is the same for all classes, is
  not divided. The paper keeps only the diagonals of Sg and Sh; here they are complete.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.errors import InputError, UsageError
from hydractl.families.base import ModelFamily, Stages
from hydractl.files.checkpoint import BESIDE, TensorSource

Network = Any
"""A :class:`hydractl.model.runtime.HydraModel`; its module imports this one, so it cannot be named here."""

KEY = "laplace"
"""The key in :attr:`hydractl.files.description.Description.extra`, and in the names of tensors and modules."""
START = f"{BESIDE}{KEY}."
_PARTS = ("basis", "spread", "outer")  # the arguments of Posterior
_BROKEN = "the checkpoint holds a broken Laplace posterior"
_AGAIN = "write it again: hydractl finetune MODEL --train SPEC --ensemble laplace"


class Posterior(nn.Module):
    """The covariance of the weights ``[k, d]`` of a linear layer, which is diagonal along ``outer`` (x) ``basis``.

    Args:
        basis: ``[d, d]``, the eigenvectors of A as columns.
        spread: ``[d, k]``, the variance along each pair of eigenvectors.
        outer: ``[k, k]``, the eigenvectors of B as columns.
    """

    def __init__(self, basis: Tensor, spread: Tensor, outer: Tensor) -> None:
        super().__init__()
        # Not part of state_dict(), which holds only the library's weights.
        self.register_buffer("basis", basis, persistent=False)
        self.register_buffer("spread", spread, persistent=False)
        self.register_buffer("outer", outer, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the variances ``[..., k]`` of the output along the columns of ``outer``, for inputs ``[..., d]``."""
        along_basis: Tensor = x @ self.basis  # type: ignore[operator]
        return along_basis.square() @ self.spread  # type: ignore[operator]

    def scaled(self, logits: Tensor, x: Tensor) -> Tensor:
        """Scale the logits ``[..., k]`` for inputs ``[..., d]`` by the probit approximation."""
        # Convert variances along the columns of `outer` to variances of the logits.
        shares = self.outer.square().T  # type: ignore[operator]  # [columns of outer, k]
        variance = self(x) @ shares
        return probit(logits, variance)


def probit(mean: Tensor, variance: Tensor) -> Tensor:
    """Apply the probit approximation: ``mean / sqrt(1 + pi / 8 variance)``."""
    return mean / (1 + math.pi / 8 * variance).sqrt()


def with_one(x: Tensor, bias: Tensor | None) -> Tensor:
    """Append a 1 to each input if the layer has a bias: ``[..., d]`` becomes ``[..., d + 1]``. Else change nothing."""
    return x if bias is None else F.pad(x, (0, 1), value=1.0)


# --- layers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LastLayer:
    """A linear layer that may have a posterior.

    Attributes:
        tower: the name of the tower, see :class:`hydractl.heads.mask.Site`.
        owner: the module that holds the posterior.
        weight: ``[k, d]``; if there is a bias, it is the last column.
        bias: the bias ``[k]`` by itself; None if there is none.
    """

    tower: str
    owner: nn.Module
    weight: Tensor
    bias: Tensor | None


def _name_in_owner(tower: str) -> str:
    """Return the attribute name of a tower's posterior in the module that holds it, e.g. ``laplace_image``."""
    return f"{KEY}_{tower}"


def _layer_with_bias_column(tower: str, owner: nn.Module, weight: Tensor, bias: Tensor | None) -> LastLayer:
    """Return a layer with weight ``[k, d]``, to which the bias ``[k]`` is appended as a column if there is one."""
    if bias is not None:
        weight = torch.cat([weight, bias[:, None]], dim=1)
    return LastLayer(tower, owner, weight.detach(), bias)


def heads_of(model: Network, hint: str | None = None) -> list[list[nn.Linear]]:
    """Return for each member the linear layers in which its classifier ends: one, or one for each token that is read.

    Args:
        model: the model, whose members have the same layers.
        hint: the hint of the error for a model without such layers.

    Raises:
        UsageError: if the model has no linear classifier that its family names.
    """
    # Collect the linear layers of the classifier of each member, in the order of the network.
    heads_of_members = []
    for network in model.networks:
        heads = []
        for name, module in network.named_modules():
            if isinstance(module, nn.Linear) and model.family.has_role(f"{name}.weight", "head"):
                heads.append(module)
        if not heads:
            raise UsageError(f"{model.description.arch} has no linear classifier that its family names", hint=hint)
        heads_of_members.append(heads)
    return heads_of_members


def last_layers(model: Network) -> list[list[LastLayer]]:
    """Return for each member the layers that may have a posterior: its classifier, or the projections of both towers.

    Raises:
        UsageError: if the model, or a tower, does not end in a single linear layer.
    """
    # A model with one tower is a classifier.
    if len(model.chains) == 1:
        heads_of_members = heads_of(model)
        heads_of_each = len(heads_of_members[0])
        if heads_of_each > 1:
            raise UsageError(
                f"{model.description.arch} averages {heads_of_each} classifiers, and a Laplace posterior is of one"
            )

        # The only layer of each member.
        tower = model.chains[0].tower
        layers_of_members = []
        for heads in heads_of_members:
            head = heads[0]
            layers_of_members.append([_layer_with_bias_column(tower, head, head.weight, head.bias)])
        return layers_of_members

    # A model with two towers compares their features; both projections may have a posterior.
    projections_of_members = []
    for network in model.networks:
        towers = model.family.stages(network)
        projections = []
        for stages in towers:
            if stages.projection is None:
                raise UsageError(
                    f"the {stages.tower} tower of {model.description.arch} does not end in one linear layer",
                    hint="a Laplace posterior of two towers needs both projections, as CLIP has them",
                )
            weight, bias = stages.projection.parameters()
            projections.append(_layer_with_bias_column(stages.tower, network, weight, bias))
        projections_of_members.append(projections)
    return projections_of_members


def attach_posteriors(model: Network, tensors: TensorSource) -> None:
    """Add the stored Laplace posteriors to the modules of a model, and make its forward pass use them.

    Raises:
        InputError: if they are incomplete, or belong to other layers.
    """
    for member, layers in enumerate(last_layers(model)):
        for layer in layers:
            parts = [_read_part(tensors, member, layer, part) for part in _PARTS]
            layer.owner.add_module(_name_in_owner(layer.tower), Posterior(*parts))
            is_classifier = len(layers) == 1  # a model that compares two towers has a layer in each
            if is_classifier:  # the hook scales the logits as soon as the layer has computed them
                layer.owner.register_forward_hook(_scale_logits)

    # The readouts of towers are built again, so that they use the posteriors.
    for chain in model.chains:
        chain.cut_into_stages()


def _read_part(tensors: TensorSource, member: int, layer: LastLayer, part: str) -> Tensor:
    """Return one stored part of the Laplace posterior of a layer with weight ``[k, d]``, in that weight's dtype.

    Args:
        tensors: the weights of the model, and the tensors stored with them.
        member: the index of the member.
        layer: the layer.
        part: ``basis``, ``spread`` or ``outer``.

    Raises:
        InputError: if the part is missing, has another shape, or holds a negative variance.
    """
    # The part must be there, have the shape that follows from the layer, and hold floating point numbers.
    k, d = layer.weight.shape
    shapes = {"basis": (d, d), "spread": (d, k), "outer": (k, k)}
    broken = InputError(_BROKEN, hint=_AGAIN)
    name = tensor_name(member, layer.tower, part)
    try:
        tensor = tensors.read(name)
    except KeyError:
        raise broken from None
    if tensor.shape != shapes[part] or not tensor.is_floating_point():
        raise broken

    # The spread holds variances. A tensor on the meta device has no numbers to check.
    if part == "spread" and not tensor.is_meta and (tensor < 0).any():
        raise broken
    return tensor.to(layer.weight.device, layer.weight.dtype)


def tensor_name(member: int, tower: str, part: str) -> str:
    """Return the name of a part of a posterior in a checkpoint."""
    return f"{START}{member}.{tower}.{part}"


def stored_tensors(posteriors: Sequence[Mapping[str, Posterior]]) -> dict[str, Tensor]:
    """Return the tensors of posteriors as a checkpoint stores them, float32, by name.

    Args:
        posteriors: for each member its posteriors, by tower.
    """
    tensors = {}
    for member, by_tower in enumerate(posteriors):
        for tower, posterior in by_tower.items():
            for part in _PARTS:
                name = tensor_name(member, tower, part)
                values: Tensor = getattr(posterior, part)
                tensors[name] = values.float().contiguous()
    return tensors


# --- running ----------------------------------------------------------------------------------------------------------


def _scale_logits(head: Any, inputs: tuple[Tensor, ...], logits: Tensor) -> Tensor:
    """Scale the logits of a classifier by its posterior. This is a forward hook of the classifier's linear layer."""
    (posterior,) = _posteriors_in(head)
    x = with_one(inputs[0], head.bias)
    scaled: Tensor = posterior.scaled(logits, x)
    return scaled


def _posteriors_in(owner: nn.Module) -> list[Any]:
    """Return the posteriors that a module holds, in the order of the towers."""
    return [module for name, module in owner.named_children() if name.startswith(KEY)]


def has_posterior(model: Network) -> bool:
    """Return whether a model has a posterior, which is then part of its forward pass."""
    return KEY in model.description.extra


def with_posterior(stages: Stages, network: nn.Module) -> Stages:
    """Return the stages of a tower with a readout that uses the Laplace posterior of its projection (the last layer).

    That readout gives means and variances of features, see :func:`gaussian_features`. A tower without a posterior is
    returned unchanged.
    """
    posterior = getattr(network, _name_in_owner(stages.tower), None)
    projection = stages.projection
    if posterior is None or projection is None:
        return stages

    def readout(state: Any) -> Tensor:
        """Return the features with their variances, ``[B, 2 D]``."""
        weight, bias = projection.parameters()
        layer = _layer_with_bias_column(stages.tower, network, weight, bias)
        inputs = projection.inputs(state)  # [B, prompts, d]
        return gaussian_features(posterior, inputs, layer)

    return replace(stages, readout=readout)


def gaussian_features(posterior: Posterior, x: Tensor, layer: LastLayer) -> Tensor:
    """Return the distribution of a tower's normalised features: their mean and their variances.

    The weights of the projection are uncertain (Gaussian), so its features are, too. Several prompts of a class are
    averaged: if each input is divided by the length of its feature, the mean of the normalised features is the
    projection of the mean input. So the mean is Gaussian as well.

    Args:
        posterior: the posterior of the projection.
        x: the inputs of the projection, ``[B, prompts, d]``.
        layer: the projection, from d inputs to D features.

    Returns:
        ``[B, 2 D]``: D means, then D variances along the columns of ``posterior.outer``.
    """
    # Divide each input x_p by the length of its feature, and average over prompts: x = mean of x_p / |W x_p|.
    weight = layer.weight.T  # [d, D]
    inputs = with_one(x, layer.bias)  # [B, prompts, d]; with a bias, d counts its column
    features = inputs @ weight  # [B, prompts, D]
    lengths = features.norm(dim=-1, keepdim=True)  # [B, prompts, 1]
    inputs_of_unit_features = inputs / lengths
    mean_input = inputs_of_unit_features.mean(dim=1)  # [B, d]

    # Its feature is Gaussian with mean W x. Divided by its length, the mean has length 1; a variance is divided by the
    # square of that length.
    mean = mean_input @ weight  # [B, D]
    variance = posterior(mean_input)  # [B, D]
    length = mean.norm(dim=-1, keepdim=True)
    normalised_mean = mean / length
    normalised_variance = variance / length.square()
    return torch.cat([normalised_mean, normalised_variance], dim=-1)


def feature_means(model: Network, features: Tensor) -> Tensor:
    """Return the normalised features ``[..., D]`` in what a tower reads out, without their variances if it has any."""
    is_gaussian = len(model.chains) > 1 and has_posterior(model)
    if not is_gaussian:
        return features
    means, _ = features.chunk(2, dim=-1)  # [..., 2 D] -> means and variances, [..., D] each
    return means


def logits_of_towers(family: ModelFamily, network: nn.Module, outputs: Sequence[Tensor]) -> Tensor:
    """Return the logits ``[B, classes]`` of one member from what its two towers read out.

    Args:
        family: computes the logits of features without a posterior.
        network: the network of the member, which may hold posteriors of its projections.
        outputs: what the towers read out, first for images, then for classes.
    """
    posteriors = _posteriors_in(network)
    if posteriors:
        return gaussian_logits(family, network, outputs, posteriors)
    return family.logits(network, outputs)


def gaussian_logits(
    family: ModelFamily, network: nn.Module, outputs: Sequence[Tensor], posteriors: Sequence[Any]
) -> Tensor:
    """Return logits ``[B, classes]`` for images and classes with Gaussian features, by the probit approximation.

    A logit is a factor times the cosine of an image feature g and a class feature h, plus a bias. Here both features
    are uncertain, and so is the logit: the greater its variance, the closer it is moved to the bias. Mean and variance
    of the cosine follow the closed form at the top of this file.

    Args:
        family, network: compute the factor and the bias of the logits.
        outputs: the features of images ``[B, 2 D]`` and of classes ``[classes, 2 D]``: means of length 1, then the
            variances along the axes of the posterior (see :func:`gaussian_features`).
        posteriors: the posteriors of the projections of images and of classes.
    """
    images, classes = outputs
    image_mean, image_variances = images.chunk(2, dim=-1)  # [B, D] each
    class_mean, class_variances = classes.chunk(2, dim=-1)  # [classes, D] each
    image_axes = posteriors[0].outer  # [D, D], whose columns are the directions of the variances
    class_axes = posteriors[1].outer

    # The expected squared lengths E|g|^2 [B, 1] and E|h|^2 [classes, 1]. The means have length 1.
    image_square = 1 + image_variances.sum(dim=-1, keepdim=True)
    class_square = 1 + class_variances.sum(dim=-1, keepdim=True)

    # The variance [B, classes] of the dot product of g and h, whose means are mg and mh, and whose covariances are Sg
    # and Sh. The posteriors of g and h have different axes, so means and variances of one are expressed along the axes
    # of the other.
    squared_axes = (image_axes.T @ class_axes).square()
    squared_images = (image_mean @ class_axes).square()
    squared_classes = (class_mean @ image_axes).square()
    variance = (
        image_variances @ squared_axes @ class_variances.T  # tr Sg Sh
        + squared_images @ class_variances.T  # mg' Sh mg
        + image_variances @ squared_classes.T  # mh' Sg mh
    )

    # Mean and variance of the logits. The bias is the same for all classes and is not divided.
    image_features = image_mean / image_square.sqrt()
    class_features = class_mean / class_square.sqrt()
    logits = family.logits(network, [image_features, class_features])
    scale, bias = scale_and_bias(family, network, image_mean)
    squared_lengths = image_square * class_square.T  # [B, classes]
    variance_of_logits = scale.square() * variance / squared_lengths
    return bias + probit(logits - bias, variance_of_logits)


def scale_and_bias(family: ModelFamily, network: nn.Module, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factor and the bias of a member's logits: two scalars, with logit = factor * cosine + bias.

    They follow from the logits of two pairs of features: that of cosine 0 is the bias, and that of cosine 1 is
    factor + bias.

    Args:
        family, network: compute the logits.
        like: features ``[B, D]``; only their width, dtype and device are used.
    """
    zeros_behind = like.shape[-1] - 1
    one = like.new_ones(1, 1)  # padded with zeros to the unit vector (1, 0, 0, ...)
    unit_vector = F.pad(one, (0, zeros_behind))  # [1, D]
    zero_vector = torch.zeros_like(unit_vector)
    logit_of_cosine_1 = family.logits(network, [unit_vector, unit_vector])  # [1, 1]
    logit_of_cosine_0 = family.logits(network, [unit_vector, zero_vector])
    bias = logit_of_cosine_0[0, 0]
    scale = logit_of_cosine_1[0, 0] - bias
    return scale, bias
