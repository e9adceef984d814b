"""The batches of a data set as a model reads them; in a study kept in memory for the rows that read the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from hydractl.data import batches
from hydractl.data.batching import Batch, Collate
from hydractl.evaluation.sets import EvalSet
from hydractl.jsonio import canonical_json


@dataclass
class _KeptBatches:
    """Sets that were read in full, as batches, by what they were read as.

    Attributes:
        room: bytes that are left; a set that needs more is read again each time.
    """

    room: int
    sets: dict[str, list[Batch]] = field(default_factory=dict)


_KEPT: ContextVar[_KeptBatches | None] = ContextVar("_KEPT", default=None)
"""What :func:`keeping_batches` keeps; a context of its own in every thread."""


@contextmanager
def keeping_batches(most_bytes: int) -> Iterator[None]:
    """While this lasts, sets that were read in full are kept in memory, the first ones that take so many bytes."""
    token = _KEPT.set(_KeptBatches(most_bytes))
    try:
        yield
    finally:
        _KEPT.reset(token)


def read_batches(
    dataset: EvalSet,
    collate: Collate,
    preprocess: Mapping[str, object],
    batch_size: int,
    *,
    workers: int = 0,
    rows: Sequence[int] | None = None,
) -> Iterator[Batch]:
    """Yield the batches of a data set, from memory where a model that reads the same has read them in full.

    Args:
        dataset: the set.
        collate: makes the inputs of the model of a list of samples.
        preprocess: what decides ``collate``, with the family that it is of.
        batch_size: how many samples a batch has.
        workers: how many processes read samples.
        rows: the samples, in this order; None for all. Only batches of all samples are kept.
    """
    assert dataset.dataset is not None  # a model that runs needs --test
    read_now = batches(dataset.dataset, collate, batch_size, workers=workers, indices=rows)
    kept = _KEPT.get()
    if kept is None or rows is not None:
        yield from read_now
        return

    # Whatever is the same in all of these has the same batches.
    read_as = canonical_json({"set": dataset.fingerprint, "preprocess": dict(preprocess), "batch_size": batch_size})
    if read_as in kept.sets:
        yield from kept.sets[read_as]
        return

    # They are collected while they are read, as long as there is room for all.
    read: list[Batch] = []
    size = 0
    for batch in read_now:
        yield batch
        size += _size_in_bytes(batch.inputs)
        if size <= kept.room:
            read.append(batch)
        else:
            read.clear()

    # Samples are missing where --on-bad left them out, or where there was no room.
    collected_samples = sum(len(batch.indices) for batch in read)
    if collected_samples == len(dataset):
        kept.sets[read_as] = read
        kept.room -= size


def _size_in_bytes(inputs: Any) -> int:
    """Return how many bytes the inputs of a batch take: one tensor, or several by name."""
    parts = [inputs]
    if isinstance(inputs, Mapping):
        parts = list(inputs.values())
    return sum(part.nbytes for part in parts if isinstance(part, torch.Tensor))
