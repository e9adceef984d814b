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
