"""The metadata of stored predictions (``hydractl.predictions/3``): the model, and the data sets in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from hydractl.files.model_records import (
    FILE_HASH,
    CalibrationRecord,
    CostRecord,
    DropoutRecord,
    ScoreDataRecord,
    SiteHeadsRecord,
    ThresholdRecord,
    TrainingRecord,
)
from hydractl.files.results import Count, Record, Result, optional, sparse


class PredictedSiteRecord(SiteHeadsRecord):
    """The heads at one site."""

    tower: str
    """`main`, or `visual` or `text` in a model with two towers."""


class StoredScoreRecord(Record):
    """An OOD score."""

    score: str
    """Its name."""


class DecisiveRecord(Record):
    """What decides the logits of a model: those of other values are others."""

    prompt: Sequence[str] | None = optional("Templates of a zero-shot model.")
    max_length: Count | None = optional("Tokens at which a text is cut.")
    batch_size: Count | None = optional("Samples that were computed together.")
    dtype: str | None = optional("Number format of the computation.")
    device: str | None = optional("Kind of device it ran on.")
    whole_last_block: bool | None = optional("Whether the last block ran for all tokens.")
    mc_dropout: DropoutRecord | None = optional("How the members were drawn by MC dropout.")


class PredictedModelRecord(DecisiveRecord):
    """The model that predictions are of, and what decides them."""

    name: str
    """Name of the row."""
    sha256: Any = optional(FILE_HASH)
    labels: Annotated[Sequence[str], Field(min_length=1)] | None = None
    """Names of the classes, where they are known."""
    heads: Sequence[PredictedSiteRecord] | None = optional("The heads at each site; empty where members differ.")
    training: Sequence[TrainingRecord] = sparse("The trainings that members came straight from.", [])
    cost: CostRecord | None = optional("The cost of one sample.")
    calibration: CalibrationRecord | None = optional("The calibration that the model's file holds.")
    threshold: ThresholdRecord | None = optional("The threshold that the model's file holds.")
    ood_score: StoredScoreRecord | None = optional("The OOD score that the model's file holds.")
    feature_scores: Sequence[str] | None = optional("OOD scores on features, kept beside the logits.")
    fitted_on: ScoreDataRecord | None = optional("The training data that they were fitted to.")


SetRole = Literal["id", "ood", "val", "ood_val", "corruption"]
SetGroup = Literal["near", "far"]


class PredictedSetRecord(Record):
    """One data set, whose tensors have its place in the list in their names."""

    name: str
    """`id`, the name of an OOD set, or `CORRUPTION/SEVERITY`."""
    role: SetRole
    """What the set is for."""
    group: SetGroup | None
    """Of an OOD set `near` or `far`, where that was said."""
    n: Count
    """Number of samples."""
    fingerprint: str
    """SHA-256 of its samples and labels."""
    labelled: bool
    """Whether labels are known."""
    seen: Count
    """How many of its samples the model had seen before."""


class PredictionsRecord(Result):
    """The metadata of stored predictions, under `hydractl` in the header of their file."""

    schema_: Literal["hydractl.predictions/3"] = "hydractl.predictions/3"
    model: PredictedModelRecord
    """The model, and what decides its logits."""
    sets: Annotated[Sequence[PredictedSetRecord], Field(min_length=1)]
    """The data sets, in the order of the tensors."""
