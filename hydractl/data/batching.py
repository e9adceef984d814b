"""Batches in a fixed order, the same for any number of workers."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hydractl.data.base import Dataset, UnreadableSample, has_orientation
from hydractl.errors import HydraError, InputError, SampleError

if TYPE_CHECKING:
    import torch

Collate = Callable[[list[Any]], Any]


class _Result(NamedTuple):
    """What was read of one batch.

    Attributes:
        inputs: what ``collate`` made of the samples; None if every sample is unreadable.
        unreadable: why samples cannot be read, by index.
        fingerprints: the fingerprints of samples that were not known before, by id.
        turned: the indices of those of them that have an EXIF orientation.
    """

    inputs: Any
    unreadable: dict[int, str]
    fingerprints: dict[str, str]
    turned: list[int]


_DONE = object()

# With four, a ViT-S on an H200 waited for data half of the time (benchmarks/eval_of_files.py, other work beside it).
_MOST_DEFAULT_WORKERS = 8

# Decoding fewer images takes about as long as starting the processes.
_WORTH_PROCESSES = 2000
_READ_TOGETHER = 64

# Workers hand their batches over in shared memory, of which a container may have little: a worker that finds none left
# is killed. Each has two batches in it: there is room for three of 128 images of 224 pixels.
_SHARED_MEMORY = Path("/dev/shm")
_SHARED_MEMORY_OF_WORKER = 1 << 28


@dataclass
class Batch:
    """Some samples, ready for the model.

    Attributes:
        inputs: what ``collate`` returned for the samples: a tensor ``[B, C, H, W]``, or a mapping of tensors.
        labels: int64 ``[B]``, or None for an unlabelled set.
        indices: the indices of the samples in the data set, in any order; skipped samples are not listed.
    """

    inputs: Any
    labels: torch.Tensor | None
    indices: list[int]


def batches(
    dataset: Dataset,
    collate: Collate,
    batch_size: int,
    *,
    workers: int | None = 0,
    indices: Sequence[int] | None = None,
    may_skip_all: bool = False,
) -> Iterator[Batch]:
    """Return an iterator over the batches of a data set: inputs, labels and indices of ``batch_size`` samples.

    Every sample is read once, when its batch is asked for; the last batch may be smaller. Without ``indices``, images
    come in the order of the data set and texts by falling length, so that little is padded. If the data set has a
    ``skipped`` dict, unreadable samples are left out and recorded there. A batch is then smaller by these samples; a
    batch with no readable sample is not yielded.

    Args:
        dataset: the samples.
        collate: turns a list of samples into the model's inputs. It runs in the workers and must not draw random
            numbers, because the batches would then depend on the number of workers.
        batch_size: samples per batch.
        workers: the number of processes that read and collate; 0 reads in this process, None means
            :func:`default_workers`. The random state of this process is not changed.
        indices: the indices of the samples to read, in this order; None means all samples.
        may_skip_all: whether no error is raised if every sample was skipped.

    Raises:
        InputError: if every sample was skipped.
        HydraError: if a worker process was killed. An error of reading is raised unchanged, also from a worker.
    """
    if workers is None:
        workers = default_workers(dataset)

    # Choose the order of the samples, and cut it into batches.
    order = longest_first(dataset) if indices is None else [int(index) for index in indices]
    reader = _BatchReader(dataset, collate, batches_of(order, batch_size))
    busy_workers = min(workers, len(reader))

    # _generate_batches is a separate generator, so that wrong arguments fail at this call and not at the first batch.
    return _generate_batches(reader, busy_workers, may_skip_all)


def batches_of(order: list[int], batch_size: int) -> list[list[int]]:
    """Return the indices of the samples of each batch, from the order in which they are read."""
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def default_workers(dataset: Dataset) -> int:
    """Return how many processes read a data set where nobody says: 0, or up to 8 that decode images for a GPU.

    A processor decodes a photograph in the time in which a GPU runs a model on ten or more. Whether this process uses a
    GPU is what CUDA says, which is set up with the first tensor on a GPU.
    """
    import torch

    computes_on_gpu = torch.cuda.is_initialized()
    # Elsewhere processes are not forked, and need a `collate` that can be pickled.
    can_fork = sys.platform == "linux"
    if not dataset.is_encoded or not computes_on_gpu or not can_fork:
        return 0
    have_room = shutil.disk_usage(_SHARED_MEMORY).free // _SHARED_MEMORY_OF_WORKER
    return min(_processors_left(), have_room)


def _processors_left() -> int:
    """Return how many processors this process leaves idle, at most 8; 0 where that is not known (not on Linux)."""
    if sys.platform != "linux":
        return 0
    return min(_MOST_DEFAULT_WORKERS, len(os.sched_getaffinity(0)) - 1)


def read_ahead(dataset: Dataset) -> None:
    """Store in a data set the fingerprints of its samples, computed by several processes if that is worth it.

    A fingerprint is the hash of what a model sees of a sample, so an image has to be decoded for it. Nothing is done
    for few images, for samples that need no decoding, and on a single processor: each fingerprint is then computed when
    it is asked for.

    Raises:
        UnreadableSample: if a sample cannot be read, and such samples are not skipped.
        InputError: if none of them can be read.
    """
    if not dataset.is_encoded:
        return
    workers = _processors_left()
    skipped = dataset.skipped or {}
    # The samples whose fingerprint is not known yet. Those that were found to be unreadable have none.
    wanted = [i for i in range(len(dataset)) if i not in skipped and dataset.ids[i] not in dataset.fingerprints]
    if len(wanted) < _WORTH_PROCESSES or workers < 2:
        return

    # Reading a batch stores the fingerprints of its samples. Its inputs are not used, so `len` stands for their making.
    for _ in batches(dataset, len, _READ_TOGETHER, workers=workers, indices=wanted):
        pass


def longest_first(dataset: Dataset, samples: range | None = None) -> list[int]:
    """Return the indices of samples, of all for None; if lengths matter, from the longest sample to the shortest.

    Then little is padded, and a lack of memory shows at the first batch.
    """
    order = list(range(len(dataset)) if samples is None else samples)
    lengths = dataset.lengths()
    if lengths is not None:
        order.sort(key=lambda i: -lengths[i])
    return order


def _generate_batches(reader: _BatchReader, workers: int, may_skip_all: bool) -> Iterator[Batch]:
    """Yield the batches of a reader with their labels, and store in the data set what was learnt of its samples.

    These are the unreadable samples (``skipped``), fingerprints, and images that their files say to turn (``turned``):
    a worker process has its own copy of the data set, so it returns them with its batch.

    Args:
        reader: reads batch by batch.
        workers: the number of processes that read; 0 reads in this process.
        may_skip_all: whether no error is raised if every sample was skipped.

    Raises:
        InputError: if every sample was skipped.
    """
    import torch

    # Read in worker processes, or here.
    dataset = reader.dataset
    results: Iterator[_Result]
    if workers:
        results = _read_in_workers(reader, workers)
    else:
        results = map(reader.read, range(len(reader)))

    # Yield each batch with its labels, without the unreadable samples.
    yielded = 0
    for indices, (inputs, unreadable, fingerprints, turned) in zip(reader.indices_by_batch, results, strict=True):
        if unreadable:
            assert dataset.skipped is not None  # otherwise the reader has raised the error
            dataset.skipped.update(unreadable)
        dataset.fingerprints.update(fingerprints)
        dataset.turned.update(turned)
        readable = [i for i in indices if i not in unreadable]
        if not readable:
            continue
        labels = None if dataset.labels is None else torch.from_numpy(dataset.labels[readable])
        yielded += 1
        yield Batch(inputs, labels, readable)

    # If no batch had a readable sample, say why.
    if len(reader) > 0 and yielded == 0 and not may_skip_all:
        skipped = dataset.skipped or {}
        reasons = [skipped[i] for i in sorted(skipped)]
        raise InputError(f"{dataset.where}: not one of the samples can be read", problems=reasons)


@dataclass(eq=False)
class _BatchReader:
    """Reads the batches of a data set, one at a time.

    Item i is the whole batch i, so torch's loader needs neither a sampler nor its own collating.

    Attributes:
        dataset: the samples.
        collate: turns a list of samples into the model's inputs.
        indices_by_batch: the indices of the samples of each batch.
    """

    dataset: Dataset
    collate: Collate
    indices_by_batch: list[list[int]]

    def __len__(self) -> int:
        return len(self.indices_by_batch)

    def read(self, i: int) -> _Result:
        """Return batch ``i`` as inputs of the model, and what was learnt of its samples.

        The four parts of the result:

        - the inputs; None if no sample of the batch is readable;
        - the reason for each unreadable sample, by its index;
        - the fingerprints (hashes of what a model sees) that were not known before, by the ids of the samples;
        - the indices of images that their files say to turn.

        Raises:
            UnreadableSample: for an unreadable sample, if the data set does not skip such samples.
        """
        # Read the samples. An unreadable one is left out, if the data set allows it, with the reason.
        samples = []
        indices = []  # of these samples
        unreadable = {}
        fingerprints = {}
        turned = []
        for index in self.indices_by_batch[i]:
            try:
                sample = self.dataset[index]
            except UnreadableSample as error:
                if self.dataset.skipped is None:
                    raise
                unreadable[index] = error.message
                continue
            samples.append(sample)
            indices.append(index)
            sample_id = self.dataset.ids[index]
            if sample_id not in self.dataset.fingerprints:
                fingerprints[sample_id] = self.dataset.fingerprint_of(sample)
                if has_orientation(sample):
                    turned.append(index)

        # Make them inputs. A sample of which no input can be made is taken out, too, and the others are tried again.
        while samples:
            try:
                return _Result(self.collate(samples), unreadable, fingerprints, turned)
            except SampleError as error:
                dataset = self.dataset
                index = indices.pop(error.position)
                why = f"cannot read {dataset.ids[index]}: {error.message} ({dataset.where})"
                if dataset.skipped is None:
                    raise UnreadableSample(why, hint="take it out of the set") from error
                # The index may be in the batch several times, and fails each time.
                del samples[error.position]
                unreadable[index] = why
        return _Result(None, unreadable, fingerprints, turned)

    def __getitem__(self, i: int) -> _Result | Exception:
        # Return an error instead of raising it: torch would raise a new error with the whole traceback as its message.
        try:
            return self.read(i)
        except HydraError as error:
            return error
        except Exception:
            return RuntimeError(f"a data worker failed:\n{traceback.format_exc()}")


def _read_in_workers(reader: _BatchReader, workers: int) -> Iterator[_Result]:
    """Yield the results of the reader, batch by batch and in order, from worker processes.

    The workers start at once, and end when this generator ends or is closed.

    Raises:
        HydraError: if a worker was killed. An error that a worker returned in the place of a batch is raised as it is.
    """
    import torch
    from torch.utils.data import DataLoader

    # torch installs a handler of the signal that a child process has ended, which raises an error if a worker was
    # killed. Outside this generator the caller's own handler must be active.
    callers_handler = _child_handler()

    # torch warns if there are more workers than processors, but the number is the user's choice.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        loader: DataLoader[Any] = DataLoader(
            reader,  # type: ignore[arg-type]
            batch_size=None,
            num_workers=workers,
            collate_fn=_unchanged,
            # With no generator given, the loader would advance the global one, and results would depend on the workers.
            generator=torch.Generator(),
            # Fork wherever that is safe, whatever the Python version: then `collate` need not be picklable.
            multiprocessing_context="fork" if sys.platform == "linux" else None,
        )
        results = iter(loader)
    try:
        while True:
            # torch's handler of ended workers is active only while this process waits for a batch.
            while_waiting = _torch_handler(callers_handler)
            with _child_signals(while_waiting, callers_handler), _worker_errors():
                result: Any = next(results, _DONE)
            if result is _DONE:
                return
            if isinstance(result, Exception):
                raise result
            yield result
    finally:
        del results  # ends the worker processes


def _unchanged(value: Any) -> Any:
    """Return a batch unchanged; the reader has already collated it."""
    return value


@contextmanager
def _worker_errors() -> Iterator[None]:
    """Replace the error of a loader that lost a worker by one that tells the user what to do."""
    try:
        yield
    # If a worker dies while it hands over a tensor, the connection raises the error.
    except (RuntimeError, OSError, EOFError) as error:
        words = str(error) or repr(error)
        raise HydraError(
            f"a data worker process ended before its work was done: {words.splitlines()[0]}",
            hint="it was probably killed for want of memory: try a smaller --batch-size or fewer --workers",
        ) from error


# torch watches its workers with a handler of SIGCHLD that raises an error wherever the main thread happens to be. This
# is wanted while we wait for a batch, because nothing else would end every kind of wait. It is unwanted in the caller's
# code between two batches. torch installs the handler once per process, so this list keeps it: it is empty or holds
# that one handler.
_kept_handler: list[Any] = []


def _child_handler() -> Any:
    """Return the handler that is now active for ended child processes (SIGCHLD)."""
    handler = signal.getsignal(signal.SIGCHLD)
    return handler or signal.SIG_DFL  # None means a handler that was not set from Python


def _torch_handler(callers_handler: Any) -> Any:
    """Return torch's handler, or the caller's if torch has installed none. Also remembers torch's for later loaders.

    Args:
        callers_handler: the handler that was active before the loader was started.
    """
    current = _child_handler()
    if current is not callers_handler:
        _kept_handler[:] = [current]
    if not _kept_handler:
        return callers_handler
    return _kept_handler[0]


@contextmanager
def _child_signals(inside: Any, outside: Any) -> Iterator[None]:
    """Set the handler ``inside`` for ended child processes within the block, and the handler ``outside`` after it.

    Only the main thread may set handlers; in any other thread nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGCHLD, inside)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, outside)
