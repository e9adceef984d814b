"""The measurement itself: every row at every batch size and dtype, the peak of the machine, and what to warn of."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hydractl.bench.figures import NOISY, timed
from hydractl.bench.rows import Row
from hydractl.bench.timing import Contest
from hydractl.log import Log, Progress
from hydractl.model.loading import resolve_dtype
from hydractl.model.machine import peak_macs_per_s, slow_format


@dataclass(frozen=True)
class BenchOptions:
    """How a bench measures.

    Attributes:
        batch_sizes, dtypes: every row is measured at each pair of them.
        rounds, warmup: rounds that count, and rounds before them that do not.
        threads: of torch on the CPU; None: as they are.
        compile_mode: of ``torch.compile``; None: not compiled.
        seed: draws inputs, the order of each round and resamples.
    """

    batch_sizes: Sequence[int]
    dtypes: Sequence[str]
    rounds: int
    warmup: int
    threads: int | None
    compile_mode: str | None
    seed: int


def measure(
    options: BenchOptions, rows: Sequence[Row], costs: Sequence[dict[str, Any]], device: torch.device, log: Log
) -> dict[str, Any]:
    """Run everything.

    Returns:
        ``results`` (by dtype, then batch size, then row, each in the order given), ``machine`` and ``warnings``, which
        also went to the log.
    """
    warnings: list[str | None] = []
    total = len(options.dtypes) * len(options.batch_sizes) * (options.warmup + options.rounds)
    results: list[dict[str, Any]] = []
    peaks: dict[str, float | None] = {}
    with threads(options.threads) as count, log.progress("bench", total, "rounds") as progress:
        for dtype in options.dtypes:
            warnings.append(slow_format(resolve_dtype(dtype), device))
            # Before and after, as a peak that other work on the machine held down would make the shares too large.
            before = peak_macs_per_s(device, resolve_dtype(dtype))
            found = _measure_dtype(options, rows, costs, device, dtype, progress)
            after = peak_macs_per_s(device, resolve_dtype(dtype))
            peaks[dtype] = max(before, after) if before and after else None
            results += [{**row, "peak_share": _share(row, peaks[dtype])} for row in found]
        machine = {**_machine(device, count), "peak_macs_per_s": peaks}
    warnings.append(_noise(results, options.rounds))
    said = [warning for warning in warnings if warning is not None]
    for warning in said:
        log.warn(warning)
    return {"results": results, "machine": machine, "warnings": said}


def _measure_dtype(
    options: BenchOptions,
    rows: Sequence[Row],
    costs: Sequence[dict[str, Any]],
    device: torch.device,
    dtype: str,
    progress: Progress,
) -> list[dict[str, Any]]:
    """The rows of one dtype; its models are freed on return, before those of the next are built."""
    built = {row.name: row.build(str(device), dtype) for row in rows}
    mode = options.compile_mode
    found = []
    for batch_size in options.batch_sizes:
        where = f"batch {batch_size}, {dtype}, {device}"
        contest = Contest(built, batch_size, device, options.seed, mode, where)
        runs = contest.run(options.warmup, options.rounds, progress)
        compiled = {"compile": mode is not None, "compile_mode": mode}
        common = {"batch_size": batch_size, "dtype": dtype, "device": str(device), **compiled}
        for row, cost in zip(rows, costs, strict=True):
            figures = timed(runs[row.name], runs[rows[0].name], batch_size, options.seed)
            memory = {"peak_memory_bytes": contest.peak_memory_bytes[row.name]}
            found.append({"model": row.name, "sha256": row.model.sha256, **common, **figures, **memory, **cost})
    return found


def _share(row: dict[str, Any], peak: float | None) -> float | None:
    """The rate at which a model computes over that of the machine at its best."""
    return None if peak is None else row["macs"] * row["throughput_per_s"] / peak


# --- what to warn of --------------------------------------------------------------------------------------------------


def _noise(results: Sequence[dict[str, Any]], rounds: int) -> str | None:
    rows = [f"{row['model']} (batch {row['batch_size']}, {row['dtype']})" for row in results if row["noisy"]]
    if not rows:
        return None
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    return (
        f"times scatter by more than {NOISY:.0%}: {', '.join(rows[:3])}{more}; "
        f"take more --rounds (now {rounds}), or stop what else runs on this machine"
    )


# --- the machine ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[int]:
    """Set torch's CPU threads for a while; yields how many there are."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def _machine(device: torch.device, count: int) -> dict[str, Any]:
    """What the times depend on; no name of the host or the user."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": count,
        "device_name": name,
    }


def _processor() -> str:
    """The model of the processor; ``platform`` knows no more than the architecture on Linux."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()
