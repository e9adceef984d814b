"""Commands in this process, and what they leave."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.cli.app import main

if TYPE_CHECKING:
    import pytest
    import torch


def run(*arguments: str | Path, code: int = 0) -> None:
    """One command, and the exit code it must have."""
    assert main(list(map(str, arguments))) == code, arguments


def quiet(*arguments: str | Path, code: int = 0) -> None:
    """The same with ``-q``."""
    run(*arguments, "-q", code=code)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What one command prints with ``--json``."""
    capsys.readouterr()
    run(*arguments, "--json")
    return json.loads(capsys.readouterr().out)


def tensors(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint."""
    from hydractl.files.checkpoint import FileTensors

    file = FileTensors(Path(path))
    return {name: file.read(name) for name in file.names()}
