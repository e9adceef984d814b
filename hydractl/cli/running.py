"""One verb from its options to its answer: its Typer command, settings, log, and what it gives.

Typer splits the command line and knows which options there are; every value stays text (None: not given), to be read
by the same parser as the environment and ``hydra.yaml``.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

from hydractl.cli.answer import Answer
from hydractl.cli.compiler_on_demand import import_compiler_on_demand
from hydractl.cli.console import ConsoleLog, Stray
from hydractl.cli.request import INFO, Request
from hydractl.errors import HydraError, InputError, RequirementError, UsageError
from hydractl.files.inputs import reading
from hydractl.settings.common import Common
from hydractl.settings.inputs import inputs_of
from hydractl.settings.option import Option, options_of, value_text
from hydractl.settings.registry import VERBS, module_of
from hydractl.settings.sources import merge, unknown_variables, with_sources
from hydractl.settings.verbs import SETTINGS
from hydractl.verbs.outcome import Outcome


def request_function(verb: str, **help_options: Any) -> Callable[..., Request]:
    """Return a function with one parameter for each option of a verb (or ``--info``), which Typer turns into a command.

    Args:
        verb: its name.
        help_options: Typer's declarations of the options that only show help, by parameter.
    """
    options: Sequence[Option] = ()
    if verb == INFO:
        files = _keyword("files", list[str] | None, typer.Argument(None, show_default=False))
        as_json = _keyword("json", bool | None, typer.Option(None, "--json"))
        parameters = [files, as_json]
    else:
        options = [option for option in options_of(SETTINGS[verb]) if not option.flagless]
        parameters = [_parameter(option) for option in options]
    for name, declared in help_options.items():
        parameters.append(_keyword(name, bool, declared))

    # No docstring: Typer would show it as the help of the command. Every option is passed, most of them as None.
    def request(**values: Any) -> Request:
        for name in help_options:
            del values[name]
        for option in options:
            takes_one_value = not option.many and option.type is not bool
            if takes_one_value:
                texts = values[option.name] or []
                values[option.name] = _single_value(option, texts, verb)
        return Request(verb, values)

    # Typer reads the parameters of a function from these two.
    request.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    request.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return request


def _single_value(option: Option, values: list[str], verb: str) -> str | None:
    """Return the value of an option that takes one; None where it was not given.

    Raises:
        UsageError: it was given several times with different values.
    """
    different_values = list(dict.fromkeys(values))
    if len(different_values) > 1:
        listed = " and as ".join(different_values)
        raise UsageError(f"{option.flag} is given as {listed}; {verb} takes one", hint="give it once")
    if not different_values:
        return None
    return different_values[0]


def _parameter(option: Option) -> inspect.Parameter:
    """Return an option as the parameter of a function, by which Typer parses it; its value stays text."""
    if option.name == "model":
        return _keyword(option.name, list[str] | None, typer.Argument(None, show_default=False))
    is_switch = option.type is bool
    flags = [option.flag]
    if is_switch:
        flags = [f"{option.flag}/--no-{option.flag[2:]}"]
    if option.short:
        flags.append(option.short)
    # A list of every option with a value: of one that takes a single value, Typer would keep the last in silence.
    annotation: Any = list[str] | None
    if is_switch:
        annotation = bool | None
    choices = list(option.choices)
    declared = typer.Option(None, *flags, autocompletion=lambda: choices)
    return _keyword(option.name, annotation, declared)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Return a keyword-only parameter; its default is Typer's declaration of it."""
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=annotation,
    )


# --- running ----------------------------------------------------------------------------------------------------------


def run_verb(request: Request, answer: Answer) -> None:
    """Run a verb and give its answer.

    Raises:
        HydraError: as the verb, with the source of every value in its words that was given by no flag.
    """
    settings = merge(SETTINGS[request.verb], request.given, os.environ, Path())
    log = ConsoleLog(quiet=settings.quiet, verbose=settings.verbose)
    for line in unknown_variables(os.environ):
        log.warn(line)
    _log_options(settings, log)
    _check_versions()
    if "WORLD_SIZE" in os.environ:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # read when torch is imported; errors say it all
    import_compiler_on_demand()
    verb = importlib.import_module(module_of(request.verb))
    inputs = inputs_of(settings)
    with contextlib.redirect_stdout(Stray()), _library_warnings(log), reading(inputs):
        try:
            outcome: Outcome = verb.run(settings, log)
            if outcome.lines is not None:
                _give_lines(outcome, outcome.lines, settings, answer)
        except HydraError as error:
            error.message = with_sources(error.message, settings)
            error.problems = [with_sources(problem, settings) for problem in error.problems]
            raise
    if not outcome.silent:
        _give(outcome, settings, answer, log)


_MOST_SHOWN = 20
"""Samples that a table for a person shows; a file or a pipe has all."""


def _give_lines(outcome: Outcome, lines: Iterator[dict[str, object]], settings: Common, answer: Answer) -> None:
    """Print rows as they are computed; for a person at a terminal, keep the first ones for the table behind them."""
    if _prints_rows(settings, answer):
        answer.lines(lines)
        return
    first: list[dict[str, object]] = []
    for row in lines:
        if len(first) < _MOST_SHOWN:
            first.append(row)
    outcome.document["first"] = first


