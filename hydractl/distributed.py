"""Several processes for one run, started by ``torchrun``, and how they exchange values."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hydractl.errors import HydraError, UsageError
from hydractl.log import Log

if TYPE_CHECKING:
    from torch import Tensor

_POLL_S = 0.001
_PATIENCE_S = 2.0


class Processes:
    """The team of one process: the case without ``torchrun``. A context manager.

    Attributes:
        rank: the number of this process, from 0. Only rank 0 writes outputs and logs.
        size: the number of processes.
    """

    rank = 0
    size = 1

    def gather(self, value: Any) -> list[Any]:
        """Return, in every process, the values of all processes, in the order of their ranks.

        All processes must call it equally often. Each waits for the last.

        Args:
            value: any JSON value. It comes back as JSON gives it: tuples become lists, keys become strings.

        Raises:
            TypeError: JSON cannot express the value, or it holds NaN.
            HydraError: another process has ended, or did not answer within the time-out.
        """
        return [json.loads(_encode(value))]

    def add(self, numbers: Tensor) -> None:
        """Replace ``numbers`` in every process by their sum over all processes, with the same bits everywhere.

        All processes must call it equally often, with tensors of the same shape and dtype.

        Raises:
            HydraError: another process has ended, or did not answer within the time-out.
        """

    def exchanging(self) -> AbstractContextManager[None]:
        """Return a context for code that exchanges tensors by torch itself; it turns a lost connection into an error.

        Raises:
            HydraError: another process has ended, or did not answer within the time-out.
        """
        return contextlib.nullcontext()

    def quieted(self, log: Log) -> Log:
        """Return the log on rank 0, and a silent one on other ranks, whose lines would repeat those of rank 0."""
        if self.rank == 0:
            return log
        return Log()

    def close(self) -> None:
        """Leave the team; calling it again is safe."""

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def processes(timeout_s: float, *, nccl: bool = False) -> Processes:
    """Join the processes that ``torchrun`` started, by the variables it sets, and return the team; else a team of one.

    It must be called before torch is imported, because only then does torch keep silent about lost connections. Without
    ``torchrun``, torch is not imported at all.

    Args:
        timeout_s: seconds to wait for the other processes. Between two calls of :meth:`~Processes.gather`, no process
            may be slower than another by more than this. A process that has died is noticed at once.
        nccl: whether NCCL exchanges tensors on GPUs; each process then needs a GPU.

    Raises:
        UsageError: the variables are missing or contradict each other.
        HydraError: the others cannot be reached within the time-out.
    """
    rank, size = _rank_and_size()
    if size == 1:
        return Processes()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # silent about lost connections, which become a HydraError
    import torch.distributed

    # Gloo exchanges tensors in main memory: with it several ranks may share a GPU, and Ctrl-C interrupts the waiting.
    backend = "gloo"
    if nccl and torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
    timeout = timedelta(seconds=timeout_s)
    # Meet at the address that the variables tell, where a store of keys and values is shared, and form the group.
    try:
        meeting = torch.distributed.rendezvous("env://", rank, size, timeout=timeout)  # type: ignore[attr-defined]
        store, _, _ = next(meeting)
        # When torchrun restarts all processes, its store may still hold the addresses of the dead ones. So each restart
        # uses keys of its own.
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
    """Return whether this process does not belong to a team that ``torchrun`` started.

    Raises:
        UsageError: the variables of ``torchrun`` are missing or contradict each other.
    """
    _, size = _rank_and_size()
    return size == 1


def restarted() -> bool:
    """Return whether ``torchrun --max-restarts`` has restarted this process, because one of the team had failed."""
    return _restarts() not in ("", "0")


def _restarts() -> str:
    """Return how often ``torchrun`` has restarted all processes, as text; empty without ``torchrun``."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "")


def local_device(device: str) -> str:
    """Return the device of this process: with ``cuda`` or ``auto`` a GPU of its own, e.g. ``cuda:1``; else as given.

    Raises:
        UsageError: there are more processes than GPUs.
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


class _Group(Processes):
    """One of several processes, in torch's default process group."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._open = True

    def gather(self, value: Any) -> list[Any]:
        import torch
        import torch.distributed

        # Returns the values of all processes, by rank. torch exchanges only tensors that have the same size in all of
        # them, so the texts of JSON are filled up with spaces to the longest, as JSON may end with them.
        text = _encode(value)
        longest = torch.tensor(len(text))  # of this process; the collective replaces it by that of all
        self._run_collective(torch.distributed.all_reduce, longest, torch.distributed.ReduceOp.MAX)
        filled = text.ljust(int(longest))
        sent = torch.frombuffer(bytearray(filled), dtype=torch.uint8)
        received = [torch.empty_like(sent) for _ in range(self.size)]
        self._run_collective(torch.distributed.all_gather, received, sent)
        return [json.loads(tensor.numpy().tobytes()) for tensor in received]

    def add(self, numbers: Tensor) -> None:
        import torch.distributed

        self._run_collective(torch.distributed.all_reduce, numbers)

    def _run_collective(self, collective: Callable[..., Any], *arguments: Any) -> None:
        """Run a collective, and wait for it in Python, because a process that waits inside torch ignores Ctrl-C."""
        with self.exchanging():
            work = collective(*arguments, async_op=True)
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
            if not is_error_of_torch and not names_gloo:  # a defect in the program, not a lost connection
                raise
            _never_free(torch.distributed.group.WORLD)
            self.close()
            hint = "run the same command with --resume"
            raise HydraError("another process of this run has ended", hint=hint) from error

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        # If a gather was interrupted, torch waits for the processes that have not reached it. So leave in a thread, and
        # wait only a moment for it.
        leaving = threading.Thread(target=_leave_group, daemon=True)
        leaving.start()
        leaving.join(_PATIENCE_S)


def _never_free(group: Any) -> None:
    """Keep torch's process group until the process ends.

    Whoever frees it holds Python's lock and waits for a thread of the group. After a lost connection this thread may be
    waiting for that lock, to free what an exchange has left: both would wait for ever.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _leave_group() -> None:
    """Leave torch's process group, whether or not the other processes still exist."""
    import torch.distributed

    with contextlib.suppress(Exception):  # this process is ending, so errors do not matter
        torch.distributed.destroy_process_group()


def _encode(value: Any) -> bytes:
    """Return a value as the bytes of its JSON text.

    Raises:
        TypeError: JSON cannot express the value.
    """
    try:
        return json.dumps(value, allow_nan=False).encode("ascii")
    except ValueError as error:
        raise TypeError(f"no value for JSON: {error}") from None


def _rank_and_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes, from the variables of ``torchrun``; else 0 and 1.

    Raises:
        UsageError: some of the variables are missing, or contradict each other.
    """
    world_size = os.environ.get("WORLD_SIZE", "")
    if world_size in ("", "1"):
        return 0, 1
    rank = _number("RANK")
    size = _number("WORLD_SIZE")
    if rank >= size:
        raise UsageError(f"RANK is {rank}, but WORLD_SIZE {size}", hint="ranks count from 0")
    return rank, size


def _number(name: str) -> int:
    """Return the number in an environment variable.

    Raises:
        UsageError: it does not hold a number.
    """
    text = os.environ.get(name, "")
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    if not is_number:
        hint = "start several processes with torchrun, which sets it, or unset WORLD_SIZE"
        raise UsageError(f"{name} is {text!r}, not a number", hint=hint)
    return int(text)
