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
from hydractl.settings.registry import VERBS

INTERRUPTED = 130
_INTERNAL = 1
_MOST_PROBLEMS = 50
_LONGEST = 2000  # characters of a line: what it quotes may be any value of any file
_STORAGE = {errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT}
# How torch says it on a CPU and on Apple's GPUs; on CUDA it has an exception of its own.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


class Failure(NamedTuple):
    """Message and exit code of a failed command."""

    exit_code: int
    message: str
    hint: str | None = None
    problems: Sequence[str] = ()


def failure_of(error: BaseException) -> Failure:
    """Return message and exit code for any exception that ends a command.

    What is no error of hydractl, no interruption and none that a person can mend is a defect of hydractl.
    """
    if isinstance(error, HydraError):
        return Failure(error.exit_code, error.message, error.hint, error.problems)
    if isinstance(error, Interrupted):
        return Failure(INTERRUPTED, "interrupted", error.hint)
    if isinstance(error, KeyboardInterrupt):
        return Failure(INTERRUPTED, "interrupted")
    if _is_out_of_memory(error):
        return Failure(_INTERNAL, "out of memory", "use a smaller --batch-size")
    if isinstance(error, OSError) and error.errno in _STORAGE:
        where = ""
        if error.filename:
            where = f" {error.filename}"
        hint = "free some space or choose another folder with -o"
        return Failure(StorageError.exit_code, f"cannot write{where}: {error.strerror}", hint)
    if isinstance(error, ModuleNotFoundError) and error.name:
        is_of_hydractl = error.name.startswith("hydractl")  # a file of it is gone
        if not is_of_hydractl:
            return _missing_module(error.name)
    return _defect(error)


def _defect(error: BaseException) -> Failure:
    """Return the failure of an exception that nobody expected: its kind, and the first line of its message."""
    description = type(error).__name__
    lines = str(error).strip().splitlines()
    if lines:
        description += f": {lines[0]}"
    hint = "this is a defect of hydractl: HYDRACTL_DEBUG=1 shows where it happened"
    return Failure(_INTERNAL, f"internal: {description}", hint)


def _missing_module(module: str) -> Failure:
    """Return the failure of a module that is not there: its package is not installed, or is of another version."""
    package = module.partition(".")[0]
    name = distribution_of(package)
    if module == package or importlib.util.find_spec(package) is None:
        hint = install_hint(package)
        return Failure(_INTERNAL, f"the package {name} is not installed", hint)
    hint = f"pip install -U {name}"
    return Failure(_INTERNAL, f"the installed {name} has no module {module}", hint)


def say_failure(failure: Failure, error: BaseException) -> None:
    """Write what went wrong: one ``error:`` line, a line for each problem, and a ``hint:``.

    Args:
        failure: what is said.
        error: the exception, whose traceback is shown before where ``HYDRACTL_DEBUG`` asks for it.
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
    """Return a line; a long one without its middle."""
    if len(line) <= _LONGEST:
        return line
    half = _LONGEST // 2
    return f"{line[:half]} ... {line[-half:]}"


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception of Python or of torch says that memory has run out."""
    # torch is not imported here: its exception is known by its name.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError):
        return False
    message = str(error)
    return any(text in message for text in _OUT_OF_MEMORY)


def no_such_verb(word: str) -> UsageError:
    """Return the complaint about a word that stands where a verb is expected."""
    suggestion = _suggestion(word, None)
    return UsageError(f"no such verb: {word}{suggestion}", hint="hydractl --help")


def parser_problem(error: typer.TyperException, first: str) -> UsageError:
    """Return a complaint of the parser in hydractl's words: what is wrong, and what was probably meant.

    Args:
        error: the complaint.
        first: the first word of the command line; it is a verb, ``--info``, or an option of the program itself.
    """
    verb = None
    hint = "hydractl --help"
    if first in (*VERBS, INFO):
        verb = first
        hint = f"hydractl {verb} --help"
    is_of_unknown_option = hasattr(error, "possibilities")
    if is_of_unknown_option:
        wrong = error.option_name  # type: ignore[attr-defined]
        suggestion = _suggestion(wrong, verb)
        return UsageError(f"no such option: {wrong}{suggestion}", hint=hint)
    message = error.format_message().strip().rstrip(".")
    in_lower_case = message[:1].lower() + message[1:]
    return UsageError(in_lower_case, hint=hint)


def _suggestion(word: str, verb: str | None) -> str:
    """Return the end of the message about an unknown flag, or about a word that is no verb."""
    # Here, because it reads the options of all verbs: --help and --version do without them.
    from hydractl.settings.suggestions import about_word

    return about_word(word, verb)
