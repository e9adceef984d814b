"""The model that a verb made, as its function returns it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from hydractl.api.results import Result
from hydractl.options.call import current, text_or_none
from hydractl.verbs.outcome import Outcome

if TYPE_CHECKING:
    from hydractl.api.models import Folder, Model


def place_of_model(output: object, name: str) -> tuple[str | None, Folder | None]:
    """Return where a verb that makes a model writes it: a program that names no place gets a temporary folder.

    Args:
        output: the argument ``output`` of the call that runs.
        name: the name of the file in the temporary folder; empty for the folder itself.

    Returns:
        The path, None for that of the command line, which names it after the model; and the folder, if there is one.
    """
    path = text_or_none(output)
    if path is not None or not current().from_python:
        return path, None
    folder: Folder = _models().Folder()
    return f"{folder.path}/{name}", folder


def made(outcome: Outcome, folder: Folder | None, *, files: int | None = 1) -> Model:
    """Return the model that a verb made.

    On the command line only the answer is printed. So nothing is opened again, and the module that could is not
    imported: what is returned is the document.

    Args:
        outcome: the answer, with the files that were written.
        folder: the temporary folder of the files, which lives as long as the model.
        files: how many of the files are models: the first ones, each opened as a model; None for all.
    """
    result = outcome.returned(Result)
    if not current().from_python:
        return cast("Model", result)
    models = _models()
    checkpoints = [str(file) for file in outcome.files[:files]]
    sources = [models.open_source(file) for file in checkpoints]
    return cast("Model", models.Model(sources, checkpoints, result, folder))


def _models() -> Any:
    """Return the module of models, which is heavy, and of no use to the command line."""
    return import_module("hydractl.api.models")
