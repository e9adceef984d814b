"""Several classifiers on one body: each is drawn by a seed of its own, all else is common.

The loss is the mean of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hydractl.errors import UsageError
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source
from hydractl.training.members import Together


class OneBody(Together):
    """One model whose last layer gives the logits of all members, one member behind the other.

    Args:
        model: with one classifier; changed in place.
        drawn: of each member, the weights of a whole model as its library draws them; the classifier is taken.
    """

    def __init__(self, model: HydraModel, drawn: Sequence[dict[str, Tensor]]) -> None:
        super().__init__([model], len(drawn))
        self._heads = last_layer_names(model, drawn[0])
        for name in self._heads:
            of_all_members = torch.cat([tensors[name] for tensors in drawn])  # M of [classes, ...]
            replace_parameter(model, name, of_all_members)

    def member_logits(self, inputs: Any) -> Tensor:
        """Return logits ``[M, B, classes]``."""
        logits = self.each[0].member_logits(inputs)[0]  # [B, M * classes]
        by_member = logits.unflatten(-1, (self.members, -1))  # [B, M, classes]
        return by_member.transpose(0, 1)

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Return the mean over members and batch."""
        return super().loss(logits, labels, smoothing) / self.members

    def stock_tensors(self, member: int) -> dict[str, Tensor]:
        """Return the body with the classifier of one member."""
        tensors = dict(super().stock_tensors(0))
        for name in self._heads:
            of_members = tensors[name].chunk(self.members)
            tensors[name] = of_members[member].clone()
        return tensors


def last_layer_names(model: HydraModel, names: Iterable[str]) -> list[str]:
    """Return the tensors of the last layer of the classifier.

    Raises:
        UsageError: for a model that has none.
    """
    pattern = model.family.named_parts.get("head", "$.")
    heads = [name for name in names if re.match(pattern, name)]
    if not heads:
        raise UsageError(f"{model.description.arch} has no classifier that could be there several times")
    return heads


def replace_parameter(model: HydraModel, name: str, tensor: Tensor) -> Any:
    """Put a parameter of another shape in the place of one of a model. Returns its module."""
    path, _, leaf = name.rpartition(".")
    module: Any = model.networks[0].get_submodule(path)
    before = getattr(module, leaf)
    setattr(module, leaf, nn.Parameter(tensor.to(before)))
    return module


@dataclass(frozen=True)
class Classifiers:
    """So many classifiers, drawn by the seed and those after it."""

    members: int
    passes = 1

    def sources(self, source: Source, seed: int) -> tuple[Source, ...]:
        """Return one body."""
        return (source,)

    def model(self, models: Sequence[HydraModel], source: Source, seed: int) -> Together:
        """Make the body with all classifiers, see :class:`hydractl.training.members.MemberMaker`."""
        drawn = draw_members(source, self.members, seed)
        return OneBody(models[0], drawn)


def draw_members(source: Source, members: int, seed: int) -> list[dict[str, Tensor]]:
    """Draw each member's weights as the library does, by a seed of its own."""
    config = source.description.config
    return [source.family.initial(config, seed + member) for member in range(members)]
