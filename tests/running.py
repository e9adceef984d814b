"""Commands in this process, and what they leave."""

from __future__ import annotations

import configparser
import contextlib
import importlib.util
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

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


def answer(*arguments: str | Path) -> Any:
    """What one command prints with ``--json``."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run(*arguments, "--json")
    return json.loads(printed.getvalue())


def read_json(path: str | Path) -> Any:
    """The value that a file of JSON holds."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def json_lines(path: str | Path) -> list[Any]:
    """The values of a file of JSON lines."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def evaluated(*arguments: str) -> Any:
    """The document of ``eval`` with these arguments."""
    return answer("eval", *arguments)


@contextlib.contextmanager
def stopped_after(step: int, lr: float | None = None) -> Iterator[None]:
    """Every training is told to end after so many steps; with ``lr``, that of this learning rate alone."""
    from hydractl.training.loop import Training

    before = Training._save_or_stop

    def signalled(self: Training) -> None:
        if self.history.steps == step and lr in (None, self.lr):
            os.kill(os.getpid(), signal.SIGTERM)
        before(self)

    with patch.object(Training, "_save_or_stop", signalled):
        yield


def refused(kind: Any, call: Callable[..., object], /, *given: Any, **options: Any) -> Any:
    """The error of this kind that a call raises."""
    with pytest.raises(kind) as caught:
        call(*given, **options)
    return caught.value


def control_characters(text: str, allowed: str = "\n") -> list[str]:
    """The characters of a text that a terminal would obey."""
    found = []
    for character in text:
        number = ord(character)
        if (number < 0x20 and character not in allowed) or 0x7F <= number < 0xA0:
            found.append(character)
    return found


def described(source: Path, target: Path, change: Callable[[dict[str, Any]], Any], **metadata: str) -> Path:
    """A copy of a checkpoint whose description is another.

    Args:
        source: the checkpoint.
        target: where the copy is written; it is returned.
        change: changes the description in place.
        metadata: what stands beside it.
    """
    whole = source.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    description = json.loads(header["__metadata__"]["hydractl"])
    change(description)
    header["__metadata__"] |= {"hydractl": json.dumps(description), **metadata}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])
    return target


def link_files(source: Path, folder: Path) -> None:
    """Let a folder have the files of another as links."""
    for file in source.iterdir():
        (folder / file.name).symlink_to(file)


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


def install_beside(place: Path, project: Mapping[str, Any]) -> None:
    """What ``pip install`` leaves in a folder beside the modules of a package.

    Args:
        place: the folder.
        project: the table of this name in the package's pyproject.toml.
    """
    name, version = project["name"], project["version"]
    info = place / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    points = configparser.ConfigParser()
    points.read_dict(project["entry-points"])
    with (info / "entry_points.txt").open("w", encoding="utf-8") as file:
        points.write(file)
