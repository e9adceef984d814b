"""The errors that a person can cause or mend, each with the exit code that the command line gives it.

Any other exception that leaves a verb is a defect of hydractl itself.
"""

from __future__ import annotations

import difflib
import errno
import importlib.util
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

INTERRUPTED = 130
"""The exit code of a command that a signal has ended."""
_STORAGE = {errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT}
# What torch's messages contain if memory has run out on a CPU or on Apple's GPUs; for CUDA it has an exception.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


class HydraError(Exception):
    """A failure with one line that says what is wrong and where, and optionally what to do next.

    Args:
        message: what is wrong and where; one line, no trailing full stop.
        hint: the next command or change to try; one line.
        problems: every single problem found in one input, if there are several.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None, problems: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.problems = list(problems)

    def reword(self, said: Callable[[str], str]) -> None:
        """Say the message and the problems in other words."""
        self.message = said(self.message)
        self.args = (self.message,)
        self.problems = list(map(said, self.problems))


class UsageError(HydraError):
    """Wrong options, configuration or environment (exit code 2)."""

    exit_code = 2


def refuse_options(problems: Sequence[str], what: str, hint: str) -> None:
    """Raise a UsageError for the problems with some options, if there are any.

    Args:
        problems: the sentences; one is the message itself, several are a list below it.
        what: the options, for the message above a list.
        hint: what to do.
    """
    if len(problems) == 1:
        raise UsageError(problems[0], hint=hint)
    if problems:
        raise UsageError(f"{len(problems)} problems with {what}", hint=hint, problems=problems)


class InputError(HydraError):
    """A bad input file, data set, mask or model (exit code 3)."""

    exit_code = 3


class SampleError(InputError):
    """One sample of a batch cannot be made an input of a model; the others may be fine.

    Attributes:
        position: the place of the sample in the batch.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class RequirementError(HydraError):
    """A ``--require`` is not met (exit code 4)."""

    exit_code = 4


class OutputError(HydraError):
    """An output exists, is in use or cannot be written (exit code 5)."""

    exit_code = 5


class NonFiniteError(HydraError):
    """NaN or infinity where a number is needed (exit code 6)."""

    exit_code = 6


class StorageError(HydraError):
    """No space left, or an input/output error of the machine (exit code 7)."""

    exit_code = 7


class Interrupted(KeyboardInterrupt):
    """An interruption of work that can be continued later; unlike a plain KeyboardInterrupt it says how.

    It is not a HydraError, so that code that handles errors does not catch it.

    Args:
        hint: the command that continues the work; one line.
    """

    def __init__(self, hint: str) -> None:
        super().__init__()
        self.hint = hint


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of a library written in Rust, which does not derive from ``Exception``."""
    # Each of these libraries has a class of its own for it, which no module exports.
    return type(error).__name__ == "PanicException"


def range_problem(
    value: Any, at_least: float | None, at_most: float | None, above: float | None, below: float | None
) -> str | None:
    """Return the first bound that a number breaks, as ``must be at least 1, not 0``; None if it breaks none.

    A bound that is None does not exist.
    """
    bounds = (
        ("at least", at_least, operator.ge),
        ("at most", at_most, operator.le),
        ("greater than", above, operator.gt),
        ("less than", below, operator.lt),
    )
    for words, bound, holds in bounds:
        if bound is not None and not holds(value, bound):
            return f"must be {words} {bound}, not {value}"
    return None


def did_you_mean(word: str, known: Iterable[str], written: Callable[[str], str] = str, cutoff: float = 0.6) -> str:
    """Return the end of a message about a wrong word, ``; did you mean X?``; empty if no known word is similar.

    Args:
        word: what was written.
        known: the words that exist. X is the one that the word begins, or else is spelled most like.
        written: how X is written in the message.
        cutoff: how much alike it has to be, from 0 to 1.
    """
    # Known words that begin with the word, the shortest first. If it begins all the others too, it is meant: "id.acc"
    # is completed to "id.accuracy", which also begins "id.accuracy_at.0.90". Otherwise the likest spelling decides.
    words = list(known)
    longer = [known_word for known_word in words if word and known_word.startswith(word)]
    begun = sorted(longer, key=len)
    if begun and all(longer_word.startswith(begun[0]) for longer_word in begun):
        near = begun[:1]
    else:
        near = difflib.get_close_matches(word, words, n=1, cutoff=cutoff)
    return f"; did you mean {written(near[0])}?" if near else ""


def near_path(missing: str | Path) -> str | None:
    """Return a hint at what a missing path was meant to be: names like it in its folder; None if there are none.

    If the folder itself is missing, the hint says up to where the path exists.
    """
    missing = Path(missing)
    folder = missing.parent
    try:
        names = sorted(os.listdir(folder))
    except (OSError, ValueError):  # the latter for a NUL in the name
        nearest = next(filter(os.path.isdir, folder.parents), Path("/"))
        return f"the path exists up to {os.path.join(nearest, '')}"
    near = difflib.get_close_matches(missing.name, names, n=3, cutoff=0.5)
    is_there = missing.name in names  # then something else was wrong with it
    if not near or is_there:
        return None
    return f"in {os.path.join(folder, '')} there is: {', '.join(near)}"


_DISTRIBUTIONS = {
    "PIL": "pillow",
    "open_clip": "open_clip_torch",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""By the name of an imported package, the name that it is installed by, if that differs."""

