"""What the tests of a bench share."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydractl.benchmark import measuring
from hydractl.model import machine


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test in a folder of its own, and none waits for the peak of the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "SECONDS", 1e-5)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any measurement is a failure."""

    def refuse(*_: object) -> None:
        raise AssertionError("something was measured")

    monkeypatch.setattr(measuring, "Contest", refuse)
