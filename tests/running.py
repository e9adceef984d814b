"""Commands in this process."""

from __future__ import annotations

from pathlib import Path

from hydractl.cli.app import main


def run(*arguments: str | Path, code: int = 0) -> None:
    """One command, and the exit code it must have."""
    assert main(list(map(str, arguments))) == code, arguments


def quiet(*arguments: str | Path, code: int = 0) -> None:
    """The same with ``-q``."""
    run(*arguments, "-q", code=code)
