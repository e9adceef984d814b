"""The verbs (subcommands) as functions of a Python program, with typed keyword arguments."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, Unpack

from hydractl.api.arguments import (
    CalibrateArguments,
    EvalArguments,
)
from hydractl.api.calling import OnLog, arguments_of, run
from hydractl.api.door import model_arguments, row_arguments
from hydractl.api.models import Calibrated, Folder, Model, ModelLike
from hydractl.api.results import (
    Evaluation,
    Result,
)
from hydractl.files.calibrate_answer import CalibrateAnswer
from hydractl.model.source import open_source
from hydractl.verbs.outcome import Outcome

Models = ModelLike | Sequence[ModelLike] | Mapping[str, "ModelLike | Sequence[ModelLike]"]
"""One model, several, or a mapping from row names. In a mapping, a list is an ensemble whose models run in turn."""

VerbT = TypeVar("VerbT", bound=Callable[..., Any])

ARGUMENTS: dict[str, type] = {
    "eval": EvalArguments,
    "calibrate": CalibrateArguments,
}
"""The types of the keyword arguments of each verb."""


def _documented(verb: str) -> Callable[[VerbT], VerbT]:
    """Return a decorator that adds the options of a verb to the signature and the docstring of its function.

    The function declares them as ``**options``; ``help()`` then shows each with its type, default and meaning.
    """

    def add_options(function: VerbT) -> VerbT:
        function.__signature__ = _signature_with_options(function, verb)  # type: ignore[attr-defined]
        function.__doc__ = _docstring_with_options(function, verb)
        return function

    return add_options


def _signature_with_options(function: Callable[..., Any], verb: str) -> inspect.Signature:
    """Return the signature of a function, with a keyword for each option of a verb instead of ``**options``."""
    types: dict[str, object] = {}
    if verb in ARGUMENTS:
        types = typing.get_type_hints(ARGUMENTS[verb])
    signature = inspect.signature(function)
    parameters = []
    for parameter in signature.parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            parameters.append(parameter)
    for name, option in arguments_of(verb).items():
        annotation = types.get(name, option.type)  # a plug-in may declare options that have no static type
        keyword = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=annotation)
        parameters.append(keyword)
    return signature.replace(parameters=parameters)


def _docstring_with_options(function: Callable[..., Any], verb: str) -> str:
    """Return the docstring of a function, followed by a line for each option of a verb."""
    lines = [
        inspect.cleandoc(function.__doc__ or ""),
        "",
        "Keyword arguments (UsageError for a wrong one, InputError for a file, data set or model that is wrong):",
    ]
    for name, option in arguments_of(verb).items():
        lines.append(f"    {name}: {option.described()}")
    return "\n".join(lines)


# --- running ----------------------------------------------------------------------------------------------------------


def _run_on_model(verb: str, model: ModelLike, keywords: Mapping[str, object]) -> Outcome:
    """Run a verb that takes one model and makes none; its document is only written if ``output`` is given."""
    return _run_unwritten(verb, model_arguments([model]), keywords)


def _run_unwritten(verb: str, models: Sequence[str], keywords: Mapping[str, object]) -> Outcome:
    """Run a verb, and write its document only if ``output`` is given."""
    if keywords.get("output") is None:
        keywords = {**keywords, "output": "-"}
    return run(verb, models, keywords)


def _run_on_rows(verb: str, models: Models, keywords: Mapping[str, object]) -> Outcome:
    """Run a verb that measures models, with a row for each; its document is only written if ``output`` is given.

    Raises:
        UsageError: the name of a row has a character with a meaning on the command line.
    """
    return _run_unwritten(verb, row_arguments(models), keywords)


def _make_model(
    verb: str,
    models: Sequence[ModelLike],
    default: str,
    keywords: Mapping[str, object],
    *,
    on_log: OnLog | None = None,
) -> Model:
    """Run a verb that makes a model, and return the model; its file is temporary unless ``output`` is given.

    Args:
        verb: its name on the command line.
        models: the models that it is made from.
        default: the name of the temporary file; empty if several models are made, for the temporary folder itself.
        keywords: the keyword arguments.
        on_log: is called with every line of the log of a training.
    """
    folder = None
    if not keywords.get("output"):
        folder = Folder()
        keywords = {**keywords, "output": f"{folder.path}/{default}"}
    outcome = run(verb, model_arguments(models), keywords, on_log)
    checkpoints = [str(file) for file in outcome.files]
    if verb != "finetune":  # other verbs make one model; files after the first are of other kinds
        checkpoints = checkpoints[:1]
    sources = [open_source(file) for file in checkpoints]
    return Model(sources, checkpoints, outcome.returned(Result), folder)


# --- the verbs --------------------------------------------------------------------------------------------------------


@_documented("eval")
def evaluate(models: Models = (), **options: Unpack[EvalArguments]) -> Evaluation:
    """Measure accuracy, calibration, OOD detection and diversity.

    Args:
        models: one model, several, or a mapping from the names of rows to models. A list in the mapping is an ensemble
            whose models run one after another.
        options: ``ood`` and ``ood_val`` take a mapping from names (``NAME``, ``NAME:near`` or ``NAME:far``) to data.

    Returns:
        The rows, one for each model, in its ``models``.

    Raises:
        RequirementError: one of ``require`` is not met.
    """
    outcome = _run_on_rows("eval", models, options)
    return outcome.returned(Evaluation)


@_documented("calibrate")
def calibrate(model: ModelLike, **options: Unpack[CalibrateArguments]) -> Calibrated:
    """Choose temperature, threshold and OOD score of a model on validation data.

    Args:
        model: one checkpoint.
        options: ``ood_val`` takes a mapping from names to data, or ``auto``.

    Returns:
        What was chosen; its ``model`` is the calibrated model. Without ``output`` its file is temporary.

    Raises:
        OutputError: ``output`` exists, and ``force`` is not set.
    """
    calibrated = _make_model("calibrate", [model], "calibrated.st", options)
    assert isinstance(calibrated.result, CalibrateAnswer)
    return Calibrated(calibrated, calibrated.result)