def _prints_rows(settings: Common, answer: Answer) -> bool:
    """Return whether rows go to standard output as lines of JSON: to a file or a pipe, or where ``-o -`` says so."""
    return settings.to_stdout or not answer.to_terminal


def _log_options(settings: Common, log: ConsoleLog) -> None:
    """Log every option with its value and where that came from."""
    for option in options_of(type(settings)):
        value = getattr(settings, option.name)
        if value in (None, []):
            text = option.default_text or "not given"
        else:
            text = value_text(value)
        source = settings.sources[option.name]
        log.detail(f"{option.label} {text} ({source})")


def _check_versions() -> None:
    """Refuse libraries older than hydractl declares: they would fail later, and say something else."""
    from packaging.version import Version  # no help waits for it

    declared = _metadata_fields("hydractl", r"^Requires-Dist: *([^;\n]+)$")  # not the extras: those have conditions
    for requirement in declared:  # none if hydractl runs from its source
        name, _, least = requirement.partition(">=")
        for version in _metadata_fields(name, r"^Version: *(\S+)"):  # none: its import says so where it is needed
            if Version(version) < Version(least):
                message = f"{name} {version} is installed, and hydractl needs {requirement}"
                raise UsageError(message, hint=f"pip install '{requirement}'")


def _metadata_fields(name: str, pattern: str) -> list[str]:
    """Return what a pattern finds in the headers of a distribution's metadata, its group of each match.

    Parsing them all, README included, would take ten times as long.

    Args:
        name: of the distribution; nothing is found for one that is not installed.
        pattern: of a whole line, with one group.
    """
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return []
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    headers = text.partition("\n\n")[0]
    return re.findall(pattern, headers, re.MULTILINE)


def _give(outcome: Outcome, settings: Common, answer: Answer, log: ConsoleLog) -> None:
    """Print the answer of a verb, and fail where a ``--require`` did not hold.

    Standard output has one of these: the rows, which were printed when they were computed; the document as JSON; for a
    script the paths of the files; for a person a table. The files are named in the log unless they are the output.

    Raises:
        RequirementError: after printing, if a ``--require`` did not hold.
    """
    has_printed_rows = outcome.lines is not None and _prints_rows(settings, answer)
    as_json = settings.json or outcome.print_document
    is_for_script = not answer.to_terminal and not VERBS[settings.verb].prints_table
    only_paths = is_for_script and bool(outcome.files) and not as_json
    if has_printed_rows:
        _log_files(outcome, log)
    elif only_paths:
        answer.paths(outcome.files)
    elif as_json:
        answer.document(outcome.document)
        _log_files(outcome, log)
    else:
        answer.table(outcome.document)
        _log_files(outcome, log)
    _check_requirements(outcome)


def _log_files(outcome: Outcome, log: ConsoleLog) -> None:
    """Say which files were written."""
    for path in outcome.files:
        log.info(f"wrote {path}")


def _check_requirements(outcome: Outcome) -> None:
    """Fail where a ``--require`` did not hold.

    Raises:
        RequirementError: naming each.
    """
    unmet = outcome.unmet
    if len(unmet) == 1:
        (requirement,) = unmet
        raise RequirementError(f"requirement not met: {requirement}")
    if unmet:
        raise RequirementError(f"{len(unmet)} requirements not met", problems=unmet)


def describe_files(request: Request, answer: Answer) -> None:
    """Print for ``--info`` what each file is, and how far the heads of several overlap.

    Raises:
        UsageError: no file is named.
        HydraError: what is wrong with a single file.
        InputError: after the others are printed, what is wrong with each of several that are no such files.
    """
    files = request.given["files"]
    if not isinstance(files, list) or not files:
        raise UsageError("--info needs a FILE", hint="hydractl --info --help")
    from hydractl.verbs.info import compare, describe

    # Describe each.
    infos = []
    errors: list[HydraError] = []
    for file in files:
        try:
            infos.append(describe(Path(file)))
        except HydraError as error:
            errors.append(error)
    is_single = len(files) == 1
    if is_single and errors:
        raise errors[0]
    documents = [info.to_json() for info in infos]
    overlap = compare(infos)
    if overlap is not None:
        documents.append(overlap.to_json())

    # Print them: one JSON document, or tables with an empty line between them.
    as_json = request.given["json"]
    if as_json and is_single:
        answer.document(documents[0])
    elif as_json:
        answer.document(documents)
    else:
        for number, document in enumerate(documents):
            if number:
                answer.text("")
            answer.table(document)
    if errors:
        raise InputError(f"{len(errors)} of {len(files)} files cannot be described", problems=map(str, errors))


@contextlib.contextmanager
def _library_warnings(log: ConsoleLog) -> Iterator[None]:
    """Log Python warnings as details: they are for programmers. What a person must know, a verb says itself."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        kind = category.__name__
        log.detail(f"{kind}: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
