"""Members that one training makes together: what the loop sees of them, and what a method provides.

The module named as the option has a function ``method(value)``, which makes a :class:`Method` of what the option says.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.model.runtime import HydraModel, pooled_log_probs
from hydractl.model.source import Source


class Together(nn.Module):
    """Members in training, each a model of its own: what the loop takes for a model.

    Attributes:
        models: of one member each; fewer than members where these have nearly all of a model in common.
        members: how many members.
        family, description, preprocess: of them all.
    """

    def __init__(self, models: Sequence[HydraModel], members: int) -> None:
        super().__init__()
        self.models, self.members = nn.ModuleList(models), members
        first = models[0]
        self.family, self.description, self.preprocess = first.family, first.description, first.preprocess

    @property
    def each(self) -> list[HydraModel]:
        """The models."""
        return list(self.models)  # type: ignore[arg-type]

    def member_logits(self, inputs: Any) -> Tensor:
        """Return logits ``[M, B, classes]``."""
        return torch.cat([model.member_logits(inputs) for model in self.each])

    def forward(self, inputs: Any) -> Tensor:
        """Return log p ``[B, classes]``, as :class:`hydractl.model.runtime.HydraModel`."""
        return pooled_log_probs(self.member_logits(inputs))

    def answers(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``[M, B, classes]`` of a training batch, and labels ``[M, B]`` that they are compared with."""
        return self.member_logits(inputs), labels.expand(self.members, -1)

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Return the sum over members of the mean over the batch."""
        rows = logits.flatten(0, 1)  # [M, B, classes] -> [M * B, classes]
        return self.members * F.cross_entropy(rows, labels.flatten(), label_smoothing=smoothing)

    def stock_tensors(self, member: int) -> dict[str, Tensor]:
        """Return the weights of one member as those of an ordinary model."""
        return self.each[member].stock_tensors()


AnyModel = HydraModel | Together
"""The models that the loop trains."""


class Method(Protocol):
    """A way of making members by one training.

    Attributes:
        members: how many.
        passes: the mult-adds of a training sample by those of one member.
    """

    members: int
    passes: int

    def sources(self, source: Source, seed: int) -> tuple[Source, ...]:
        """Return the start of each model of :class:`Together`, given that of an ordinary training.

        Raises:
            UsageError: for a model that the method does not fit.
        """
        ...

    def model(self, models: Sequence[HydraModel], source: Source, seed: int) -> Together:
        """Make the model that is trained from the models of these sources, which may be changed in place."""
        ...


def make_method(option: str, value: Any) -> Method:
    """Return the method of an option, such as ``mimo``, that has this value."""
    method: Method = import_module(f"hydractl.training.together.{option}").method(value)
    return method
