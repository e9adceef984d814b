"""The figures of timed runs: medians, paired ratios with their intervals, and whether the runs scatter too far."""

from __future__ import annotations

from collections.abc import Sequence

from hydractl.files.bench_answer import LatencyRecord, TimedFigures

RESAMPLES = 2000
NOISY = 0.1
FEWEST = 5
"""Fewer rounds than this say nothing about how far times scatter."""


def timed(runs: Sequence[float], reference: Sequence[float], batch_size: int, seed: int) -> TimedFigures:
    """Return the figures of the runs of one model (seconds), beside those of the first model in the same rounds."""
    import numpy as np

    times = np.asarray(runs, dtype=np.float64) * 1e3
    low, high = np.percentile(times, [25, 75])
    median = float(np.median(times))
    deviation = None
    if len(times) > 1:
        deviation = float(times.std(ddof=1))
    latency = LatencyRecord(
        median=median,
        mean=float(times.mean()),
        std=deviation,
        min=float(times.min()),
        max=float(times.max()),
        q25=float(low),
        q75=float(high),
        runs=times.tolist(),
    )
    ratio, interval = paired_ratio(runs, reference, seed)
    return TimedFigures(
        latency_ms=latency,
        throughput_per_s=batch_size / median * 1e3,
        ratio=ratio,
        ratio_ci=interval,
        noisy=noisy(latency, ratio, interval),
    )


def paired_ratio(runs: Sequence[float], reference: Sequence[float], seed: int) -> tuple[float, list[float]]:
    """Return the median of the ratios within each round, and its 95 % percentile bootstrap interval.

    Args:
        runs: times of one model, one a round.
        reference: times of the model it is compared with, in the same rounds and unit.
        seed: draws the resamples.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    import numpy as np

    times = np.asarray(runs, dtype=np.float64)
    reference_times = np.asarray(reference, dtype=np.float64)
    ratios = times / reference_times
    rounds = len(ratios)
    generator = np.random.default_rng(seed)
    drawn = generator.integers(rounds, size=(RESAMPLES, rounds))
    medians = np.median(ratios[drawn], axis=1)  # [RESAMPLES]
    low, high = np.percentile(medians, [2.5, 97.5])
    median = np.median(ratios)
    return float(median), [float(low), float(high)]


def noisy(latency: LatencyRecord, ratio: float, interval: Sequence[float]) -> bool | None:
    """Return whether the figures of a row are to be taken with caution.

    Either the middle half of its runs is wider than a tenth of their median, or the interval of its ratio wider than a
    tenth of the ratio. Single outliers move neither.

    Returns:
        None for fewer than :data:`FEWEST` runs.
    """
    if len(latency.runs) < FEWEST:
        return None
    assert latency.q25 is not None and latency.q75 is not None  # of runs that were timed
    scatter = (latency.q75 - latency.q25) / latency.median
    low, high = interval
    width = (high - low) / ratio
    return bool(scatter > NOISY or width > NOISY)


# --- rows -------------------------------------------------------------------------------------------------------------

COMPARED = ("stock", "members", "member", "deep")
"""Kinds of rows that ``--compare`` adds."""

_LATENCY_KEYS = ("median", "mean", "std", "min", "max", "q25", "q75")
ROW_KEYS = (
    "ratio",
    "mac_ratio",
    *(f"latency_ms.{key}" for key in _LATENCY_KEYS),
    "throughput_per_s",
    "peak_share",
    "peak_memory_bytes",
    "params",
    "macs",
    "bytes",
    "checkpoint_bytes",
    "members",
    "batch_size",
)
"""The dotted keys of the numbers in a row, for ``--require``; known before anything is measured."""