EXTRAS = {
    "datasets": "hub",
    "kmedoids": "cahp",
    "onnx": "deploy",
    "onnx_ir": "deploy",
    "onnxruntime": "deploy",
    "onnxscript": "deploy",
    "pandas": "pandas",
    "pyarrow": "parquet",
    "sklearn": "demo",
}
"""By the name of an imported package that not everybody needs, the extra of hydractl that installs it."""


def distribution_of(module: str) -> str:
    """Return the name by which the package of a module is installed."""
    package = module.partition(".")[0]
    return _DISTRIBUTIONS.get(package, package)


def install_hint(module: str) -> str:
    """Return the command that installs the package of a module, in a version that hydractl works with."""
    package = module.partition(".")[0]
    extra = EXTRAS.get(package)
    if extra is None:
        return f"pip install {distribution_of(package)}"
    return f"pip install 'hydractl[{extra}]'"


# --- any exception ----------------------------------------------------------------------------------------------------


class _Interruption(HydraError):
    """How the end of a command by a signal is shown (exit code 130)."""

    exit_code = INTERRUPTED


def failure_of(error: BaseException) -> HydraError:
    """Return an error with the message, the hint and the exit code for any exception that ends a command.

    - an error of hydractl: itself;
    - an interruption (Ctrl-C, SIGTERM): "interrupted", 130;
    - no memory, no disk space, a missing package: a message with what to do, 1 (disk: 7);
    - any other: reported as a defect of hydractl, 1.
    """
    if isinstance(error, HydraError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return _Interruption("interrupted", getattr(error, "hint", None))  # an Interrupted has a hint

    # Errors that a person can mend: memory, storage, packages.
    if _is_out_of_memory(error):
        return HydraError("out of memory", hint="use a smaller --batch-size")
    if isinstance(error, OSError) and error.errno in _STORAGE:
        where = f" {error.filename}" if error.filename else ""
        hint = "free some space or choose another folder with -o"
        return StorageError(f"cannot write{where}: {error.strerror}", hint)
    if isinstance(error, ModuleNotFoundError) and error.name:
        is_of_hydractl = error.name.startswith("hydractl")  # a missing file of hydractl itself is a defect
        if not is_of_hydractl:
            return _missing_module(error.name)

    # An unexpected exception: its type, and the first line of its message.
    description = type(error).__name__
    lines = str(error).strip().splitlines()
    if lines:
        description += f": {lines[0]}"
    hint = "this is a defect of hydractl: HYDRACTL_DEBUG=1 shows where it happened"
    return HydraError(f"internal: {description}", hint)


def _missing_module(module: str) -> HydraError:
    """Return the error for a module that cannot be found: its package is not installed, or has another version."""
    package = module.partition(".")[0]
    name = distribution_of(package)
    if module == package or importlib.util.find_spec(package) is None:
        return HydraError(f"the package {name} is not installed", install_hint(package))
    return HydraError(f"the installed {name} has no module {module}", hint=f"pip install -U {name}")


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception of Python or of torch says that memory has run out."""
    # torch is not imported here, so its exception is recognised by its name.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError):
        return False
    message = str(error)
    return any(text in message for text in _OUT_OF_MEMORY)
