"""Pairs of images and captions: from the SPEC to the batches of a contrastive training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hydractl.data import batches, open_data
from hydractl.data.base import PAIRS, Dataset
from hydractl.data.captions import CaptionedImages
from hydractl.data.text import report_cut
from hydractl.errors import InputError, UsageError
from hydractl.log import Log
from hydractl.model.runtime import HydraModel, move
from hydractl.model.source import Source
from hydractl.settings import FinetuneSettings
from hydractl.training.augment import Augmentation, Numbered

COUNTED = 100_000
"""Captions that are looked at before a training for whether they are too long."""

_ALONE = ("{label}",)


def open_pairs(source: Source, settings: FinetuneSettings) -> Dataset:
    """The pairs of ``--data``.

    Raises:
        UsageError: for a model that does not compare images with texts.
        InputError: for data that are not pairs, or fewer pairs than one step takes.
    """
    assert settings.data is not None  # settings.check() holds it
    if source.family.classes(source.description.config) is not None:
        raise UsageError(
            f"--loss contrastive: {source.name} has a classifier and does not compare images with texts",
            hint="train a CLIP, or leave --loss out",
        )
    dataset = open_data(settings.data, limit=settings.limit, reads={source.name: PAIRS})
    per_step = settings.batch_size * settings.accumulate
    if len(dataset) < per_step:
        raise InputError(
            f"{settings.data} has {len(dataset)} pairs, and a step compares {per_step}",
            hint="lower --batch-size or --accumulate",
        )
    return dataset


class PairReader:
    """Batches of images ``[B, C, H, W]`` and captions ``{"text": [B, 1, tokens]}``, for indices and an epoch.

    Args:
        model: reads them.
        dataset: of pairs.
        settings: of the verb.
        size: pairs of a batch.
        memory: bytes that prepared images may take; where they take less, and are not augmented, they are prepared
            once and kept.
    """

    def __init__(self, model: HydraModel, dataset: Dataset, settings: FinetuneSettings, size: int, memory: int) -> None:
        assert isinstance(dataset, CaptionedImages)
        self._model, self._dataset, self._workers, self._size = model, dataset, settings.workers, size
        self._changes: Augmentation | None = None
        self._kept: Tensor | None = None
        if settings.augment:
            preprocess = model.description.preprocess
            self._changes = Augmentation(settings.augment, model.family, preprocess, settings.seed)
        else:
            self._kept = self._in_memory(memory)

    def __call__(self, indices: Sequence[int], epoch: int) -> Iterator[tuple[Any, Any]]:
        parameter = next(self._model.parameters())
        for pair in self._from_memory(indices) if self._kept is not None else self._prepared(indices, epoch):
            images, captions = (move(one, parameter.device, parameter.dtype) for one in pair)
            yield images, captions

    def _from_memory(self, indices: Sequence[int]) -> Iterator[tuple[Any, Any]]:
        assert self._kept is not None
        for start in range(0, len(indices), self._size):
            part = list(indices[start : start + self._size])
            yield self._kept[part], self._captions([self._dataset.captions[i] for i in part])

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
        return self._model.family.prompts(self._model.description.config, texts, _ALONE)

    def _in_memory(self, memory: int) -> Tensor | None:
        """All images as one tensor, where they fit."""
        images, preprocess = self._dataset.images, self._model.preprocess
        if preprocess([images[0]]).nbytes * len(images) > memory:
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
