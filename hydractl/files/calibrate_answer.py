"""The answer of a calibration (``hydractl.calibrate/1``): what it chose on validation data, and what it wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from hydractl.files.model_records import (
    CalibrationRecord,
    DataSetRecord,
    DropoutRecord,
    ThresholdRecord,
)
from hydractl.files.results import Count, Number, Record, Result, optional


class CalibratedModelRecord(Record):
    """The model that was calibrated."""

    name: str
    """Its name."""
    sha256: Any = None
    """SHA-256 of its file; a list where several run one after another."""
    mc_dropout: DropoutRecord | None = optional("How the members were drawn by MC dropout.")
    prompt: Sequence[str] | None = optional("Templates of a zero-shot model.")
    labels: Sequence[str] | None = optional("Names of the classes of a zero-shot model.")


class ComparedScoreRecord(Record):
    """How well an OOD score tells the OOD validation sets from the validation data."""

    auroc: Number = None
    """Mean AUROC over the OOD validation sets; null where the score is constant."""
    by_set: Mapping[str, Number]
    """By OOD validation set the AUROC."""


_Share = Annotated[float, Field(ge=0, le=1)]


class Conformal(Record):
    """The threshold of conformal prediction sets: a class is in a set if its score is at most `qhat`."""

    method: Literal["lac", "aps"]
    """The conformity score."""
    alpha: _Share
    """The error rate asked for."""
    qhat: _Share
    """The threshold from the validation data."""
    n_val: Count
    """Number of validation samples."""


class CalibrateAnswer(Result):
    """What `hydractl calibrate` chose."""

    schema_: Literal["hydractl.calibrate/1"] = "hydractl.calibrate/1"
    model: CalibratedModelRecord
    """The model."""
    calibration: CalibrationRecord | None = optional("The calibration of its averaged prediction.")
    threshold: ThresholdRecord | None = optional("The OOD score from which on a sample is flagged.")
    flagged: Mapping[str, Number] | None = optional("Share of `val` and each OOD validation set that it flags.")
    conformal: Conformal | None = optional("The threshold of prediction sets.")
    ood_score: str | None = optional("The OOD score that was chosen, or that the model had.")
    compared: Mapping[str, ComparedScoreRecord] | None = optional("Of several OOD scores, by name how each does.")
    near_ties: Sequence[str] | None = optional("Scores that are as good as the chosen one, by less than 0.005.")
    val: DataSetRecord | None = optional("The validation data that something was chosen on.")
    ood_val: Mapping[str, DataSetRecord] | None = optional("By name the OOD validation sets that it was chosen on.")
    train: DataSetRecord | None = optional("The training data that OOD scores were fitted to.")
    seen: Sequence[Any] | None = optional(
        "Fingerprints of the samples of these data; of a file for `eval --calibration`."
    )
    note: str | None = optional("How the model was chosen, as the command said it.")
    samples: Mapping[str, Count] | None = optional("Number of samples of each data set; of a dry run.")
    files_: Sequence[str] | None = optional("What a dry run would write.")
