"""The model that a verb made, as its function returns it, alone or with what was chosen for it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydractl.api.results import Result
from hydractl.errors import UsageError
from hydractl.expressions.models import ModelRef
from hydractl.files.calibrate_answer import CalibrateAnswer
from hydractl.options.call import current
from hydractl.verbs.outcome import Outcome

if TYPE_CHECKING:
    from hydractl.api.models import Folder, Model


def place_of_model(name: str) -> tuple[str | None, Folder | None]:
    """Return where a verb that makes a model writes it: a program that names no place gets a temporary folder.

    Args:
        name: the name of the file in the temporary folder; empty for the folder itself.

    Returns:
        The path, None for that of the command line, which names it after the model; and the folder, if there is one.
    """
    path: str | None = current().values["output"]
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
    opened = [ModelRef(str(file), models.open_source(str(file)), folder) for file in outcome.files[:files]]
    return models.Model(opened, result)


def _models() -> Any:
    """Return the module of models, which is heavy, and of no use to the command line."""
    return import_module("hydractl.api.models")


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
