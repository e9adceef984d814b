"""From data sets to the batches of a training: labelled samples, augmented images, pairs of images and captions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hydractl.data import batches, open_data
from hydractl.data.base import PAIRS, Dataset
from hydractl.data.batching import longest_first
from hydractl.data.captions import CaptionedImages
from hydractl.data.text import report_cut
from hydractl.distributed import Processes
from hydractl.errors import InputError, UsageError
from hydractl.log import Log
from hydractl.model.matching import known
from hydractl.model.runtime import HydraModel, move
from hydractl.model.source import Source
from hydractl.training.augment import Augmentation, Numbered
from hydractl.training.options import DataOptions, TrainOptions

CACHE_BYTES = 1 << 30
"""Preprocessed inputs up to this size stay in memory instead of being made anew each epoch."""

COUNTED = 100_000
"""Captions that are looked at before a training for whether they are too long."""
_CAPTION_ALONE = ("{label}",)

Batches = Callable[[Sequence[int], int], Iterator[tuple[Any, Any]]]
"""Given indices and the epoch (from 0), batches of (inputs, labels), or of (images, captions), on the model's device,
the batch size divided by the number of processes in each, the last one of an epoch smaller."""


@dataclass
class TrainingData:
    """Training set of a loop and optionally a validation set, of which each process has its part."""

    size: int
    batches: Batches
    validation: Callable[[], Iterator[tuple[Any, Tensor]]] | None = None


def training_data(
    model: HydraModel, train_set: Dataset, val_set: Dataset | None, options: TrainOptions, team: Processes
) -> TrainingData:
    """The part of the data that this process reads.

    Raises:
        UsageError: for a batch that cannot be divided among the processes, and augmentation of texts.
    """
    batch_size, workers = options.data.batch_size, options.data.workers
    size, rest = divmod(batch_size, team.size)
    if rest:
        raise UsageError(f"--batch-size {batch_size} cannot be divided among {team.size} processes")
    changes = None
    if options.data.augment:
        preprocess = model.description.preprocess
        changes = Augmentation(options.data.augment, model.family, preprocess, options.seed)
    read: Batches = (PairReader if train_set.kind == PAIRS else reader)(model, train_set, size, workers, changes)
    validation = None
    if val_set is not None:
        read_val = reader(model, val_set, batch_size, workers)
        order = range(len(val_set)) if team.size > 1 else longest_first(val_set)
        mine = list(order)[team.rank :: team.size]

        def validation() -> Iterator[tuple[Any, Tensor]]:
            return read_val(mine, 0)

    return TrainingData(len(train_set), read, validation)


# --- labelled samples -------------------------------------------------------------------------------------------------


def reader(
    model: HydraModel, dataset: Dataset, size: int, workers: int, changes: Augmentation | None = None
) -> Batches:
    """Batches as the model reads them in evaluation, from memory where they fit; or images changed in each epoch."""
    parameter, numbered = next(model.parameters()), Numbered(dataset)
    memory = _labelled_in_memory(model, dataset, workers) if changes is None else None

    def from_dataset(indices: Sequence[int], epoch: int) -> Iterator[tuple[Any, Tensor]]:
        source, collate = (dataset, model.preprocess) if changes is None else (numbered, changes.collate(epoch))
        for batch in batches(source, collate, size, workers=workers, indices=indices):
            yield batch.inputs, known(batch.labels)

    def from_memory(indices: Sequence[int]) -> Iterator[tuple[Any, Tensor]]:
        assert memory is not None
        for start in range(0, len(indices), size):
            chunk = list(indices[start : start + size])
            yield memory[0][chunk], memory[1][chunk]

    def read(indices: Sequence[int], epoch: int) -> Iterator[tuple[Any, Tensor]]:
        for inputs, labels in from_dataset(indices, epoch) if memory is None else from_memory(indices):
            yield move(inputs, parameter.device, parameter.dtype), labels.to(parameter.device)

    return read


def _labelled_in_memory(model: HydraModel, dataset: Dataset, workers: int) -> tuple[Tensor, Tensor] | None:
    """All inputs and labels as two tensors, when they are tensors of one size and fit."""
    first = model.preprocess([dataset[0]])
    if not isinstance(first, Tensor) or first.nbytes * len(dataset) > CACHE_BYTES:
        return None
    order = range(len(dataset))  # rows are looked up by index
    parts = list(batches(dataset, model.preprocess, 256, workers=workers, indices=order))
    return torch.cat([b.inputs for b in parts]), torch.cat([known(b.labels) for b in parts])


# --- pairs of images and captions -------------------------------------------------------------------------------------


def open_pairs(source: Source, options: DataOptions, per_step: int) -> Dataset:
    """The pairs to train on.

    Raises:
        UsageError: for a model that does not compare images with texts.
        InputError: for data that are not pairs, or fewer pairs than one step takes.
    """
    if source.family.classes(source.description.config) is not None:
        raise UsageError(
            f"--loss contrastive: {source.name} has a classifier and does not compare images with texts",
            hint="train a CLIP, or leave --loss out",
        )
    dataset = open_data(options.train, limit=options.limit, reads={source.name: PAIRS})
    if len(dataset) < per_step:
        raise InputError(
            f"{options.train} has {len(dataset)} pairs, and a step compares {per_step}",
            hint="lower --batch-size or --accumulate",
        )
    return dataset


class PairReader:
    """Batches of images ``[B, C, H, W]`` and captions ``{"text": [B, 1, tokens]}``, for indices and an epoch.

    Args:
        model: reads them.
        dataset: of pairs.
        size: pairs of a batch.
        workers: processes that prepare images.
        changes: augmentation; without it images are prepared once and kept, where they take less than
            :data:`CACHE_BYTES`.
    """

    def __init__(
        self, model: HydraModel, dataset: Dataset, size: int, workers: int, changes: Augmentation | None
    ) -> None:
        assert isinstance(dataset, CaptionedImages)
        self._model, self._dataset, self._workers, self._size = model, dataset, workers, size
        self._changes = changes
        self._images = self._in_memory() if changes is None else None

    def __call__(self, indices: Sequence[int], epoch: int) -> Iterator[tuple[Any, Any]]:
        parameter = next(self._model.parameters())
        pairs = self._prepared(indices, epoch) if self._images is None else self._cached(self._images, indices)
        for images, captions in pairs:
            yield move(images, parameter.device, parameter.dtype), move(captions, parameter.device, parameter.dtype)

    def _cached(self, kept: Tensor, indices: Sequence[int]) -> Iterator[tuple[Any, Any]]:
        for start in range(0, len(indices), self._size):
            part = list(indices[start : start + self._size])
            yield kept[part], self._captions([self._dataset.captions[i] for i in part])

    def _prepared(self, indices: Sequence[int], epoch: int) -> Iterator[tuple[Any, Any]]:
        """In the worker processes."""
        prepare = _without_numbers(self._model.preprocess)
        if self._changes is not None:
            prepare = self._changes.collate(epoch)

        def collate(samples: list[tuple[int, tuple[Any, str]]]) -> tuple[Any, Any]:
            images = prepare([(number, image) for number, (image, _) in samples])
            return images, self._captions([caption for _, (_, caption) in samples])

        numbered = Numbered(self._dataset)
        for batch in batches(numbered, collate, self._size, workers=self._workers, indices=indices):
            yield batch.inputs

    def _captions(self, texts: Sequence[str]) -> Any:
        # A caption is a prompt of which nothing is left out.
        return self._model.family.prompts(self._model.description.config, texts, _CAPTION_ALONE)

    def _in_memory(self) -> Tensor | None:
        """All images as one tensor, where they fit."""
        images, preprocess = self._dataset.images, self._model.preprocess
        if preprocess([images[0]]).nbytes * len(images) > CACHE_BYTES:
            return None
        parts = batches(images, preprocess, 256, workers=self._workers, indices=range(len(images)))
        return torch.cat([batch.inputs for batch in parts])


def _without_numbers(collate: Callable[[list[Any]], Any]) -> Callable[[list[tuple[int, Any]]], Any]:
    return lambda samples: collate([sample for _, sample in samples])


def report_all_cut(model: HydraModel, datasets: Iterable[Dataset | None], log: Log) -> None:
    """Warn of the texts and captions of some data sets that the model cuts."""
    for dataset in datasets:
        if dataset is not None and dataset.kind == PAIRS:
            report_cut_captions(model, dataset, log)
        elif dataset is not None:
            report_cut(dataset, model.preprocess, log)


def report_cut_captions(model: HydraModel, dataset: Dataset, log: Log) -> int:
    """Warn of captions that the model cuts; of a large set the first :data:`COUNTED` are looked at.

    Returns:
        How many there are among them.
    """
    assert isinstance(dataset, CaptionedImages)
    texts = dataset.captions[:COUNTED]
    cut, most = model.family.too_long(model.description.config, texts)
    if cut:
        of = f"{len(texts)}" if len(texts) == len(dataset) else f"the first {len(texts):,}"
        verb = "is" if cut == 1 else "are"
        log.warn(
            f"{dataset.where}: {cut} of {of} captions {verb} longer than {most} tokens, and what is behind them is "
            "not read"
        )
    return cut
