"""Reads a data set in batches for a model; a study keeps the batches, and features of training data, in memory."""

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
from hydractl.model.detection import TrainingFeatures


@dataclass
class Kept:
    """What was read or computed of data sets.

    Attributes:
        room: the number of bytes that may still be kept.
        values: the batches of sets that were read completely, and features of training data, by a text that describes
            the set, the model and how it was read.
    """

    room: int
    values: dict[str, Any] = field(default_factory=dict)

    def keep(self, key: str, value: list[Batch] | TrainingFeatures, size: int) -> None:
        """Keep a value of so many bytes if there is room; sums of all layers may be large."""
        if size <= self.room:
            self.values[key] = value
            self.room -= size


KEPT: ContextVar[Kept | None] = ContextVar("KEPT", default=None)
"""What :func:`keeping_batches` keeps, separately in every thread; None outside of it."""


@contextmanager
def keeping_batches(most_bytes: int) -> Iterator[None]:
    """Keep data sets in memory while the block lasts, once they were read completely.

    Args:
        most_bytes: the most bytes to keep; sets that do not fit any more are read again each time.
    """
    token = KEPT.set(Kept(most_bytes))
    try:
        yield
    finally:
        KEPT.reset(token)


def read_batches(
    dataset: EvalSet,
    collate: Collate,
    preprocess: Mapping[str, object],
    batch_size: int,
    *,
    workers: int | None = None,
    rows: Sequence[int] | None = None,
) -> Iterator[Batch]:
    """Yield the batches of a data set, from memory if they were already read with the same settings.

    Inside :func:`keeping_batches`, the batches of a complete set are kept for the next model if they fit into memory;
    elsewhere none are kept.

    Args:
        dataset: the data set.
        collate: a function from a list of samples to the inputs of the model.
        preprocess: the settings that decide ``collate``, including the family of the model.
        batch_size: the number of samples in a batch.
        workers: the number of processes that read samples.
        rows: the indices of the samples to read, in this order; None means all samples. Batches of given samples are
            never kept, and may turn out empty: it is no error if none of the samples can be read.
    """
    assert dataset.dataset is not None  # the settings require --test for a model that runs
    is_part = rows is not None
    new_batches = batches(dataset.dataset, collate, batch_size, workers=workers, indices=rows, may_skip_all=is_part)
    memory = KEPT.get()
    if memory is None or is_part:
        yield from new_batches
        return

    # Two models get the same batches if all of these are equal.
    key = canonical_json({"set": dataset.fingerprint, "preprocess": dict(preprocess), "batch_size": batch_size})
    if key in memory.values:
        yield from memory.values[key]
        return

    # Collect the batches while they are read. If they become too large for the memory, collect none of them.
    collected: list[Batch] = []
    bytes_read = 0
    for batch in new_batches:
        yield batch
        # The inputs are one tensor, or several by name.
        tensors = batch.inputs.values() if isinstance(batch.inputs, Mapping) else [batch.inputs]
        bytes_read += sum(tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor))
        if bytes_read <= memory.room:
            collected.append(batch)
        else:
            collected.clear()

    # Keep the batches only if no sample is missing. Samples are missing if --on-bad skipped them, or if the batches
    # became too large.
    collected_samples = sum(len(batch.indices) for batch in collected)
    if collected_samples == len(dataset):
        memory.keep(key, collected, bytes_read)
