"""A Laplace approximation over the last linear layers, kept beside the weights and part of every forward pass.

The posterior of the weights of such a layer, with the bias as a further column, is a Gaussian around the stored ones
(MacKay 1992; Ritter et al. 2018; Kristiadi et al. 2020, arXiv 2002.10118; Daxberger et al. 2021, arXiv 2106.14806). Its
precision is a Kronecker-factored curvature and a prior, ``n A (x) B + prior I``, which the eigenvectors of A and B
make diagonal, so nothing is approximated beyond the factors.

* Of a classifier, logits of mean f and variance V become ``f / sqrt(1 + pi / 8 V)``, the probit approximation (MacKay
  1992; Gibbs 1998): what is called its logits from there on.
* Of a model that compares images with texts (BayesVLM: Baumann et al. 2024, arXiv 2412.06014), the features before they
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
        return (x @ self.basis).square() @ self.spread  # type: ignore[operator]

    def scaled(self, logits: Tensor, x: Tensor) -> Tensor:
        """Scale logits ``[..., k]`` by the probit approximation."""
        return probit(logits, self(x) @ self.outer.square().T)  # type: ignore[operator]


def probit(mean: Tensor, variance: Tensor) -> Tensor:
    """Return ``mean / sqrt(1 + pi / 8 variance)``."""
    return mean / (1 + math.pi / 8 * variance).sqrt()


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
        return _name(self.tower)


def _name(tower: str) -> str:
    return f"{KEY}_{tower}"


def _layer(tower: str, owner: nn.Module, weight: Tensor, bias: Tensor | None) -> LastLayer:
    """Return a layer of weight ``[k, d]``, with the bias ``[k]`` as its last column where there is one."""
    if bias is not None:
        weight = torch.cat([weight, bias[:, None]], dim=1)
    return LastLayer(tower, owner, weight.detach(), bias)


def heads_of(model: Network, hint: str | None = None) -> list[list[nn.Linear]]:
    """Return the linear layers that each member's classifier ends in: one, or one for each token that is read.

    Raises:
        UsageError: a model without a linear classifier that its family names.
    """
    matches_nothing = "$."
    pattern = model.family.named_parts.get("head", matches_nothing)
    members = []
    for network in model.networks:
        heads = []
        for name, module in network.named_modules():
            if isinstance(module, nn.Linear) and re.match(pattern, f"{name}.weight"):
                heads.append(module)
        if not heads:
            raise UsageError(
                f"{model.description.arch} has no linear classifier that its family names",
                hint=hint,
            )
        members.append(heads)
    return members


def last_layers(model: Network) -> list[list[LastLayer]]:
    """Return the classifier of each member, or the projections of both towers.

    Raises:
        UsageError: a model, or a tower, that does not end in one linear layer.
    """
    if len(model.chains) == 1:
        heads = heads_of(model)
        if len(heads[0]) > 1:
            raise UsageError(
                f"{model.description.arch} averages {len(heads[0])} classifiers, and a Laplace posterior is of one"
            )
        tower = model.chains[0].tower
        return [[_layer(tower, head, head.weight, head.bias)] for (head,) in heads]
    projections_of_members = []
    for network in model.networks:
        towers = model.family.stages(network)
        projections_of_members.append([_projection(model, network, stages) for stages in towers])
    return projections_of_members


def _projection(model: Network, network: nn.Module, stages: Stages) -> LastLayer:
    """Return the projection that a tower ends in."""
    if stages.projection is None:
        raise UsageError(
            f"the {stages.tower} tower of {model.description.arch} does not end in one linear layer",
            hint="a Laplace posterior of two towers needs both projections, as CLIP has them",
        )
    weight, bias = stages.projection.parameters()
    return _layer(stages.tower, network, weight, bias)


def attach(model: Network, tensors: TensorSource) -> None:
    """Give a model the posteriors that lie beside its weights.

    Raises:
        InputError: they are not whole, or of other layers.
    """
    for member, layers in enumerate(last_layers(model)):
        for layer in layers:
            basis, spread, outer = [_read(tensors, member, layer, part) for part in _PARTS]
            layer.owner.add_module(layer.name, Posterior(basis, spread, outer))
            if len(layers) == 1:
                layer.owner.register_forward_hook(_scale)
    for chain in model.chains:
        chain.cut()


def _read(tensors: TensorSource, member: int, layer: LastLayer, part: str) -> Tensor:
    """Read a part of the posterior of one layer ``[k, d]``."""
    k, d = layer.weight.shape
    shapes = {"basis": (d, d), "spread": (d, k), "outer": (k, k)}
    broken = InputError(_BROKEN, hint=_AGAIN)
    try:
        tensor = tensors.read(tensor_name(member, layer.tower, part))
    except KeyError:
        raise broken from None
    if tensor.shape != shapes[part] or not tensor.is_floating_point():
        raise broken
    is_variances = part == "spread"
    if is_variances and not tensor.is_meta and bool((tensor < 0).any()):
        raise broken
    return tensor.to(layer.weight.device, layer.weight.dtype)


def tensor_name(member: int, tower: str, part: str) -> str:
    """Return where a part of a posterior stands in a checkpoint."""
    return f"{START}{member}.{tower}.{part}"


def stored_tensors(posteriors: Sequence[Mapping[str, Posterior]]) -> dict[str, Tensor]:
    """Return the posteriors of each member, by tower, as a checkpoint holds them: float32."""
    tensors = {}
    for member, by_tower in enumerate(posteriors):
        for tower, posterior in by_tower.items():
            for part in _PARTS:
                values: Tensor = getattr(posterior, part)
                tensors[tensor_name(member, tower, part)] = values.float().contiguous()
    return tensors


# --- running ----------------------------------------------------------------------------------------------------------


def _scale(head: Any, inputs: tuple[Tensor, ...], logits: Tensor) -> Tensor:
    """Scale the logits of a classifier, as a hook of it."""
    (posterior,) = _posteriors_in(head)
    return posterior.scaled(logits, with_one(inputs[0], head.bias))


def _posteriors_in(owner: nn.Module) -> list[Any]:
    """Return the posteriors that a module holds, in the order of the towers."""
    return [module for name, module in owner.named_children() if name.startswith(KEY)]


def has_posterior(model: Network) -> bool:
    """Return whether the forward pass of a model has one."""
    return KEY in model.description.extra


def with_posterior(stages: Stages, network: nn.Module) -> Stages:
    """Return a tower that reads out :func:`gaussian_features` where the network holds a posterior of its projection."""
    posterior = getattr(network, _name(stages.tower), None)
    projection = stages.projection
    if posterior is None or projection is None:
        return stages

    def readout(state: Any) -> Tensor:
        weight, bias = projection.parameters()
        layer = _layer(stages.tower, network, weight, bias)
        return gaussian_features(posterior, projection.inputs(state), layer)

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
    x = with_one(x, layer.bias)  # [B, prompts, d]
    features = x @ layer.weight.T  # [B, prompts, D]
    lengths = features.norm(dim=-1, keepdim=True)
    x = (x / lengths).mean(dim=1)  # [B, prompts, d] -> [B, d]
    mean = x @ layer.weight.T  # [B, D]
    length = mean.norm(dim=-1, keepdim=True)
    variance = posterior(x)  # [B, D]
    return torch.cat([mean / length, variance / length.square()], dim=-1)


def feature_means(model: Network, features: Tensor) -> Tensor:
    """Return the normalised features ``[..., D]`` of what a tower reads out, without their variances."""
    if len(model.chains) > 1 and has_posterior(model):
        return features.chunk(2, dim=-1)[0]
    return features


def compared(family: ModelFamily, network: nn.Module, outputs: Sequence[Tensor]) -> Tensor:
    """Return logits ``[B, classes]`` of one member as :meth:`ModelFamily.logits`, or by the posteriors it holds."""
    posteriors = _posteriors_in(network)
    if posteriors:
        return gaussian_logits(family, network, outputs, posteriors)
    return family.logits(network, outputs)


def gaussian_logits(
    family: ModelFamily, network: nn.Module, outputs: Sequence[Tensor], posteriors: Sequence[Any]
) -> Tensor:
    """Return logits ``[B, classes]`` from :func:`gaussian_features` of both towers.

    These are ``[B, 2 D]`` of images and ``[classes, 2 D]`` of classes.

    Args:
        family, network: give the factor and the bias of the logits.
        outputs: images, then classes.
        posteriors: of both projections.
    """
    images, classes = outputs
    image_mean, image_spread = images.chunk(2, dim=-1)  # [B, D] each
    class_mean, class_spread = classes.chunk(2, dim=-1)  # [classes, D] each
    image_axes = posteriors[0].outer  # [D, D], whose columns are the directions of the spreads
    class_axes = posteriors[1].outer
    # The expected squared lengths E|g|^2 and E|h|^2 of features whose means have length 1.
    image_square = 1 + image_spread.sum(dim=-1, keepdim=True)
    class_square = 1 + class_spread.sum(dim=-1, keepdim=True)
    variance = (
        image_spread @ (image_axes.T @ class_axes).square() @ class_spread.T  # tr Sg Sh
        + (image_mean @ class_axes).square() @ class_spread.T  # mg' Sh mg
        + image_spread @ (class_mean @ image_axes).square().T  # mh' Sg mh
    )
    scale, bias = scale_and_bias(family, network, image_mean)
    image_features = image_mean / image_square.sqrt()
    class_features = class_mean / class_square.sqrt()
    logits = family.logits(network, [image_features, class_features])
    variance_of_logits = scale.square() * variance / (image_square * class_square.T)
    return bias + probit(logits - bias, variance_of_logits)


def scale_and_bias(family: ModelFamily, network: nn.Module, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factor of the cosines in a member's logits, and what is added: two scalars.

    They have the dtype and the device of the features ``like``, ``[B, D]``.
    """
    zeros_behind = like.shape[-1] - 1
    unit = F.pad(like.new_ones(1, 1), (0, zeros_behind))  # [1, D]
    logit_of_cosine_1 = family.logits(network, [unit, unit])[0, 0]
    logit_of_cosine_0 = family.logits(network, [unit, torch.zeros_like(unit)])[0, 0]
    return logit_of_cosine_1 - logit_of_cosine_0, logit_of_cosine_0
