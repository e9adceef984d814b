"""What the header of a predictions file says of the model and of the data sets; a row says it in the same words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict

from hydractl.data.base import SkippedSamples
from hydractl.evaluation.options import DropoutSettings
from hydractl.files.training_history import TrainingRecord
from hydractl.metrics.calibrators import CalibrationEntry
from hydractl.metrics.threshold import ThresholdEntry


class DataEntry(TypedDict):
    """One data set as documents hold it."""

    spec: str
    n: int
    fingerprint: str
    list: NotRequired[str]  # the list of OpenOOD that it is
    skipped: NotRequired[SkippedSamples]
    left_out: NotRequired[int]  # training samples that are not in a validation set


class ScoreDataEntry(DataEntry):
    """The training data that OOD scores on features are fitted to."""

    knn_k: int


class SiteHeads(TypedDict):
    """The heads of one attention layer, and by member the numbers of those that it keeps."""

    site: str
    tower: str
    heads: int
    kept: list[list[int]]


class RowCost(TypedDict, total=False):
    """The cost of one sample; what is not known is None or left out."""

    params: int | None
    params_nonzero: int | None
    macs: int | None
    single_macs: int | None


class CascadeEntry(TypedDict):
    """When the first member of a cascade answers alone, and the mult-adds of the first and of the other members."""

    member: int
    score: str
    value: float
    first_macs: int
    rest_macs: int


class ProbeEntry(TypedDict):
    """The classifier of features that a row is measured by."""

    name: str
    c: NotRequired[list[float]]  # of each member's ``linear`` probe
    fitted_on: DataEntry
    chosen_on: DataEntry | None


class FittedCalibrationEntry(CalibrationEntry):
    """A calibration, with what it was fitted on, and whether it stood in the model's file."""

    fitted_on: NotRequired[DataEntry | None]
    stored: NotRequired[bool]


class StoredScoreEntry(TypedDict):
    """The OOD score of a checkpoint; one on features with what it was fitted to."""

    score: str
    fitted_on: NotRequired[ScoreDataEntry]


class Asking(TypedDict, total=False):
    """At how many tokens a text is cut, and with which templates a zero-shot model is asked."""

    max_length: int
    prompt: list[str]


class Decisive(Asking, total=False):
    """What decides the logits of a model: those of other values are others."""

    batch_size: int
    dtype: str
    device: str
    whole_last_block: bool
    mc_dropout: DropoutSettings
    probe: ProbeEntry
    cascade: CascadeEntry


class ModelHeader(Decisive, total=False):
    """The model of the predictions, and what was fitted for it (:class:`hydractl.files.documents.PredictedModel`)."""

    name: str
    sha256: str | list[str] | None
    labels: list[str] | None
    heads: list[SiteHeads]
    cost: RowCost
    training: Sequence[TrainingRecord]
    feature_scores: list[str]
    fitted_on: ScoreDataEntry | None
    calibration: FittedCalibrationEntry
    threshold: ThresholdEntry
    ood_score: StoredScoreEntry


class SetHeader(TypedDict):
    """One data set of the predictions."""

    name: str
    role: str
    group: str | None
    n: int
    fingerprint: str
    labelled: bool
    seen: int
