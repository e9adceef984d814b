"""The switch of ``tests/rounding.py``: it moves the last bit of each operation that it names, wherever it is called.

The canaries run while the switch is on and fail where a bit stays: compared with what a process without the switch
computes from the same numbers.
"""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests import rounding

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 100  # seconds, for every wait
needs_the_switch = pytest.mark.skipif(rounding.chosen() is None, reason=f"{rounding.VARIABLE} is not set")

Tensors = dict[str, torch.Tensor]
Operation = Callable[[Tensors], torch.Tensor]


def drawn() -> Tensors:
    """Return the numbers that every canary computes with, the same in every process."""
    draw = np.random.default_rng(0)
    shapes = {
        "rows": (9, 16), "square": (16, 16), "column": (16,), "stack": (3, 9, 16), "others": (3, 16, 9),
        "heads": (2, 3, 9, 8), "images": (2, 4, 12, 12), "filters": (6, 4, 3, 3),
    }  # fmt: skip
    tensors = {name: torch.from_numpy(draw.normal(size=shape).astype(np.float32)) for name, shape in shapes.items()}
    tensors["positive"] = tensors["rows"].abs() + 0.25
    return tensors


def filled(module: torch.nn.Module, tensors: Tensors) -> Any:
    """Return a module for inference with these numbers as its weights."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(tensors["square"].flatten().repeat(3)[: parameter.numel()].view_as(parameter))
    return module.eval()


def multi_head_attention(tensors: Tensors) -> torch.Tensor:
    module = filled(torch.nn.MultiheadAttention(16, 2, batch_first=True), tensors)
    with torch.no_grad():
        return module(tensors["stack"], tensors["stack"], tensors["stack"], need_weights=False)[0]


def encoder_layer(tensors: Tensors) -> torch.Tensor:
    module = filled(torch.nn.TransformerEncoderLayer(16, 2, dim_feedforward=16, batch_first=True), tensors)
    with torch.no_grad():
        return module(tensors["stack"])


def attention(heads: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    return functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)


LABELS = torch.tensor([1, 2, 0, 3, 1, 2, 0, 3, 5])
DIFFERENTIABLE: dict[str, Operation] = {
    "mm": lambda t: t["rows"] @ t["square"],
    "linear": lambda t: functional.linear(t["stack"], t["square"], t["column"]),
    "linear without bias": lambda t: functional.linear(t["stack"], t["square"]),
    "addmm": lambda t: torch.addmm(t["column"], t["rows"], t["square"]),
    "bmm": lambda t: t["stack"] @ t["others"],
    "baddbmm": lambda t: torch.baddbmm(t["stack"][:, :, :9], t["stack"], t["others"]),
    "mv": lambda t: t["rows"] @ t["column"],
    "einsum": lambda t: torch.einsum("bij,bjk->bik", t["stack"], t["others"]),
    "convolution": lambda t: functional.conv2d(t["images"], t["filters"], stride=2),
    "scaled_dot_product_attention": lambda t: attention(t["heads"]),
    "the same with a mask": lambda t: attention(t["heads"], t["rows"][:, :9] > -1.0),
    "cumsum": lambda t: t["rows"].cumsum(-1),
    "cross_entropy": lambda t: functional.cross_entropy(t["rows"], LABELS, reduction="sum"),
    "norm": lambda t: t["rows"].norm(dim=-1),
    "normalize": lambda t: functional.normalize(t["rows"], dim=-1),
    "softmax": lambda t: t["rows"].softmax(-1),
    "log_softmax": lambda t: t["rows"].log_softmax(-1),
    "logsumexp": lambda t: t["rows"].logsumexp(-1),
    "layer_norm": lambda t: functional.layer_norm(t["rows"], (16,), t["column"], t["column"]),
    "rms_norm": lambda t: functional.rms_norm(t["rows"], (16,), t["column"]),
    "group_norm": lambda t: functional.group_norm(t["images"], 2),
    "batch_norm": lambda t: functional.batch_norm(t["images"], None, None, training=True),
    "exp": lambda t: t["rows"].exp(),
    "erf": lambda t: t["rows"].erf(),
    "sin": lambda t: t["rows"].sin(),
    "cos": lambda t: t["rows"].cos(),
    "tanh": lambda t: t["rows"].tanh(),
    "sigmoid": lambda t: t["rows"].sigmoid(),
    "gelu": lambda t: functional.gelu(t["rows"]),
    "gelu by tanh": lambda t: functional.gelu(t["rows"], approximate="tanh"),
    "rsqrt": lambda t: t["positive"].rsqrt(),
}  # fmt: skip
"""Their gradients are rounded, too."""
OPERATIONS: dict[str, Operation] = {
    **DIFFERENTIABLE,
    "dot": lambda t: torch.dot(t["column"], t["square"][0]),
    "MultiheadAttention": multi_head_attention,
    "TransformerEncoderLayer": encoder_layer,
    "sum of all": lambda t: t["rows"].sum(),
    "sum": lambda t: t["rows"].sum(-1),
    "mean": lambda t: t["rows"].mean(-1),
    "var": lambda t: t["rows"].var(-1),
    "linalg.norm": lambda t: torch.linalg.norm(t["rows"]),
    "avg_pool2d": lambda t: functional.avg_pool2d(t["images"], 3),
    "adaptive_avg_pool2d": lambda t: functional.adaptive_avg_pool2d(t["images"], 5),
    "interpolate bilinear": lambda t: functional.interpolate(t["images"], 7, mode="bilinear"),
    "interpolate bicubic": lambda t: functional.interpolate(t["images"], 7, mode="bicubic"),
    "the same, antialiased": lambda t: functional.interpolate(t["images"], 7, mode="bicubic", antialias=True),
    "log": lambda t: t["positive"].log(),
    "silu": lambda t: functional.silu(t["rows"]),
}  # fmt: skip


def result(name: str) -> bytes:
    """Return the bytes of what one operation gives; those that give one number run on many inputs."""
    tensors = drawn()
    values = []
    for factor in range(1, 13):
        scaled = {key: tensor * (factor / 7) for key, tensor in tensors.items()}
        values.append(OPERATIONS[name](scaled).detach().numpy().tobytes())
    return b"".join(values)


def gradient(name: str) -> bytes:
    """Return the bytes of the gradients of one operation with respect to all that it reads."""
    tensors = {key: tensor.requires_grad_() for key, tensor in drawn().items()}
    output = DIFFERENTIABLE[name](tensors)
    weights = torch.linspace(-1.0, 2.0, output.numel()).view_as(output)
    output.backward(weights)
    gradients = [tensor.grad for tensor in tensors.values() if tensor.grad is not None]
    return b"".join(value.numpy().tobytes() for value in gradients)


def results() -> dict[str, bytes]:
    """Return the bytes of every operation and of every gradient."""
    found = {name: result(name) for name in OPERATIONS}
    return found | {f"gradient of {name}": gradient(name) for name in DIFFERENTIABLE}


NAMES = [*OPERATIONS, *(f"gradient of {name}" for name in DIFFERENTIABLE)]

SPAWNED = """
import pickle, sys
from tests.test_rounding_ways import results
pickle.dump(results(), sys.stdout.buffer)
"""
# The process that forks has run no operator: after one, its threads would be missing in the other.
FORKED = (
    """
