"""What is fitted for one model: its calibration, threshold, prediction sets and OOD score, now or in its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydractl.errors import InputError
from hydractl.evaluation.options import FitOptions
from hydractl.files.calibrate_answer import ComparedScoreRecord, Conformal
from hydractl.files.model_records import CalibrationRecord, DataSetRecord, FittedOnRecord, ThresholdRecord
from hydractl.log import Log
from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.samples import Samples
from hydractl.metrics.threshold import stored_score, stored_threshold


@dataclass(frozen=True)
class Fit:
    """What was fitted for one model; a field is None or empty if it was not.

    Attributes:
        score: the name of the OOD score.
        calibration: the calibration of the averaged prediction.
        fitted_on: the record of the validation set to which the calibration was fitted.
        stored: whether the calibration comes from the model's file.
        threshold: the threshold of the OOD score.
        flagged: the share of ``val`` and of each OOD validation set that the threshold flags, as far as they ran.
        conformal: the fit from which prediction sets are made.
        compared: the AUROCs of all scores from which the score was chosen, by name; empty if there was no choice.
        near_ties: other scores that are about as good as the chosen one.
        validation: the uncalibrated predictions on the ID validation set; None if they were not needed.
        warnings: sentences on what is odd about what was fitted, such as a temperature by few samples.
    """

    score: str | None = None
    calibration: Calibration | None = None
    fitted_on: DataSetRecord | None = None
    stored: bool = False
    threshold: ThresholdRecord | None = None
    flagged: Mapping[str, float | None] = field(default_factory=dict)
    conformal: Conformal | None = None
    compared: Mapping[str, ComparedScoreRecord] = field(default_factory=dict)
    near_ties: Sequence[str] = ()
    validation: Samples | None = None
    warnings: Sequence[str] = ()

    @classmethod
    def in_file(cls, document: Mapping[str, Any], origin: str) -> Fit:
        """Read the calibration, threshold and OOD score in a file.

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
            entry = document.get("calibration")
            if entry is None:
                return cls(score=score, threshold=threshold)
            calibration = Calibration.from_json(entry)
            fitted_on = None
            if entry.get("fitted_on") is not None:
                fitted_on = FittedOnRecord.checked(
                    entry["fitted_on"], "what its calibration was fitted on is no data set"
                )
        except InputError as error:
            raise InputError(f"{origin}: {error.message}", problems=error.problems) from None
        return cls(score, calibration, fitted_on, stored=True, threshold=threshold)

    def calibration_record(self, *, stored: bool | None) -> CalibrationRecord | None:
        """Return the record of the calibration; None if there is none.

        Args:
            stored: what the record says on whether it stands in the model's file.
        """
        if self.calibration is None:
            return None
        return CalibrationRecord(**self.calibration.to_json(), fitted_on=self.fitted_on, stored=stored)


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
        "ood_score": not fit.scores,
    }
    unused_keys = []
    for key, user_expects_it in is_expected.items():
        is_stored = any(document.get(key) for document in documents)
        if user_expects_it and is_stored:
            unused_keys.append(key)
    if unused_keys:
        keys = " and ".join(unused_keys)
        log.warn(f"{name}: the stored {keys} is left out: it was chosen for the predictions {chosen_for}")
