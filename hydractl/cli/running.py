"""One verb from its options to its answer: its Typer command, its settings, its log, and how the answer is printed.

Typer splits the command line and knows which options exist. Every value stays a text (None: not given), so that the
same parser reads it as reads the environment and ``hydra.yaml``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import typer

from hydractl.cli.answer import Answer, table_text
from hydractl.cli.compiler_on_demand import import_compiler_on_demand
from hydractl.cli.console import ConsoleLog, Stray
from hydractl.cli.request import INFO, Request
from hydractl.errors import HydraError, InputError, UsageError
from hydractl.files.collecting import importing
from hydractl.files.inputs import reading
from hydractl.options.call import Call, gather
from hydractl.options.inputs import inputs_of
from hydractl.options.option import MODEL_KINDS, Option
from hydractl.options.registry import VERBS, engine_of
from hydractl.options.sources import unknown_variables
from hydractl.options.verbs import declared, options_of_verb
from hydractl.options.wording import with_sources
from hydractl.verbs.outcome import Outcome


def request_function(verb: str, **help_options: Any) -> Callable[..., Request]:
    """Return a function with one parameter for each option of a verb (or ``--info``); Typer makes a command from it.

    Args:
        verb: the name of the verb.
        help_options: Typer's declarations of the options that only show help, by parameter.

    Returns:
        A function from the values of all options to a :class:`Request`; UsageError for an option that takes one value
        and was given several.
    """
    # The parameters: those of --info, or the options of the verb; and the options that show help. In a file or a recipe
    # there are further options, which have no flag.
    options: Sequence[Option] = ()
    if verb == INFO:
        files = _keyword("files", list[str] | None, typer.Argument(None, show_default=False))
        as_json = _keyword("json", bool | None, typer.Option(None, "--json"))
        parameters = [files, as_json]
    else:
        options = [option for option in options_of_verb(verb) if not option.flagless]
        parameters = [_parameter(option) for option in options]
    for name, help_option in help_options.items():
        parameters.append(_keyword(name, bool, help_option))

    # This function has no docstring, because Typer would show it as the help of the command. Typer passes every
    # option, most of them as None. A value comes in a list of texts, so that an option given twice can be refused.
    def request(**values: Any) -> Request:
        for name in help_options:
            del values[name]
        for option in options:
            if option.many or option.type is bool:
                continue
            texts = list(dict.fromkeys(values[option.name] or []))
            if len(texts) > 1:
                listed = " and as ".join(texts)
                raise UsageError(f"{option.flag} is given as {listed}; {verb} takes one", hint="give it once")
            values[option.name] = texts[0] if texts else None
        return Request(verb, values)

    # Typer reads the parameters of a function from these two attributes.
    request.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    request.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return request


def _parameter(option: Option) -> inspect.Parameter:
    """Return the function parameter from which Typer makes an option of the command.

    Typer reads from it only the flags, and whether a value follows: a switch is a bool, any other a list of texts, and
    the models are words without a flag. Texts become numbers and so on later, in ``Option.read``.
    """
    # MODEL is given without a flag.
    if option.kind in MODEL_KINDS:
        return _keyword(option.name, list[str] | None, typer.Argument(None, show_default=False))

    flags = [option.flag]
    # Every option with a value is declared as a list. Otherwise, if an option is repeated, Typer would silently keep
    # the last value; request() complains instead.
    annotation: Any = list[str] | None
    if option.type is bool:
        # A switch has no value. Typer reads "--resume/--no-resume" as the flags for True and for False.
        flags = [f"{option.flag}/--no-{option.flag[2:]}"]
        annotation = bool | None
    if option.short:
        flags.append(option.short)

    # The default None means that the option was not given. The choices are only for completion in the shell.
    choices = list(option.choices)
    declared = typer.Option(None, *flags, autocompletion=lambda: choices)
    return _keyword(option.name, annotation, declared)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Return a keyword-only parameter whose default is Typer's declaration of it."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


# --- running ----------------------------------------------------------------------------------------------------------


def run_verb(request: Request, answer: Answer) -> None:
    """Run a verb with the texts of its command line, and print its answer to standard output.

    Raises:
        HydraError: the error of the verb; its message names the source of each value that no flag gave.
    """
    # The value of each option: of a flag, else a variable, else hydra.yaml, else the default.
    call = gather(declared(request.verb), request.given, os.environ, Path())
    log = ConsoleLog(quiet=call.values["quiet"], verbose=call.values["verbose"])
    call.log = log
    for line in unknown_variables(os.environ):
        log.warn(line)
    works = False  # until the options have been checked
    with contextlib.ExitStack() as while_it_works:

        def ready() -> None:
            """Log the options, check the installation, protect the inputs, and import the module that does the work."""
            nonlocal works
            works = True
            for line in call.lines():
                log.detail(line)
            _check_versions()
            if "WORLD_SIZE" in os.environ:  # several processes: let them fail quietly, as exceptions say enough
                os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # torch reads it at import
            while_it_works.enter_context(reading(inputs_of(call)))
            while_it_works.enter_context(_library_warnings(log))
            import_compiler_on_demand()
            engine = engine_of(request.verb)
            if importlib.util.find_spec(engine) is not None:  # a short verb may do without
                with importing():
                    importlib.import_module(engine)

        # The verb's function checks its options, calls ready(), and works. What libraries print meanwhile goes to
        # standard error, so that standard output has the answer alone.
        call.ready = ready
        with contextlib.redirect_stdout(Stray()):
            try:
                result = call.run()
                outcome: Outcome = result.outcome or Outcome(result)
                has_printed_rows = _print_rows(outcome, call, answer)  # they are computed while they are printed
            except HydraError as error:
                if works:  # problems of options name the sources already
                    error.reword(partial(with_sources, call))
                raise
    _print_answer(outcome, call, answer, has_printed_rows=has_printed_rows)


_MOST_SHOWN = 20
"""How many samples a table for a person shows; a file or a pipe gets all."""


def _print_rows(outcome: Outcome, call: Call, answer: Answer) -> bool:
    """Print the rows of a verb such as ``predict`` as lines of JSON, while they are computed; return whether it did.

    It does for a file or a pipe, and with ``-o -``. At a terminal the rows are computed, and the first are kept in the
    document, for its table. A verb without rows gives False.
    """
    if outcome.lines is None:
        return False
    if call.writes_to_stdout() or not answer.to_terminal:
        answer.lines(outcome.lines)
        return True
    first = list(islice(outcome.lines, _MOST_SHOWN))
    deque(outcome.lines, maxlen=0)  # the others are computed, too
    outcome.result = outcome.result.model_copy(update={"first": first})
    return False


def _print_answer(outcome: Outcome, call: Call, answer: Answer, *, has_printed_rows: bool) -> None:
    """Print the answer of a verb, and fail if a ``--require`` is not met.

    The first case that applies decides what standard output gets; the log, on standard error, has the rest:

    - rows were printed as they were computed: nothing more; the log names the files;
    - ``--json`` or ``-o -``: the document as JSON; the log names the files;
    - a script reads it, and files were written: their paths; the log has the table for some verbs;
    - else: a table; the log names the files.

    Raises:
        RequirementError: a ``--require`` is not met; raised after printing.
    """
    if outcome.silent:
        return
    as_json = call.values["json"] or call.writes_to_stdout()
    is_for_script = not answer.to_terminal and not VERBS[call.verb].prints_table
    only_paths = is_for_script and bool(outcome.files) and not as_json
    if only_paths and not has_printed_rows:
        answer.paths(outcome.files)
        if VERBS[call.verb].logs_table:
            for line in table_text(outcome.result).splitlines():
                call.log.info(line)
    else:
        if not has_printed_rows and as_json:
            answer.document(outcome.result.to_dict())
        elif not has_printed_rows:
            answer.table(outcome.result)
        for path in outcome.files:
            call.log.info(f"wrote {path}")

    # After printing, so that nobody has to compute it again to see why.
    outcome.refuse_unmet()


def _check_versions() -> None:
    """Refuse libraries older than hydractl declares, because they would fail later with a misleading message."""
    from packaging.requirements import Requirement  # imported only here, so that --help need not wait for it

    try:
        requirements = metadata.requires("hydractl") or []
    except metadata.PackageNotFoundError:  # hydractl runs from its source, without metadata
        return
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None:  # of an extra
            continue
        with contextlib.suppress(metadata.PackageNotFoundError):  # what is missing is reported when it is imported
            version = metadata.version(requirement.name)
            if not requirement.specifier.contains(version, prereleases=True):
                message = f"{requirement.name} {version} is installed, and hydractl needs {requirement}"
                raise UsageError(message, hint=f"pip install '{requirement}'")


def describe_files(request: Request, answer: Answer) -> None:
    """Print what each file of ``--info`` holds, from its header.

    Raises:
        UsageError: no file is named.
        HydraError: a single file is named, and it cannot be described.
        InputError: several files are named, and some cannot be described; raised after the others are printed.
    """
    files = request.given["files"]
    if not isinstance(files, list) or not files:
        raise UsageError("--info needs a FILE", hint="hydractl --info --help")
    from hydractl.verbs.info import describe

    # Describe each file. An error of one of several is kept until the others are printed.
    infos = []
    errors = []
    for file in files:
        try:
            infos.append(describe(Path(file)))
        except HydraError as error:
            if len(files) == 1:
                raise
            errors.append(error)

    # Print them: one JSON document, or tables with an empty line between them.
    if request.given["json"]:
        documents = [info.to_dict() for info in infos]
        answer.document(documents[0] if len(files) == 1 else documents)
    else:
        for number, info in enumerate(infos):
            if number > 0:
                answer.text("")
            answer.table(info)
    if errors:
        raise InputError(f"{len(errors)} of {len(files)} files cannot be described", problems=map(str, errors))


@contextlib.contextmanager
def _library_warnings(log: ConsoleLog) -> Iterator[None]:
    """Log Python warnings as details: they are for programmers. What a person must know, verbs log themselves."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        log.detail(f"{category.__name__}: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
