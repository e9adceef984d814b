"""Exit codes and messages for exceptions."""

from __future__ import annotations

import errno
import importlib.util
import traceback
from collections.abc import Sequence
from typing import NamedTuple

import typer

from hydractl.cli.console import debugging, say
from hydractl.cli.request import INFO
from hydractl.errors import (
    HydraError,
    Interrupted,
    StorageError,
    UsageError,
    distribution_of,
    install_hint,
)
from hydractl.options.registry import VERBS

INTERRUPTED = 130
_INTERNAL = 1
_MOST_PROBLEMS = 50
_LONGEST = 2000  # characters of a line, which may quote any value of any file
_STORAGE = {errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT}
# What torch's messages contain if memory has run out on a CPU or on Apple's GPUs; for CUDA it has an exception.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


class Failure(NamedTuple):
    """The message and the exit code of a failed command."""

    exit_code: int
    message: str
    hint: str | None = None
    problems: Sequence[str] = ()


def failure_of(error: BaseException) -> Failure:
    """Return the message and the exit code for any exception that ends a command.

    Errors of hydractl, interruptions, and errors that a person can mend have messages of their own. Any other exception
    is reported as a defect of hydractl.
    """
    # Errors of hydractl, and interruptions. An Interrupted, which has a hint, is also a KeyboardInterrupt: ask for it
    # first.
    if isinstance(error, HydraError):
        return Failure(error.exit_code, error.message, error.hint, error.problems)
    if isinstance(error, Interrupted):
        return Failure(INTERRUPTED, "interrupted", error.hint)
    if isinstance(error, KeyboardInterrupt):
        return Failure(INTERRUPTED, "interrupted")

    # Errors that a person can mend: memory, storage, packages.
    if _is_out_of_memory(error):
        return Failure(_INTERNAL, "out of memory", "use a smaller --batch-size")
    if isinstance(error, OSError) and error.errno in _STORAGE:
        where = ""
        if error.filename:
            where = f" {error.filename}"
        hint = "free some space or choose another folder with -o"
        return Failure(StorageError.exit_code, f"cannot write{where}: {error.strerror}", hint)
    if isinstance(error, ModuleNotFoundError) and error.name:
        is_of_hydractl = error.name.startswith("hydractl")  # a missing file of hydractl itself is a defect
        if not is_of_hydractl:
            return _missing_module(error.name)
    return _defect(error)


def _defect(error: BaseException) -> Failure:
    """Return the failure for an unexpected exception: its type, and the first line of its message."""
    description = type(error).__name__
    lines = str(error).strip().splitlines()
    if lines:
        description += f": {lines[0]}"
    hint = "this is a defect of hydractl: HYDRACTL_DEBUG=1 shows where it happened"
    return Failure(_INTERNAL, f"internal: {description}", hint)


def _missing_module(module: str) -> Failure:
    """Return the failure for a module that cannot be found: its package is not installed, or has another version."""
    package = module.partition(".")[0]
    name = distribution_of(package)
    if module == package or importlib.util.find_spec(package) is None:
        hint = install_hint(package)
        return Failure(_INTERNAL, f"the package {name} is not installed", hint)
    hint = f"pip install -U {name}"
    return Failure(_INTERNAL, f"the installed {name} has no module {module}", hint)


def say_failure(failure: Failure, error: BaseException) -> None:
    """Write what went wrong: an ``error:`` line, a line for each problem, and a ``hint:``.

    Args:
        failure: what to write.
        error: the exception; its traceback is written first if ``HYDRACTL_DEBUG`` asks for it.
    """
    if debugging():
        trace = "".join(traceback.format_exception(error))
        for line in trace.splitlines():
            say(line)
    message = _without_middle(failure.message)
    say(f"error: {message}")
    for problem in failure.problems[:_MOST_PROBLEMS]:
        shown_problem = _without_middle(problem)
        say(f"  - {shown_problem}")
    problems_left = len(failure.problems) - _MOST_PROBLEMS
    if problems_left > 0:
        say(f"  - and {problems_left} more")
    if failure.hint:
        say(f"hint: {failure.hint}")


def _without_middle(line: str) -> str:
    """Return a line, without its middle if it is very long."""
    if len(line) <= _LONGEST:
        return line
    half = _LONGEST // 2
    return f"{line[:half]} ... {line[-half:]}"


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception of Python or of torch says that memory has run out."""
    # torch is not imported here, so its exception is recognised by its name.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError):
        return False
    message = str(error)
    return any(text in message for text in _OUT_OF_MEMORY)


def no_such_verb(word: str) -> UsageError:
    """Return the error for a word in the place of a verb."""
    suggestion = _suggestion(word, None)
    return UsageError(f"no such verb: {word}{suggestion}", hint="hydractl --help")


def parser_problem(error: typer.TyperException, first: str) -> UsageError:
    """Return an error of the parser in hydractl's words: what is wrong, and what was probably meant.

    Args:
        error: the error of the parser.
        first: the first word of the command line: a verb, ``--info``, or an option of the program itself.
    """
    verb = None
    hint = "hydractl --help"
    if first in (*VERBS, INFO):
        verb = first
        hint = f"hydractl {verb} --help"
    # Only the error about an unknown option has "possibilities".
    is_of_unknown_option = hasattr(error, "possibilities")
    if is_of_unknown_option:
        wrong = error.option_name  # type: ignore[attr-defined]
        suggestion = _suggestion(wrong, verb)
        return UsageError(f"no such option: {wrong}{suggestion}", hint=hint)
    message = error.format_message().strip().rstrip(".")
    in_lower_case = message[:1].lower() + message[1:]
    return UsageError(in_lower_case, hint=hint)


def _suggestion(word: str, verb: str | None) -> str:
    """Return the end of the message about an unknown option, or about a word that is not a verb."""
    # Imported only here, because it reads the options of all verbs, which --help and --version do not need.
    from hydractl.options.suggestions import about_word

    return about_word(word, verb)
