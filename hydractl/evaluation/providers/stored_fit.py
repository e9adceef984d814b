"""The calibration, threshold and OOD score that were chosen for a model before and stored in its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydractl.errors import InputError
from hydractl.evaluation.options import FitOptions
from hydractl.evaluation.predictions.header import DataEntry
from hydractl.files.model_records import CalibrationRecord, FittedOnRecord
from hydractl.log import Log
from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.threshold import ThresholdEntry, stored_score, stored_threshold


@dataclass(frozen=True)
class StoredFit:
    """What was fitted for a model before; each field is None if the file does not have it.

    Attributes:
        calibration: the calibration of the averaged prediction.
        threshold: the threshold of the OOD score.
        fitted_on: the record of the data to which the calibration was fitted.
        score: the name of the OOD score.
    """

    calibration: Calibration | None = None
    threshold: ThresholdEntry | None = None
    fitted_on: DataEntry | None = None
    score: str | None = None

    @classmethod
    def from_description(cls, document: Mapping[str, Any], origin: str) -> StoredFit:
        """Read the calibration, threshold and OOD score from the description of a file.

        Args:
            document: the description of a checkpoint, or the record of the model in a predictions file.
            origin: the name of the file for messages.

        Raises:
            InputError: if an entry has a value that hydractl does not write.
        """
        try:
            # If several entries are wrong, the first in this order is reported.
            threshold = stored_threshold(document.get("threshold"))
            score = stored_score(document)
            calibration, fitted_on = _stored_calibration(document.get("calibration"))
        except InputError as error:
            raise InputError(f"{origin}: {error.message}", problems=error.problems) from None
        return cls(calibration, threshold, fitted_on, score)

    def calibration_record(self) -> CalibrationRecord | None:
        """Return the record of the calibration; None if there is none."""
        if self.calibration is None:
            return None
        document: dict[str, object] = {**self.calibration.to_json()}
        if self.fitted_on is not None:
            document["fitted_on"] = self.fitted_on
        return CalibrationRecord.model_validate(document)


def _stored_calibration(entry: Any) -> tuple[Calibration | None, DataEntry | None]:
    """Return the calibration in an entry, and the record of the data to which it was fitted; None if missing."""
    if entry is None:
        return None, None
    calibration = Calibration.from_json(entry)
    fitted_on = entry.get("fitted_on")
    if fitted_on is not None:
        FittedOnRecord.checked(fitted_on, "what its calibration was fitted on is no data set")
    return calibration, fitted_on


def warn_of_left_out(
    name: str, documents: Sequence[Mapping[str, Any]], fit: FitOptions, log: Log, chosen_for: str
) -> None:
    """Warn if a file has a calibration, threshold or OOD score that is not used, although users may expect it.

    There is no warning about an entry that an option of the command replaces anyway.

    Args:
        name: the name of the row.
        documents: the descriptions of all its files.
        fit: the options of the command.
        log: receives the warning.
        chosen_for: the predictions for which the entries were chosen, as words that follow "the predictions", e.g.
            ``without dropout``.
    """
    # Whether no option of the command replaces the entry.
    is_expected = {
        "calibration": fit.temperature is None,
        "threshold": not fit.threshold and fit.temperature is None,
        "ood_score": not fit.scores.are_named,
    }
    unused_keys = []
    for key, user_expects_it in is_expected.items():
        is_stored = any(document.get(key) for document in documents)
        if user_expects_it and is_stored:
            unused_keys.append(key)
    if unused_keys:
        keys = " and ".join(unused_keys)
        log.warn(f"{name}: the stored {keys} is left out: it was chosen for the predictions {chosen_for}")
