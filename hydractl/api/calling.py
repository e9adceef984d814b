"""One call of a verb by a Python program: typed arguments in, the outcome back, messages in Python's words."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydractl.api.progress import ShowsProgress
from hydractl.api.wording import Wording
from hydractl.data.held import HeldData, held_set
from hydractl.errors import HydraError, InputError, RequirementError, UsageError
from hydractl.files.inputs import reading
from hydractl.jsonio import HeldDocument, json_bytes, parse_json
from hydractl.settings.inputs import inputs_of
from hydractl.settings.option import Option, options_of
from hydractl.settings.registry import function_of, module_of
from hydractl.settings.sources import from_arguments
from hydractl.settings.suggestions import Door, about_option
from hydractl.settings.verbs import SETTINGS
from hydractl.verbs.outcome import Outcome

OF_A_TERMINAL = ("model", "json", "quiet", "verbose", "dry_run")
"""Options that a function has no use for."""


def _as_argument(name: str, value: str) -> str:
    """Return an option as messages call it in Python: ``'batch_size'``, or with a value ``keep='3'``.

    Args:
        name: its flag without ``--``; the argument is not always named like that.
        value: empty for none.
    """
    argument = name.replace("-", "_")
    for verb in SETTINGS:
        for option in options_of(SETTINGS[verb]):
            if option.flag == f"--{name}":
                argument = option.name
    if value:
        return f"{argument}={value!r}"
    return repr(argument)


def _as_function(verb: str) -> str:
    """Return a verb as messages call it in Python."""
    return f"hydractl.{function_of(verb)}"


_PYTHON = Door(_as_argument, _as_function, lacks=[name.replace("_", "-") for name in OF_A_TERMINAL])

_LOGGER = logging.getLogger("hydractl")


def arguments_of(verb: str) -> dict[str, Option]:
    """Return the options of a verb that its function takes, by argument."""
    taken = {}
    for option in options_of(SETTINGS[verb]):
        if option.name not in OF_A_TERMINAL:
            taken[option.name] = option
    return taken


def run(verb: str, models: Sequence[str], keywords: Mapping[str, object]) -> Outcome:
    """Run a verb, and return its document, its files and the rows that it predicts.

    Args:
        verb: its name on the command line.
        models: each MODEL as on the command line, or one that is held in memory.
        keywords: its arguments by name; None and an empty list are "not given".

    Raises:
        RequirementError: one of ``require`` does not hold.
        HydraError: what the verb raises, with arguments in place of flags in its messages.
    """
    function = function_of(verb)
    options = arguments_of(verb)
    values = {name: value for name, value in keywords.items() if not _is_left_out(value)}
    for name in values:
        if name not in options:
            meant = about_option(name, verb, _PYTHON)
            raise UsageError(f"{function}() got an unexpected keyword argument {name!r}{meant}")

    data = {}
    for name, value in data_in(options, values).items():
        data[name] = data_argument(value, name)
    wording = Wording(verb, function, options.values(), values, data)
    try:
        arguments = {}
        for name, value in values.items():
            arguments[name] = _as_option_takes_it(options[name], value, data)
        if models:
            arguments["model"] = list(models)
        settings = from_arguments(SETTINGS[verb], arguments)
        module = importlib.import_module(module_of(verb))
        with reading(inputs_of(settings)):
            outcome: Outcome = module.run(settings, _PythonLog(wording.said))
            # Rows are computed while they are taken, and only here are the inputs declared to be read.
            if outcome.lines is not None:
                rows = list(outcome.lines)
                outcome.lines = iter(rows)
    except HydraError as error:
        wording.translate(error)
        raise
    if outcome.unmet:
        raise RequirementError(f"{len(outcome.unmet)} of the requirements do not hold", problems=outcome.unmet)
    return outcome


def _is_left_out(value: object) -> bool:
    """Return whether an argument is as good as not written: None, an empty list or an empty tuple."""
    if isinstance(value, list | tuple):
        return not value
    return value is None


class _PythonLog(ShowsProgress):
    """Warnings become Python's, tasks have progress bars; the rest goes to the logger ``hydractl``."""

    def __init__(self, said: Callable[[str], str]) -> None:
        self._said = said

    def info(self, message: str) -> None:
        _LOGGER.info(message)

    def detail(self, message: str) -> None:
        _LOGGER.debug(message)

    def warn(self, message: str) -> None:
        """Warn with the line of the program that called the verb."""
        frames_of_hydractl = 0
        frame = inspect.currentframe()
        while frame is not None:
            module = str(frame.f_globals.get("__name__"))
            if not module.startswith("hydractl."):
                break
            frames_of_hydractl += 1
            frame = frame.f_back
        warnings.warn(self._said(message), stacklevel=frames_of_hydractl + 1)


