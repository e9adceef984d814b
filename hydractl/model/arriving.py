"""Brings the outputs of a batch to the CPU while the device runs the next batch.

A GPU runs what was asked of it in this order, and Python goes on at once. A copy to the CPU that is waited for would
leave it idle while the CPU reduces the batch. So the copy is started right after the batch, the next batch is started
after it, and only then is the copy waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")


class Arriving:
    """Tensors that are being copied to the CPU.

    Args:
        tensors: the outputs of one batch, on any device.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        # Begin all copies without waiting; those of a GPU have arrived once its event has been recorded.
        self._on_cpu = [tensor.to("cpu", non_blocking=tensor.is_cuda) for tensor in tensors]
        self._copied: list[torch.cuda.Event] = []  # an event on each GPU, after its copies
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            copied = torch.cuda.Event()
            copied.record(torch.cuda.current_stream(device))
            self._copied.append(copied)

    def arrived(self) -> list[Tensor]:
        """Wait for the copies, and return them in the order of the tensors."""
        if not self._copied:
            return self._on_cpu
        for copied in self._copied:
            copied.synchronize()
        # These copies lie in memory that is never swapped out, and the caller may keep them for long: copy them again.
        return [tensor.clone() for tensor in self._on_cpu]


def one_behind(started: Iterable[Item], device: torch.device) -> Iterator[Item]:
    """Yield the items; on CUDA each of them after the next one was asked for, so that the device has work meanwhile.

    Of items a, b, c it asks for a and b, yields a, asks for c, yields b, and at the end yields c. Elsewhere each is
    yielded before the next one is asked for: a CPU has no queue, and gains nothing.

    Args:
        started: starts the work of an item when it is asked for, and does not wait for it.
        device: the device that does the work.
    """
    if device.type != "cuda":
        yield from started
        return
    waiting: list[Item] = []
    for item in started:
        waiting.append(item)
        if len(waiting) == 2:
            yield waiting.pop(0)
    yield from waiting
