"""One call of a function by a Python program: typed arguments in, the outcome back, messages in terms of Python.

A verb is a subcommand of the command line, such as ``prune``; each has a function in Python.
"""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from hydractl.api.progress import ShowsProgress
from hydractl.data.held import HeldData, held_set
from hydractl.errors import InputError, UsageError
from hydractl.files.results import Result
from hydractl.jsonio import HeldDocument, json_bytes, parse_json
from hydractl.options.option import Option
from hydractl.options.registry import VERBS, function_of
from hydractl.options.signature import OF_A_TERMINAL
from hydractl.options.suggestions import Door, about_option
from hydractl.options.verbs import options_of_verb

OnLog = Callable[[Mapping[str, object]], None]
"""What takes the lines of the log of a training, each as a dict with what its line of JSON has."""


def _as_argument(name: str) -> str:
    """Return an option as messages in Python write it, e.g. ``'batch_size'``.

    Args:
        name: the flag of the option without ``--``; the argument may have another name.
    """
    argument = name.replace("-", "_")
    for verb in VERBS:
        for option in options_of_verb(verb):
            if option.flag == f"--{name}":
                argument = option.name
    return repr(argument)


def _as_function(verb: str) -> str:
    """Return a verb as messages in Python write it, e.g. ``hydractl.prune``."""
    return f"hydractl.{function_of(verb)}"


_PYTHON = Door(_as_argument, _as_function, lacks=["model", *OF_A_TERMINAL])

_LOGGER = logging.getLogger("hydractl")


def unknown_argument(verb: str, name: str) -> UsageError:
    """Return the error for an argument that the function of a verb does not have."""
    suggestion = about_option(name, verb, _PYTHON)
    return UsageError(f"{function_of(verb)}() got an unexpected keyword argument {name!r}{suggestion}")


def is_left_out(value: object) -> bool:
    """Return whether an argument counts as not given: None, an empty list or an empty tuple."""
    if isinstance(value, list | tuple):
        return not value
    return value is None


class PythonLog(ShowsProgress):
    """A log for Python: warnings are Python warnings, tasks have progress bars, the rest goes to a logger."""

    def __init__(self, said: Callable[[str], str], on_log: OnLog | None) -> None:
        super().__init__()
        self._said = said
        self._on_log = on_log

    def info(self, message: str) -> None:
        _LOGGER.info(message)

    def detail(self, message: str) -> None:
        _LOGGER.debug(message)

    def line_of_training(self, line: Mapping[str, object]) -> None:
        if self._on_log is not None:
            self._on_log(line)

    def warn(self, message: str) -> None:
        """Issue a Python warning that points to the line of the program that called hydractl."""
        super().warn(message)
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
    """Return whether an option takes one data set or several."""
    return "SPEC" in (option.metavar or "")


def data_in(options: Mapping[str, Option], values: Mapping[str, object]) -> dict[str, object]:
    """Return the values of a call that are data sets, by a name for each: ``data``, ``ood.NAME``.

    An option for several data sets by name may be given texts such as ``NAME=SPEC`` instead. These are left out here,
    because they are parsed like those of a command line.

    Args:
        options: the options of the verb, by argument.
        values: the values that the call gave, by argument.
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
    """Return a data set in the form that options take: a SPEC, or a text that holds the samples.

    Args:
        value: a SPEC, or samples of a type that :func:`hydractl.data.held.held_set` takes.
        name: the name of the argument, for messages.

    Raises:
        InputError: the value is neither.
    """
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    return HeldData(f"memory:{name}", held_set(value, name))


# --- arguments --------------------------------------------------------------------------------------------------------


def value_for_option(option: Option, value: object, data: Mapping[str, str]) -> object:
    """Return the value of an argument in the form that its option takes.

    Options for data sets and for JSON files take a text. If the call gave samples, or the content of a JSON file, they
    are wrapped in a text that holds them. Any other value is returned as it is.

    Args:
        option: the option of the argument.
        value: the value that the call gave, of any type.
        data: the data sets of the call, by ``data`` or ``ood.NAME``; each is a SPEC or a text that holds the samples.

    Raises:
        UsageError: the option takes data sets by name, and the value does not name any.
        InputError: the value cannot be the content of a JSON file.
    """
    # Data: one set, or several by name.
    is_one_data_set = option.name in data
    if is_one_data_set:
        return data[option.name]
    if is_data(option):
        return _data_sets_by_name(option, value, data)

    # An option whose value may be any text can name a JSON file; then a mapping or a list is the content of that file.
    takes_any_text = option.type is str and not option.choices and option.pattern is None
    may_name_a_file = takes_any_text and not option.many
    if isinstance(value, Result):
        value = value.to_dict()
    is_content_of_file = isinstance(value, Mapping | list | tuple)
    if may_name_a_file and is_content_of_file:
        return HeldDocument(option.name, _as_json(option, value))
    return value


def _data_sets_by_name(option: Option, value: object, data: Mapping[str, str]) -> object:
    """Return the value of an option that takes several data sets.

    Args:
        option: takes data sets by name, or several without names.
        value: a mapping from names to data sets; or texts as on the command line, which are returned as they are.
        data: the data sets of the call, by ``ood.NAME``; each is a SPEC or a text that holds the samples.

    Returns:
        For a mapping: the data sets by name if the option takes names, otherwise as a list.

    Raises:
        UsageError: the value is neither a mapping nor texts.
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
    """Return a document as it would be if it were written to a file and read back.

    Raises:
        InputError: the document holds something that JSON cannot express.
    """
    try:
        text = json_bytes(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{option.name} is no JSON document: {error}") from None
    return parse_json(text, option.name)
