"""The answer of a calibration (``hydractl.calibrate/1``): what it chose on validation data, and what it wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hydractl.files.model_records import CalibrationRecord, DataSetRecord, ThresholdRecord
from hydractl.files.records import SCHEMA_TEXT, Count, Number, Record, described, needed

CALIBRATE_SCHEMA: Literal["hydractl.calibrate/1"] = "hydractl.calibrate/1"


@dataclass(frozen=True, kw_only=True)
class CalibratedModelRecord(Record, form="CalibratedModel"):
    """The model that was calibrated."""

    name: str = needed("Its name.")
    sha256: str | None = described("SHA-256 of its file.", null=True)


@dataclass(frozen=True, kw_only=True)
class ComparedScoreRecord(Record, form="ComparedScore"):
    """How well an OOD score tells the OOD validation sets from the validation data."""

    auroc: Number = described("Mean AUROC over the OOD validation sets; null where the score is constant.", null=True)
    by_set: Mapping[str, Number] = needed("By OOD validation set the AUROC.")


@dataclass(frozen=True, kw_only=True)
class ChosenConformalRecord(Record, form="ChosenConformal"):
    """The threshold of conformal prediction sets."""

    method: str = needed("The conformity score.")
    alpha: float = needed("The error rate asked for.")
    qhat: float = needed("The threshold from the validation data.")
    n_val: Count = needed("Number of validation samples.")


@dataclass(frozen=True, kw_only=True)
class CalibrateAnswer(Record, form="Calibrate"):
    """What `hydractl calibrate` chose."""

    schema: Literal["hydractl.calibrate/1"] = needed(SCHEMA_TEXT, CALIBRATE_SCHEMA)
    model: CalibratedModelRecord = needed("The model.")
    calibration: CalibrationRecord | None = described("The calibration of its averaged prediction.")
    threshold: ThresholdRecord | None = described("The OOD score from which on a sample is flagged.")
    conformal: ChosenConformalRecord | None = described("The threshold of prediction sets.")
    ood_score: str | None = described("The OOD score that the checkpoint holds.")
    compared: Mapping[str, ComparedScoreRecord] | None = described("Of several OOD scores, by name how each does.")
    near_ties: Sequence[str] | None = described("Scores that are as good as the chosen one, by less than 0.005.")
    val: DataSetRecord | None = described("The validation data that something was chosen on.")
    ood_val: Mapping[str, DataSetRecord] | None = described("By name the OOD validation sets that it was chosen on.")
    train: DataSetRecord | None = described("The training data that OOD scores were fitted to.")
    note: str | None = described("How the model was chosen, as the command said it.")
    warnings: Sequence[str] | None = described("What makes the choice less than it seems.")


@dataclass(frozen=True, kw_only=True)
class PlannedCalibration(Record):
    """The plan of a calibration."""

    model: str = needed("Name of the model.")
    samples: Mapping[str, Count] = needed("Number of samples of each data set.")
    files: Sequence[str] = needed("What it would write.")
