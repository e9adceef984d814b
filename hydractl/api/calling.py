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
    """Return an option as a keyword argument, whose name is not always that of the flag."""
    argument = name.replace("-", "_")
    for verb in SETTINGS:
        for option in options_of(SETTINGS[verb]):
            if option.flag == f"--{name}":
                argument = option.name
    return f"{argument}={value!r}" if value else repr(argument)


def _as_function(verb: str) -> str:
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


def run(verb: str, models: Sequence[str], given: Mapping[str, object]) -> Outcome:
    """Run a verb.

    Args:
        verb: its name on the command line.
        models: as on the command line.
        given: its arguments by name; None is "not given".

    Raises:
        RequirementError: one of ``require`` does not hold; beside it, what the verb raises.
    """
    function = function_of(verb)
    options = arguments_of(verb)
    values = {name: value for name, value in given.items() if not _is_left_out(value)}
    for name in values:
        if name not in options:
            meant = about_option(name, verb, _PYTHON)
            raise UsageError(f"{function}() got an unexpected keyword argument {name!r}{meant}")
    data = {name: data_argument(value, name) for name, value in data_in(options, values).items()}
    wording = Wording(verb, function, options.values(), values, data)
    try:
        arguments = {name: _prepared(options[name], value, data) for name, value in values.items()}
        if models:
            arguments["model"] = list(models)
        settings = from_arguments(SETTINGS[verb], arguments)
        module = importlib.import_module(module_of(verb))
        with reading(inputs_of(settings)):
            outcome: Outcome = module.run(settings, _PythonLog(wording.said))
            if outcome.lines is not None:  # computed while they are read, which the inputs are declared for
                outcome.lines = iter(list(outcome.lines))
    except HydraError as error:
        wording.translate(error)
        raise
    if outcome.unmet:
        raise RequirementError(f"{len(outcome.unmet)} of the requirements do not hold", problems=outcome.unmet)
    return outcome


def _is_left_out(value: object) -> bool:
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
        level = 1
        frame = inspect.currentframe()
        while frame is not None and str(frame.f_globals.get("__name__")).startswith("hydractl."):
            level += 1
            frame = frame.f_back
        warnings.warn(self._said(message), stacklevel=level)  # of the line that called the verb


# --- data sets --------------------------------------------------------------------------------------------------------


def is_data(option: Option) -> bool:
    """Return whether an option takes data sets."""
    return "SPEC" in (option.metavar or "")


def data_in(options: Mapping[str, Option], values: Mapping[str, object]) -> dict[str, object]:
    """Pick out the values that are data sets, each under a name of its own: ``data``, ``ood.NAME``."""
    found: dict[str, object] = {}
    for name, value in values.items():
        option = options[name]
        if not is_data(option):
            continue
        if isinstance(value, Mapping):
            for key, data in value.items():
                found[f"{name}.{key}"] = data
        elif not option.names:
            found[name] = value
    return found


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


def _prepared(option: Option, value: object, data: Mapping[str, str]) -> object:
    """Return an argument as its option takes it, documents and samples under a name.

    Args:
        option: takes it.
        value: of any type.
        data: the data sets, by the names of :func:`data_in`.

    Raises:
        UsageError: the option is for one data set, or for several by name, and this is none.
        InputError: it is no document.
    """
    if option.name in data:
        return data[option.name]
    if is_data(option):
        return _prepared_sets(option, value, data)
    names_a_file = option.type is str and not option.many and not option.choices and option.pattern is None
    if names_a_file and isinstance(value, Mapping | list | tuple):
        return HeldDocument(option.name, _as_json(option, value))
    return value


def _prepared_sets(option: Option, value: object, data: Mapping[str, str]) -> object:
    if isinstance(value, Mapping):
        by_name = {name: data[f"{option.name}.{name}"] for name in value}
        if option.names:
            return by_name
        return list(by_name.values())
    texts = value
    if isinstance(value, str):
        texts = [value]
    if isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts):
        return value
    raise UsageError(f"{option.name} must be a mapping from names to data sets, not {type(value).__name__}")


def _as_json(option: Option, value: object) -> Any:
    """Return a document as a file of it would be read."""
    try:
        text = json_bytes(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{option.name} is no JSON document: {error}") from None
    return parse_json(text, option.name)
