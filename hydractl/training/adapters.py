"""Adapters: few numbers that are trained in the place of whole weights.

An adapter works by torch's parametrisations: whoever asks for a weight gets the adapted one, so what is written is an
ordinary checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import nn
from torch.nn.utils import parametrize

from hydractl.model.projections import HeadBank
from hydractl.model.runtime import HydraModel

_INSIDE = ".parametrizations."


class Adapter(Protocol):
    """Some few numbers that are trained for all weights of a model with one member."""

    def add(self, model: HydraModel, seed: int) -> None:
        """Parametrise the weights, in place.

        Args:
            model: with one member; sites without heads are passed over.
            seed: of what is drawn.
        """
        ...

    def trains(self, model: HydraModel) -> set[str]:
        """Return the names of the network's parameters that are trained; the classifier is too, beside them."""
        ...


def banks_with_heads(model: HydraModel) -> Iterator[HeadBank]:
    """Yield the weights of the heads at each site that has some, of a model with one member."""
    for attention in model.attentions:
        bank = attention.only.bank
        if bank.heads:
            yield bank


def added_names(model: HydraModel) -> set[str]:
    """Return the names of the network's parameters that parametrisations have brought."""
    names = set()
    for name, _ in model.networks[0].named_parameters():
        if _INSIDE in name and not name.endswith(".original"):
            names.add(name)
    return names


def remove_idle(model: HydraModel) -> None:
    """Give a weight back as it was where nothing that was added to it is trained."""
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            _remove_idle_from(module)


def _remove_idle_from(module: nn.Module) -> None:
    for name, parametrizations in list(module.parametrizations.items()):  # type: ignore[operator,union-attr]
        first = parametrizations[0]
        is_trained = any(parameter.requires_grad for parameter in first.parameters())
        if not is_trained:
            parametrize.remove_parametrizations(module, name, leave_parametrized=False)
