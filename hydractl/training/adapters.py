"""Adapters: a few numbers that are trained instead of whole weights.

An adapter uses torch's parametrisations: whoever reads a weight gets the adapted weight, so the output is an ordinary
checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch.nn.utils import parametrize

from hydractl.model.projections import HeadBank
from hydractl.model.runtime import HydraModel

_INSIDE = ".parametrizations."


class Adapter(Protocol):
    """An adapter of a model with one member: adds a few numbers to weights, which are trained instead of them."""

    def add(self, model: HydraModel, seed: int) -> None:
        """Parametrise the weights, in place.

        Args:
            model: a model with one member; sites without heads are skipped.
            seed: the seed of random draws.
        """
        ...

    def trains(self, model: HydraModel) -> set[str]:
        """Return the names of the network's parameters that are trained, in addition to the classifier."""
        ...


def banks_with_heads(model: HydraModel) -> Iterator[HeadBank]:
    """Yield the weights of the heads at each site (attention block) that has heads, for a model with one member."""
    for attention in model.attentions:
        bank = attention.only.bank
        if bank.heads:
            yield bank


def added_names(model: HydraModel) -> set[str]:
    """Return the names of the network's parameters that parametrisations have added."""
    names = set()
    for name, _ in model.networks[0].named_parameters():
        if _INSIDE in name and not name.endswith(".original"):
            names.add(name)
    return names


def remove_idle(model: HydraModel) -> None:
    """Remove each parametrisation in which nothing is trained, in place, and restore the original weight.

    A parametrisation computes a weight from others, e.g. W + B A of a low-rank adapter (LoRA) with trained A and B.
    """
    for module in list(model.modules()):
        if not parametrize.is_parametrized(module):
            continue
        for name, parametrizations in list(module.parametrizations.items()):  # type: ignore[operator,union-attr]
            first = parametrizations[0]
            is_trained = any(parameter.requires_grad for parameter in first.parameters())
            if not is_trained:
                parametrize.remove_parametrizations(module, name, leave_parametrized=False)
