"""Shapes are computed without sympy, and what the stand-ins say is what torch says."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hydractl.families.meta_device import _ANSWERS

ROOT = Path(__file__).resolve().parents[2]
CHAIN = """
import contextlib, io, sys
from pathlib import Path
import numpy as np
from hydractl.cli.app import main

def run(*words):
    with contextlib.redirect_stdout(io.StringIO()):
        main([str(word) for word in words] + ["--quiet"])

folder = Path(sys.argv[1])
generator = np.random.default_rng(0)
images = generator.integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
data = folder / "data.npz"
np.savez(data, x=images, y=np.arange(8) % 3)
model = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=16&depth=2&num_heads=2&num_classes=3"
a, b, fused = folder / "a.st", folder / "b.st", folder / "fused.st"
run("prune", model, "--method", "taylor", "--keep", "1", "--data", data, "-o", a)
run("prune", model, "--method", "random", "--keep", "1", "--seed", "1", "-o", b)
run("fuse", a, b, "-o", fused)
run("eval", fused, "--test", data, "-o", folder / "eval.json")
assert "sympy" not in sys.modules
"""
PASSED_ON = """
import sys
import pytest
from hydractl.cli.compiler_on_demand import import_compiler_on_demand
import_compiler_on_demand()
import torch
from hydractl.families.meta_device import on_meta_device, plain_sizes

with on_meta_device():
    stacked = torch.stack([torch.empty(2, 3), torch.empty(2, 3)], dim=1)
    assert stacked.shape == (2, 2, 3) and stacked.is_meta
assert "sympy" not in sys.modules and "torch.fx.experimental.symbolic_shapes" not in sys.modules
with on_meta_device(), pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
    torch.stack([torch.empty(2), torch.empty(3)])
with plain_sizes():
    # Symbols are asked for, so the real modules come.
    rows = torch.export.Dim("rows")
    program = torch.export.export(torch.nn.Linear(2, 3), (torch.ones(2, 2),), dynamic_shapes=({0: rows},))
assert program.module()(torch.ones(5, 2)).shape == (5, 3)
import sympy
assert sympy.__file__ and isinstance(sympy.Symbol("x"), sympy.Basic)
import torch.fx.experimental.symbolic_shapes
assert torch.fx.experimental.symbolic_shapes.ShapeEnv
"""


@pytest.mark.long
@pytest.mark.parametrize("code", [CHAIN, PASSED_ON], ids=["verbs import no sympy", "symbols are passed on"])
def test_in_a_new_process(code: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore:guard_size_oblivious will be removed:FutureWarning")
@pytest.mark.parametrize("name", sorted(_ANSWERS))
def test_the_answer_is_that_of_torch(name: str) -> None:
    import torch.fx.experimental.symbolic_shapes as of_torch

    if not hasattr(of_torch, name):
        pytest.skip("of a newer version of torch than the installed one")
    values: list[Any] = [True, False]
    if name in ("guard_int", "guarding_hint_or_throw", "has_guarding_hint", "is_nested_int", "sym_eq"):
        values = [0, 1, 5]
    arguments: list[tuple[Any, ...]] = [(value,) for value in values]
    if name in ("sym_and", "sym_or", "sym_eq"):
        arguments = list(itertools.product(values, repeat=2))
    if name == "sym_eq":
        arguments += [((2, 3), (2, 3)), ((2, 3), (2, 4)), ((2, 3), (2,))]
    for given in arguments:
        expected = getattr(of_torch, name)(*given)
        answer = _ANSWERS[name](*given)
        assert answer == expected and type(answer) is type(expected), given
