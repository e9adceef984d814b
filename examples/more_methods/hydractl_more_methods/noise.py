"""Noise on the weights of norms: y = x' (g s (1 + e)) + b, where x' is normalised, g pretrained, and s and b trained.

In training, e is drawn anew in every pass, from the same generator as dropout. Each member keeps one draw for use after
the training, so that the output is an ordinary checkpoint.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hydractl.model.runtime import HydraModel
from hydractl.training.adapters import added_names


class Noise(nn.Module):
    """Multiplies a vector by trained factors, and by noise around 1.

    Attributes:
        scale: the factors that are trained, ``[d]``.
        std: the standard deviation of the noise.
        kept: the noise that the member keeps after training, ``[d]``, standard normal.
    """

    kept: Tensor

    def __init__(self, weight: Tensor, std: float, generator: torch.Generator) -> None:
        """Begin with factors of 1, and draw the noise that the member keeps."""
        super().__init__()
        self.scale = nn.Parameter(torch.ones_like(weight))
        self.std = std
        drawn = torch.randn(weight.shape, generator=generator)
        self.register_buffer("kept", drawn.to(weight), persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight ``[d]`` with factors and noise: new noise in training, else the noise of the member."""
        noise = self.kept
        if self.training:
            noise = torch.randn_like(weight)
        return weight * self.scale * (1 + self.std * noise)


class NoisyNorms:
    """Puts noise on all norms.

    Args:
        std: the standard deviation of the noise.
    """

    def __init__(self, std: float) -> None:
        self.std = std

    def add(self, model: HydraModel, seed: int) -> None:
        """Put noise on the norms; see :class:`hydractl.training.adapters.Adapter`. The seed draws the kept noise."""
        generator = torch.Generator().manual_seed(seed)
        for norm in _norms(model).values():
            weight: Tensor = norm.weight.detach()
            parametrize.register_parametrization(norm, "weight", Noise(weight, self.std, generator))

    def trains(self, model: HydraModel) -> set[str]:
        """Return the names of the trained factors and of the biases of the norms."""
        names = added_names(model)
        for path, norm in _norms(model).items():
            if getattr(norm, "bias", None) is not None:
                names.add(f"{path}.bias")
        return names


def class_weights(classes: int, weight: float, seed: int) -> Tensor:
    """Return the weights ``[C]`` of classes: 1, and another one of as many as the root of C, which the seed draws.

    Source: the code of Franchi et al.; the others are equal so that members specialise in some classes.
    """
    weights = torch.ones(classes)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(classes, generator=generator)[: math.isqrt(classes)]
    weights[drawn] = weight
    return weights


def _norms(model: HydraModel) -> dict[str, Any]:
    """Return the norms of a network that have a weight vector, by path."""
    norms: dict[str, Any] = {}
    for path, module in model.networks[0].named_modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or weight.ndim != 1:
            continue
        if model.family.part(f"{path}.weight") == "norm":
            norms[path] = module
    return norms
