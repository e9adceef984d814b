"""Several processes on one run: what ``torchrun`` starts, and how they tell each other what they have found."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from hydractl.errors import HydraError, UsageError
from hydractl.log import Log

if TYPE_CHECKING:
    from torch import Tensor

_LENGTH = 8  # bytes before a value that say how long it is
_ROOM = 1 << 14
_POLL_S = 0.001
_PATIENCE_S = 2.0


class Processes:
    """One process: the case without ``torchrun``. A context manager.

    Attributes:
        rank: of this process, from 0. Only rank 0 writes outputs and talks.
        size: number of processes.
    """

    rank = 0
    size = 1

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in the order of their ranks, in every process.

        All processes call it equally often, and each waits for the last.

        Args:
            value: anything JSON can say; it comes back as JSON does: tuples are lists, keys are strings.

        Raises:
            TypeError: for a value that JSON cannot say, NaN too.
            HydraError: another process has ended, or is not heard of within the time-out.
        """
        return [json.loads(_encode(value))]

    def add(self, numbers: Tensor) -> None:
        """Put the sum over all processes in the place of each one's numbers: the same bits in every process.

        All processes call it equally often, with tensors of one shape and dtype.

        Raises:
            HydraError: another process has ended, or is not heard of within the time-out.
        """

    def exchanging(self) -> AbstractContextManager[None]:
        """Return the context for what exchanges tensors by torch's own means.

        Raises:
            HydraError: another process has ended, or is not heard of within the time-out.
        """
        return contextlib.nullcontext()

    def quieted(self, log: Log) -> Log:
        """Return the log in rank 0 and a silent one in the others, whose warnings would repeat those of rank 0."""
        if self.rank == 0:
            return log
        return Log()

    def close(self) -> None:
        """Leave the others; closing again is safe."""

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def processes(timeout_s: float, *, nccl: bool = False) -> Processes:
    """Return the processes that ``torchrun`` started this one among, by its environment; without it one, and no torch.

    It must be called before torch is imported: only then does torch keep to itself what it says of lost connections.

    Args:
        timeout_s: how long to wait for the others, in seconds. It must be more than one of them may take longer than
            another from one :meth:`~Processes.gather` to the next. A process that has died is noticed at once.
        nccl: let tensors on GPUs be exchanged by NCCL, which takes a GPU for each process.

    Raises:
        UsageError: for an environment that makes no sense.
        HydraError: the others are not there within the time-out.
    """
    rank, size = _rank_and_size()
    if size == 1:
        return Processes()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    import torch.distributed

    # Gloo for what lies in main memory: there several ranks may share a GPU, and waiting hears of Ctrl-C.
    backend = "gloo"
    if nccl and torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
    timeout = timedelta(seconds=timeout_s)
    try:
        meeting = torch.distributed.rendezvous("env://", rank, size, timeout=timeout)  # type: ignore[attr-defined]
        store, _, _ = next(meeting)
        # torchrun may keep its store when it starts all processes again, with the addresses of those that have gone.
        store_name = f"restart {_restarts()}"
        store = torch.distributed.PrefixStore(store_name, store)  # type: ignore[attr-defined]
        torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise HydraError(
            f"the other processes of this run cannot be reached: {reason}",
            hint="see that all of them have been started and have not failed",
        ) from error
    return _Group(rank, size)


def alone() -> bool:
    """Return whether this process is no part of a team that ``torchrun`` started.

    Raises:
        UsageError: for an environment that makes no sense.
    """
    _, size = _rank_and_size()
    return size == 1


def restarted() -> bool:
    """Return whether ``torchrun --max-restarts`` has started this process again, after one of a team had failed."""
    return _restarts() not in ("", "0")


