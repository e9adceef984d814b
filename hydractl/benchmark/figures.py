"""The figures of timed runs: medians, paired ratios with their intervals, and whether the times scatter too much."""

from __future__ import annotations

from collections.abc import Sequence

from hydractl.files.bench_answer import LatencyRecord, TimedFigures

RESAMPLES = 2000
NOISY = 0.1
FEWEST = 5
"""With fewer rounds than this, nothing is said about how much times scatter."""


def timed(runs: Sequence[float], reference: Sequence[float], batch_size: int, seed: int) -> TimedFigures:
    """Return the times of one model: latency (ms), throughput (samples/s), and ratio to the first model's times.

    Args:
        runs: the seconds of one call, in each round.
        reference: the same for the first model, which all ratios refer to, in the same rounds.
        batch_size: the number of samples in one call.
        seed: draws the resamples for the interval of the ratio.
    """
    import numpy as np

    milliseconds = np.asarray(runs, dtype=np.float64) * 1e3

    # The distribution of the times of one call.
    quarter, three_quarters = np.percentile(milliseconds, [25, 75])
    median = float(np.median(milliseconds))
    # A single run has no standard deviation.
    deviation = float(milliseconds.std(ddof=1)) if len(milliseconds) > 1 else None
    latency = LatencyRecord(
        median=median,
        mean=float(milliseconds.mean()),
        std=deviation,
        min=float(milliseconds.min()),
        max=float(milliseconds.max()),
        q25=float(quarter),
        q75=float(three_quarters),
        runs=milliseconds.tolist(),
    )

    # Compared with the first model in the same rounds, so that slow phases of the machine affect both.
    ratio, interval = paired_ratio(runs, reference, seed)
    return TimedFigures(
        latency_ms=latency,
        throughput_per_s=batch_size / median * 1e3,  # e.g. 32 samples in 40 ms are 800/s
        ratio=ratio,
        ratio_ci=interval,
        noisy=noisy(latency, ratio, interval),
    )


def paired_ratio(runs: Sequence[float], reference: Sequence[float], seed: int) -> tuple[float, list[float]]:
    """Return how many times as long one model takes as another, with a 95 % interval.

    E.g. times of 2, 3, 8 s against 1, 1, 4 s have the ratios 2, 3, 2 and the median 2.

    Args:
        runs: the times of one model, one for each round.
        reference: the times of the other model, in the same rounds and unit.
        seed: draws the resamples.

    Returns:
        The median of the ratios within each round, and its 95 % percentile bootstrap interval ``[low, high]``.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    import numpy as np

    times = np.asarray(runs, dtype=np.float64)
    reference_times = np.asarray(reference, dtype=np.float64)
    ratios = times / reference_times  # [rounds]
    median = np.median(ratios)

    # A resample has as many rounds as the data, drawn with replacement. Take the median of each resample.
    rounds = len(ratios)
    generator = np.random.default_rng(seed)
    drawn_rounds = generator.integers(rounds, size=(RESAMPLES, rounds))  # [RESAMPLES, rounds]
    resamples = ratios[drawn_rounds]  # [RESAMPLES, rounds]
    medians = np.median(resamples, axis=1)  # [RESAMPLES]
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(median), [float(low), float(high)]


def noisy(latency: LatencyRecord, ratio: float, interval: Sequence[float]) -> bool | None:
    """Return whether the times of a row scatter so much that its figures are uncertain; None with too few runs.

    That is so if the middle half of its runs (between the quartiles) is wider than a tenth of their median, or the
    interval of its ratio is wider than a tenth of the ratio. E.g. a median of 40 ms with quartiles of 38 and 43 ms:
    5 ms are more than 4. Single outliers change neither.
    """
    if len(latency.runs) < FEWEST:
        return None
    assert latency.q25 is not None and latency.q75 is not None  # timed runs have quartiles
    middle_half = latency.q75 - latency.q25
    low, high = interval
    runs_scatter = middle_half / latency.median > NOISY
    ratio_is_vague = (high - low) / ratio > NOISY
    return bool(runs_scatter or ratio_is_vague)


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
