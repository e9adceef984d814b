"""The files that a command reads; no output may replace one of them, as that would overwrite the data."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from hydractl.errors import OutputError


@dataclass(frozen=True)
class InputFile:
    """A file or folder that a command reads.

    Attributes:
        path: the path of the file or folder.
        option: the option that names it, for messages.
        replaceable: whether an output may replace it, e.g. a model by one that is made from it.
        samples: whether it is a folder of which the files in its subfolders are read.
    """

    path: str
    option: str
    replaceable: bool = False
    samples: bool = False


_READ: ContextVar[tuple[InputFile, ...]] = ContextVar("_READ", default=())


@contextlib.contextmanager
def reading(inputs: Iterable[InputFile]) -> Iterator[None]:
    """Declare the files that are read inside this context: outputs that would replace them are refused."""
    token = _READ.set(tuple(inputs))
    try:
        yield
    finally:
        _READ.reset(token)


def refuse_input(path: Path, *, folder: bool) -> None:
    """Raise an error for an output that would replace something that is read.

    Args:
        path: the output.
        folder: whether the output is a folder, which would be replaced with all its contents.

    Raises:
        OutputError: names the input.
    """
    for read in _READ.get():  # the inputs of the command that runs
        if read.replaceable and _is_same(path, read.path):
            continue
        how = _conflict_words(path, read, folder)
        if how is not None:
            raise OutputError(f"the output {path} {how} of {read.option}: {read.path}", hint="choose another name")


def _conflict_words(path: Path, read: InputFile, folder: bool) -> str | None:
    """Return words that say how an output conflicts with an input; None if it does not."""
    if _is_same(path, read.path):
        return "is the input"
    if folder and _lies_in(read.path, path, depth=1):
        return "is a folder that holds the input"
    if read.samples and os.path.exists(path) and _lies_in(path, read.path, depth=2):
        return "is one of the files"
    return None


def _is_same(output: Path, file: str) -> bool:
    """Return whether two paths lead to the same file, perhaps through links."""
    try:
        return os.path.samefile(output, file)
    except (OSError, ValueError):
        return False


def _lies_in(file: str | Path, folder: str | Path, depth: int) -> bool:
    """Return whether a file lies in a folder, at least ``depth`` levels deep."""
    if not os.path.isdir(folder):
        return False
    real_file = Path(os.path.realpath(file))
    real_folder = os.path.realpath(folder)
    return real_file.is_relative_to(real_folder) and len(real_file.relative_to(real_folder).parts) >= depth
