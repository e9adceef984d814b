"""Timing models against each other: warm-up, then rounds in which each runs once, in an order drawn anew."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hydractl.errors import HydraError, NonFiniteError
from hydractl.log import Progress
from hydractl.model.machine import wait

_RECORDING = 2
"""Calls after the first one in which CUDA graphs are recorded."""


class Contest:
    """Models that are timed at one batch size on inputs of their own shape, the same for all of one shape.

    Args:
        models: by name; called with inputs they give ``[B, classes]``, and ``example_inputs(batch, seed)`` draws those.
        batch_size: samples of one call.
        device: where the models are.
        seed: draws the inputs and the order within each round.
        mode: how ``torch.compile`` compiles them (one of its modes); None: they run as they are.
        where: what to add to the name of a model in an error.

    Attributes:
        peak_memory_bytes: by model: its weights and inputs, and the most one call adds; None where the device does
            not count. Known after :meth:`run`.
    """

    def __init__(
        self, models: Mapping[str, Any], batch_size: int, device: torch.device, seed: int, mode: str | None, where: str
    ) -> None:
        self.models, self.device, self.mode, self.where = models, device, mode, where
        self.peak_memory_bytes: dict[str, int | None] = dict.fromkeys(models)
        self._random = np.random.default_rng(seed)
        self._inputs = _same_inputs({name: model.example_inputs(batch_size, seed) for name, model in models.items()})
        # Compiled code is cached by the code of a class, not by object: another batch size starts afresh.
        if mode is not None:
            torch.compiler.reset()
        self._graphs_before = 0 if mode is None else _graphs()
        self._calls = {name: model if mode is None else _compile(model, mode) for name, model in models.items()}

    @torch.inference_mode()
    def run(self, warmup: int, rounds: int, progress: Progress) -> dict[str, list[float]]:
        """Seconds of one call, by model, one for each measured round.

        Raises:
            NonFiniteError: when a model gives NaN or infinity.
            HydraError: when a model cannot be compiled as one graph, or not run in this dtype on this device.
        """
        for name in self.models:
            self._first_call(name)
        with self._settled():
            return self._rounds(warmup, rounds, progress)

    def _rounds(self, warmup: int, rounds: int, progress: Progress) -> dict[str, list[float]]:
        for _ in range(warmup):
            self._round()
            progress.advance()
        for name in self.models:
            self.peak_memory_bytes[name] = self._peak_memory(name)
        seconds: dict[str, list[float]] = {name: [] for name in self.models}
        for _ in range(rounds):
            for name, elapsed in self._round().items():
                seconds[name].append(elapsed)
            progress.advance()
        return seconds

    def _first_call(self, name: str) -> None:
        """Compile where asked, and check what comes out; not timed."""
        try:
            if self.mode is not None:
                self.models[name](self._inputs[name])  # what a model finds once and keeps is no part of its graph
            output = self._call(name)
            for _ in range(_RECORDING if self._records else 0):
                output = self._call(name)
            finite = bool(torch.isfinite(output).all())
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if isinstance(error, torch.cuda.OutOfMemoryError):
                hint = "use a smaller --batch-size"
            elif self.mode is not None:
                hint = "bench without --compile, or see the whole error with HYDRACTL_DEBUG=1"
            else:
                hint = "use another --dtype or --device"
            verb = "run" if self.mode is None else "be compiled and run"
            raise HydraError(f"{name} cannot {verb} ({self.where}): {reason}", hint=hint) from error
        if self.mode is not None and _graphs() == self._graphs_before:
            raise HydraError(
                f"{name} was not compiled: torch.compile is switched off ({self.where})",
                hint="unset TORCH_COMPILE_DISABLE and TORCHDYNAMO_DISABLE, or bench without --compile",
            )
        if not finite:
            raise NonFiniteError(f"{name} gives NaN or infinity ({self.where})", hint="try --dtype float32")

    @contextlib.contextmanager
    def _settled(self) -> Iterator[None]:
        """From here on nothing is compiled any more: a time with a compilation in it would be none of the model."""
        if self.mode is None:
            yield
            return
        import torch._dynamo.config
        import torch._dynamo.exc

        try:
            with torch._dynamo.config.patch(error_on_recompile=True):
                yield
        except torch._dynamo.exc.RecompileError as error:
            reason = str(error).strip().splitlines()[0]
            raise HydraError(
                f"a model would be compiled again in the middle of the measurement ({self.where}): {reason}",
                hint="bench without --compile",
            ) from error

    def _round(self) -> dict[str, float]:
        names = list(self.models)
        order = self._random.permutation(len(names))
        return {names[i]: self._time(names[i]) for i in order}

    def _time(self, name: str) -> float:
        self._next_step()
        call: Callable[[Any], Tensor] = self._calls[name]
        inputs = self._inputs[name]
        wait(self.device)
        start = time.perf_counter()
        call(inputs)
        wait(self.device)
        return time.perf_counter() - start

    def _call(self, name: str) -> Tensor:
        self._next_step()
        output: Tensor = self._calls[name](self._inputs[name])
        return output

    @property
    def _records(self) -> bool:
        """Whether compiled models may run as CUDA graphs."""
        return self.mode is not None and self.device.type == "cuda"

    def _next_step(self) -> None:
        """Say that the answer of the call before is no longer needed: the memory of CUDA graphs is used again."""
        if self._records:
            torch.compiler.cudagraph_mark_step_begin()

    def _peak_memory(self, name: str) -> int | None:
        """What the model would need alone: the other models in memory are left out."""
        if self.device.type != "cuda":
            return None
        wait(self.device)
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self._call(name)
        wait(self.device)
        added = torch.cuda.max_memory_allocated(self.device) - before
        model: nn.Module = self.models[name]
        held = [*model.parameters(), *model.buffers(), *_tensors(self._inputs[name])]
        return added + sum(tensor.numel() * tensor.element_size() for tensor in held)


def _compile(model: nn.Module, mode: str) -> Callable[[Any], Tensor]:
    """The whole model as one graph for exactly this batch size.

    With ``fullgraph`` a graph break, an error of the compiler and the limit of recompilations raise, whatever torch's
    configuration says of falling back to eager code.
    """
    options: dict[str, Any] = {"fullgraph": True, "dynamic": False, "mode": mode}
    # Newer versions of torch can keep the code of each model apart; older ones compile eight models at most.
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True
    compiled: Callable[[Any], Tensor] = torch.compile(model, **options)
    return compiled


def _graphs() -> int:
    """How many graphs this process has compiled."""
    import torch._dynamo.utils

    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def _tensors(inputs: Any) -> list[Tensor]:
    return [inputs] if isinstance(inputs, Tensor) else list(inputs.values())


def _same_inputs(inputs: dict[str, Any]) -> dict[str, Any]:
    """One object for all inputs of one form, so that no model gains by its own copy."""
    first: dict[Any, Any] = {}
    found = {}
    for name, value in inputs.items():
        form = tuple((tuple(t.shape), t.dtype) for t in _tensors(value))
        found[name] = first.setdefault(form, value)
    return found
