"""A model that runs in batches of a few sizes: on a GPU as CUDA graphs, elsewhere by plain calls of the padded batches.

As long as batches are small, a GPU that is told each operator by itself waits for the host. A CUDA graph is a recording
of all operators of a run, launched at once ("replayed"). A replay reads its inputs from a fixed place in memory and
writes its output to another, and uses the kernels and the addresses of the recording. So there is one recording for
each shape of inputs, batches are padded to a few sizes, and recordings are dropped when weights change.

Nothing but the recording itself depends on the device. Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hydractl.errors import UsageError
from hydractl.families.config_json import are_whole_numbers
from hydractl.families.reading import first_line
from hydractl.model.stacking import addresses_of, versions_of

Network = Any
"""A :class:`hydractl.model.runtime.HydraModel`; its module imports this one, so it cannot be named here."""

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
"""The sizes that batches are padded to if none are chosen."""
MOST_RECORDINGS = 64
"""How many shapes of inputs have a recording at a time. For one more, the one that was not used longest is dropped."""
WARM_UP_RUNS = 3
"""How often a model runs before it is recorded, as in torch's examples: libraries choose kernels in the first runs."""


def batch_sizes_of(graphs: bool | Sequence[int]) -> tuple[int, ...] | None:
    """Return the batch sizes, in ascending order, that a user asked for; None for False.

    Raises:
        UsageError: if these are no batch sizes.
    """
    if graphs is False:
        return None
    if graphs is True:
        return BATCH_SIZES
    if not isinstance(graphs, Sequence) or not graphs or not are_whole_numbers(graphs, 1):
        raise UsageError(f"graphs={graphs!r}: must be True, or batch sizes from 1 on, such as (1, 8)")
    return tuple(sorted(set(graphs)))


# --- inputs -----------------------------------------------------------------------------------------------------------


def _tensors_by_name(inputs: Any) -> dict[str, Any]:
    """Return the inputs of a model by name; images, which have no name, get an empty one."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return {"": inputs}


def _changed(inputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return inputs in the same form, with ``change`` applied to each tensor."""
    if isinstance(inputs, Mapping):
        return {name: change(tensor) for name, tensor in inputs.items()}
    return change(inputs)


def _samples_in(tensors: Mapping[str, Any]) -> int | None:
    """Return the number of samples in a batch; None if the inputs are not tensors ``[B, ...]`` on one device."""
    counts = set()
    devices = set()
    for tensor in tensors.values():
        if not isinstance(tensor, Tensor) or tensor.dim() == 0:
            return None
        counts.add(len(tensor))
        devices.add(tensor.device)
    if len(counts) != 1 or len(devices) != 1:
        return None
    return counts.pop()


def padded(tensor: Tensor, size: int) -> Tensor:
    """Return a batch ``[B, ...]`` as ``[size, ...]``, filled up with copies of its first sample.

    Zeros would not do: a text without any token gives NaN.
    """
    missing = size - len(tensor)
    if missing == 0:
        return tensor
    copies = tensor[:1].expand(missing, *tensor.shape[1:])
    return torch.cat([tensor, copies])


# --- recordings -------------------------------------------------------------------------------------------------------


class RecordedGraph(Protocol):
    """What was recorded; :class:`torch.cuda.CUDAGraph`, as far as it is used here."""

    def replay(self) -> None:
        """Run everything that was recorded once more, in the current stream."""

    def pool(self) -> Any:
        """Return the pool of memory in which the recorded operators work."""


class Recorder(Protocol):
    """Records the operators of a run."""

    def aside(self) -> AbstractContextManager[None]:
        """Enter the stream in which runs are warmed up and recorded."""

    def record(self, run: Callable[[], Tensor], pool: Any) -> tuple[RecordedGraph, Tensor]:
        """Record a run in a pool of memory (None: a new one); return also its output, which replays overwrite."""

    def in_turn(self) -> AbstractContextManager[None]:
        """Let uses of recordings in several streams wait for each other, because all work in the same memory."""


@dataclass(frozen=True)
class Recording:
    """A recorded run of a model on a batch of one shape.

    Attributes:
        places: the inputs that each replay reads, ``[size, ...]`` each, by name.
        output: what each replay writes, ``[M, size, classes]``.
        graph: the recorded operators.
        storages: the memory of everything else that they read, kept here so that no replay reads memory that is free.
    """

    places: Mapping[str, Tensor]
    output: Tensor
    graph: RecordedGraph
    storages: Sequence[torch.UntypedStorage]

    def replayed(self, tensors: Mapping[str, Tensor], samples: int) -> Tensor:
        """Run on a batch; return its logits ``[M, samples, classes]``, a copy that no later replay changes."""
        size = self.output.shape[1]
        for name, place in self.places.items():
            place.copy_(padded(tensors[name], size))
        self.graph.replay()
        return self.output[:, :samples].clone()