import os, sys
import tests.test_rounding_ways
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    + SPAWNED
)


def of_a_process(code: str, environment: dict[str, str] | None = None) -> dict[str, bytes]:
    """Return what a process prints that starts with this environment, or with that of this one."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


def in_a_thread() -> dict[str, bytes]:
    """Return what another thread of this process computes."""
    found: dict[str, bytes] = {}
    thread = threading.Thread(target=lambda: found.update(results()))
    thread.start()
    thread.join(LIMIT)
    return found


THREADS = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
PLACES: dict[str, Callable[[], dict[str, bytes]]] = {
    "here": results,
    "another thread": in_a_thread,
    "spawned": lambda: of_a_process(SPAWNED),
    "spawned with an environment of its own": lambda: of_a_process(
        SPAWNED, {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    ),
    "forked": lambda: of_a_process(FORKED),
}


@functools.cache
def results_in(place: str) -> dict[str, bytes]:
    return PLACES[place]()


@functools.cache
def unmoved() -> dict[str, bytes]:
    """Return what this machine computes: in a process that does not hear of the switch."""
    return of_a_process(SPAWNED, {**os.environ, rounding.VARIABLE: ""})


@needs_the_switch
@pytest.mark.parametrize("place", PLACES if rounding.chosen() else ["anywhere"])
@pytest.mark.parametrize("name", NAMES if rounding.chosen() else ["all"])
def test_canary(name: str, place: str) -> None:
    moved = np.frombuffer(results_in(place)[name], dtype=np.float32)
    native = np.frombuffer(unmoved()[name], dtype=np.float32)
    assert (moved != native).any(), "no bit has moved"
    assert moved == pytest.approx(native, rel=1e-3, abs=1e-3 * float(np.abs(native).max()))


@needs_the_switch
@pytest.mark.parametrize("place", PLACES if rounding.chosen() else ["anywhere"])
def test_the_same_numbers_give_the_same_bytes(place: str) -> None:
    assert results_in(place) == results()


@pytest.mark.long
def test_every_operation_has_a_kernel_to_replace() -> None:
    assert [name for name in rounding.OPERATIONS if not rounding.forms(name)] == []


NUMBERS = [1 / 3, -2 / 3, 1e-20, 3e38, 0.1, -0.7]
EXACT = [0.0, -0.0, 1.0, 0.5, -3.0, 1000.0, float("inf"), float("-inf")]


@pytest.mark.parametrize("way", rounding.WAYS)
def test_what_moves_and_what_stays(way: str) -> None:
    """By one bit at most, and only numbers that were rounded."""
    numbers = torch.tensor(NUMBERS * 20) * torch.linspace(0.5, 1.0, 20).repeat_interleave(len(NUMBERS))
    before = numbers.clone()
    rounding.move_last_bit(numbers, rounding.WAYS[way])
    steps = numbers.view(torch.int32) - before.view(torch.int32)
    expected = {"1": {1}, "2": {-1}, "3": {-1, 1}, "4": {-1, 1}, "5": {-1, 0}}[way]
    assert expected <= set(steps.tolist()) <= {*expected, 0}
    for dtype, values in ((torch.float32, EXACT), (torch.float64, NUMBERS), (torch.float16, NUMBERS)):
        others = torch.tensor(values, dtype=dtype)
        rounding.move_last_bit(others, rounding.WAYS[way])
        assert torch.equal(others, torch.tensor(values, dtype=dtype))
    not_a_number = torch.tensor([-1, 0x7FC00000], dtype=torch.int32).view(torch.float32)
    rounding.move_last_bit(not_a_number, rounding.WAYS[way])
    assert bool(not_a_number.isnan().all())


@pytest.mark.release
@pytest.mark.parametrize("way", rounding.WAYS)
def test_the_canaries_of_each_way(way: str) -> None:
    """None is skipped, and without the kernels all fail."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        *["-n", "0", "-p", "no:cacheprovider", "-k"],
        "canary or same_bytes",
        __file__,
    ]
    environment = {**os.environ, rounding.VARIABLE: way}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3 * LIMIT)
    assert done.returncode == 0, done.stdout
    assert f"{len(PLACES) * (len(NAMES) + 1)} passed" in done.stdout and "skipped" not in done.stdout