# --- data sets --------------------------------------------------------------------------------------------------------


def is_data(option: Option) -> bool:
    """Return whether an option takes data sets."""
    return "SPEC" in (option.metavar or "")


def data_in(options: Mapping[str, Option], values: Mapping[str, object]) -> dict[str, object]:
    """Return the values that are data sets, each under a name of its own: ``data``, ``ood.NAME``.

    An option for several data sets by name that is given texts, such as ``NAME=SPEC``, is left out: they are read as
    those of a command line.

    Args:
        options: of the verb, by argument.
        values: what the call gave, by argument.
    """
    data_sets: dict[str, object] = {}
    for argument, value in values.items():
        option = options[argument]
        if not is_data(option):
            continue
        if isinstance(value, Mapping):
            for name, data in value.items():
                data_sets[f"{argument}.{name}"] = data
        elif not option.names:
            data_sets[argument] = value
    return data_sets


def data_argument(value: Any, name: str) -> str:
    """Return data as the options hold them: a SPEC, or the samples themselves.

    Args:
        value: a SPEC, or what :func:`hydractl.data.held.held_set` takes.
        name: of the argument, for messages.

    Raises:
        InputError: it is neither.
    """
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    return HeldData(f"memory:{name}", held_set(value, name))


# --- arguments --------------------------------------------------------------------------------------------------------


def _as_option_takes_it(option: Option, value: object, data: Mapping[str, str]) -> object:
    """Return an argument as its option takes it: data sets and documents become texts that hold them.

    Args:
        option: takes it.
        value: what the call gave, of any type.
        data: the data sets of the call, by ``data`` or ``ood.NAME``, each a SPEC or a text that holds the samples.

    Raises:
        UsageError: the option is for several data sets by name, and this is none.
        InputError: it is no document.
    """
    is_one_data_set = option.name in data
    if is_one_data_set:
        return data[option.name]
    if is_data(option):
        return _data_sets_by_name(option, value, data)
    takes_any_text = option.type is str and not option.choices and option.pattern is None
    may_name_a_file = takes_any_text and not option.many
    if may_name_a_file and isinstance(value, Mapping | list | tuple):
        return HeldDocument(option.name, _as_json(option, value))
    return value


def _data_sets_by_name(option: Option, value: object, data: Mapping[str, str]) -> object:
    """Return several data sets as their option takes them.

    Args:
        option: takes data sets by name, or several without names.
        value: a mapping whose keys are names, or texts as on the command line, which are returned as they are.
        data: the data sets of the call, by ``ood.NAME``.

    Raises:
        UsageError: the value is neither.
    """
    if isinstance(value, Mapping):
        by_name = {name: data[f"{option.name}.{name}"] for name in value}
        if option.names:
            return by_name
        return list(by_name.values())
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        are_texts = all(isinstance(item, str) for item in value)
        if are_texts:
            return value
    raise UsageError(f"{option.name} must be a mapping from names to data sets, not {type(value).__name__}")


def _as_json(option: Option, value: object) -> Any:
    """Return a document as it would be read from a file of it.

    Raises:
        InputError: it holds something that JSON has not.
    """
    try:
        text = json_bytes(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{option.name} is no JSON document: {error}") from None
    return parse_json(text, option.name)
