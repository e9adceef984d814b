"""How errors are shown on the command line, and the errors of its parser."""

from __future__ import annotations

import traceback

import typer

from hydractl.cli.console import debugging, say
from hydractl.cli.request import INFO
from hydractl.errors import HydraError, UsageError, did_you_mean
from hydractl.options.registry import VERBS

_MOST_PROBLEMS = 50
_LONGEST = 2000  # characters of a line, which may quote any value of any file


def say_failure(failure: HydraError, error: BaseException) -> None:
    """Write what went wrong: an ``error:`` line, a line for each problem, and a ``hint:``.

    Args:
        failure: what to write.
        error: the exception; its traceback is written first if ``HYDRACTL_DEBUG`` asks for it.
    """
    if debugging():
        for line in "".join(traceback.format_exception(error)).splitlines():
            say(line)
    say(f"error: {_without_middle(failure.message)}")
    for problem in failure.problems[:_MOST_PROBLEMS]:
        say(f"  - {_without_middle(problem)}")
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


def no_such_verb(word: str) -> UsageError:
    """Return the error for a word in the place of a verb."""
    meant = did_you_mean(word, [*VERBS, INFO, "--version"])
    return UsageError(f"no such verb: {word}{meant}", hint="hydractl --help")


def parser_problem(error: typer.TyperException, first: str) -> UsageError:
    """Return the UsageError for an error of Typer's parser: what is wrong, what was probably meant, where help is.

    Args:
        error: the error of the parser.
        first: the first word of the command line: a verb, ``--info``, or an option of the program itself.
    """
    hint = f"hydractl {first} --help" if first in (*VERBS, INFO) else "hydractl --help"
    if hasattr(error, "possibilities"):  # only the error about an unknown option has them
        wrong: str = error.option_name  # type: ignore[attr-defined]
        meant = ""
        if first in VERBS:
            # Imported only here, because it reads the options of all verbs, which --help and --version do not need.
            from hydractl.options.suggestions import about_option, by_flag

            meant = about_option(wrong.removeprefix("--"), first, by_flag)
        if not meant and error.possibilities:  # the parser knows --help, too
            meant = did_you_mean(wrong, error.possibilities, cutoff=0.8)
        return UsageError(f"no such option: {wrong}{meant}", hint=hint)

    # Any other error: Typer's sentence, in the form of hydractl's own (a small letter first, no full stop).
    message = error.format_message().strip().rstrip(".")
    return UsageError(message[:1].lower() + message[1:], hint=hint)
