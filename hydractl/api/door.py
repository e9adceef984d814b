"""A call of a verb's function by a Python program: what it may pass, and messages in terms of Python."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from torch import nn

from hydractl.api.calling import unknown_argument, value_for_option
from hydractl.api.models import Model, ModelLike, open
from hydractl.api.progress import PythonLog
from hydractl.errors import HydraError, RequirementError, UsageError
from hydractl.expressions.models import ModelRef
from hydractl.files.inputs import reading
from hydractl.options.call import gather_arguments
from hydractl.options.inputs import inputs_of
from hydractl.options.option import MODEL_KINDS, Option
from hydractl.options.signature import Declared
from hydractl.options.wording import in_python
from hydractl.verbs.outcome import Outcome


def call(declared: Declared, arguments: Sequence[object], keywords: Mapping[str, object]) -> Any:
    """Run a verb for a program, and return what its function returns.

    None and empty lists count as not given. An argument that is no option, such as ``on_log``, is passed on.

    Raises:
        RequirementError: one of ``require`` is not met.
        HydraError: what the verb raises; its messages name arguments instead of flags.
    """
    function = declared.function
    signature = inspect.signature(function)
    for name in keywords:
        if name not in signature.parameters:
            raise unknown_argument(declared.verb, name)
    options = {option.name: option for option in declared.options}
    values = {}
    further = {}
    for parameter, value in signature.bind(*arguments, **keywords).arguments.items():
        name = parameter
        if parameter == declared.model_parameter:
            name = "model"
        if name not in options:
            further[name] = value
        elif not (value is None or (isinstance(value, list | tuple) and not value)):
            values[name] = value

    def said(message: str) -> str:
        """Return a message in terms of Python."""
        return in_python(message, declared.options, values)

    try:
        taken = {name: _argument(options[name], value) for name, value in values.items()}
        verb_call = gather_arguments(declared, taken)
        verb_call.log = PythonLog(said, further.get("on_log"))
        with ExitStack() as while_it_works:

            def protect_inputs() -> None:
                """Refuse outputs that would replace what is read."""
                writes_models = declared.writes == "weights"
                inputs = inputs_of(declared.options, verb_call.values, writes_models=writes_models)
                while_it_works.enter_context(reading(inputs))

            verb_call.ready = protect_inputs
            result = verb_call.run(further)
            # Rows are computed while they are taken: take them here, while the inputs are protected.
            outcome = result.outcome or Outcome(result)
            if outcome.lines is not None:
                rows = list(outcome.lines)
                result = outcome.returned(type(result)).with_rows(rows)
    except HydraError as error:
        error.message = said(error.message)
        error.args = (error.message,)
        error.problems = list(map(said, error.problems))
        if error.hint == f"hydractl {declared.verb} --help":
            error.hint = f"help(hydractl.{function.__name__})"
        elif error.hint is not None:
            error.hint = said(error.hint)
        raise
    unmet = outcome.unmet
    if unmet:
        raise RequirementError(f"{len(unmet)} of the requirements do not hold", problems=unmet)
    return result


# --- models -----------------------------------------------------------------------------------------------------------


def _argument(option: Option, value: Any) -> object:
    """Return an argument in the form that its option takes: texts, and objects for what is in memory."""
    if option.kind not in MODEL_KINDS or option.kind == "documents":
        return value_for_option(option, value)
    if option.kind == "rows":
        models = row_arguments(value)
    else:
        models = model_arguments(as_list(value), by_file=option.kind == "file")
    return [model.text if model.held is None else model for model in models]


def as_list(models: Any) -> list[Any]:
    """Return several models as a list, and a single model as a list with one element."""
    if isinstance(models, list | tuple):
        return list(models)
    return [models]


def model_arguments(models: Iterable[ModelLike], held_before: int = 0, *, by_file: bool = False) -> list[ModelRef]:
    """Return each MODEL in the form that a verb takes.

    Args:
        models: files, names, opened models or modules; an opened one that is several models becomes several.
        held_before: how many opened models the call has already. Messages number them, from ``memory:0``.
        by_file: whether an opened model is named by its file or name, which other processes can open, if it has one.
    """
    arguments: list[ModelRef] = []
    number = held_before
    for model in models:
        if not isinstance(model, Model | nn.Module):
            arguments.append(ModelRef(os.fspath(model)))
            continue
        opened = open(model)
        if by_file and opened.refs:
            arguments += map(ModelRef, opened.refs)
            continue
        for source in opened.sources:
            arguments.append(ModelRef(f"memory:{number}", source, keeps=opened.folder))
            number += 1
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
    models_held = 0
    for name, members in named_rows:
        if set(name) & set("/:?="):
            raise UsageError(f"{name!r} cannot be the name of a row: it has one of / : ? =")
        arguments = model_arguments(as_list(members), models_held)
        models_held += sum(argument.held is not None for argument in arguments)
        rows.append(ModelRef.of_row(name, arguments))
    return rows
