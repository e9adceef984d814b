"""How errors are shown on the command line, and the errors of its parser."""

from __future__ import annotations

import traceback

import typer

from hydractl.cli.console import debugging, say
from hydractl.cli.request import INFO
from hydractl.errors import Failure, UsageError
from hydractl.options.registry import VERBS

_MOST_PROBLEMS = 50
_LONGEST = 2000  # characters of a line, which may quote any value of any file


def say_failure(failure: Failure, error: BaseException) -> None:
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
    return UsageError(f"no such verb: {word}{_suggestion(word, None)}", hint="hydractl --help")


def parser_problem(error: typer.TyperException, first: str) -> UsageError:
    """Return the UsageError for an error of Typer's parser: what is wrong, what was probably meant, where help is.

    Args:
        error: the error of the parser.
        first: the first word of the command line: a verb, ``--info``, or an option of the program itself.
    """
    verb = None
    hint = "hydractl --help"
    if first in (*VERBS, INFO):
        verb = first
        hint = f"hydractl {verb} --help"
    if hasattr(error, "possibilities"):  # only the error about an unknown option has them
        wrong = error.option_name  # type: ignore[attr-defined]
        return UsageError(f"no such option: {wrong}{_suggestion(wrong, verb)}", hint=hint)

    # Any other error: Typer's sentence, in the form of hydractl's own (a small letter first, no full stop).
    message = error.format_message().strip().rstrip(".")
    return UsageError(message[:1].lower() + message[1:], hint=hint)


def _suggestion(word: str, verb: str | None) -> str:
    """Return the end of the message about an unknown option, or about a word that is not a verb."""
    # Imported only here, because it reads the options of all verbs, which --help and --version do not need.
    from hydractl.options.suggestions import about_word

    return about_word(word, verb)
