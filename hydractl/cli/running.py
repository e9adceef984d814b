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
        parameters = [files, _keyword("json", bool | None, typer.Option(None, "--json"))]
    else:
        options = [option for option in options_of(SETTINGS[verb]) if not option.flagless]
        parameters = [_parameter(option) for option in options]
    for name, declared in help_options.items():
        parameters.append(_keyword(name, bool, declared))

    def request(**values: Any) -> Request:
        for name in help_options:
            del values[name]
        for option in options:
            if not option.many and option.type is not bool:
                values[option.name] = _once(option, values[option.name] or [], verb)
        return Request(verb, values)

    request.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    request.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return request


def _once(option: Option, given: list[str], verb: str) -> str | None:
    """Return the one value of an option; it may be given twice, but not with another value."""
    values = list(dict.fromkeys(given))
    if len(values) > 1:
        raise UsageError(f"{option.flag} is given as {' and as '.join(values)}; {verb} takes one", hint="give it once")
    if not values:
        return None
    return values[0]


def _parameter(option: Option) -> inspect.Parameter:
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
    return _keyword(option.name, annotation, typer.Option(None, *flags, autocompletion=lambda: choices))


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
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
    """Print rows as they are computed; for a person, keep the first ones for the table behind them."""
    if settings.to_stdout or not answer.to_terminal:
        answer.lines(lines)
        return
    first: list[dict[str, object]] = []
    for row in lines:
        if len(first) < _MOST_SHOWN:
            first.append(row)
    outcome.document["first"] = first


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

    declared = _metadata("hydractl", r"^Requires-Dist: *([^;\n]+)$")  # not the extras: those have conditions
    for requirement in declared:  # none if hydractl runs from its source
        name, _, least = requirement.partition(">=")
        for version in _metadata(name, r"^Version: *(\S+)"):  # none: its import says so where it is needed
            if Version(version) < Version(least):
                message = f"{name} {version} is installed, and hydractl needs {requirement}"
                raise UsageError(message, hint=f"pip install '{requirement}'")


def _metadata(name: str, line: str) -> list[str]:
    """Find a pattern in the headers of a distribution's metadata; empty for one that is not installed.

    Parsing them all, README included, would take ten times as long.
    """
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return []
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    headers = text.partition("\n\n")[0]
    return re.findall(line, headers, re.MULTILINE)


def _give(outcome: Outcome, settings: Common, answer: Answer, log: ConsoleLog) -> None:
    """Print the answer of a verb.

    Raises:
        RequirementError: after printing, if a ``--require`` did not hold.
    """
    if outcome.lines is not None and (settings.to_stdout or not answer.to_terminal):
        for path in outcome.files:
            log.info(f"wrote {path}")
        _check_requirements(outcome)
        return
    as_json = settings.json or outcome.print_document
    for_a_script = not answer.to_terminal and not VERBS[settings.verb].prints_table
    if for_a_script and outcome.files and not as_json:
        answer.paths(outcome.files)
    else:
        if as_json:
            answer.document(outcome.document)
        else:
            answer.table(outcome.document)
        for path in outcome.files:
            log.info(f"wrote {path}")
    _check_requirements(outcome)


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
    """``--info``: describe every file and compare their heads, or say what is wrong with each that is no such file."""
    files = request.given["files"]
    if not isinstance(files, list) or not files:
        raise UsageError("--info needs a FILE", hint="hydractl --info --help")
    from hydractl.verbs.info import compare, describe

    infos = []
    errors: list[HydraError] = []
    for file in files:
        try:
            infos.append(describe(Path(file)))
        except HydraError as error:
            errors.append(error)
    if len(files) == 1 and errors:
        raise errors[0]
    documents = [info.to_json() for info in infos]
    overlap = compare(infos)
    if overlap is not None:
        documents.append(overlap.to_json())
    if request.given["json"] and len(files) == 1:
        answer.document(documents[0])
    elif request.given["json"]:
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
