"""The model that a verb made, as its function returns it, alone or with what was chosen for it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.expressions.models import ModelRef
from hydractl.files.temporary import Folder
from hydractl.options.call import Call
from hydractl.verbs.outcome import Outcome

if TYPE_CHECKING:
    from hydractl.api.models import Model
    from hydractl.files.calibrate_answer import CalibrateAnswer


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

    The command line prints the answer, and has no use for the model.

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


@dataclass(repr=False)
class Calibrated:
    """The values that :func:`hydractl.calibrate` chose, and the model that has them.

    Attributes:
        checkpoint: the calibrated model; None if what was chosen was written as JSON.
        result: all that was chosen, and on which data.
    """

    checkpoint: Model | None
    result: CalibrateAnswer

    @property
    def model(self) -> Model:
        """The calibrated model.

        Raises:
            UsageError: there is none: what was chosen was written as JSON.
        """
        if self.checkpoint is None:
            raise UsageError("no checkpoint was written", hint="eval(..., calibration=FILE) takes what was chosen")
        return self.checkpoint

    @property
    def temperature(self) -> float | None:
        """The temperature; None if there is none, or if each class has its own."""
        calibration = self.result.calibration
        return None if calibration is None else calibration.temperature

    @property
    def threshold(self) -> float | None:
        """The OOD score from which on a sample is flagged; None without a threshold."""
        threshold = self.result.threshold
        return None if threshold is None else threshold.value

    @property
    def score(self) -> str | None:
        """The OOD score; None if none was asked for."""
        return self.result.ood_score

    @property
    def outcome(self) -> Outcome:
        """The outcome of the verb."""
        return self.result.outcome

    @property
    def files(self) -> list[Path]:
        """The files that were written."""
        return self.result.files

    def __repr__(self) -> str:
        return f"<Calibrated: temperature {self.temperature}, threshold {self.threshold}, score {self.score}>"

    def __str__(self) -> str:
        return str(self.result)

    def _repr_html_(self) -> str:
        return self.result._repr_html_()
