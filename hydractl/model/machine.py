"""How fast a machine can be at best: the rate of a large matrix product, in one number format or in two compared."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SECONDS = 0.1
"""About how long the matrix product should take whose rate counts as the peak of the machine."""

_SMALLEST = 64
"""The size of the first matrices that are tried in the search for the peak."""
_LARGEST = 16_384
"""The largest size: a matrix takes 1 GiB at four bytes per number."""
_STEP = 64
"""All sizes are multiples of this."""

_NOTICEABLE = 1.1
"""A slowdown above this factor is worth a warning."""


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def peak_macs_per_s(device: torch.device, dtype: torch.dtype) -> float | None:
    """Measure the multiply-adds per second of a large product of two square matrices, the best of three runs.

    The size grows from a small one until a run takes about :data:`SECONDS`. So a format in which the machine computes
    hundreds of times slower is also measured in a few seconds.

    Returns:
        The rate; None if the device cannot multiply matrices of this dtype.
    """
    size = _SMALLEST
    try:
        seconds = _best_seconds(size, dtype, device, runs=2)
        while seconds < SECONDS / 2 and size < _LARGEST:
            # Multiply-adds grow with the third power of the size: if a run took an eighth of the time it should, the
            # size doubles. A larger product never has a lower rate. Sizes are multiples of _STEP, each larger than the
            # one before, up to _LARGEST.
            measurable = max(seconds, 1e-6)  # a clock may be too coarse to see any time pass
            growth = (SECONDS / measurable) ** (1 / 3)
            steps = int(size * growth) // _STEP
            at_least_one_step = max(steps * _STEP, size + _STEP)
            size = min(at_least_one_step, _LARGEST)
            seconds = _best_seconds(size, dtype, device, runs=1)
        seconds = _best_seconds(size, dtype, device, runs=3)
    except RuntimeError:  # torch has no such operator on this device
        return None
    return size**3 / seconds


@functools.cache  # measured once per process
def slow_format(dtype: torch.dtype, device: torch.device) -> str | None:
    """Return a warning if a half-precision format was measured to be slower than float32 on this CPU; else None."""
    import torch

    half_precision = (torch.bfloat16, torch.float16)
    if device.type != "cpu" or dtype not in half_precision:
        return None
    name = str(dtype).removeprefix("torch.")
    rate = peak_macs_per_s(device, dtype)
    rate_of_float32 = peak_macs_per_s(device, torch.float32)
    if rate is None or rate_of_float32 is None:
        return None
    factor = rate_of_float32 / rate
    if factor <= _NOTICEABLE:
        return None
    times = f"{factor:.1f}" if factor < 10 else f"{factor:.0f}"
    return f"{name} is {times} times slower than float32 on this CPU (measured on a matrix product)"


def _best_seconds(size: int, dtype: torch.dtype, device: torch.device, runs: int) -> float:
    """Time a product of two square matrices, and return the fewest seconds of several runs.

    A small part of the product runs first and is not timed.

    Args:
        size: the number of rows and columns of the matrices.
        dtype, device: the type of the numbers, and the device that multiplies.
        runs: how often the product is timed.
    """
    import torch

    generator = torch.Generator().manual_seed(0)

    # Random numbers, because some devices draw less power on zeros and then run faster.
    drawn = torch.randn(size, size, generator=generator)
    a = drawn.to(device, dtype)
    with torch.inference_mode():
        a[:_STEP] @ a  # the small part; its result is not used
        seconds = []
        for _ in range(runs):
            wait(device)
            start = time.perf_counter()
            a @ a
            wait(device)
            seconds.append(time.perf_counter() - start)
    return min(seconds)
