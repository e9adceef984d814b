"""Several classifiers on one body: each is drawn with its own seed, and all other weights are shared.

The loss is the mean of their losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import UsageError
from hydractl.methods.classifiers import ClassifiersOptions
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source
from hydractl.training.members import MemberMaker, Together


class OneBody(Together):
    """A model whose last layer returns the logits of all members, one member after another.

    Args:
        model: a model with one classifier, which is changed in place.
        drawn: for each member the weights of a whole model as its library draws them; only the classifier is used.
    """

    def __init__(self, model: HydraModel, drawn: Sequence[dict[str, Tensor]]) -> None:
        """Replace the last layer of the model, in place, by the classifiers of all M members, one after another.

        Args:
            model: a model with one classifier.
            drawn: for each member the weights of a whole model, as its library initialises them; only the classifier is
                used.
        """
        super().__init__([model], len(drawn))
        self._heads = last_layer_names(model, drawn[0])

        # Stack the classifiers of all members along the classes: M times [classes, ...] -> [M * classes, ...]
        for name in self._heads:
            of_members = [tensors[name] for tensors in drawn]
            of_all_members = torch.cat(of_members)
            replace_parameter(model, name, of_all_members)

    def member_logits(self, inputs: Any) -> Tensor:
        """Return the logits of all members, ``[M, B, classes]``."""
        body = self.each[0]
        logits = body.member_logits(inputs)[0]  # [B, M * classes]
        by_member = logits.unflatten(-1, (self.members, -1))  # [B, M, classes]
        return by_member.transpose(0, 1)  # [M, B, classes]

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Return the mean loss over members and batch."""
        sum_over_members = super().loss(logits, labels, smoothing)
        return sum_over_members / self.members

    def stock_tensors(self, member: int) -> dict[str, Tensor]:
        """Return the weights of an ordinary model: the body with the classifier of one member."""
        tensors = dict(super().stock_tensors(0))
        for name in self._heads:
            of_members = tensors[name].chunk(self.members)  # [M * classes, ...] -> M times [classes, ...]
            tensors[name] = of_members[member].clone()
        return tensors


def last_layer_names(model: HydraModel, names: Iterable[str]) -> list[str]:
    """Return the names that belong to the last layer of the classifier.

    Raises:
        UsageError: the model has no classifier.
    """
    heads = [name for name in names if model.family.has_role(name, "head")]
    if not heads:
        raise UsageError(f"{model.description.arch} has no classifier that could be there several times")
    return heads


def replace_parameter(model: HydraModel, name: str, tensor: Tensor) -> Any:
    """Replace a parameter of a model, in place, and return the module that holds it.

    The new parameter has the dtype and the device of the old one.

    Args:
        model: a model with one member.
        name: the name of the parameter.
        tensor: the new value, which may have another shape.
    """
    path, _, attribute = name.rpartition(".")
    module: Any = model.networks[0].get_submodule(path)
    old_parameter = getattr(module, attribute)
    parameter = nn.Parameter(tensor.to(old_parameter))
    setattr(module, attribute, parameter)
    return module


@dataclass(frozen=True)
class Classifiers(MemberMaker):
    """Makes a body with several classifiers, which are drawn with the seed and the seeds after it."""

    options: ClassifiersOptions

    def model(self, models: Sequence[HydraModel], source: Source, seed: int) -> Together:
        """Return the body with all classifiers, made of the one model."""
        drawn = draw_members(source, self.options.members, seed)
        return OneBody(models[0], drawn)


def draw_members(source: Source, members: int, seed: int) -> list[dict[str, Tensor]]:
    """Draw the weights of a whole model for each member, as its library does, with the seed and the seeds after it."""
    config = source.description.config
    drawn = []
    for member in range(members):
        drawn.append(source.family.initial(config, seed + member))
    return drawn
