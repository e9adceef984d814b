"""``hydractl bench``: what models cost in time and memory, measured side by side.

Every round runs every model once on the same inputs, in an order drawn anew, so that a drift of the machine meets all
models alike; ratios are taken within a round (paired) before their median.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.log import Log, Progress
from hydractl.outcome import Outcome

if TYPE_CHECKING:
    import torch

    from hydractl.fusion.opening import ModelArgument
    from hydractl.settings import BenchSettings

SCHEMA = "hydractl.bench/1"
RESAMPLES = 2000

CONVENTIONS = {
    "latency_ms": "wall time of one call on one batch, with the device idle before and after; std with n - 1",
    "call": "the averaged prediction: log of the mean over members of their softmax; inputs are already on the device",
    "rounds": "each round runs every model once, in an order drawn anew; all models are loaded together",
    "inputs": "random, the same for all models of one input shape",
    "throughput_per_s": "batch size over median latency",
    "ratio": "median over rounds of this model's time over the first model's in the same round",
    "ratio_ci": f"95 % percentile interval of that median, {RESAMPLES} bootstrap resamples of the rounds",
    "mac_ratio": "macs over the first model's",
    "params": "stored elements, all members",
    "bytes": "stored weights, without the headers of files",
    "peak_memory_bytes": "weights and inputs of this model, and the most one call adds to them; null where not counted",
}

# The dotted keys of the numbers in a row, for --require; known before anything is measured.
_LATENCY_KEYS = ("median", "mean", "std", "min", "max")
ROW_KEYS = (
    "ratio",
    "mac_ratio",
    *(f"latency_ms.{key}" for key in _LATENCY_KEYS),
    "throughput_per_s",
    "peak_memory_bytes",
    "params",
    "macs",
    "bytes",
    "checkpoint_bytes",
    "members",
    "batch_size",
)


def run(settings: BenchSettings, log: Log) -> Outcome:
    """Measure every MODEL at every batch size and dtype."""
    from hydractl.atomic import Output, check_outputs, file_path, write_json
    from hydractl.fusion.opening import find_models
    from hydractl.models import ModelOptions, resolve_device
    from hydractl.requirements import check, check_known

    requirements = settings.requirements()
    device = resolve_device(settings.device)
    models = find_models(settings.model, ModelOptions.of(settings))
    check_known(requirements, [model.name for model in models], ROW_KEYS, skip_first=True)
    to_stdout = settings.output == "-" or (settings.json and settings.output is None)
    path = None if to_stdout else file_path(settings.output or f"{models[0].name}.bench.json")
    costs = _costs(models)
    if settings.dry_run:
        check_outputs([path] if path else [], force=settings.force)
        return Outcome(_plan(settings, models, costs, path))
    with contextlib.nullcontext() if path is None else Output(path, force=settings.force) as output:
        with _threads(settings.threads) as threads:
            machine = _machine(device, threads)
            results = _measure_all(settings, models, costs, device, log)
        document = {"schema": SCHEMA, "results": results, "machine": machine, "conventions": _conventions(settings)}
        files = [] if output is None else [write_json(output, document)]
    rows = [(row["model"], row) for row in results]
    unmet = [line for one in requirements for line in check(one, rows, skip_first=True, label=_label)]
    return Outcome(document, files=files, unmet=unmet, print_document=to_stdout)


def _label(name: str, row: Any) -> str:
    return f"{name} (batch {row['batch_size']}, {row['dtype']})"


def _conventions(settings: BenchSettings) -> dict[str, Any]:
    from hydractl.cost import COUNTED

    drawn = {"rounds_measured": settings.rounds, "rounds_warmup": settings.warmup, "seed": settings.seed}
    return {**CONVENTIONS, "macs": COUNTED, **drawn}


# --- what is known without measuring ----------------------------------------------------------------------------------


def _costs(models: Sequence[ModelArgument]) -> list[dict[str, Any]]:
    """The part of a row that needs no measurement, one for each model."""
    from hydractl.cost import cost_of, total_cost

    rows: list[dict[str, Any]] = []
    for model in models:
        cost = total_cost(cost_of(source.description, source.tensors) for source in model.sources)
        members = sum(len(source.description.masks) for source in model.sources)
        row = {"members": members, "sha256": model.sha256, **cost, "checkpoint_bytes": model.file_bytes}
        rows.append({**row, "mac_ratio": cost["macs"] / (rows[0]["macs"] if rows else cost["macs"])})
    return rows


def _plan(
    settings: BenchSettings, models: Sequence[ModelArgument], costs: Sequence[dict[str, Any]], path: Path | None
) -> dict[str, Any]:
    calls = len(models) * len(settings.batch_size) * len(settings.dtype) * (settings.rounds + settings.warmup + 1)
    return {
        "schema": SCHEMA,
        "dry_run": True,
        "results": [{"model": model.name, **cost} for model, cost in zip(models, costs, strict=True)],
        "batch_sizes": list(settings.batch_size),
        "dtypes": list(settings.dtype),
        "calls": calls,
        "files": [] if path is None else [str(path)],
    }


def _machine(device: torch.device, threads: int) -> dict[str, Any]:
    """What the times depend on; no name of the host or the user."""
    import os
    import platform

    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "device_name": name,
    }


def _processor() -> str:
    """The model of the processor; ``platform`` knows no more than the architecture on Linux."""
    import platform

    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[int]:
    """Set torch's CPU threads for a while; yields how many there are."""
    import torch

    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


