"""The answer of an eval (``hydractl.eval/2``): the record that the verb builds and that every table and page reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from hydractl.files.model_records import (
    CalibrationRecord,
    CostRecord,
    DataSetRecord,
    DropoutRecord,
    MeasuredThreshold,
    ScoreDataRecord,
    SiteHeadsRecord,
    TrainingRecord,
)
from hydractl.files.results import (
    Count,
    Edges,
    Interval,
    Metrics,
    MetricValue,
    Number,
    Record,
    Result,
    optional,
    sparse,
)
from hydractl.jsonio import shown

# --- metrics ----------------------------------------------------------------------------------------------------------


class MetricBlock(Record, extra="allow"):
    """Base of records that hold metrics by key, beside their fields."""

    __pydantic_extra__: dict[str, MetricValue]
    kind: ClassVar[Literal["id", "ood", "errors", "diversity"]]
    """The kind of the metrics."""
    by_severity: ClassVar[bool] = False
    """Whether only metrics are held that are measured for each corruption and severity."""

    @property
    def metrics(self) -> Metrics:
        """The metrics by key."""
        return self.__pydantic_extra__

    if TYPE_CHECKING:

        def __getattr__(self, key: str) -> Any:
            """Return a metric; other packages may declare some, so all are found at run time."""


class SampleMetrics(MetricBlock):
    """Metrics of labelled samples; of unlabelled ones only how many they are."""

    n: Count | None = optional("Number of samples.")
    kind = "id"


class SeverityMetrics(SampleMetrics):
    """Metrics of one corruption at one severity, or their means over corruptions."""

    by_severity = True


class DetectionMetrics(MetricBlock):
    """Metrics of telling OOD samples from ID samples."""

    kind = "ood"


class OodSetMetrics(MetricBlock):
    """Metrics of telling the samples of one OOD set from ID samples."""

    group: str | None = None
    """`near` or `far`, where that was said."""
    n: Count | None = optional("Number of OOD samples.")
    kind = "ood"


class MemberDiversity(MetricBlock):
    """Metrics of how the members differ on one data set."""

    kind = "diversity"


class ErrorMetrics(MetricBlock):
    """Metrics of finding wrong answers among labelled ID samples."""

    kind = "errors"


class OodDetection(Record):
    """Metrics of one OOD score: how it finds wrong answers, and how it tells OOD samples from ID samples."""

    ood: Mapping[str, OodSetMetrics] = optional("By OOD set its metrics.", {})
    near_avg: DetectionMetrics | None = optional("Unweighted means over near OOD sets.")
    far_avg: DetectionMetrics | None = optional("Unweighted means over far OOD sets.")
    ood_avg: DetectionMetrics | None = optional("Unweighted means over all OOD sets.")
    errors: ErrorMetrics | None = optional("Metrics of finding wrong answers on the ID data.")


# --- curves -----------------------------------------------------------------------------------------------------------


class CurveRecord(Record):
    """Base of curves, whose lists belong together."""

    @model_validator(mode="after")
    def check_lengths(self) -> Self:
        """Refuse lists that do not have one entry per bin, and `edges` one more."""
        lengths = set()
        for name, entries in self:
            bins = len(entries)
            if name == "edges":
                bins -= 1
            lengths.add(bins)
        if len(lengths) > 1:
            raise ValueError("has lists that differ in length")
        return self


class ReliabilityCurve(CurveRecord):
    """A reliability diagram: bins of equal width, and Wilson intervals of their accuracy."""

    edges: Edges
    """Edges of the bins of confidence, one more than there are bins."""
    n: Sequence[Count]
    """Number of samples in each bin."""
    confidence: Sequence[Number]
    """Mean confidence in each bin; null of an empty one."""
    accuracy: Sequence[Number]
    """Accuracy in each bin; null of an empty one."""
    low: Sequence[Number]
    """Lower end of the interval of the accuracy; null of an empty bin."""
    high: Sequence[Number]
    """Upper end of the interval of the accuracy; null of an empty bin."""


class ScoreHistograms(CurveRecord, extra="allow"):
    """Histograms of OOD scores: `edges`, and by data set the number of samples in each bin."""

    __pydantic_extra__: dict[str, Sequence[Count]]
    edges: Edges
    """Edges of the bins, one more than there are bins."""
    id: Sequence[Count]
    """Number of ID samples in each bin."""

    @property
    def ood(self) -> Mapping[str, Sequence[int]]:
        """By OOD set the number of samples in each bin."""
        return self.__pydantic_extra__


class EvalCurves(Record):
    """What the curves of a report are drawn from."""

    reliability: ReliabilityCurve | None = None
    """The reliability diagram of labelled ID samples."""
    scores: ScoreHistograms | None = None
    """Histograms of OOD scores."""


# --- rows -------------------------------------------------------------------------------------------------------------


class PairedDifference(Record):
    """A paired difference of this row and the first."""

    value: Number = None
    """This row minus the first."""
    ci: Interval | None = None
    """Its bootstrap interval."""


class ConformalSets(Record):
    """Conformal prediction sets."""

    method: str | None = optional("The conformity score.")
    alpha: Number = optional("The error rate asked for.")
    qhat: Number = optional("The threshold from the validation data.")
    n_val: Count | None = optional("Number of validation samples.")
    coverage: Number = None
    """Share of sets that hold the label."""
    mean_size: Number = None
    """Mean number of classes in a set."""
    empty: Number = None
    """Share of sets without a class."""


class EvaluatedModel(Record):
    """What the row of a model begins with."""

    name: str
    """Name of the row."""
    sha256: Any = None
    """SHA-256 of its file; a list where several run one after another."""
    ood_score: str | None = optional("The OOD score of the OOD metrics and curves.")


class IdData(Record):
    """What was measured of the ID data."""

    id: SampleMetrics
    """Metrics of the ID data."""


class RowMetrics(OodDetection, IdData):
    """The metrics of one model: those of its leading OOD score, and those of each score that is reported beside it."""

    diversity: Mapping[str, MemberDiversity] = optional("By data set how the members differ.", {})
    scores: Mapping[str, OodDetection] = sparse("OOD metrics by each OOD score asked for.", {})


class EvalRow(RowMetrics, EvaluatedModel):
    """One model, with all that was measured of it."""

    members: Sequence[SampleMetrics] | None = optional("Metrics of the ID data for each member alone; not of means.")
    curves: EvalCurves | None = optional("What the curves of a report are drawn from; not of means.")
    heads: Sequence[SiteHeadsRecord] | None = optional("The heads at each site; empty where members differ.")
    cost: CostRecord | None = optional("The cost of one sample.")
    training: Sequence[TrainingRecord] = sparse("The trainings that members came straight from.", [])
    calibration: CalibrationRecord | None = optional("The calibration that was applied.")
    threshold: MeasuredThreshold | None = optional("The threshold and what it flags.")
    corruptions: Mapping[str, Mapping[str, SeverityMetrics]] = sparse("By corruption and severity.", {})
    corruption_avg: Mapping[str, SeverityMetrics] = sparse("By severity the means over corruptions.", {})
    fitted_on: ScoreDataRecord | None = optional("The training data that OOD scores were fitted to.")
    mc_dropout: DropoutRecord | None = optional("How the members were drawn by MC dropout.")
    conformal: ConformalSets | None = optional("Conformal prediction sets.")
    seen: Mapping[str, Count | None] = sparse("By data set how many samples had been seen.", {})
    ci: Mapping[str, Interval | None] = sparse("By dotted key the bootstrap interval.", {})
    difference: Mapping[str, PairedDifference | None] = sparse(
        "By dotted key the paired difference of this row and the first.", {}
    )
    runs: Count | None = optional("Number of runs that the figures are means of.")
    std: Mapping[str, Number] | None = optional("By dotted key the sample standard deviation over runs.")

    @property
    def macs(self) -> int | None:
        """The mult-adds of one sample; None if unknown."""
        return None if self.cost is None else self.cost.macs

    @property
    def single_macs(self) -> int | None:
        """The mult-adds of one sample in the model with all its heads; None if unknown."""
        return None if self.cost is None else self.cost.single_macs

    @property
    def files(self) -> list[str]:
        """The SHA-256 of each file of the row's model; empty if unknown."""
        if isinstance(self.sha256, list):
            return list(self.sha256)
        if self.sha256:
            return [self.sha256]
        return []


