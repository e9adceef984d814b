"""The measurement itself: every row at every batch size and dtype, timed in rounds; in a round, each row runs once.

The order of the rows is drawn anew for each round. Also here: the peak rate of the machine, and the warnings.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hydractl.benchmark.figures import NOISY, timed
from hydractl.benchmark.rows import BenchModel
from hydractl.data.labels import some
from hydractl.errors import HydraError, NonFiniteError
from hydractl.families.reading import first_line
from hydractl.files.bench_answer import BenchAnswer, BenchCost, BenchRow, MachineRecord
from hydractl.log import Log, Progress
from hydractl.model.loading import resolve_dtype
from hydractl.model.machine import peak_macs_per_s, slow_format, wait

_RECORDING = 2
"""The number of calls, after the first, in which CUDA graphs are recorded."""

Inputs = Tensor | Mapping[str, Tensor]
"""One batch of inputs: pixels, or tensors by name."""


@dataclass(frozen=True)
class BenchOptions:
    """Options of a bench.

    Attributes:
        batch_sizes, dtypes: every row is measured at each combination of them.
        rounds, warmup: the rounds that count, and the rounds before them that do not.
        compile_mode: the mode of ``torch.compile``; None: models are not compiled.
        seed: draws inputs, the order in each round, and resamples.
    """

    batch_sizes: Sequence[int]
    dtypes: Sequence[str]
    rounds: int
    warmup: int
    compile_mode: str | None
    seed: int


def measure_rows(
    options: BenchOptions, rows: Sequence[BenchModel], costs: Sequence[BenchCost], device: torch.device, log: Log
) -> BenchAnswer:
    """Time all models at every dtype and batch size.

    Args:
        options: the options of the bench.
        rows: the models, the reference first.
        costs: for each row, the cost that is known without a measurement.
        device: the device that models run on.
        log: receives the warnings, and the progress in rounds.

    Returns:
        The results by dtype, then batch size, then row, each in the given order; the machine; the warnings.
    """
    rounds_at_each = options.warmup + options.rounds
    total_rounds = len(options.dtypes) * len(options.batch_sizes) * rounds_at_each
    results: list[BenchRow] = []
    peaks: dict[str, float | None] = {}
    with log.progress("bench", total_rounds, "rounds") as progress:
        for dtype in options.dtypes:
            torch_dtype = resolve_dtype(dtype)
            slow = slow_format(torch_dtype, device)
            if slow is not None:
                log.warn(slow)
            # Measure the peak before and after, and take the higher one: other work on the machine may lower it, and
            # then the shares would be too large.
            peak_before = peak_macs_per_s(device, torch_dtype)
            measured = _measure_dtype(options, rows, costs, device, dtype, progress)
            peak_after = peak_macs_per_s(device, torch_dtype)
            peak = max(peak_before, peak_after) if peak_before and peak_after else None
            peaks[dtype] = peak
            for row in measured:
                # The share of the machine's peak rate of mult-adds that the row reaches; None if the peak is not known.
                share = None if peak is None else row.macs * row.throughput_per_s / peak
                results.append(row.model_copy(update={"peak_share": share}))
        # What the times depend on, without the name of the host or the user.
        device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        machine = MachineRecord(
            python=platform.python_version(),
            torch=torch.__version__,
            processor=_processor(),
            cores=os.cpu_count(),
            threads=torch.get_num_threads(),
            device_name=device_name,
            peak_macs_per_s=peaks,
        )
    noise = _warning_of_noise(results, options.rounds)
    if noise is not None:
        log.warn(noise)
    return BenchAnswer(results=results, machine=machine, warnings=log.warnings)


def _measure_dtype(
    options: BenchOptions,
    rows: Sequence[BenchModel],
    costs: Sequence[BenchCost],
    device: torch.device,
    dtype: str,
    progress: Progress,
) -> list[BenchRow]:
    """Return the measurements in one number format: a row for each model at each batch size.

    The models are freed on return, before those of the next dtype are built.

    Args:
        options: the options of bench.
        rows: the models.
        costs: what is known of each model without a measurement, in the same order.
        device: the device on which they run.
        dtype: the number format.
        progress: is advanced by 1 after each round.
    """
    # Build all models once; compilation and inputs are per batch size.
    built = {row.name: row.build(str(device), dtype) for row in rows}
    mode = options.compile_mode  # None: not compiled
    measured = []
    for batch_size in options.batch_sizes:
        where = f"batch {batch_size}, {dtype}, {device}"  # for messages

        # Time all models in turn: for each the seconds of one call in each round.
        contest = Contest(built, batch_size, device, options.seed, mode, where)
        seconds_by_name = contest.run(options.warmup, options.rounds, progress)
        seconds_of_first = seconds_by_name[rows[0].name]  # the reference of all ratios

        # One result for each model at this batch size.
        for row, cost in zip(rows, costs, strict=True):
            times = timed(seconds_by_name[row.name], seconds_of_first, batch_size, options.seed)
            peak_memory = contest.peak_memory_bytes[row.name]
            timing = times.model_copy(update={"peak_memory_bytes": peak_memory})
            measured.append(
                BenchRow(
                    model=row.name,
                    sha256=row.model.sha256,
                    batch_size=batch_size,
                    dtype=dtype,
                    device=str(device),
                    compile=mode is not None,
                    compile_mode=mode,
                    **dict(timing),  # what was measured
                    **dict(cost),  # what was known before: parameters, mult-adds, bytes
                )
            )
    return measured


def _warning_of_noise(results: Sequence[BenchRow], rounds: int) -> str | None:
    """Return a warning that names up to three rows whose times scatter too much; None if there are none."""
    rows = [f"{row.model} (batch {row.batch_size}, {row.dtype})" for row in results if row.noisy]
    if not rows:
        return None
    return (
        f"times scatter by more than {NOISY:.0%}: {some(rows, 3)}; "
        f"take more --rounds (now {rounds}), or stop what else runs on this machine"
    )


# --- the rounds -------------------------------------------------------------------------------------------------------


class Contest:
    """Models that are timed at one batch size, each on inputs of its own, drawn by one seed.

    Args:
        models: by name. A call with inputs returns ``[B, classes]``; ``example_inputs(batch, seed)`` draws inputs.
        batch_size: the number of samples in one call.
        device: the device of the models.
        seed: draws the inputs, and the order within each round.
        mode: the mode of ``torch.compile``; None: models run uncompiled.
        where: a text that is added to the name of a model in an error.

    Attributes:
        peak_memory_bytes: by model, the bytes of its weights and inputs plus the most that a call adds; None if the
            device does not count them. Set by :meth:`run`.
    """

    def __init__(
        self,
        models: Mapping[str, Any],
        batch_size: int,
        device: torch.device,
        seed: int,
        mode: str | None,
        where: str,
    ) -> None:
        """Draw inputs, and wrap each model for compilation if ``mode`` is set; nothing runs or is compiled yet."""
        # What runs and where, and what is found out about each model.
        self.models = models
        self.device = device
        self.mode = mode
        self.where = where
        self.peak_memory_bytes: dict[str, int | None] = dict.fromkeys(models)
        self._random = np.random.default_rng(seed)
        # Compiled models may run as CUDA graphs, which are recorded in the first calls.
        self._records_graphs = mode is not None and device.type == "cuda"

        # Models with the same kind of inputs draw the same numbers.
        self._inputs: dict[str, Inputs] = {}
        for name, model in models.items():
            self._inputs[name] = model.example_inputs(batch_size, seed)

        # Compiled code is cached by the code of a class, not by object: so clear the cache for each batch size. Count
        # the graphs, to check later that something was compiled.
        self._graphs_before = 0
        if mode is not None:
            torch.compiler.reset()
            self._graphs_before = _compiled_graphs()

        # How each model is called.
        self._calls: dict[str, Callable[[Any], Tensor]] = {}
        for name, model in models.items():
            self._calls[name] = model if mode is None else _compile(model, mode)

    @torch.inference_mode()
    def run(self, warmup: int, rounds: int, progress: Progress) -> dict[str, list[float]]:
        """Return, by the name of the model, the seconds of one call in each measured round.

        In a round each model is called once. It also sets :attr:`peak_memory_bytes`. The steps are: a first call of
        each model, which compiles it; warmup rounds, whose times are dropped; the peak memory of each model; the
        measured rounds.

        Args:
            warmup: the number of warmup rounds.
            rounds: the number of measured rounds.
            progress: is advanced by 1 after each round.

        Raises:
            NonFiniteError: a model returns NaN or infinity.
            HydraError: a model cannot be compiled as one graph, or cannot run in this dtype on this device.
        """
        for name in self.models:
            self._check_first_call(name)
        with self._no_further_compilation():
            for _ in range(warmup):
                self._time_all_once()
                progress.advance()
            for name in self.models:
                self.peak_memory_bytes[name] = self._peak_memory(name)
            seconds_by_name: dict[str, list[float]] = {name: [] for name in self.models}
            for _ in range(rounds):
                for name, seconds in self._time_all_once().items():
                    seconds_by_name[name].append(seconds)
                progress.advance()
            return seconds_by_name

    def _check_first_call(self, name: str) -> None:
        """Call a model for the first time, which compiles it if asked for, and check that it runs and is finite.

        Raises:
            NonFiniteError: it returns NaN or infinity.
            HydraError: it cannot run, or was not compiled although that was asked for.
        """
        mode = self.mode  # None: not compiled
        try:
            if mode is not None:
                # Once uncompiled: values that a model computes once and keeps must not become a part of its graph.
                self.models[name](self._inputs[name])
            output = self._call(name)  # compiles it
            if self._records_graphs:  # the next calls are recorded as CUDA graphs
                for _ in range(_RECORDING):
                    output = self._call(name)
            is_finite = bool(torch.isfinite(output).all())
        except Exception as error:  # compilers and devices raise errors of many kinds
            verb = "run" if mode is None else "be compiled and run"
            message = f"{name} cannot {verb} ({self.where}): {first_line(error)}"
            raise HydraError(message, hint=_failure_hint(error, mode)) from error

        # It ran: was it compiled, and is its output finite?
        if mode is not None and _compiled_graphs() == self._graphs_before:
            raise HydraError(
                f"{name} was not compiled: torch.compile is switched off ({self.where})",
                hint="unset TORCH_COMPILE_DISABLE and TORCHDYNAMO_DISABLE, or bench without --compile",
            )
        if not is_finite:
            raise NonFiniteError(f"{name} gives NaN or infinity ({self.where})", hint="try --dtype float32")

    @contextlib.contextmanager
    def _no_further_compilation(self) -> Iterator[None]:
        """Forbid compilation inside this context, because its time would be counted as the model's.

        Raises:
            HydraError: a model would be compiled again.
        """
        if self.mode is None:
            yield
            return
        import torch._dynamo.config
        import torch._dynamo.exc

        try:
            with torch._dynamo.config.patch(error_on_recompile=True):
                yield
        except torch._dynamo.exc.RecompileError as error:
            raise HydraError(
                f"a model would be compiled again in the middle of the measurement ({self.where}): {first_line(error)}",
                hint="bench without --compile",
            ) from error

    def _time_all_once(self) -> dict[str, float]:
        """Return, by name, the seconds of one call of each model; the order of the calls is random, anew each time.

        A GPU runs behind the program, so :func:`wait` lets it finish before the clock is read.
        """
        names = list(self.models)
        order = self._random.permutation(len(names))
        seconds = {}
        for index in order:
            name = names[index]
            call = self._calls[name]
            inputs = self._inputs[name]
            self._free_last_answer()  # CUDA graphs may overwrite it
            wait(self.device)
            start = time.perf_counter()
            call(inputs)
            wait(self.device)
            seconds[name] = time.perf_counter() - start
        return seconds

    def _call(self, name: str) -> Tensor:
        """Call a model on its inputs and return its output."""
        self._free_last_answer()
        return self._calls[name](self._inputs[name])

    def _free_last_answer(self) -> None:
        """Tell torch that the last output is no longer needed, so that CUDA graphs may overwrite it."""
        if self._records_graphs:
            torch.compiler.cudagraph_mark_step_begin()

    def _peak_memory(self, name: str) -> int | None:
        """Return the bytes that a model would need alone on the device; None unless it is a CUDA GPU.

        These are the bytes of its weights and inputs, plus the most that a call adds: the peak in the call minus what
        is in use before it. E.g. weights and inputs of 100 MB, 300 MB in use before (several models are loaded), and a
        peak of 350 MB in the call: 150 MB.
        """
        if self.device.type != "cuda":
            return None

        # What a call adds.
        wait(self.device)
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self._call(name)
        wait(self.device)
        peak = torch.cuda.max_memory_allocated(self.device)
        added_by_call = peak - before

        # The memory in use before the call also holds other models, so add only the tensors of this one.
        model: nn.Module = self.models[name]
        inputs = self._inputs[name]
        input_tensors = inputs.values() if isinstance(inputs, Mapping) else [inputs]
        tensors = [*model.parameters(), *model.buffers(), *input_tensors]
        bytes_of_tensors = sum(tensor.nbytes for tensor in tensors)
        return added_by_call + bytes_of_tensors


def _failure_hint(error: Exception, mode: str | None) -> str:
    """Return a hint what to do about a model that does not run."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "use a smaller --batch-size"
    if mode is not None:
        return "bench without --compile, or see the whole error with HYDRACTL_DEBUG=1"
    return "use another --dtype or --device"


