"""The metadata of stored predictions (``hydractl.predictions/3``): the model, and the data sets in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

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
from hydractl.files.records import SCHEMA_TEXT, Count, Record, Sized, described, inline, needed, sparse


@dataclass(frozen=True, kw_only=True)
class PredictedSiteRecord(SiteHeadsRecord, form="PredictedSite"):
    """The heads at one site."""

    tower: str = needed("`main`, or `visual` or `text` in a model with two towers.")


@dataclass(frozen=True, kw_only=True)
class StoredScoreRecord(Record, form="StoredScore"):
    """An OOD score."""

    score: str = needed("Its name.")


@dataclass(frozen=True, kw_only=True)
class DecisiveRecord(Record):
    """What decides the logits of a model: those of other values are others."""

    prompt: Sequence[str] | None = described("Templates of a zero-shot model.")
    max_length: Count | None = described("Tokens at which a text is cut.")
    batch_size: Count | None = described("Samples that were computed together.")
    dtype: str | None = described("Number format of the computation.")
    device: str | None = described("Kind of device it ran on.")
    whole_last_block: bool | None = described("Whether the last block ran for all tokens.")
    mc_dropout: DropoutRecord | None = described("How the members were drawn by MC dropout.")


@dataclass(frozen=True, kw_only=True)
class PredictedModelRecord(Record, form="PredictedModel"):
    """The model that predictions are of, and what decides them."""

    name: str = needed("Name of the row.")
    sha256: Any = described(FILE_HASH)
    labels: Annotated[Sequence[str], Sized(1)] | None = described(
        "Names of the classes, where they are known.", null=True
    )
    heads: Sequence[PredictedSiteRecord] | None = described("The heads at each site; empty where members differ.")
    training: Sequence[TrainingRecord] = sparse("The trainings that members came straight from.", list)
    cost: CostRecord | None = described("The cost of one sample.")
    decisive: DecisiveRecord = inline(DecisiveRecord)
    calibration: CalibrationRecord | None = described("The calibration that the model's file holds.")
    threshold: ThresholdRecord | None = described("The threshold that the model's file holds.")
    ood_score: StoredScoreRecord | None = described("The OOD score that the model's file holds.")
    feature_scores: Sequence[str] | None = described("OOD scores on features, kept beside the logits.")
    fitted_on: ScoreDataRecord | None = described("The training data that they were fitted to.")


SetRole = Literal["id", "ood", "val", "ood_val", "corruption"]
SetGroup = Literal["near", "far"]


@dataclass(frozen=True, kw_only=True)
class PredictedSetRecord(Record, form="PredictedSet"):
    """One data set, whose tensors have its place in the list in their names."""

    name: str = needed("`id`, the name of an OOD set, or `CORRUPTION/SEVERITY`.")
    role: SetRole = needed("What the set is for.")
    group: SetGroup | None = needed("Of an OOD set `near` or `far`, where that was said.")
    n: Count = needed("Number of samples.")
    fingerprint: str = needed("SHA-256 of its samples and labels.")
    labelled: bool = needed("Whether labels are known.")
    seen: Count = needed("How many of its samples the model had seen before.")


@dataclass(frozen=True, kw_only=True)
class PredictionsRecord(Record, form="PredictionsHeader"):
    """The metadata of stored predictions, under `hydractl` in the header of their file."""

    schema: Literal["hydractl.predictions/3"] = needed(SCHEMA_TEXT, "hydractl.predictions/3")
    model: PredictedModelRecord = needed("The model, and what decides its logits.")
    sets: Annotated[Sequence[PredictedSetRecord], Sized(1)] = needed("The data sets, in the order of the tensors.")