class StoragesFromOutside(TorchDispatchMode):
    """Collects the memory that operators read and that none of them has written: weights, and what is kept of them.

    Attributes:
        storages: the memory.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types there
        self.storages: list[torch.UntypedStorage] = []
        self._known: set[int] = set()  # the storages that were collected, and those of results

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        arguments = kwargs or {}
        for storage in _storages_in([args, arguments]):
            if storage._cdata not in self._known:
                self.storages.append(storage)
                self._known.add(storage._cdata)
        result = function(*args, **arguments)
        self._known.update(storage._cdata for storage in _storages_in(result))
        return result


def _storages_in(values: Any) -> Iterator[torch.UntypedStorage]:
    """Yield the memory of each tensor in nested values."""
    for value in tree_leaves(values):
        if isinstance(value, Tensor):
            yield value.untyped_storage()


class CudaRecorder:
    """Records CUDA graphs on one device.

    Args:
        device: the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._last_use = torch.cuda.Event()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Enter a side stream: what is computed in it comes after everything before, and before everything after."""
        outer_stream = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(outer_stream)
        with torch.cuda.stream(self._stream):  # this also makes the device the current one
            yield
        outer_stream.wait_stream(self._stream)

    def record(self, run: Callable[[], Tensor], pool: Any) -> tuple[RecordedGraph, Tensor]:
        """Record a run in the side stream.

        Raises:
            UsageError: if the run does something that cannot be recorded, such as waiting for the device.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may go on to use the device in the meantime; the default mode would refuse it to them.
            with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
                output = run()
        except RuntimeError as error:
            reason = first_line(error)
            raise UsageError(f"no CUDA graph of this model: {reason}", hint="load it without graphs") from error
        return graph, output

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Wait in the current stream for the last use of a recording, and mark the end of this one."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._last_use)
        yield
        self._last_use.record(stream)


def recorder_on(device: torch.device) -> Recorder | None:
    """Return what records runs on a device; None if nothing does."""
    if device.type != "cuda":
        return None
    return CudaRecorder(device)


_recording_lock = threading.Lock()
"""Held while a run is recorded: torch allows one recording at a time in a process."""


# --- what a recording depends on --------------------------------------------------------------------------------------


class ModelState:
    """The modules and tensors of a model when it was recorded, to see later whether anything has changed.

    Everything that is compared in each call is in flat lists, which ``map`` walks in C, because calls wait for this.

    Args:
        model: the model.
    """

    def __init__(self, model: Network) -> None:
        """Note everything that :meth:`is_current` compares."""
        # One entry per module, parameter and buffer: the dict of its owner, its name there, and itself.
        self._owners: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._entries: list[Any] = []
        self._modules = list(model.networks.modules())
        for module in self._modules:
            for entries in (module._modules, module._parameters, module._buffers):
                for name, entry in entries.items():
                    if entry is not None:
                        self._owners.append(entries)
                        self._names.append(name)
                        self._entries.append(entry)

        # Each tensor, its address, how often it was written to, and its memory: while that is held, no other tensor
        # gets this address.
        tensors = {id(entry): entry for entry in self._entries if isinstance(entry, Tensor)}
        self._tensors = list(tensors.values())
        self._addresses = addresses_of(self._tensors)
        self._versions = versions_of(self._tensors)
        self._storages = [tensor.untyped_storage() for tensor in self._tensors]

    def is_current(self) -> bool:
        """Return whether all modules and tensors are the same, with the same values, and none is in training mode."""
        if _any_in_training(self._modules):
            return False
        if not all(map(is_, map(dict.get, self._owners, self._names), self._entries)):
            return False
        if addresses_of(self._tensors) != self._addresses:
            return False
        return versions_of(self._tensors) == self._versions


def _any_in_training(modules: Iterable[nn.Module]) -> bool:
    """Return whether a module is in training mode: a layer alone may be, as for MC dropout."""
    return any(map(attrgetter("training"), modules))


def _runs_alike(model: Network, device: torch.device) -> bool:
    """Return whether a call now does what a recording does: inference with all members, seen by nobody."""
    # Gradients need every operator, and autocast other kernels. In a graph of the caller there cannot be a replay.
    if torch.is_grad_enabled() or torch.is_autocast_enabled(device.type):
        return False
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False

    # In a cascade, numbers decide which samples go on. Head gates and observers change from call to call.
    if model.cascade is not None or any(chain.watched for chain in model.chains):
        return False
    return not any(attention.drops for attention in model.attentions)


# --- the runner -------------------------------------------------------------------------------------------------------


