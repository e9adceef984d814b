"""What the tests of a bench share."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydractl.model import machine


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test in a folder of its own, and none waits for the peak of the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "SECONDS", 1e-5)
