"""torchvision's operators are declared exactly where its own library cannot be loaded."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hydractl.families import torchvision_operators as _torchvision

ROOT = Path(__file__).resolve().parents[2]


def in_a_fresh_process(code: str) -> str:
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.long
def test_timm_and_torchvision_import_after_it() -> None:
    code = """
import sys
from hydractl.families.torchvision_operators import declare_operators
declare_operators()
assert not any(name.partition(".")[0] == "torchvision" for name in sys.modules)
declare_operators()
import timm, torch, torchvision
declare_operators()
assert torch.ops.torchvision.nms and torch.ops.torchvision.qnms
print(timm.__name__)
"""
    assert in_a_fresh_process(code) == "timm\n"


@pytest.mark.long
def test_it_mends_an_import_that_failed_before() -> None:
    code = """
try:
    import torchvision
except RuntimeError as error:
    assert "torchvision::nms" in str(error), error
from hydractl.families.torchvision_operators import declare_operators
declare_operators()
import torchvision.transforms
"""
    in_a_fresh_process(code)


@pytest.fixture
def fake_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package in torchvision's place, not imported yet; the path of its library, which is not there yet."""
    (tmp_path / "__init__.py").write_text("raise ImportError('must not be imported')", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("torchvision", tmp_path / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    return tmp_path / f"_C{importlib.machinery.EXTENSION_SUFFIXES[0]}"


@pytest.mark.parametrize("name", ["_C", "_C_stable"])  # before torchvision 0.29 and since
def test_a_library_that_loads_is_left_alone(fake_torchvision: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    library = fake_torchvision.with_name(fake_torchvision.name.replace("_C", name, 1))
    library.write_bytes(b"")
    assert _torchvision._loads_its_library()
    assert loaded == [str(library)]


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is ever declared on Windows")
@pytest.mark.parametrize("content", [b"no library", None], ids=["broken", "absent"])
def test_a_broken_or_absent_library_does_not_load(fake_torchvision: Path, content: bytes | None) -> None:
    if content is not None:
        fake_torchvision.write_bytes(content)
    assert not _torchvision._loads_its_library()


def test_without_torchvision_there_is_nothing_to_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert _torchvision._loads_its_library()