class PaddedRuns:
    """Runs a model on batches that are padded to a few sizes, by replays if the device can record.

    Attributes:
        batch_sizes: the sizes, in ascending order.

    Args:
        batch_sizes: the sizes.
        recorder_on: a function from a device to what records runs on it, or None if nothing does.
    """

    def __init__(
        self,
        batch_sizes: Sequence[int],
        recorder_on: Callable[[torch.device], Recorder | None] = recorder_on,
    ) -> None:
        self.batch_sizes = tuple(batch_sizes)
        self._recorder_on = recorder_on
        self._recorders: dict[torch.device, Recorder | None] = {}
        self._lock = threading.Lock()

        # By the shapes of inputs, the last used one at the end; and what all of them depend on.
        self._recordings: dict[Any, Recording] = {}
        self._state: ModelState | None = None

    def forget(self) -> None:
        """Drop all recordings, because the model may have changed in ways that cannot be seen."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        self._recordings.clear()
        self._state = None

    def member_logits(self, model: Network, inputs: Any) -> Tensor:
        """Return the logits of every member, ``[M, B, classes]``.

        The batch is padded to the next size. One that is larger than all sizes runs as it is, and so does every batch
        that no recording could answer: with gradients, in training mode, and so on.

        Args:
            model: the model, always the same one.
            inputs: a tensor ``[B, ...]``, or several by name.
        """
        tensors = _tensors_by_name(inputs)
        samples = _samples_in(tensors)
        size = self._size_for(samples)
        if samples is None or size is None:
            return self._as_it_is(model, inputs)
        device = next(iter(tensors.values())).device
        if not _runs_alike(model, device):
            return self._as_it_is(model, inputs)

        # A device without a recorder computes the padded batch.
        recorder = self._recorder_for(device)
        if recorder is None:
            if _any_in_training(model.modules()):
                return self._as_it_is(model, inputs)
            logits = model.eager_logits(_changed(inputs, lambda tensor: padded(tensor, size)))
            return logits[:, :samples]

        with self._lock, recorder.in_turn():
            key = (size, *_shapes_of_samples(tensors))
            logits = self._replayed(key, tensors, samples)
            if logits is not None:
                return logits
            if not _any_in_training(model.modules()):
                recording = self._record(model, inputs, size, recorder)
                self._keep(key, recording)
                return recording.replayed(tensors, samples)
        return self._as_it_is(model, inputs)

    @staticmethod
    def _as_it_is(model: Network, inputs: Any) -> Tensor:
        """Return the logits of a batch that is neither padded nor replayed."""
        logits: Tensor = model.eager_logits(inputs)
        return logits

    def _size_for(self, samples: int | None) -> int | None:
        """Return the size that a batch is padded to; None if it has no samples or too many."""
        if not samples:
            return None
        return next((size for size in self.batch_sizes if size >= samples), None)

    def _recorder_for(self, device: torch.device) -> Recorder | None:
        """Return what records runs on a device, always the same; None if nothing does."""
        with self._lock:
            if device not in self._recorders:
                self._recorders[device] = self._recorder_on(device)
            return self._recorders[device]

    def _replayed(self, key: Any, tensors: Mapping[str, Tensor], samples: int) -> Tensor | None:
        """Return the logits of a batch by a recording of its shape; None if there is none that is up to date."""
        recording = self._recordings.get(key)
        if recording is None:
            return None

        # Check only now that the device is computing, so that it does not wait for the check.
        logits = recording.replayed(tensors, samples)
        if self._state is None or not self._state.is_current():
            self._drop()
            return None
        self._keep(key, recording)
        return logits

    def _keep(self, key: Any, recording: Recording) -> None:
        """Enter a recording as the one that was used last, and drop the one that was not used longest if needed."""
        self._recordings.pop(key, None)
        self._recordings[key] = recording
        if len(self._recordings) > MOST_RECORDINGS:
            oldest = next(iter(self._recordings))
            del self._recordings[oldest]

    def _record(self, model: Network, inputs: Any, size: int, recorder: Recorder) -> Recording:
        """Return a recording of the model for batches of this shape, padded to a size."""
        if self._state is not None and not self._state.is_current():
            self._drop()

        # Leave inference mode: places that belong to that mode could not be written to outside of it.
        with _recording_lock, torch.inference_mode(False), torch.no_grad():
            # The first run stacks weights and reads prompts, which changes what the state consists of.
            if self._state is None:
                model.eager_logits(inputs)
                self._state = ModelState(model)

            # All recordings share one pool of memory. It exists as long as one of them does.
            pool = None
            for recording in self._recordings.values():
                pool = recording.graph.pool()

            with recorder.aside():
                places = _changed(inputs, lambda tensor: padded(tensor, size).clone())
                for _ in range(WARM_UP_RUNS):
                    model.eager_logits(places)
                outside = StoragesFromOutside()

                def run() -> Tensor:
                    """Run on the places that replays read."""
                    with outside:
                        logits: Tensor = model.eager_logits(places)
                        return logits

                graph, output = recorder.record(run, pool)
        return Recording(_tensors_by_name(places), output, graph, outside.storages)


def _shapes_of_samples(tensors: Mapping[str, Tensor]) -> Iterator[tuple[Any, ...]]:
    """Yield for each tensor its name, the shape of a sample, the dtype and the device."""
    for name, tensor in tensors.items():
        yield name, tensor.shape[1:], tensor.dtype, tensor.device
