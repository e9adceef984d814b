"""The cross-entropy of the classes, with label smoothing: the mean over the samples of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hydractl.training.losses.base import Loss


class CrossEntropy(Loss):
    """Batches are inputs and labels ``[B]``. Several batches count as one, each sample with the same weight."""

    def backward(self, batches: Sequence[tuple[Any, Tensor]], count: int) -> float:
        value = 0.0
        for inputs, labels in batches:
            with self.autocast():
                logits = self.model.member_logits(inputs)[0]
            logits = logits if logits.dtype == torch.float64 else logits.float()
            loss = F.cross_entropy(logits, labels, label_smoothing=self.settings.label_smoothing)
            if len(labels) < count:
                loss = loss * (len(labels) / count)
            value += float(loss.detach())
            loss.backward()
        return value
