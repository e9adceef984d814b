"""From data sets to the batches that a training loop reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hydractl.data import batches
from hydractl.data.base import PAIRS, Dataset
from hydractl.data.batching import longest_first
from hydractl.distributed import Processes
from hydractl.errors import UsageError
from hydractl.model.matching import known
from hydractl.model.runtime import HydraModel, move
from hydractl.settings import FinetuneSettings
from hydractl.training.augment import Augmentation, Numbered
from hydractl.training.course import Batches, TrainingData
from hydractl.training.pairs import PairReader

CACHE_BYTES = 1 << 30
"""Preprocessed inputs up to this size stay in memory instead of being made anew each epoch."""

Reader = Callable[[Sequence[int], int], Iterator[tuple[Any, Tensor]]]


def training_data(
    model: HydraModel, train_set: Dataset, val_set: Dataset | None, settings: FinetuneSettings, team: Processes
) -> TrainingData:
    """What the loop reads, in this process.

    Raises:
        UsageError: for a batch that cannot be divided among the processes, and augmentation of texts.
    """
    size, rest = divmod(settings.batch_size, team.size)
    if rest:
        raise UsageError(f"--batch-size {settings.batch_size} cannot be divided among {team.size} processes")
    read: Batches
    if train_set.kind == PAIRS:
        read = PairReader(model, train_set, settings, size, CACHE_BYTES)
    elif settings.augment:
        read = augmented(model, train_set, settings, size)
    else:
        read = reader(model, train_set, settings.workers, size)
    validation = None
    if val_set is not None:
        read_val = reader(model, val_set, settings.workers, settings.batch_size)
        order = range(len(val_set)) if team.size > 1 else longest_first(val_set)
        mine = list(order)[team.rank :: team.size]

        def validation() -> Iterator[tuple[Any, Tensor]]:
            return read_val(mine, 0)

    return TrainingData(len(train_set), read, validation)


def reader(model: HydraModel, dataset: Dataset, workers: int, size: int) -> Reader:
    """Batches as the model reads them in evaluation, from memory where they fit."""
    parameter = next(model.parameters())
    memory = _in_memory(model, dataset, workers)

    def read(indices: Sequence[int], epoch: int) -> Iterator[tuple[Any, Tensor]]:
        if memory is None:
            for batch in batches(dataset, model.preprocess, size, workers=workers, indices=indices):
                yield move(batch.inputs, parameter.device, parameter.dtype), known(batch.labels).to(parameter.device)
        elif indices:
            for chunk in torch.tensor(indices).split(size):
                yield move(memory[0][chunk], parameter.device, parameter.dtype), memory[1][chunk].to(parameter.device)

    return read


def augmented(model: HydraModel, dataset: Dataset, settings: FinetuneSettings, size: int) -> Reader:
    """Batches of images that are changed at random, other ones each epoch."""
    parameter, numbered = next(model.parameters()), Numbered(dataset)
    description = model.description
    changes = Augmentation(settings.augment, model.family, description.preprocess, settings.seed)

    def read(indices: Sequence[int], epoch: int) -> Iterator[tuple[Any, Tensor]]:
        for batch in batches(numbered, changes.collate(epoch), size, workers=settings.workers, indices=indices):
            yield move(batch.inputs, parameter.device, parameter.dtype), known(batch.labels).to(parameter.device)

    return read


def _in_memory(model: HydraModel, dataset: Dataset, workers: int) -> tuple[Tensor, Tensor] | None:
    """All inputs and labels as two tensors, when they are tensors of one size and fit."""
    one = model.preprocess([dataset[0]])
    if not isinstance(one, Tensor) or one.nbytes * len(dataset) > CACHE_BYTES:
        return None
    order = range(len(dataset))  # rows are looked up by index
    parts = list(batches(dataset, model.preprocess, 256, workers=workers, indices=order))
    return torch.cat([b.inputs for b in parts]), torch.cat([known(b.labels) for b in parts])
