"""Adapters: what is trained in the place of the weights themselves, each chosen by an option of its own.

The module named as the option has a function ``adapter(value)``, which makes an :class:`Adapter` of what the option
says. That works by torch's parametrisations: whoever asks for a weight gets the adapted one, so what is written is an
ordinary checkpoint.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

from torch.nn.utils import parametrize

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


def make_adapter(option: str, value: Any) -> Adapter:
    """Return the adapter of an option, such as ``lora``, that has this value."""
    adapter: Adapter = import_module(f"hydractl.training.adapters.{option}").adapter(value)
    return adapter


def added_names(model: HydraModel) -> set[str]:
    """Return the names of the network's parameters that parametrisations have brought."""
    names = (name for name, _ in model.networks[0].named_parameters())
    return {name for name in names if _INSIDE in name and not name.endswith(".original")}


def remove_idle(model: HydraModel) -> None:
    """Give a weight back as it was where nothing that was added to it is trained."""
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            for name, (added, *_) in list(module.parametrizations.items()):  # type: ignore[operator,union-attr]
                if not any(p.requires_grad for p in added.parameters()):
                    parametrize.remove_parametrizations(module, name, leave_parametrized=False)
