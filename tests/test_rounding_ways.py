"""The switch of ``tests/rounding.py``: it moves the last bits of what torch computes, in every process.

The canaries run while the switch is on and fail where a bit stays: compared with what a process without the switch
computes from the same numbers.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests import rounding

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 100  # seconds, for every wait
needs_the_switch = pytest.mark.skipif(rounding.chosen() is None, reason=f"{rounding.VARIABLE} is not set")


def results() -> dict[str, bytes]:
    """Return the bytes of what some operations give, and of their gradients: the same numbers in every process."""
    draw = np.random.default_rng(0)
    rows = torch.from_numpy(draw.normal(size=(48, 16)).astype(np.float32)).requires_grad_()
    square = torch.from_numpy(draw.normal(size=(16, 16)).astype(np.float32))
    images, heads = rows.view(3, 4, 8, 8), rows.view(2, 3, 16, 8)
    outputs = {
        "mm": rows @ square,
        "linear": functional.linear(rows, square, square[0]),
        "bmm": rows.view(3, 16, 16) @ rows.view(3, 16, 16),
        "convolution": functional.conv2d(images, square.view(4, 4, 4, 4)),
        "attention": functional.scaled_dot_product_attention(heads, heads, heads),
        "softmax": rows.softmax(-1),
        "logsumexp": rows.logsumexp(-1),
        "layer_norm": functional.layer_norm(rows, (16,), square[0], square[1]),
        "gelu": functional.gelu(rows),
        "exp": rows.exp(),
    }
    found = {}
    for name, output in outputs.items():
        weights = torch.linspace(-1.0, 2.0, output.numel()).view_as(output)
        (gradient,) = torch.autograd.grad(output, rows, weights)
        found[name] = output.detach().numpy().tobytes()
        found[f"gradient of {name}"] = gradient.numpy().tobytes()
    return found


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
THREADS = {"OMP_NUM_THREADS": str(torch.get_num_threads())}


def of_a_process(code: str, environment: dict[str, str] | None = None) -> dict[str, bytes]:
    """Return what a process prints that starts with this environment, or with that of this one."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


@needs_the_switch
def test_canaries() -> None:
    here = results()
    native = of_a_process(SPAWNED, {**os.environ, rounding.VARIABLE: ""})
    for name in native:
        moved, unmoved = (np.frombuffer(found[name], dtype=np.float32) for found in (here, native))
        assert (moved != unmoved).any(), f"no bit of {name} has moved"
        assert moved == pytest.approx(unmoved, rel=1e-3, abs=1e-3 * float(np.abs(unmoved).max()))


@needs_the_switch
def test_the_same_numbers_give_the_same_bytes_in_threads_and_processes() -> None:
    here = results()
    of_a_thread: dict[str, bytes] = {}
    thread = threading.Thread(target=lambda: of_a_thread.update(results()))
    thread.start()
    thread.join(LIMIT)
    assert of_a_thread == here
    assert of_a_process(SPAWNED) == here
    assert of_a_process(SPAWNED, THREADS) == here
    assert of_a_process(FORKED) == here


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