def _restarts() -> str:
    """Return how often ``torchrun`` has started all processes again, as it says so; empty without ``torchrun``."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "")


def local_device(device: str) -> str:
    """Return the device of this process: for ``cuda`` and ``auto`` a GPU of its own for each process of a machine.

    Raises:
        UsageError: for more processes than GPUs.
    """
    if device not in ("cuda", "auto") or alone():
        return device
    import torch

    index = _number("LOCAL_RANK")
    gpus = torch.cuda.device_count()
    if not gpus:
        return device
    if index >= gpus:
        raise UsageError(
            f"process {index} has no GPU of its own: there are {gpus}",
            hint=f"start {gpus} processes on this machine, or give --device cpu",
        )
    return f"cuda:{index}"


class _Message(NamedTuple):
    """What one process sends.

    Attributes:
        length: bytes of its value.
        data: the value as JSON, cut or filled with zeros to the room that there is.
    """

    length: int
    data: bytes


class _Group(Processes):
    """One of several processes, in torch's default process group."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._room = _ROOM
        self._open = True

    def gather(self, value: Any) -> list[Any]:
        data = _encode(value)
        messages = self._exchange(data)
        longest = max(message.length for message in messages)
        if longest > self._room:
            # Some were cut. All see the same lengths, so all make the same room, and it is enough the next time.
            self._room = 2 * longest
            messages = self._exchange(data)
        return [json.loads(message.data[: message.length]) for message in messages]

    def _exchange(self, data: bytes) -> list[_Message]:
        """Send a value to all processes, and return what each has sent, in the order of their ranks.

        A collective takes tensors of one size from all, so a message is the length of the value and as much of the
        value as there is room for, filled up with zeros.
        """
        import torch
        import torch.distributed

        message = len(data).to_bytes(_LENGTH, "big") + data[: self._room]
        sent = torch.zeros(_LENGTH + self._room, dtype=torch.uint8)
        sent[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        received = [torch.empty_like(sent) for _ in range(self.size)]
        self._run_collective(torch.distributed.all_gather, received, sent)
        messages = []
        for tensor in received:
            content = tensor.numpy().tobytes()
            length = int.from_bytes(content[:_LENGTH], "big")
            messages.append(_Message(length, content[_LENGTH:]))
        return messages

    def add(self, numbers: Tensor) -> None:
        import torch.distributed

        self._run_collective(torch.distributed.all_reduce, numbers)

    def _run_collective(self, collective: Callable[..., Any], *tensors: Any) -> None:
        """Run a collective, and wait as Python does: waiting in torch, a process would not hear of Ctrl-C."""
        with self.exchanging():
            work = collective(*tensors, async_op=True)
            while not work.is_completed():
                time.sleep(_POLL_S)
            work.wait()

    @contextlib.contextmanager
    def exchanging(self) -> Iterator[None]:
        import torch.distributed

        try:
            yield
        except RuntimeError as error:
            is_error_of_torch = isinstance(error, torch.distributed.DistError)
            names_gloo = "gloo" in str(error)
            if not is_error_of_torch and not names_gloo:  # a defect, not a lost connection
                raise
            self.close()
            hint = "run the same command with --resume"
            raise HydraError("another process of this run has ended", hint=hint) from error

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        # After an interruption in the midst of a gather torch waits here for those who have not come to it yet.
        leaving = threading.Thread(target=_leave_group, daemon=True)
        leaving.start()
        leaving.join(_PATIENCE_S)


def _leave_group() -> None:
    """Leave torch's process group, whether or not the others are still there."""
    import torch.distributed

    with contextlib.suppress(Exception):  # there is nobody left to tell
        torch.distributed.destroy_process_group()


def _encode(value: Any) -> bytes:
    """Return a value as JSON.

    Raises:
        TypeError: JSON cannot say it.
    """
    try:
        return json.dumps(value, allow_nan=False).encode("ascii")
    except ValueError as error:
        raise TypeError(f"no value for JSON: {error}") from None


def _rank_and_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes, by the variables that ``torchrun`` sets.

    Raises:
        UsageError: some of them are missing, or do not fit together.
    """
    world_size = os.environ.get("WORLD_SIZE", "")
    if world_size in ("", "1"):
        return 0, 1
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        names = ", ".join(missing)
        raise UsageError(
            f"WORLD_SIZE is set, but not {names}",
            hint="start several processes with torchrun, or unset WORLD_SIZE",
        )
    rank = _number("RANK")
    size = _number("WORLD_SIZE")
    if rank >= size:
        raise UsageError(f"RANK is {rank}, but WORLD_SIZE {size}", hint="ranks count from 0")
    return rank, size


def _number(name: str) -> int:
    """Return the number in a variable of the environment.

    Raises:
        UsageError: it holds none.
    """
    text = os.environ.get(name, "")
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    if not is_number:
        raise UsageError(f"{name} is {text!r}, not a number", hint="torchrun sets it")
    return int(text)
