"""The best that a machine can do: the rate of a large matrix product in one number format, or in two side by side."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SECONDS = 0.1
"""About how long the matrix product takes whose rate is the peak of the machine."""

_SMALLEST = 64
"""The smallest size of the matrices whose product is the peak."""
_LARGEST = 16_384
"""The largest: at four bytes a number, a matrix of 1 GiB."""
_STEP = 64
"""Sizes between the two are multiples of this."""

_SIZES = (32, 128, 512)
"""Sizes of the matrices by which formats are compared."""
_ENOUGH = 0.05
"""Seconds that a product may be expected to take for its size to be tried."""
_NOTICEABLE = 1.1
"""The slowdown from which on there is a warning."""


def wait(device: torch.device) -> None:
    """Let the device finish what it was given."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def peak_macs_per_s(device: torch.device, dtype: torch.dtype) -> float | None:
    """Measure the mult-adds a second of a large product of two square matrices, the best of three runs.

    The size grows from a small one until a run takes about :data:`SECONDS`, so that a format in which the machine
    computes hundreds of times slower is measured in a few seconds too.

    Returns:
        None where the device does not multiply matrices of this dtype.
    """
    size = _SMALLEST
    try:
        seconds = _best_seconds(size, dtype, device, runs=2)
        while seconds < SECONDS / 2 and size < _LARGEST:
            size = _next_size(size, seconds)
            seconds = _best_seconds(size, dtype, device, runs=1)
        seconds = _best_seconds(size, dtype, device, runs=3)
    except RuntimeError:  # raised by torch for an operator that does not exist here
        return None
    return size**3 / seconds


def _next_size(size: int, seconds: float) -> int:
    """Return the size of a product that takes :data:`SECONDS` at most, where one of ``size`` took ``seconds``."""
    # A larger product never runs at a lower rate, and the multiply-adds grow with the third power of the size.
    measurable = max(seconds, 1e-6)  # a clock may be too coarse to see any time pass
    growth = (SECONDS / measurable) ** (1 / 3)
    steps = int(size * growth) // _STEP
    grown = steps * _STEP
    one_step_more = size + _STEP
    at_least_one_step = max(grown, one_step_more)
    return min(at_least_one_step, _LARGEST)


def slowdown(dtype: torch.dtype, device: torch.device) -> float | None:
    """Measure how many times longer a matrix product takes than in float32; below one where it is faster.

    The size grows only while the next one is sure to take little time: well below a second in all.

    Returns:
        The factor at the largest size that ran; None where the device does not multiply matrices of this dtype.
    """
    import torch

    factor = None
    growth = _SIZES[1] / _SIZES[0]  # from each size to the next
    for size in _SIZES:
        times = []
        times_in_float32 = []
        try:
            for _ in range(3):
                # By turns, so that other work on the machine slows both.
                times.append(_best_seconds(size, dtype, device, runs=1))
                times_in_float32.append(_best_seconds(size, torch.float32, device, runs=1))
        except RuntimeError:
            return None
        seconds = min(times)
        factor = seconds / min(times_in_float32)
        time_of_next_size = seconds * growth**3  # the multiply-adds grow with the third power of the size
        if time_of_next_size > _ENOUGH:
            break
    return factor


def slow_format(dtype: torch.dtype, device: torch.device) -> str | None:
    """Warn of a half-precision format that is slower than float32 on this CPU, as measured; else None."""
    import torch

    half_precision = (torch.bfloat16, torch.float16)
    if device.type != "cpu" or dtype not in half_precision:
        return None
    name = str(dtype).removeprefix("torch.")
    factor = slowdown(dtype, device)
    if factor is None or factor <= _NOTICEABLE:
        return None
    times = f"{factor:.0f}"
    if factor < 10:
        times = f"{factor:.1f}"
    return f"{name} is {times} times slower than float32 on this CPU (measured on a matrix product)"


def _best_seconds(size: int, dtype: torch.dtype, device: torch.device, runs: int) -> float:
    """Time a product of two square matrices: the fewest seconds of some runs, after an untimed small part of one.

    Args:
        size: the rows and columns of the matrices.
        dtype, device: of their numbers.
        runs: how often the product is timed.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    # Numbers, not zeros: some devices draw less power, and so run faster, on zeros.
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
