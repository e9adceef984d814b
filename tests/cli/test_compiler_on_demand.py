"""torch's compiler is imported when something is compiled, and is then as if it had been there from the start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PUT_OFF = """
import sys
from hydractl.cli.compiler_on_demand import import_compiler_on_demand
import_compiler_on_demand()
import torch
def is_there():
    return "torch._dynamo.convert_frame" in sys.modules
"""
PREPARED = "from hydractl.families.torchvision_operators import declare_operators\ndeclare_operators()\n"
WITHOUT = """
import hydractl.families.timm, torchvision.transforms.v2
weight = torch.nn.Parameter(torch.ones(2))
weight.sum().backward()
torch.optim.SGD([weight], lr=1.0).step()
torch.empty(3, device="meta").erfinv_()  # torch keeps this from the compiler
torch.compiler.disable(abs)(1.0)
assert not is_there()
"""
COMPILED = """
was_compiling = []

@torch.compiler.disable
def apart(x):
    was_compiling.append(torch.compiler.is_compiling())
    return x * 2

@torch.compiler.disable(recursive=False)
def alone(x):
    return x + 1

assert apart(torch.ones(1)) == 2 and was_compiling == [False] and apart.__name__ == "apart"
assert not is_there()
compiled = torch.compile(lambda x: alone(apart(x + 1)) * 3, backend="eager")
assert compiled(torch.ones(2)).tolist() == [15.0, 15.0]
assert was_compiling == [False, False]
"""
ASKED = {
    "a function": "torch._dynamo.reset()",
    "a part": "from torch._dynamo.exc import Unsupported",
    "a name of the package": "from torch._dynamo import explain",
    "what torchvision asks": "import torchvision.ops\n"
    "supported = sys.modules['torchvision.ops.roi_align'].is_compile_supported\n"
    "assert not is_there()\n"
    "assert supported('cpu') == sys.modules['torch._dynamo.utils'].is_compile_supported('cpu')",
    "a program": "torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)).module()(torch.ones(1, 2))",
}


def run(code: str) -> None:
    command = [sys.executable, "-c", PUT_OFF + code]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_what_is_not_compiled_does_without_it_and_what_was_kept_out_before_there_was_a_compiler_stays_out() -> None:
    run(PREPARED + WITHOUT + COMPILED)


@pytest.mark.release
@pytest.mark.parametrize("asked", ASKED)
def test_it_comes_when_it_is_asked(asked: str) -> None:
    real = "assert is_there() and torch._dynamo is sys.modules['torch._dynamo']\n"
    real += "assert torch._dynamo.__file__ and torch._dynamo.utils.__file__\n"
    run(PREPARED + WITHOUT + ASKED[asked] + "\n" + real + COMPILED.replace("assert not is_there()", ""))
