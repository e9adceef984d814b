"""What the training loop asks of a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from hydractl.distributed import Processes
from hydractl.model.runtime import HydraModel
from hydractl.settings import FinetuneSettings


class Loss(ABC):
    """A loss of one model.

    Args:
        model: with one member, its trained parameters marked.
        settings: of the verb.
        team: the processes among which each batch is divided.
    """

    def __init__(self, model: HydraModel, settings: FinetuneSettings, team: Processes) -> None:
        self.model, self.settings, self.team = model, settings, team
        self.device = next(model.parameters()).device

    @abstractmethod
    def backward(self, batches: Sequence[tuple[Any, Any]], count: int) -> float:
        """Add the gradients of one step to those of the parameters.

        Args:
            batches: what this process has of the batches of the step.
            count: the samples of the step, those of all processes together.

        Returns:
            The loss before the step, as far as this process has a share in it: the sum over processes is the whole.
            The same holds for the gradients.
        """

    def after_step(self) -> None:  # noqa: B027 - most losses have nothing to do
        """Called when the parameters have changed."""

    def autocast(self) -> Any:
        """The context that activations are computed in."""
        if self.settings.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.settings.autocast))
