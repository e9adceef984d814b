"""What is skipped where an extra is not installed, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydractl.errors import UsageError, install_hint
from tests import extras


@pytest.fixture(autouse=True)
def without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "MISSING", frozenset({"onnx"}))


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        ("import onnx", True),
        ("from onnx.helper import make_node", True),
        ("import torch\nfrom onnxruntime import InferenceSession", False),
        ("def test():\n    import onnx", False),
    ],
)
def test_a_file_that_imports_what_is_missing_is_left_out(tmp_path: Path, text: str, left_out: bool) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(text)
    assert bool(extras.pytest_ignore_collect(path)) == left_out


def test_only_who_asks_for_the_package_is_skipped() -> None:
    asked_for = extras._asked_for
    assert asked_for(ModuleNotFoundError("no", name="onnx.helper"), "") == "onnx"
    assert asked_for(ModuleNotFoundError("no", name="hydractl.gone"), "") is None
    assert asked_for(UsageError("not installed", hint=install_hint("onnx")), "") == "onnx"
    assert asked_for(AssertionError("2 == 0"), f"error: not installed\nhint: {install_hint('onnx')}") == "onnx"
    assert asked_for(AssertionError("2 == 0"), f"error: not installed\nhint: {install_hint('sklearn')}") is None
