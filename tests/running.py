"""Commands in this process, and what they leave."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hydractl.cli.app import main

if TYPE_CHECKING:
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


def control_characters(text: str, allowed: str = "\n") -> list[str]:
    """The characters of a text that a terminal would obey."""
    found = []
    for character in text:
        number = ord(character)
        if (number < 0x20 and character not in allowed) or 0x7F <= number < 0xA0:
            found.append(character)
    return found


def script(path: Path) -> Any:
    """A file of no package as a module, which finds the files beside it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        patch.setitem(sys.modules, path.stem, module)  # where dataclasses look for themselves
        spec.loader.exec_module(module)
    return module


def tensors(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint."""
    from hydractl.files.checkpoint import FileTensors

    file = FileTensors(Path(path))
    return {name: file.read(name) for name in file.names()}
