"""From a source to a model that runs: devices, number formats, and ``hydractl.load``."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path

import torch

from hydractl.errors import UsageError
from hydractl.model.machine import slow_format
from hydractl.model.runtime import HydraModel
from hydractl.model.source import ModelOptions, Source, open_source
from hydractl.model.stored import check_finite


def resolve_device(name: str) -> torch.device:
    """``auto`` | ``cpu`` | ``cuda[:i]`` | ``mps`` as a device that is really there.

    Raises:
        UsageError: for a device this machine does not have.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"unknown device {name!r}", hint="one of auto, cpu, cuda, cuda:0, mps") from None
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < max(torch.cuda.device_count(), 1),
        "mps": torch.backends.mps.is_available(),
    }.get(device.type, False)
    if not available:
        raise UsageError(f"device {name!r} is not available on this machine", hint="use --device auto or --device cpu")
    return device


def resolve_dtype(name: str) -> torch.dtype:
    """``float32`` | ``bfloat16`` | ``float16`` | ``float64``."""
    known = {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "float64": torch.float64,
    }
    if name not in known:
        raise UsageError(f"unknown dtype {name!r}", hint=f"one of {', '.join(known)}")
    return known[name]


def build_model(
    source: Source, device: str = "cpu", dtype: str = "float32", *, whole_last_block: bool = False
) -> HydraModel:
    """Read the weights of a source and build the model that runs."""
    check_finite(source.name, source.tensors)
    model = HydraModel(source.description, source.tensors, resolve_device(device), resolve_dtype(dtype))
    model.whole_last_block = whole_last_block
    return model


@functools.cache
def _slow_format(dtype: torch.dtype, device: str) -> str | None:
    """As :func:`hydractl.model.machine.slow_format`, measured once in a process."""
    return slow_format(dtype, torch.device(device))


def load(
    ref: str | Path,
    device: str = "auto",
    dtype: str = "float32",
    arch: str | None = None,
    *,
    compile: bool = False,
    whole_last_block: bool = False,
) -> HydraModel:
    """Load any MODEL reference as an ``nn.Module`` in eval mode.

    Args:
        ref: a ``.st`` file, a published folder, or ``timm:NAME``.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        dtype: the dtype to compute in.
        arch: what a bare safetensors file holds.
        compile: compile the whole network with torch.compile at its first call.
        whole_last_block: run the last block for all tokens, as the library does, instead of those that are read.

    Returns:
        A model whose call gives log p ``[batch, classes]`` of the averaged prediction.

    Warns:
        UserWarning: where a CPU computes in ``dtype`` slower than in float32, with how many times slower (measured).
    """
    slow = _slow_format(resolve_dtype(dtype), resolve_device(device).type)
    if slow is not None:
        warnings.warn(slow, stacklevel=2)
    model = build_model(open_source(str(ref), ModelOptions(arch)), device, dtype, whole_last_block=whole_last_block)
    if compile:
        model.compile()
    return model
