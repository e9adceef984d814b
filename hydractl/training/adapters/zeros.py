"""Zeros that stay zeros in training: of the matrices of the heads and of the MLPs, those that a checkpoint has."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils import parametrize

from hydractl.model.runtime import HydraModel


class Kept(nn.Module):
    """Whoever asks for a weight gets zeros where it was zero at first."""

    there: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("there", weight != 0, persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.there


def keep_zeros(model: HydraModel) -> None:
    """Parametrise the matrices of attention and MLPs of a model with one member, in place."""
    for attention in model.attentions:
        bank = attention.only.bank
        for name, weight in list(bank.named_parameters(recurse=False)):
            if weight.dim() == 2:
                parametrize.register_parametrization(bank, name, Kept(weight.detach()))
    modules = dict(model.networks[0].named_modules())
    for name, weight in list(model.networks[0].named_parameters()):
        path, _, leaf = name.rpartition(".")
        if weight.dim() == 2 and leaf == "weight" and model.family.part(name, model.sites) == "mlp":
            parametrize.register_parametrization(modules[path], leaf, Kept(weight.detach()))
