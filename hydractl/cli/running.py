"""Running one verb: settings, log, the verb itself, and its answer."""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydractl.cli.answer import Answer
from hydractl.cli.console import ConsoleLog, Stray
from hydractl.cli.help import value_text
from hydractl.cli.verbs import VERBS, Request
from hydractl.errors import HydraError, InputError, RequirementError, UsageError
from hydractl.settings.common import Common
from hydractl.settings.option import options_of
from hydractl.settings.sources import merge, unknown_variables
from hydractl.settings.verbs import SETTINGS
from hydractl.verbs.outcome import Outcome


def run_verb(request: Request, answer: Answer) -> None:
    settings = merge(SETTINGS[request.verb], request.given, os.environ, Path())
    log = ConsoleLog(quiet=settings.quiet, verbose=settings.verbose)
    for line in unknown_variables(os.environ):
        log.warn(line)
    for one in options_of(type(settings)):
        value = getattr(settings, one.name)
        text = (one.default_text or "not given") if value in (None, []) else value_text(value)
        log.detail(f"{one.label} {text} ({settings.sources[one.name]})")
    verb = importlib.import_module(VERBS[request.verb].module)
    with contextlib.redirect_stdout(Stray()), _library_warnings(log):
        outcome: Outcome = verb.run(settings, log)
    if not outcome.silent:
        _give(outcome, settings, answer, log)


def _give(outcome: Outcome, settings: Common, answer: Answer, log: ConsoleLog) -> None:
    """Print the answer of a verb.

    Raises:
        RequirementError: after printing, if a ``--require`` did not hold.
    """
    as_paths = False
    if settings.json or outcome.print_document:
        answer.document(outcome.document)
    elif VERBS[settings.verb].prints_table or answer.to_terminal or not outcome.files:
        answer.table(outcome.document)
    else:
        as_paths = True
        answer.paths(outcome.files)
    if not as_paths:
        for path in outcome.files:
            log.info(f"wrote {path}")
    if len(outcome.unmet) == 1:
        raise RequirementError(f"requirement not met: {outcome.unmet[0]}")
    if outcome.unmet:
        raise RequirementError(f"{len(outcome.unmet)} requirements not met", problems=outcome.unmet)


def describe_files(request: Request, answer: Answer) -> None:
    """``--info``: describe every file and compare their heads, or say what is wrong with each that is no such file."""
    files = request.given["files"]
    if not isinstance(files, list) or not files:
        raise UsageError("--info needs a FILE", hint="hydractl --info --help")
    from hydractl.verbs.info import compare, describe

    documents: list[dict[str, Any]] = []
    errors: list[HydraError] = []
    for file in files:
        try:
            documents.append(describe(Path(file)))
        except HydraError as error:
            errors.append(error)
    if len(files) == 1 and errors:
        raise errors[0]
    if errors:
        raise InputError(f"{len(errors)} of {len(files)} files cannot be described", problems=map(str, errors))
    overlap = compare(documents)
    if overlap is not None:
        documents.append(overlap)
    if request.given["json"]:
        answer.document(documents[0] if len(documents) == 1 else documents)
        return
    for number, document in enumerate(documents):
        if number:
            answer.text("")
        answer.table(document)


@contextlib.contextmanager
def _library_warnings(log: ConsoleLog) -> Iterator[None]:
    """Python warnings are for programmers: they are details here. What a person must know, a verb says itself."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        log.detail(f"{category.__name__}: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
