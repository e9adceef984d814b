"""Timing models against each other: warm-up, then rounds in which each runs once, in an order drawn anew."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hydractl.errors import HydraError, NonFiniteError
from hydractl.log import Progress


class Contest:
    """Models that are timed at one batch size on inputs of their own shape, the same for all of one shape.

    Attributes:
        peak_memory_bytes: by model: its weights and inputs, and the most one call adds; None where the device does
            not count. Known after :meth:`run`.
    """

    def __init__(
        self, models: Mapping[str, Any], batch_size: int, device: torch.device, seed: int, compiled: bool, where: str
    ) -> None:
        self.models, self.device, self.where = models, device, where
        self.compiled = compiled
        self.peak_memory_bytes: dict[str, int | None] = dict.fromkeys(models)
        self._random = np.random.default_rng(seed)
        self._inputs = _same_inputs({name: model.example_inputs(batch_size, seed) for name, model in models.items()})
        # Compiled code is cached by the code of a class, not by object: another batch size starts afresh.
        if compiled:
            torch.compiler.reset()
        self._calls = {name: _compile(model) if compiled else model for name, model in models.items()}

    @torch.inference_mode()
    def run(self, warmup: int, rounds: int, progress: Progress) -> dict[str, list[float]]:
        """Seconds of one call, by model, one for each measured round.

        Raises:
            NonFiniteError: when a model gives NaN or infinity.
            HydraError: when a model cannot be compiled, or not run in this dtype on this device.
        """
        for name in self.models:
            self._first_call(name)
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
            output = self._calls[name](self._inputs[name])
            finite = bool(torch.isfinite(output).all())
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if isinstance(error, torch.cuda.OutOfMemoryError):
                hint = "use a smaller --batch-size"
            elif self.compiled:
                hint = "bench without --compile, or see the whole error with HYDRACTL_DEBUG=1"
            else:
                hint = "use another --dtype or --device"
            verb = "be compiled and run" if self.compiled else "run"
            raise HydraError(f"{name} cannot {verb} ({self.where}): {reason}", hint=hint) from error
        if not finite:
            raise NonFiniteError(f"{name} gives NaN or infinity ({self.where})", hint="try --dtype float32")

    def _round(self) -> dict[str, float]:
        names = list(self.models)
        order = self._random.permutation(len(names))
        return {names[i]: self._time(names[i]) for i in order}

    def _time(self, name: str) -> float:
        call: Callable[[Any], Tensor] = self._calls[name]
        inputs = self._inputs[name]
        self._wait()
        start = time.perf_counter()
        call(inputs)
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        """Let the device finish what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def _peak_memory(self, name: str) -> int | None:
        """What the model would need alone: the other models in memory are left out."""
        if self.device.type != "cuda":
            return None
        self._wait()
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self._calls[name](self._inputs[name])
        self._wait()
        added = torch.cuda.max_memory_allocated(self.device) - before
        model: nn.Module = self.models[name]
        held = [*model.parameters(), *model.buffers(), *_tensors(self._inputs[name])]
        return added + sum(tensor.numel() * tensor.element_size() for tensor in held)


def _compile(model: nn.Module) -> Callable[[Any], Tensor]:
    """The whole model as one graph for exactly this batch size."""
    options: dict[str, Any] = {"fullgraph": True, "dynamic": False}
    # Newer versions of torch can keep the code of each model apart; older ones compile eight models at most.
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True
    compiled: Callable[[Any], Tensor] = torch.compile(model, **options)
    return compiled


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
