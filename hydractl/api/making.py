"""The model that a verb made, as its function returns it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hydractl.expressions.models import ModelRef
from hydractl.files.temporary import Folder
from hydractl.options.call import Call
from hydractl.verbs.outcome import Outcome

if TYPE_CHECKING:
    from hydractl.api.models import Model


def place_for_model(call: Call, name: str) -> Folder | None:
    """Return a temporary folder for the output of a verb; None if ``output`` is given, or the command line calls.

    Args:
        call: the call of the verb; its value of ``output`` is set to the file in the folder.
        name: the name of the file in the folder; empty for the folder itself.
    """
    if call.values["output"] is not None or not call.from_python:
        return None
    folder = Folder()
    call.values["output"] = f"{folder.path}/{name}"
    return folder


def made(call: Call, outcome: Outcome, folder: Folder | None) -> Model:
    """Return the model or the models that a verb has written, opened again; on the command line the answer alone.

    The command line prints the answer, and has no use for the model. Where JSON alone was written, there are no models.

    Args:
        call: the call of the verb.
        outcome: the answer, with the files that were written: models, and perhaps the JSON of a mask.
        folder: the temporary folder of the files, which lives as long as the model.
    """
    result = outcome.returned()
    if not call.from_python:
        return result
    models = import_module("hydractl.api.models")  # only here, because it imports torch
    files = [str(file) for file in outcome.files if file.suffix != ".json"]
    return models.Model([ModelRef(file, models.open_source(file), folder) for file in files], result)
