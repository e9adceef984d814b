"""The files that a command reads, of which none may be what it writes: the answer would take the place of the data."""

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
        path: where it is.
        option: the option that names it, as in messages.
        replaceable: whether an output may take its place: a model by one that is made of it.
        samples: whether, of a folder, the files in its folders are what is read.
    """

    path: str
    option: str
    replaceable: bool = False
    samples: bool = False


_READ: ContextVar[tuple[InputFile, ...]] = ContextVar("_READ", default=())


@contextlib.contextmanager
def reading(inputs: Iterable[InputFile]) -> Iterator[None]:
    """Declare what is read inside: every output that is one of these files is refused."""
    token = _READ.set(tuple(inputs))
    try:
        yield
    finally:
        _READ.reset(token)


def refuse_input(path: Path, *, folder: bool) -> None:
    """Refuse an output that would take the place of something that is read.

    Args:
        path: of the output.
        folder: whether it is a folder, which is replaced with all that it holds.

    Raises:
        OutputError: naming the input.
    """
    for read in _READ.get():
        if read.replaceable and _is_same(path, read.path):
            continue
        how = _conflict_words(path, read, folder)
        if how is not None:
            raise OutputError(f"the output {path} {how} of {read.option}: {read.path}", hint="choose another name")


def _conflict_words(path: Path, read: InputFile, folder: bool) -> str | None:
    """Say how an output and an input stand in each other's way; None where they do not."""
    if _is_same(path, read.path):
        return "is the input"
    if folder and _lies_in(read.path, path, depth=1):
        return "is a folder that holds the input"
    if read.samples and os.path.exists(path) and _lies_in(path, read.path, depth=2):
        return "is one of the files"
    return None


def _is_same(output: Path, file: str) -> bool:
    """Return whether two paths lead to one file, by whatever links."""
    try:
        return os.path.samefile(output, file)
    except (OSError, ValueError):
        return False


def _lies_in(file: str | Path, folder: str | Path, depth: int) -> bool:
    """Return whether a file lies in a folder, at least so many folders deep."""
    if not os.path.isdir(folder):
        return False
    real_file = os.path.realpath(file)
    real_folder = os.path.realpath(folder)
    below = os.path.relpath(real_file, real_folder)
    parts = Path(below).parts
    if len(parts) < depth:
        return False
    return parts[0] not in ("..", ".")
