"""Rounding as other machines have it: the last bit of torch's float32 results, moved in five ways.

``TESTS_ROUNDING=3`` switches it on, and ``make test-rounding`` runs the fast tests in each way. A result always moves
the same way: by a function of its own bits, so the same input still gives the same bytes, in tests and oracles alike.
Kernels of torch itself are replaced, for every thread, and every child process replaces its own.

Not moved: what numpy and SciPy compute, code that torch.compile or ONNX Runtime make, float64, and what every machine
rounds alike (a sum or product of two numbers, a square root).
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

VARIABLE = "TESTS_ROUNDING"
IN_CHILDREN = Path(__file__).parent / "rounding_in_children"
"""The folder whose ``sitecustomize.py`` every Python reads that starts with it on its path."""

Bits = Any  # an int32 tensor: the bits of float32 numbers
HASHES = (0x9E3779B1 - 2**32, 0x85EBCA6B - 2**32)
"""Odd numbers; the highest bit of a product with one is as good as drawn."""


def away_from_zero(bits: Bits) -> Bits:
    return 1


def towards_zero(bits: Bits) -> Bits:
    return -1


def neighbours_change_places(bits: Bits) -> Bits:
    return 1 - 2 * (bits & 1)


def drawn_by_its_bits(bits: Bits) -> Bits:
    return (bits * HASHES[0] >> 31) | 1


def every_second_towards_zero(bits: Bits) -> Bits:
    return bits * HASHES[1] >> 31


WAYS: dict[str, Callable[[Bits], Bits]] = {
    "1": away_from_zero,
    "2": towards_zero,
    "3": neighbours_change_places,
    "4": drawn_by_its_bits,
    "5": every_second_towards_zero,
}
"""By how much the last bit of each number moves: -1, 0 or 1."""

OPERATIONS = (
    *("mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "addbmm", "addmv", "addmv_", "dot"),
    *("_addmm_activation", "convolution", "convolution_backward"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"),
    *("_native_multi_head_attention", "_transformer_encoder_layer_fwd"),
    *("sum", "nansum", "cumsum", "prod", "var", "std", "var_mean", "std_mean", "nll_loss_forward"),
    *("linalg_vector_norm", "norm", "_cdist_forward"),
    *("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
    *("native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward"),
    *("native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit"),
    *("avg_pool2d", "_adaptive_avg_pool2d", "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bicubic2d_aa"),
    *("exp", "exp_", "expm1", "log", "log_", "log1p", "log2", "erf", "sin", "cos", "tanh", "tanh_", "sigmoid"),
    *("sigmoid_", "softplus", "log_sigmoid_forward", "silu", "silu_", "gelu", "gelu_", "gelu_backward", "rsqrt"),
)
"""The operators of ``torch.ops.aten`` whose kernels are replaced, in each form that has one.

Others are made of these: ``linear``, ``matmul``, ``vdot``, ``mean``, ``cross_entropy``, ``logsumexp``, ``normalize``.
"""
WITHOUT_KERNEL = ("convolution", "convolution_backward")
"""Those that call other operators on every device: replaced as a whole."""

_kept: list[Any] = []  # what is replaced only as long as it lives


def chosen() -> str | None:
    """Return the way that the environment names, None where the tests shall round as this machine does."""
    way = os.environ.get(VARIABLE) or None
    if way is not None and way not in WAYS:
        raise SystemExit(f"{VARIABLE} must be one of {', '.join(WAYS)}, not {way!r}")
    return way


def start() -> None:
    """Round in the chosen way from now on: here, once torch is imported, and in every process that is started here."""
    way = chosen()
    if way is None:
        return
    _pass_on_to_children(way)
    if "torch" in sys.modules:
        replace_kernels(sys.modules["torch"], WAYS[way])
    else:
        sys.meta_path.insert(0, _OnceTorchIsImported(WAYS[way]))


class _OnceTorchIsImported(importlib.abc.MetaPathFinder):
    """Finds torch as Python does, and replaces its kernels at the end of its import."""

    def __init__(self, step: Callable[[Bits], Bits]) -> None:
        self._step = step

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            replace_kernels(module, self._step)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


# --- kernels ----------------------------------------------------------------------------------------------------------


def move_last_bit(tensor: torch.Tensor, step: Callable[[Bits], Bits]) -> None:
    """Move the last bit of every number of a float32 tensor, in place.

    Numbers whose last eight bits are all 0 stay: small whole numbers, halves, infinities. As a rule they are exact, and
    every machine has them alike. So do those whose last eight bits are all 1, that no step reaches the bits before.
    """
    import torch

    if tensor.dtype is not torch.float32 or tensor.layout is not torch.strided:
        return
    bits = tensor.view(torch.int32)
    is_rounded = ((bits + 1) & 0xFE).ne_(0)
    bits += is_rounded * step(bits)


def forms(operation: str) -> list[str]:
    """Return the overloads of an operator that the processor has a kernel for, as the dispatcher names them."""
    import torch

    names = []
    for overload in getattr(torch.ops.aten, operation).overloads():
        name = f"aten::{operation}" if overload == "default" else f"aten::{operation}.{overload}"
        if name not in torch._C._dispatch_get_all_op_names():
            continue  # one of TorchScript's, for plain numbers
        is_whole = operation in WITHOUT_KERNEL and overload == "default"
        if is_whole or torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
            names.append(name)
    return names


def replace_kernels(torch: Any, step: Callable[[Bits], Bits]) -> None:
    """Replace the kernels of all operations, for every thread of this process and of those forked from it."""
    from torch.library import Library, get_kernel

    registry = Library("aten", "IMPL")
    _kept.append(registry)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced
        for operation in OPERATIONS:
            for name in forms(operation):
                kernel = get_kernel(name, "CPU")
                _kept.append(kernel)
                replacement = functools.partial(_run_and_move, kernel.call_boxed, step)
                registry.impl(name.removeprefix("aten::"), replacement, "CPU", with_keyset=True)


def _run_and_move(
    kernel: Callable[..., Any], step: Callable[[Bits], Bits], keys: Any, *arguments: Any, **named: Any
) -> Any:
    result = kernel(keys, *arguments, **named)
    several = result if isinstance(result, tuple) else (result,)
    for tensor in several:
        if tensor is not None:
            move_last_bit(tensor, step)
    return result


# --- other processes --------------------------------------------------------------------------------------------------


def environment_of_children(environment: Mapping[str, str], way: str) -> dict[str, str]:
    """Return an environment in which Python reads ``sitecustomize.py`` of ``IN_CHILDREN``, which calls ``start``.

    One that names a way already keeps it, or none where the variable is empty.
    """
    path = [str(IN_CHILDREN), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    return {VARIABLE: way, **environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}


def _pass_on_to_children(way: str) -> None:
    """Let processes that inherit this environment round in the same way, and those that are given one of their own."""
    os.environ.update(environment_of_children(os.environ, way))
    initialise = subprocess.Popen.__init__

    @functools.wraps(initialise)
    def with_the_variables(self: Any, *arguments: Any, **named: Any) -> None:
        environment = named.get("env")
        if environment is not None:
            named["env"] = environment_of_children(environment, way)
        initialise(self, *arguments, **named)

    subprocess.Popen.__init__ = with_the_variables  # type: ignore[method-assign]
