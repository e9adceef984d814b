"""Members that one training makes together: what the loop sees of them, and what makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.model.runtime import HydraModel, log_mean_softmax
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
        self.models = nn.ModuleList(models)
        self.members = members
        first = models[0]
        self.family = first.family
        self.description = first.description
        self.preprocess = first.preprocess

    @property
    def each(self) -> list[HydraModel]:
        """The models."""
        return list(self.models)  # type: ignore[arg-type]

    def member_logits(self, inputs: Any) -> Tensor:
        """Return logits ``[M, B, classes]``."""
        logits = [model.member_logits(inputs) for model in self.each]
        return torch.cat(logits)

    def forward(self, inputs: Any) -> Tensor:
        """Return log p ``[B, classes]``, as :class:`hydractl.model.runtime.HydraModel`."""
        return log_mean_softmax(self.member_logits(inputs))

    def answers(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``[M, B, classes]`` of a training batch, and labels ``[M, B]`` that they are compared with."""
        logits = self.member_logits(inputs)
        labels_of_members = labels.expand(self.members, -1)
        return logits, labels_of_members

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Return the sum over members of the mean over the batch."""
        rows = logits.flatten(0, 1)  # [M, B, classes] -> [M * B, classes]
        mean = F.cross_entropy(rows, labels.flatten(), label_smoothing=smoothing)
        return self.members * mean

    def stock_tensors(self, member: int) -> dict[str, Tensor]:
        """Return the weights of one member as those of an ordinary model."""
        model = self.each[member]
        return model.stock_tensors()


AnyModel = HydraModel | Together
"""The models that the loop trains."""


class MemberMaker(Protocol):
    """What makes members of one training.

    Attributes:
        members: how many.
        passes: the mult-adds of a training sample by those of one member.
    """

    @property
    def members(self) -> int: ...

    @property
    def passes(self) -> int: ...

    def sources(self, source: Source, seed: int) -> tuple[Source, ...]:
        """Return the start of each model of :class:`Together`, given that of an ordinary training.

        Raises:
            UsageError: for a model that it does not fit.
        """
        ...

    def model(self, models: Sequence[HydraModel], source: Source, seed: int) -> Together:
        """Make the model that is trained from the models of these sources, which may be changed in place."""
        ...
