"""A Laplace approximation over the last linear layers, kept beside the weights and part of every forward pass.

The posterior of the weights of such a layer, with the bias as a further column, is a Gaussian around the stored ones
(MacKay 1992; Ritter et al. 2018; Kristiadi et al. 2020, arXiv 2002.10118; Daxberger et al. 2021, arXiv 2106.14806). Its
precision is a Kronecker-factored curvature and a prior, ``n A (x) B + prior I``, which the eigenvectors of A and B
make diagonal, so nothing is approximated beyond the factors.

* In a classifier, logits of mean f and variance V become ``f / sqrt(1 + pi / 8 V)``, the probit approximation (MacKay
  1992; Gibbs 1998); these are called its logits from there on.
* In a model that compares images with texts (BayesVLM: Baumann et al. 2024, arXiv 2412.06014), the features before they
  are normalised are Gaussian, g and h with means m and covariances S, and their cosine has in closed form::

      mean       mg . mh / sqrt(E|g|^2 E|h|^2),    E|g|^2 = |mg|^2 + tr Sg
      variance   (tr Sg Sh + mg' Sh mg + mh' Sg mh) / (E|g|^2 E|h|^2)

  Times the factor of the logits these are f and V. The bias of a SigLIP, the same for all classes, is not divided. The
  paper keeps the diagonals of Sg and Sh; here they are whole.
"""

from __future__ import annotations

import math
import re
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
"""A :class:`hydractl.model.runtime.HydraModel`, which imports this."""

KEY = "laplace"
"""The key in :attr:`hydractl.files.description.Description.extra`, and in the names of tensors and modules."""
START = f"{BESIDE}{KEY}."
_PARTS = ("basis", "spread", "outer")
_BROKEN = "the checkpoint holds a broken Laplace posterior"
_AGAIN = "write it again: hydractl laplace MODEL --train SPEC"


