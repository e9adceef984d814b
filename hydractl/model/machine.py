"""How fast a machine can be at best: the rate of a large matrix product, in one number format or in two compared."""

from __future__ import annotations

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

_SIZES = (32, 128, 512)
"""The sizes of the matrices with which two formats are compared."""
_ENOUGH = 0.05
"""A size is only tried if its product is expected to take at most this many seconds."""
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


def slowdown(dtype: torch.dtype, device: torch.device) -> float | None:
    """Measure how many times longer a matrix product takes than in float32; below 1 if it is faster.

    The size grows only while the next size is sure to take little time, so all sizes together take less than a second.

    Returns:
        The factor at the largest size that was measured; None if the device cannot multiply matrices of this dtype.
    """
    import torch

    factor = None  # seconds in this dtype / seconds in float32
    growth = _SIZES[1] / _SIZES[0]  # the ratio of each size to the previous one
    for size in _SIZES:
        times = []
        times_in_float32 = []
        try:
            for _ in range(3):
                # Alternate, so that other work on the machine slows down both.
                times.append(_best_seconds(size, dtype, device, runs=1))
                times_in_float32.append(_best_seconds(size, torch.float32, device, runs=1))
        except RuntimeError:
            return None
        seconds = min(times)
        factor = seconds / min(times_in_float32)
        time_of_next_size = seconds * growth**3  # the number of multiply-adds grows with the third power of the size
        if time_of_next_size > _ENOUGH:
            break
    return factor


def slow_format(dtype: torch.dtype, device: torch.device) -> str | None:
    """Return a warning if a half-precision format was measured to be slower than float32 on this CPU; else None."""
    import torch

    half_precision = (torch.bfloat16, torch.float16)
    if device.type != "cpu" or dtype not in half_precision:
        return None
    name = str(dtype).removeprefix("torch.")
    factor = slowdown(dtype, device)
    if factor is None or factor <= _NOTICEABLE:
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
        a[:_STEP] @ a
        seconds = []
        for _ in range(runs):
            wait(device)
            start = time.perf_counter()
            a @ a
            wait(device)
            seconds.append(time.perf_counter() - start)
    return min(seconds)
