"""A data set in memory, as batches of a model's inputs: the analyses go over the same samples many times."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hydractl.data import Dataset, batches
from hydractl.model.runtime import HydraModel, move

UNKNOWN = -1
"""The label of a sample that has none."""


def in_memory(model: HydraModel, dataset: Dataset, batch_size: int) -> list[tuple[Any, Tensor]]:
    """All samples of a data set.

    Args:
        model: prepares them; the batches are on its device and in its number format.
        dataset: labelled or not.
        batch_size: samples of a batch.

    Returns:
        (inputs, labels int64 ``[B]``); the labels of an unlabelled set are :data:`UNKNOWN`. Texts come by length, so
        the order is that of the batches, not of the data set.
    """
    parameter = next(model.parameters())
    found = []
    for batch in batches(dataset, model.preprocess, batch_size):
        labels = torch.full((len(batch.indices),), UNKNOWN) if batch.labels is None else batch.labels
        found.append((move(batch.inputs, parameter.device, parameter.dtype), labels.to(parameter.device)))
    return found