class Posterior(nn.Module):
    """Covariance of the weights ``[k, d]`` of a linear layer: diagonal along ``outer`` (x) ``basis``.

    Args:
        basis: ``[d, d]``, eigenvectors of A as columns.
        spread: ``[d, k]``, the variances.
        outer: ``[k, k]``, eigenvectors of B as columns.
    """

    def __init__(self, basis: Tensor, spread: Tensor, outer: Tensor) -> None:
        super().__init__()
        # They are no weights: state_dict() is that of the library.
        self.register_buffer("basis", basis, persistent=False)
        self.register_buffer("spread", spread, persistent=False)
        self.register_buffer("outer", outer, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return variances ``[..., k]`` of the output along the columns of ``outer``, from inputs ``[..., d]``."""
        along_basis: Tensor = x @ self.basis  # type: ignore[operator]
        return along_basis.square() @ self.spread  # type: ignore[operator]

    def scaled(self, logits: Tensor, x: Tensor) -> Tensor:
        """Scale logits ``[..., k]`` of inputs ``[..., d]`` by the probit approximation."""
        shares = self.outer.square().T  # type: ignore[operator]  # [along outer, k]
        variance = self(x) @ shares
        return probit(logits, variance)


def probit(mean: Tensor, variance: Tensor) -> Tensor:
    """Return ``mean / sqrt(1 + pi / 8 variance)``."""
    square_of_divisor = 1 + math.pi / 8 * variance
    divisor = square_of_divisor.sqrt()
    return mean / divisor


def with_one(x: Tensor, bias: Tensor | None) -> Tensor:
    """Return inputs ``[..., d]``, with a 1 behind each (``[..., d + 1]``) where the layer has a bias."""
    if bias is None:
        return x
    return F.pad(x, (0, 1), value=1.0)


# --- layers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LastLayer:
    """A linear layer that may have a posterior.

    Attributes:
        tower: as in :class:`hydractl.heads.mask.Site`.
        owner: the module that holds the posterior.
        weight: ``[k, d]``, with the bias as its last column.
        bias: that column by itself; None where there is none.
    """

    tower: str
    owner: nn.Module
    weight: Tensor
    bias: Tensor | None

    @property
    def name(self) -> str:
        """The name of the posterior in its owner."""
        return _name_in_owner(self.tower)


def _name_in_owner(tower: str) -> str:
    """Return the name of the posterior of a tower in the module that holds it."""
    return f"{KEY}_{tower}"


def _layer_with_bias_column(tower: str, owner: nn.Module, weight: Tensor, bias: Tensor | None) -> LastLayer:
    """Return a layer of weight ``[k, d]``, with the bias ``[k]`` as its last column where there is one."""
    if bias is not None:
        column = bias[:, None]  # [k, 1]
        weight = torch.cat([weight, column], dim=1)
    return LastLayer(tower, owner, weight.detach(), bias)


def heads_of(model: Network, hint: str | None = None) -> list[list[nn.Linear]]:
    """Return the linear layers that each member's classifier ends in: one, or one for each token that is read.

    Args:
        model: its members have the same layers.
        hint: what the message for a model without such layers advises.

    Raises:
        UsageError: a model without a linear classifier that its family names.
    """
    matches_nothing = "$."
    pattern = model.family.named_parts.get("head", matches_nothing)
    heads_of_members = []
    for network in model.networks:
        heads = []
        for name, module in network.named_modules():
            is_named_head = re.match(pattern, f"{name}.weight")
            if isinstance(module, nn.Linear) and is_named_head:
                heads.append(module)
        if not heads:
            raise UsageError(
                f"{model.description.arch} has no linear classifier that its family names",
                hint=hint,
            )
        heads_of_members.append(heads)
    return heads_of_members


def last_layers(model: Network) -> list[list[LastLayer]]:
    """Return the layers of each member that may have a posterior: its classifier, or the projections of both towers.

    Raises:
        UsageError: a model, or a tower, that does not end in one linear layer.
    """
    # A classifier.
    if len(model.chains) == 1:
        heads_of_members = heads_of(model)
        heads_of_each = len(heads_of_members[0])
        if heads_of_each > 1:
            raise UsageError(
                f"{model.description.arch} averages {heads_of_each} classifiers, and a Laplace posterior is of one"
            )
        tower = model.chains[0].tower
        layers_of_members = []
        for (head,) in heads_of_members:
            classifier = _layer_with_bias_column(tower, head, head.weight, head.bias)
            layers_of_members.append([classifier])
        return layers_of_members

    # A model that compares the features of two towers.
    projections_of_members = []
    for network in model.networks:
        towers = model.family.stages(network)
        projections = [_projection_of_tower(model, network, stages) for stages in towers]
        projections_of_members.append(projections)
    return projections_of_members


def _projection_of_tower(model: Network, network: nn.Module, stages: Stages) -> LastLayer:
    """Return the projection that a tower ends in."""
    if stages.projection is None:
        raise UsageError(
            f"the {stages.tower} tower of {model.description.arch} does not end in one linear layer",
            hint="a Laplace posterior of two towers needs both projections, as CLIP has them",
        )
    weight, bias = stages.projection.parameters()
    return _layer_with_bias_column(stages.tower, network, weight, bias)


def attach_posteriors(model: Network, tensors: TensorSource) -> None:
    """Give a model the posteriors that lie beside its weights.

    Raises:
        InputError: they are not whole, or of other layers.
    """
    for member, layers in enumerate(last_layers(model)):
        for layer in layers:
            basis = _read_part(tensors, member, layer, "basis")
            spread = _read_part(tensors, member, layer, "spread")
            outer = _read_part(tensors, member, layer, "outer")
            posterior = Posterior(basis, spread, outer)
            layer.owner.add_module(layer.name, posterior)
            is_classifier = len(layers) == 1
            if is_classifier:  # its logits are scaled as soon as it has computed them
                layer.owner.register_forward_hook(_scale_logits)
    # Towers read out through the posteriors of their projections from now on.
    for chain in model.chains:
        chain.cut_into_stages()


def _read_part(tensors: TensorSource, member: int, layer: LastLayer, part: str) -> Tensor:
    """Read a part of the posterior of one layer ``[k, d]``, on the device and in the dtype of its weight.

    Args:
        tensors: the weights of the model, and what lies beside them.
        member: the number of the member.
        layer: the layer.
        part: ``basis``, ``spread`` or ``outer``.

    Raises:
        InputError: it is not there, or of another shape, or a variance is negative.
    """
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
    # The spread holds variances. On the meta device there are no numbers to check.
    has_numbers = not tensor.is_meta
    if part == "spread" and has_numbers:
        any_negative = (tensor < 0).any()
        if any_negative:
            raise broken
    return tensor.to(layer.weight.device, layer.weight.dtype)


def tensor_name(member: int, tower: str, part: str) -> str:
    """Return the name that a part of a posterior has in a checkpoint."""
    posterior = f"{START}{member}.{tower}"
    return f"{posterior}.{part}"


def stored_tensors(posteriors: Sequence[Mapping[str, Posterior]]) -> dict[str, Tensor]:
    """Return the posteriors of each member, by tower, as a checkpoint holds them: float32."""
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
    """Scale the logits of a classifier, as a forward hook of it."""
    (posterior,) = _posteriors_in(head)
    x = with_one(inputs[0], head.bias)
    scaled: Tensor = posterior.scaled(logits, x)
    return scaled


def _posteriors_in(owner: nn.Module) -> list[Any]:
    """Return the posteriors that a module holds, in the order of the towers."""
    posteriors = []
    for name, module in owner.named_children():
        if name.startswith(KEY):
            posteriors.append(module)
    return posteriors


def has_posterior(model: Network) -> bool:
    """Return whether a model has a posterior, which is part of its forward pass."""
    stored = model.description.extra
    return KEY in stored


def with_posterior(stages: Stages, network: nn.Module) -> Stages:
    """Return a tower that reads out :func:`gaussian_features` where the network holds a posterior of its projection."""
    posterior = getattr(network, _name_in_owner(stages.tower), None)
    projection = stages.projection
    if posterior is None or projection is None:
        return stages

    def readout(state: Any) -> Tensor:
        weight, bias = projection.parameters()
        layer = _layer_with_bias_column(stages.tower, network, weight, bias)
        inputs = projection.inputs(state)  # [B, prompts, d]
        return gaussian_features(posterior, inputs, layer)

    return replace(stages, readout=readout)


def gaussian_features(posterior: Posterior, x: Tensor, layer: LastLayer) -> Tensor:
    """Return normalised features ``[B, D]`` and behind them their variances along ``outer``: ``[B, 2 D]``.

    The mean of the normalised features of several prompts is a linear function of the mean of the inputs, each divided
    by the length of its feature, so it is Gaussian too.

    Args:
        posterior: of the projection.
        x: its inputs ``[B, prompts, d]``.
        layer: the projection.
    """
    # The mean over prompts of the inputs, each divided by the length of its feature.
    weight = layer.weight.T  # [d, D]
    x = with_one(x, layer.bias)  # [B, prompts, d]
    features = x @ weight  # [B, prompts, D]
    lengths = features.norm(dim=-1, keepdim=True)
    scaled = x / lengths
    mean_input = scaled.mean(dim=1)  # [B, prompts, d] -> [B, d]

    # The Gaussian of its feature, divided by the length of the mean.
    mean = mean_input @ weight  # [B, D]
    variance = posterior(mean_input)  # [B, D]
    length = mean.norm(dim=-1, keepdim=True)
    normalised_mean = mean / length
    normalised_variance = variance / length.square()
    return torch.cat([normalised_mean, normalised_variance], dim=-1)


def feature_means(model: Network, features: Tensor) -> Tensor:
    """Return the normalised features ``[..., D]`` of what a tower reads out, without their variances."""
    is_gaussian = len(model.chains) > 1 and has_posterior(model)
    if not is_gaussian:
        return features
    means, _ = features.chunk(2, dim=-1)  # [..., 2 D] -> twice [..., D]
    return means


def logits_of_towers(family: ModelFamily, network: nn.Module, outputs: Sequence[Tensor]) -> Tensor:
    """Return the logits ``[B, classes]`` of one member from what its towers read out.

    Args:
        family: computes the logits of features without a posterior.
        network: that of the member, which may hold posteriors of its projections.
        outputs: of images, then of classes.
    """
    posteriors = _posteriors_in(network)
    if posteriors:
        return gaussian_logits(family, network, outputs, posteriors)
    return family.logits(network, outputs)


def gaussian_logits(
    family: ModelFamily, network: nn.Module, outputs: Sequence[Tensor], posteriors: Sequence[Any]
) -> Tensor:
    """Return logits ``[B, classes]`` of images and classes whose features are Gaussian, by the probit approximation.

    Each logit is a factor times the cosine of two features plus a bias; the cosine has the mean and the variance of
    the closed form at the top of this file, in which g is an image and h a class.

    Args:
        family, network: give the factor and the bias of the logits.
        outputs: the features of images ``[B, 2 D]``, then of classes ``[classes, 2 D]``, each its mean and behind it
            the variances along the axes of its posterior (:func:`gaussian_features`).
        posteriors: of both projections.
    """
    images, classes = outputs
    image_mean, image_spread = images.chunk(2, dim=-1)  # [B, D] each
    class_mean, class_spread = classes.chunk(2, dim=-1)  # [classes, D] each
    image_axes = posteriors[0].outer  # [D, D], whose columns are the directions of the spreads
    class_axes = posteriors[1].outer

    # The expected squared lengths E|g|^2 [B, 1] and E|h|^2 [classes, 1] of features whose means have length 1.
    image_square = 1 + image_spread.sum(dim=-1, keepdim=True)
    class_square = 1 + class_spread.sum(dim=-1, keepdim=True)

    # The variance [B, classes] of the products of features that are not normalised.
    squared_axes = (image_axes.T @ class_axes).square()
    squared_images = (image_mean @ class_axes).square()
    squared_classes = (class_mean @ image_axes).square()
    variance = (
        image_spread @ squared_axes @ class_spread.T  # tr Sg Sh
        + squared_images @ class_spread.T  # mg' Sh mg
        + image_spread @ squared_classes.T  # mh' Sg mh
    )

    # The mean and the variance of the logits. The bias, the same for all classes, is not divided.
    image_features = image_mean / image_square.sqrt()
    class_features = class_mean / class_square.sqrt()
    logits = family.logits(network, [image_features, class_features])
    scale, bias = scale_and_bias(family, network, image_mean)
    squared_lengths = image_square * class_square.T  # [B, classes]
    variance_of_logits = scale.square() * variance / squared_lengths
    return bias + probit(logits - bias, variance_of_logits)


def scale_and_bias(family: ModelFamily, network: nn.Module, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factor of the cosines in a member's logits, and what is added: two scalars.

    They are read off the logits of two pairs of features, one of cosine 1 and one of cosine 0.

    Args:
        family, network: compute the logits.
        like: features ``[B, D]``, whose width, dtype and device are taken.
    """
    zeros_behind = like.shape[-1] - 1
    one = like.new_ones(1, 1)
    unit_vector = F.pad(one, (0, zeros_behind))  # [1, D]
    zero_vector = torch.zeros_like(unit_vector)
    logit_of_cosine_1 = family.logits(network, [unit_vector, unit_vector])  # [1, 1]
    logit_of_cosine_0 = family.logits(network, [unit_vector, zero_vector])
    bias = logit_of_cosine_0[0, 0]
    scale = logit_of_cosine_1[0, 0] - bias
    return scale, bias
