"""Batches in a fixed order, the same for any number of workers."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydractl.data.base import Dataset, UnreadableSample
from hydractl.errors import HydraError, InputError, UsageError

if TYPE_CHECKING:
    import torch

Collate = Callable[[list[Any]], Any]

_Result = tuple[Any, dict[int, str]]
"""What ``collate`` made of a batch, None where every sample is bad; and the samples that cannot be read, and why."""

_DONE = object()


@dataclass
class Batch:
    """Some samples, ready for the model.

    Attributes:
        inputs: what ``collate`` made of them: a tensor ``[B, C, H, W]``, or a mapping of tensors.
        labels: int64 ``[B]``, or None for an unlabelled set.
        indices: their positions in the data set, which need not ascend; skipped samples are not among them.
    """

    inputs: Any
    labels: torch.Tensor | None
    indices: list[int]


def batches(
    dataset: Dataset,
    collate: Collate,
    batch_size: int,
    *,
    workers: int = 0,
    indices: Sequence[int] | None = None,
) -> Iterator[Batch]:
    """Go through a data set once; the last batch may be smaller.

    Without ``indices``, images come in the order of the data set and texts by length, so that little is padded. Where
    the data set has a ``skipped``, samples that cannot be read are noted there and left out: a batch has so many
    samples less, and a batch of none does not come.

    Args:
        dataset: the samples.
        collate: from a list of samples to the model's inputs. It runs in the workers, so it must not draw from a
            random generator there: the batches would depend on the number of workers.
        batch_size: samples per batch.
        workers: processes that read and collate; 0 reads in this one. The random state of this process is left alone.
        indices: which samples, in which order; None: all.

    Raises:
        UsageError: for a batch size below 1, or negative workers.
        IndexError: for an index outside the data set.
        InputError: where every sample was skipped.
        HydraError: where a worker process was killed. Errors of reading are raised as they are, from any process.
    """
    if batch_size < 1:
        raise UsageError(f"--batch-size {batch_size}: at least 1 is needed")
    if workers < 0:
        raise UsageError(f"--workers {workers}: 0 or more is needed")
    if indices is None:
        order = longest_first(dataset)
    else:
        order = [int(index) for index in indices]
    total = len(dataset)
    for index in order:
        if index < 0 or index >= total:
            raise IndexError(f"sample {index} of {total}")
    indices_by_batch = []
    for start in range(0, len(order), batch_size):
        stop = start + batch_size
        indices_by_batch.append(order[start:stop])
    reader = _BatchReader(dataset, collate, indices_by_batch)
    busy_workers = min(workers, len(reader))
    # A generator of its own, so that wrong arguments are refused at the call and not at the first batch.
    return _generate_batches(reader, busy_workers)


def longest_first(dataset: Dataset) -> list[int]:
    """Return every sample once; where lengths matter, the longest first.

    Then little is padded, and want of memory shows at once.
    """
    order = list(range(len(dataset)))
    lengths = dataset.lengths()
    if lengths is not None:
        order.sort(key=lambda i: -lengths[i])
    return order


def _generate_batches(reader: _BatchReader, workers: int) -> Iterator[Batch]:
    """Yield the batches of a reader with their labels; note in the data set which samples cannot be read.

    Args:
        reader: of the batches.
        workers: processes that read; 0 reads in this one.

    Raises:
        InputError: where every sample was skipped.
    """
    import torch

    dataset = reader.dataset
    results: Iterator[_Result] = map(reader.read, range(len(reader)))
    if workers:
        results = _read_in_workers(reader, workers)
    yielded = 0
    for indices, (inputs, unreadable) in zip(reader.indices_by_batch, results, strict=True):
        readable = indices
        if unreadable:
            assert dataset.skipped is not None  # else the reader raises
            dataset.skipped.update(unreadable)
            readable = [i for i in indices if i not in unreadable]
        if not readable:
            continue
        labels = None
        if dataset.labels is not None:
            labels = torch.from_numpy(dataset.labels[readable])
        yielded += 1
        yield Batch(inputs, labels, readable)
    if len(reader) > 0 and yielded == 0:
        skipped = dataset.skipped or {}
        reasons = [skipped[i] for i in sorted(skipped)]
        raise InputError(f"{dataset.where}: not one of the samples can be read", problems=reasons)


class _BatchReader:
    """The batches of a data set, read one at a time.

    Item i is batch i: torch's loader then needs no sampler and no collating of its own.

    Args:
        dataset: the samples.
        collate: from a list of samples to the model's inputs.
        indices_by_batch: the samples of each batch.
    """

    def __init__(self, dataset: Dataset, collate: Collate, indices_by_batch: list[list[int]]) -> None:
        self.dataset = dataset
        self.collate = collate
        self.indices_by_batch = indices_by_batch

    def __len__(self) -> int:
        return len(self.indices_by_batch)

    def read(self, i: int) -> _Result:
        """Read and collate one batch; return it, and why samples of it cannot be read, by index.

        Raises:
            UnreadableSample: where the data set does not skip such samples.
        """
        samples = []
        unreadable = {}
        for index in self.indices_by_batch[i]:
            try:
                samples.append(self.dataset[index])
            except UnreadableSample as error:
                if self.dataset.skipped is None:
                    raise
                unreadable[index] = error.message
        inputs = self.collate(samples) if samples else None
        return inputs, unreadable

    def __getitem__(self, i: int) -> _Result | Exception:
        # torch would raise the error anew with its traceback for a message; as a value it arrives as it is.
        try:
            return self.read(i)
        except HydraError as error:
            return error
        except Exception:
            return RuntimeError(f"a data worker failed:\n{traceback.format_exc()}")


def _read_in_workers(reader: _BatchReader, workers: int) -> Iterator[_Result]:
    """Yield the results of the reader, batch by batch, from worker processes; raise what a worker met, as it met it."""
    import torch
    from torch.utils.data import DataLoader

    callers_handler = _child_handler()
    # torch warns of more workers than processors; the number was the user's choice.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        loader: DataLoader[Any] = DataLoader(
            reader,  # type: ignore[arg-type]
            batch_size=None,
            num_workers=workers,
            collate_fn=_unchanged,
            # Its own generator: the loader would otherwise advance the global one, and results depend on the workers.
            generator=torch.Generator(),
            # Where forking is safe it is used by every Python version: a collate need not be picklable.
            multiprocessing_context="fork" if sys.platform == "linux" else None,
        )
        results = iter(loader)
    try:
        while True:
            while_waiting = _torch_handler(callers_handler)
            with _child_signals(while_waiting, callers_handler), _worker_errors():
                result: Any = next(results, _DONE)
            if result is _DONE:
                return
            if isinstance(result, Exception):
                raise result
            yield result
    finally:
        del results


def _unchanged(value: Any) -> Any:
    """Return a batch as it is: the reader has collated it."""
    return value


@contextmanager
def _worker_errors() -> Iterator[None]:
    """Turn the error of a loader that lost a worker into one that says what to do about it."""
    try:
        yield
    # A worker that dies while it hands over a tensor shows as an error of the connection.
    except (RuntimeError, OSError, EOFError) as error:
        words = str(error) or repr(error)
        raise HydraError(
            f"a data worker process ended before its work was done: {words.splitlines()[0]}",
            hint="it was probably killed for want of memory: try a smaller --batch-size or fewer --workers",
        ) from error


# torch watches its workers with a handler of SIGCHLD that raises wherever the main thread happens to be. It is wanted
# while waiting for a batch, where nothing else ends every kind of wait, and unwanted in the caller's code between two
# batches. torch installs it once per process, so it is kept here: empty, or the one handler.
_kept_handler: list[Any] = []


def _child_handler() -> Any:
    """Return the handler of ended child processes that is in force."""
    handler = signal.getsignal(signal.SIGCHLD)
    return handler or signal.SIG_DFL  # None: one that was not set from Python


def _torch_handler(callers_handler: Any) -> Any:
    """Return torch's handler, or the caller's where torch has installed none.

    Args:
        callers_handler: the handler that was in force before the loader was started.
    """
    current = _child_handler()
    if current is not callers_handler:
        _kept_handler[:] = [current]
    if not _kept_handler:
        return callers_handler
    return _kept_handler[0]


@contextmanager
def _child_signals(inside: Any, outside: Any) -> Iterator[None]:
    """Set one handler of ended child processes inside the block, and another one after it.

    Only the main thread may set handlers; in any other nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGCHLD, inside)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, outside)
