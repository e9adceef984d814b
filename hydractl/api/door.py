"""A call of a verb's function by a Python program: what it may pass, and messages in terms of Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from typing import Any

from torch import nn

from hydractl.api.models import Model, ModelLike, held_spec, open
from hydractl.api.progress import PythonLog
from hydractl.errors import HydraError, InputError, RequirementError, UsageError
from hydractl.expressions.models import ModelRef
from hydractl.files.inputs import reading
from hydractl.files.results import Result
from hydractl.jsonio import Document, json_bytes, parse_json
from hydractl.options.call import gather
from hydractl.options.inputs import inputs_of
from hydractl.options.option import MODEL_KINDS, Option
from hydractl.options.registry import function_of
from hydractl.options.signature import OF_A_TERMINAL, Declared
from hydractl.options.suggestions import Door, about_option
from hydractl.options.wording import in_python
from hydractl.verbs.outcome import Outcome

_NO_ARGUMENTS = ("model", *OF_A_TERMINAL)
_PYTHON = Door(
    lambda option: "" if option.name in _NO_ARGUMENTS else repr(option.name),
    "hydractl.",
    function_of,
)


def call(declared: Declared, arguments: Sequence[object], keywords: Mapping[str, object]) -> Any:
    """Run a verb for a program, and return what its function returns.

    None and empty lists count as not given. An argument that is no option, such as ``on_log``, is passed on.

    Raises:
        RequirementError: one of ``require`` is not met.
        HydraError: what the verb raises; its messages name arguments instead of flags.
    """
    function = declared.function
    signature = declared.signature
    for name in keywords:
        if name not in signature.parameters:
            about = about_option(name, declared.verb, _PYTHON)
            raise UsageError(f"{function.__name__}() got an unexpected keyword argument {name!r}{about}")
    bound = signature.bind(*arguments, **keywords).arguments
    bound["model"] = bound.pop(declared.model_parameter, None)
    values = {}
    further = {}
    for name, value in bound.items():
        is_empty = value is None or (isinstance(value, list | tuple) and not value)
        if name not in declared.by_name:
            further[name] = value
        elif not is_empty:
            values[name] = value

    def said(message: str) -> str:
        """Return a message in terms of Python."""
        return in_python(message, declared.options, values)

    try:
        taken = {name: value_for_option(declared.by_name[name], value) for name, value in values.items()}
        verb_call = gather(declared, taken, of_program=True)
        verb_call.log = PythonLog(said, further.get("on_log"))
        with ExitStack() as while_it_works:

            def protect_inputs() -> None:
                """Refuse outputs that would replace what is read."""
                while_it_works.enter_context(reading(inputs_of(verb_call)))

            verb_call.ready = protect_inputs
            result = verb_call.run(further)
            # Rows are computed while they are taken: take them here, while the inputs are protected.
            outcome = result.outcome or Outcome(result)
            if outcome.lines is not None:
                rows = list(outcome.lines)
                result = outcome.returned().with_rows(rows)
    except HydraError as error:
        error.reword(said)
        if error.hint == f"hydractl {declared.verb} --help":
            error.hint = f"help(hydractl.{function.__name__})"
        elif error.hint is not None:
            error.hint = said(error.hint)
        raise
    unmet = outcome.unmet
    if unmet:
        raise RequirementError(f"{len(unmet)} of the requirements do not hold", problems=unmet)
    return result


# --- arguments --------------------------------------------------------------------------------------------------------


def value_for_option(option: Option, value: Any) -> object:
    """Return an argument in the form that its option takes: texts, and objects for what is in memory.

    Args:
        option: the option of the argument.
        value: the value that the call gave, of any type.

    Raises:
        UsageError: the option takes data sets by name, and the value does not name any; or a row cannot have its name.
        InputError: a data set is of a type that :func:`hydractl.data.held.held_set` does not take, or the value cannot
            be the content of a JSON file.
    """
    if option.takes_data:
        return data_argument(option, value)
    if option.type is Document:
        if not option.many:
            return _document(option.name, value)
        return [_document(f"document {number}", document) for number, document in enumerate(as_list(value), start=1)]
    if option.kind not in MODEL_KINDS:
        return value
    if option.kind == "rows":
        models = row_arguments(value)
    else:
        models = model_arguments(as_list(value), count(), by_file=option.kind == "file")
    return [model.text if model.held is None else model for model in models]


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
        return by_name if option.takes_names else list(by_name.values())
    if not option.takes_names:
        return held_spec(option.flag, value, option.name)
    if all(isinstance(item, str) for item in as_list(value)):
        return value
    raise UsageError(f"{option.name} must be a mapping from names to data sets, not {type(value).__name__}")


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


def as_list(models: Any) -> list[Any]:
    """Return several models as a list, and a single model as a list with one element."""
    if isinstance(models, list | tuple):
        return list(models)
    return [models]


def model_arguments(models: Iterable[ModelLike], numbers: Iterator[int], *, by_file: bool = False) -> list[ModelRef]:
    """Return each MODEL in the form that a verb takes.

    Args:
        models: files, names, opened models or modules; an opened one that is several models becomes several.
        numbers: the numbers by which messages call opened models, from ``memory:0``.
        by_file: whether an opened model is named by its file or name, which other processes can open, if it has one.
    """
    arguments: list[ModelRef] = []
    for model in models:
        if not isinstance(model, Model | nn.Module):
            arguments.append(ModelRef(os.fspath(model)))
            continue
        for opened in open(model).models:
            if by_file and opened.text:
                arguments.append(ModelRef(opened.text))
            else:
                arguments.append(replace(opened, text=f"memory:{next(numbers)}"))
    return arguments


def row_arguments(models: Any) -> list[ModelRef]:
    """Return the rows of a table in the form that a verb takes.

    Args:
        models: one model, several, or a mapping from the names of rows to a model or the members of an ensemble.

    Raises:
        UsageError: the name of a row has a character with a meaning on the command line.
    """
    named_rows = [("", model) for model in as_list(models)]
    if isinstance(models, Mapping):
        named_rows = list(models.items())
    rows: list[ModelRef] = []
    numbers = count()
    for name, members in named_rows:
        if set(name) & set("/:?="):
            raise UsageError(f"{name!r} cannot be the name of a row: it has one of / : ? =")
        rows.append(ModelRef.of_row(name, model_arguments(as_list(members), numbers)))
    return rows
