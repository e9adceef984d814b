"""What is measured on a device, behind an interface that a CPU can play too.

One call of a model takes

* ``wall`` seconds, from the call until the device has finished;
* ``device`` seconds, between two events in the device's own queue (CUDA events), which a wait of the host is part of;
* ``host`` seconds, until the call returns: by then everything is launched, not computed;
* kernels, whose own times add up to the time in which the device computes at all.

Where the wall time is near the host time and far above that of the kernels, the device waits to be told what to do.
A CPU launches nothing: there all three times are one, and kernels are the operators that torch's profiler names.
"""

from __future__ import annotations

import inspect
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

Call = Callable[[], Tensor]
_RECORDING = 2
"""Calls after the first one in which CUDA graphs are recorded."""


@dataclass(frozen=True)
class CallTimes:
    """The times of one call, in seconds; see the head of this file."""

    wall: float
    device: float
    host: float


@dataclass(frozen=True)
class Kernels:
    """What the device computed in one call.

    Attributes:
        count: of kernels.
        seconds: of all of them.
    """

    count: int
    seconds: float


class Device(Protocol):
    """What a script that measures asks of a device."""

    torch_device: torch.device

    def facts(self) -> dict[str, Any]:
        """Return the hardware and software that times depend on."""

    def prepared(self, model: Any, inputs: Any, compile_mode: str | None) -> Call:
        """Return a call of a model that has run before, compiled as one graph where a mode is named."""

    def times(self, call: Call) -> CallTimes:
        """Time one call."""

    def kernels(self, call: Call) -> Kernels | None:
        """Return what one call computes; None where the profiler does not say it."""

    def peak_memory(self, call: Call) -> int | None:
        """Return the most bytes that are allocated during a call; None where the device does not count."""

    def forget_graphs(self) -> None:
        """Drop all compiled code: for other shapes it is compiled afresh."""


class CpuDevice:
    """A CPU, which stands in where there is no GPU: every figure is measured, and none says anything of a GPU."""

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")

    def facts(self) -> dict[str, Any]:
        """Return the processor, the threads and the versions."""
        return {**_software(), "device": platform.machine(), "threads": torch.get_num_threads()}

    def prepared(self, model: Any, inputs: Any, compile_mode: str | None) -> Call:
        """Return a call of a model that has run before."""
        call = _call_of(model, inputs, compile_mode)
        call()
        return call

    def times(self, call: Call) -> CallTimes:
        """Time one call: all three times are the same."""
        begun = time.perf_counter()
        call()
        seconds = time.perf_counter() - begun
        return CallTimes(seconds, seconds, seconds)

    def kernels(self, call: Call) -> Kernels | None:
        """Return the operators of one call, each with the time that it spends in no other."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            call()
        operators = [event for event in profile.key_averages() if event.key.startswith("aten::")]
        microseconds = sum(event.self_cpu_time_total for event in operators)
        return Kernels(sum(event.count for event in operators), microseconds / 1e6)

    def peak_memory(self, call: Call) -> int | None:
        """Return None: torch does not count the memory of a CPU."""
        return None

    def forget_graphs(self) -> None:
        """Drop all compiled code."""
        torch.compiler.reset()


class CudaDevice:
    """A CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.torch_device = device

    def facts(self) -> dict[str, Any]:
        """Return the name of the GPU, its generation, and the versions."""
        return {
            **_software(),
            "device": torch.cuda.get_device_name(self.torch_device),
            "capability": list(torch.cuda.get_device_capability(self.torch_device)),
            "tf32": torch.backends.cuda.matmul.allow_tf32,
        }

    def prepared(self, model: Any, inputs: Any, compile_mode: str | None) -> Call:
        """Return a call of a model that has run before; one that is compiled has recorded its CUDA graph."""
        call = _call_of(model, inputs, compile_mode)
        if compile_mode is None:
            call()
            torch.cuda.synchronize(self.torch_device)
            return call

        def replayed() -> Tensor:
            torch.compiler.cudagraph_mark_step_begin()  # the answer of the call before is no longer needed
            return call()

        for _ in range(1 + _RECORDING):
            replayed()
        torch.cuda.synchronize(self.torch_device)
        return replayed

    def times(self, call: Call) -> CallTimes:
        """Time one call on an idle device, by the clock and by two CUDA events."""
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(self.torch_device)
        begun = time.perf_counter()
        start.record()
        call()
        end.record()
        host = time.perf_counter() - begun
        torch.cuda.synchronize(self.torch_device)
        wall = time.perf_counter() - begun
        return CallTimes(wall, start.elapsed_time(end) / 1e3, host)

    def kernels(self, call: Call) -> Kernels | None:
        """Return the kernels of one call, copies on the device included."""
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        try:
            with torch.profiler.profile(activities=activities) as profile:
                call()
                torch.cuda.synchronize(self.torch_device)
        except RuntimeError:  # in a container that may not ask the driver
            return None
        on_device = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        if not on_device:
            return None
        microseconds = sum(event.time_range.elapsed_us() for event in on_device)
        return Kernels(len(on_device), microseconds / 1e6)

    def peak_memory(self, call: Call) -> int | None:
        """Return the most bytes that are allocated during a call, everything that was there before included."""
        torch.cuda.synchronize(self.torch_device)
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        call()
        torch.cuda.synchronize(self.torch_device)
        return torch.cuda.max_memory_allocated(self.torch_device)

    def forget_graphs(self) -> None:
        """Drop all compiled code, and the memory that its graphs held."""
        torch.compiler.reset()
        torch.cuda.empty_cache()


def device_of(device: torch.device) -> Device:
    """Return what measures on a device."""
    if device.type == "cuda":
        return CudaDevice(device)
    return CpuDevice()


def _software() -> dict[str, Any]:
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}


def _call_of(model: Any, inputs: Any, compile_mode: str | None) -> Call:
    """Return a call of a model on inputs; compiled it is one graph for exactly this shape, and else an error."""
    if compile_mode is None:
        return lambda: model(inputs)
    model(inputs)  # what a model computes once and keeps is not in its graph
    options: dict[str, Any] = {"fullgraph": True, "dynamic": False, "mode": compile_mode}
    # Newer versions of torch can keep the code of each model apart; older ones compile eight models at most.
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True
    compiled = torch.compile(model, **options)
    return lambda: compiled(inputs)