# --- measuring --------------------------------------------------------------------------------------------------------


def _measure_all(
    settings: BenchSettings,
    models: Sequence[ModelArgument],
    costs: Sequence[dict[str, Any]],
    device: torch.device,
    log: Log,
) -> list[dict[str, Any]]:
    """The rows: by dtype, then batch size, then model, each in the order given."""
    total = len(settings.dtype) * len(settings.batch_size) * (settings.warmup + settings.rounds)
    results: list[dict[str, Any]] = []
    with log.progress("bench", total, "rounds") as progress:
        for dtype in settings.dtype:
            if device.type == "cpu" and dtype in ("bfloat16", "float16"):
                log.warn(f"{dtype} can be many times slower than float32 on a CPU that does not compute in it")
            results += _measure_dtype(settings, models, costs, device, dtype, progress)
    return results


def _measure_dtype(
    settings: BenchSettings,
    models: Sequence[ModelArgument],
    costs: Sequence[dict[str, Any]],
    device: torch.device,
    dtype: str,
    progress: Progress,
) -> list[dict[str, Any]]:
    """The rows of one dtype; its models are freed on return, before those of the next are built."""
    from hydractl.timing import Contest

    built = {model.name: model.build(str(device), dtype).with_classes() for model in models}
    rows = []
    for batch_size in settings.batch_size:
        where = f"batch {batch_size}, {dtype}, {device}"
        contest = Contest(built, batch_size, device, settings.seed, settings.compile, where)
        runs = contest.run(settings.warmup, settings.rounds, progress)
        common = {"batch_size": batch_size, "dtype": dtype, "device": str(device), "compile": settings.compile}
        for model, cost in zip(models, costs, strict=True):
            timed = _timed(runs[model.name], runs[models[0].name], batch_size, settings.seed)
            peak = contest.peak_memory_bytes[model.name]
            rows.append({"model": model.name, **common, **timed, "peak_memory_bytes": peak, **cost})
    return rows


def _timed(runs: Sequence[float], reference: Sequence[float], batch_size: int, seed: int) -> dict[str, Any]:
    """The figures of the runs of one model (seconds), beside those of the first model in the same rounds."""
    import numpy as np

    times = np.asarray(runs, dtype=np.float64) * 1e3
    latency: dict[str, Any] = {
        "median": float(np.median(times)),
        "mean": float(times.mean()),
        "std": float(times.std(ddof=1)) if len(times) > 1 else None,
        "min": float(times.min()),
        "max": float(times.max()),
        "runs": times.tolist(),
    }
    ratio, interval = paired_ratio(runs, reference, seed)
    return {
        "latency_ms": latency,
        "throughput_per_s": batch_size / latency["median"] * 1e3,
        "ratio": ratio,
        "ratio_ci": interval,
    }


def paired_ratio(runs: Sequence[float], reference: Sequence[float], seed: int) -> tuple[float, list[float]]:
    """Median of the ratios within each round, and its 95 % percentile bootstrap interval.

    Args:
        runs: times of one model, one a round.
        reference: times of the model it is compared with, in the same rounds and unit.
        seed: draws the resamples.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    import numpy as np

    ratios = np.asarray(runs, dtype=np.float64) / np.asarray(reference, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[drawn], axis=1), [2.5, 97.5])
    return float(np.median(ratios)), [float(low), float(high)]
