"""The arguments of a Python program for a verb: samples and documents in memory, and names that no verb has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hydractl.data.held import held_set
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import DataSpec
from hydractl.files.results import Result
from hydractl.jsonio import Document, json_bytes, parse_json
from hydractl.options.option import Option
from hydractl.options.registry import VERBS, function_of
from hydractl.options.signature import OF_A_TERMINAL
from hydractl.options.suggestions import Door, about_option
from hydractl.options.verbs import options_of_verb


def _as_argument(name: str) -> str:
    """Return an option as messages in Python write it, e.g. ``'batch_size'``.

    Args:
        name: the flag of the option without ``--``; the argument may have another name.
    """
    argument_by_flag = {option.flag: option.name for verb in VERBS for option in options_of_verb(verb)}
    return repr(argument_by_flag.get(f"--{name}", name.replace("-", "_")))


_PYTHON = Door(_as_argument, lambda verb: f"hydractl.{function_of(verb)}", lacks=["model", *OF_A_TERMINAL])


def unknown_argument(verb: str, name: str) -> UsageError:
    """Return the error for an argument that the function of a verb does not have."""
    suggestion = about_option(name, verb, _PYTHON)
    return UsageError(f"{function_of(verb)}() got an unexpected keyword argument {name!r}{suggestion}")


# --- data sets --------------------------------------------------------------------------------------------------------


def data_argument(option: Option, value: Any) -> Any:
    """Return the value of an option for data in a form that the option takes: samples in memory are held by a DataSpec.

    Args:
        option: takes one data set; or several, by name or without names.
        value: a data set, or a mapping from names to data sets; if the option takes names, also texts ``NAME=SPEC`` as
            on the command line, which stay as they are.

    Raises:
        UsageError: the option takes data sets by name, and the value does not name any.
        InputError: a data set is of a type that :func:`hydractl.data.held.held_set` does not take.
    """
    if isinstance(value, Mapping):
        by_name = {name: held_spec(option.flag, data, f"{option.name}.{name}") for name, data in value.items()}
        return by_name if option.names else list(by_name.values())
    if not option.names:
        return held_spec(option.flag, value, option.name)
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list | tuple) and all(isinstance(item, str) for item in texts):
        return value
    raise UsageError(f"{option.name} must be a mapping from names to data sets, not {type(value).__name__}")


def held_spec(option: str, value: Any, name: str) -> str | DataSpec:
    """Return a SPEC as its text; samples in memory as a data set that holds them, named ``memory:NAME``.

    Raises:
        InputError: the value is neither.
    """
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    return DataSpec.of_option(option, f"memory:{name}", held_set(value, name))


# --- arguments --------------------------------------------------------------------------------------------------------


def value_for_option(option: Option, value: Any) -> object:
    """Return the value of an argument in the form that its option takes: samples and documents are held by objects.

    Args:
        option: the option of the argument.
        value: the value that the call gave, of any type.

    Raises:
        InputError: the value cannot be the content of a JSON file.
    """
    if option.takes_data:
        return data_argument(option, value)
    if option.type is not Document:
        return value
    if not option.many:
        return _document(option.name, value)
    documents = value if isinstance(value, list | tuple) else [value]
    return [_document(f"document {number}", document) for number, document in enumerate(documents, start=1)]


def _document(name: str, value: object) -> object:
    """Return a document as it would be if it were written to a file and read back; the name of a file as it is.

    Raises:
        InputError: the document holds something that JSON cannot express.
    """
    if isinstance(value, Result):
        value = value.to_dict()
    if not isinstance(value, Mapping | list | tuple):
        return value
    try:
        text = json_bytes(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is no JSON document: {error}") from None
    return Document(name, parse_json(text, name))
