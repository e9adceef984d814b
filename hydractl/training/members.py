"""Members that one training makes together: the model that the loop trains, and what makes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hydractl.model.runtime import HydraModel, log_mean_softmax
from hydractl.model.source import Source


class Together(nn.Module):
    """Members that are trained together, which the training loop uses like one model.

    Attributes:
        models: models of one member each; fewer models than members if the members share nearly all weights.
        members: how many members there are.
        family, description, preprocess: those of the first model, the same for all.
    """

    def __init__(self, models: Sequence[HydraModel], members: int) -> None:
        """Take family, description and preprocessing from the first model."""
        super().__init__()
        self.models = nn.ModuleList(models)
        self.members = members
        first = models[0]
        self.family = first.family
        self.description = first.description
        self.preprocess = first.preprocess

    @property
    def each(self) -> list[HydraModel]:
        """The models as a list."""
        return list(self.models)  # type: ignore[arg-type]

    def member_logits(self, inputs: Any) -> Tensor:
        """Return the logits of all members, ``[M, B, classes]``."""
        logits = [model.member_logits(inputs) for model in self.each]
        return torch.cat(logits)

    def forward(self, inputs: Any) -> Tensor:
        """Return log p of the ensemble, ``[B, classes]``, as :class:`hydractl.model.runtime.HydraModel` does."""
        return log_mean_softmax(self.member_logits(inputs))

    def answers(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``[M, B, classes]`` of a training batch, and the labels ``[M, B]`` to compare them with."""
        logits = self.member_logits(inputs)
        labels_of_members = labels.expand(self.members, -1)  # [B] -> [M, B]: all members have the same labels
        return logits, labels_of_members

    def loss(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Return the mean loss over the batch, summed over members."""
        rows = logits.flatten(0, 1)  # [M, B, classes] -> [M * B, classes]
        mean = F.cross_entropy(rows, labels.flatten(), label_smoothing=smoothing)
        return self.members * mean  # the mean is over members and batch

    def stock_tensors(self, member: int) -> dict[str, Tensor]:
        """Return the weights of one member as the weights of an ordinary model."""
        model = self.each[member]
        return model.stock_tensors()


AnyModel = HydraModel | Together
"""The models that the loop trains."""


class MemberMaker:
    """Makes the members of one training. A subclass overrides what its method does otherwise."""

    def sources(self, source: Source, seed: int) -> tuple[Source, ...]:
        """Return the start of each model of :class:`Together`, from the start of an ordinary training.

        Raises:
            UsageError: the method does not fit the model.
        """
        return (source,)

    def model(self, models: Sequence[HydraModel], source: Source, seed: int) -> Together:
        """Return the model that is trained, made of the models of these sources, which may be changed in place."""
        return Together(models, len(models))
