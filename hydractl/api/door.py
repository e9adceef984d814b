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
from hydractl.errors import HydraError, InputError, UsageError
from hydractl.expressions.models import ModelRef
from hydractl.files.inputs import reading
from hydractl.files.results import Result
from hydractl.jsonio import Document, json_bytes, parse_json
from hydractl.options.call import gather
from hydractl.options.inputs import inputs_of
from hydractl.options.option import MODEL_KINDS, Option
from hydractl.options.signature import OF_A_TERMINAL, Declared
from hydractl.options.suggestions import about_option
from hydractl.options.wording import in_python
from hydractl.verbs.outcome import Outcome


def _by_argument(option: Option) -> str:
    """Return the name of the argument of an option, in quotes; empty if Python has none."""
    return "" if option.name in ("model", *OF_A_TERMINAL) else repr(option.name)


def call(declared: Declared, arguments: Sequence[object], keywords: Mapping[str, object]) -> Any:
    """Run a verb for a Python program, e.g. for ``hydractl.prune("a.st", keep=8)``, and return its result.

    None and empty lists count as not given. An argument that is no option, such as ``on_log``, is passed on.

    Raises:
        RequirementError: one of ``require`` is not met.
        HydraError: what the verb raises; its messages name arguments instead of flags.
    """
    # Refuse unknown arguments, and suggest what was meant.
    function = declared.function
    signature = declared.signature
    for name in keywords:
        if name not in signature.parameters:
            about = about_option(name, declared.verb, _by_argument)
            raise UsageError(f"{function.__name__}() got an unexpected keyword argument {name!r}{about}")

    # Split the arguments: ``values`` are of options, by the name of the option; ``further`` are for Python alone. The
    # option of the model is named "model", whatever the function calls its parameter (such as ``models``).
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
        """Return a message in terms of Python: ``keep=8`` for ``--keep 8``."""
        return in_python(message, declared.options)

    try:
        taken = {name: value_for_option(declared.by_name[name], value) for name, value in values.items()}
        verb_call = gather(declared, taken)
        verb_call.from_python = True
        verb_call.log = PythonLog(said, further.get("on_log"))
        with ExitStack() as while_it_works:
            # The call runs this when its options have been checked, before any work.
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

    # Only now, so that what was computed has been written.
    outcome.refuse_unmet()
    return result


# --- arguments --------------------------------------------------------------------------------------------------------


def value_for_option(option: Option, value: Any) -> object:
    """Return a Python argument in the form that its option takes.

    By what the option takes: data sets become specs that hold samples in memory, JSON documents become
    :class:`Document`, models become texts (files, names) or opened models; any other value stays as it is.

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

    # Models. "rows" are the rows of a table of results, each one model or an ensemble.
    if option.kind == "rows":
        models = row_arguments(value)
    else:
        models = model_arguments(as_list(value), count(), by_file=option.kind == "file")
    # A model that is not open yet is passed on as its text alone.
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
    # Python's mapping {name: data}; an option that takes no names gets the data alone. `held_spec` wraps samples in the
    # type that stands for a data set on the command line, too.
    if isinstance(value, Mapping):
        by_name = {name: held_spec(option.flag, data, f"{option.name}.{name}") for name, data in value.items()}
        return by_name if option.takes_names else list(by_name.values())
    if not option.takes_names:
        return held_spec(option.flag, value, option.name)
    # Texts "NAME=SPEC", as on the command line.
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
    """Return a reference to each model, in the form that a verb takes; an object in memory is opened first.

    Args:
        models: files, names, opened models or modules; an opened one that is several models becomes several.
        numbers: counts the opened models, which messages call ``memory:0``, ``memory:1`` and so on.
        by_file: whether an opened model is named by its file or name, which other processes can open, if it has one.
    """
    arguments: list[ModelRef] = []
    for model in models:
        if not isinstance(model, Model | nn.Module):  # a file or a name, which the verb opens itself
            arguments.append(ModelRef(os.fspath(model)))
            continue
        for opened in open(model).models:
            if by_file and opened.text:
                arguments.append(ModelRef(opened.text))
            else:
                arguments.append(replace(opened, text=f"memory:{next(numbers)}"))
    return arguments


def row_arguments(models: Any) -> list[ModelRef]:
    """Return a reference for each row of a table of results; a row is a model, or an ensemble of several.

    Args:
        models: one model, several, or a mapping from the names of rows to a model or the members of an ensemble.
            ``["a.st", "b.st"]`` are two rows named after their files, ``{"pair": ["a.st", "b.st"]}`` is one row.

    Raises:
        UsageError: the name of a row has a character with a meaning on the command line.
    """
    named_rows = [("", model) for model in as_list(models)]
    if isinstance(models, Mapping):
        named_rows = list(models.items())
    rows: list[ModelRef] = []
    numbers = count()
    for name, members in named_rows:
        if set(name) & set("/:?="):  # a row is passed on as the text NAME=MODEL+MODEL, which these would break
            raise UsageError(f"{name!r} cannot be the name of a row: it has one of / : ? =")
        rows.append(ModelRef.of_row(name, model_arguments(as_list(members), numbers)))
    return rows