# --- the document -----------------------------------------------------------------------------------------------------


class BootstrapOptions(Record):
    """How intervals were drawn."""

    rounds: Count | None = optional("Number of resamples.")
    level: Number = optional("Level of the intervals.")
    seed: Count | None = optional("Seed of the resamples.")


Conventions = Mapping[str, Any]
"""Explanations by key: a sentence for a metric; texts by score or row for e.g. ``ood_scores`` or ``max_length``."""


class EvalAnswer(Result):
    """What `hydractl eval` measured."""

    schema_: Literal["hydractl.eval/2"] = "hydractl.eval/2"
    rows_in = "models"
    models: Annotated[Sequence[EvalRow], Field(min_length=1)]
    """A row for each model; names differ."""
    test: Mapping[str, DataSetRecord] = optional(
        "The data sets that were tested on, by name: `id` and the OOD sets.", {}
    )
    val: DataSetRecord | None = optional("The validation data that something was chosen on.")
    ood_val: Mapping[str, DataSetRecord] | None = optional("By name the OOD validation sets that it was chosen on.")
    train: DataSetRecord | None = optional("The training data that OOD scores were fitted to.")
    conventions: Conventions = optional("A sentence on each metric that a row may have.", {})
    bootstrap: BootstrapOptions | None = optional("How intervals were drawn.")
    over: Literal["seed", "data"] | None = optional("What the runs of a row differ in.")
    samples: Mapping[str, Count] | None = optional("Number of samples of each data set; of a dry run.")
    files_: Sequence[str] | None = optional("What a dry run would write.")

    @model_validator(mode="after")
    def check_names(self) -> Self:
        """Refuse several rows of the same name."""
        counts = Counter(self.names)
        twice = [shown(name) for name, count in counts.items() if count > 1]
        if twice:
            raise ValueError(f"two rows have the name {', '.join(twice)}")
        return self

    @property
    def names(self) -> list[str]:
        """The names of the rows, in order."""
        return [row.name for row in self.models]

    def row(self, name: str) -> EvalRow:
        """Return the row of this name.

        Raises:
            KeyError: no row has this name.
        """
        for row in self.models:
            if row.name == name:
                return row
        raise KeyError(f"no row is named {name!r}; the rows are {', '.join(self.names)}")
