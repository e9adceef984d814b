"""The calibration, threshold and OOD score that were chosen for a model before, as its file holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydractl.errors import InputError
from hydractl.evaluation.options import FitOptions
from hydractl.evaluation.predictions.header import DataEntry
from hydractl.log import Log
from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.threshold import ThresholdEntry, stored_score, stored_threshold


@dataclass(frozen=True)
class StoredFit:
    """What was fitted for a model before.

    Attributes:
        calibration: the calibration of the averaged prediction; None for none.
        threshold: the threshold of the OOD score; None for none.
        fitted_on: the validation set of the calibration; None where the file does not say it.
        score: the name of the OOD score; None for none.
    """

    calibration: Calibration | None = None
    threshold: ThresholdEntry | None = None
    fitted_on: DataEntry | None = None
    score: str | None = None

    @classmethod
    def from_description(cls, document: Mapping[str, Any], origin: str) -> StoredFit:
        """Read the calibration, threshold and OOD score that the description of a file holds.

        Args:
            document: the description of a checkpoint, or the entry of the model in a predictions file.
            origin: what to call the file in messages.

        Raises:
            InputError: for what eval does not write.
        """
        try:
            # The order decides which of several problems is reported.
            threshold = stored_threshold(document.get("threshold"))
            score = stored_score(document)
            calibration, fitted_on = _stored_calibration(document.get("calibration"))
        except InputError as error:
            raise InputError(f"{origin}: {error.message}", problems=error.problems) from None
        return cls(calibration, threshold, fitted_on, score)


def _stored_calibration(entry: Any) -> tuple[Calibration | None, DataEntry | None]:
    """Return the calibration of an entry, and the data set that it was fitted on where that is said."""
    from hydractl.files.documents import FittedOn, check

    if entry is None:
        return None, None
    calibration = Calibration.from_json(entry)
    fitted_on = entry.get("fitted_on")
    if fitted_on is not None:
        check(fitted_on, FittedOn, "what its calibration was fitted on is no data set")
    return calibration, fitted_on


def warn_of_left_out(
    name: str, documents: Sequence[Mapping[str, Any]], fit: FitOptions, log: Log, chosen_for: str
) -> None:
    """Warn where a file holds a calibration, threshold, score or cascade that would be expected and is not used.

    What the command itself gives is not expected from a file, and nothing is warned of.

    Args:
        name: the name of the row.
        documents: the descriptions of its models.
        fit: the options of the command.
        log: receives messages.
        chosen_for: the predictions for which they were chosen, as words that follow "the predictions".
    """
    # Whether the command would take each from the file.
    expected = {
        "calibration": fit.temperature is None,
        "threshold": not fit.threshold and fit.temperature is None,
        "ood_score": not fit.scores.are_named,
        "cascade": True,
    }
    unused = []
    for key, is_expected in expected.items():
        is_stored = any(document.get(key) for document in documents)
        if is_expected and is_stored:
            unused.append(key)
    if unused:
        keys = " and ".join(unused)
        log.warn(f"{name}: the stored {keys} is left out: it was chosen for the predictions {chosen_for}")