def _compile(model: nn.Module, mode: str | None) -> Callable[[Any], Tensor]:
    """Return the model as torch compiles it: as one graph, and for the batch size of the first call only.

    Nothing is compiled before that call. With ``fullgraph``, a graph break, an error of the compiler or too many
    recompilations then raise an error, even if torch is configured to fall back to uncompiled code.

    Args:
        model: the model.
        mode: torch's mode of compilation, e.g. ``reduce-overhead``.
    """
    # Newer versions of torch can cache the code of each model separately; older ones compile at most eight models.
    isolation: dict[str, bool] = {}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        isolation["isolate_recompiles"] = True
    compile_model: Any = torch.compile
    compiled: Callable[[Any], Tensor] = compile_model(model, fullgraph=True, dynamic=False, mode=mode, **isolation)
    return compiled


def _compiled_graphs() -> int:
    """Return how many graphs this process has compiled so far."""
    import torch._dynamo.utils

    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


# --- the machine ------------------------------------------------------------------------------------------------------


def _processor() -> str:
    """Return the model name of the processor, from /proc on Linux, where ``platform`` knows only the architecture."""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        match = re.search(r"^model name\s*:[ \t]*(\S.*)$", text, re.MULTILINE)
        if match:
            return match[1].strip()
    return platform.processor() or platform.machine()
