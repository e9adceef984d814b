"""The answer of an eval (``hydractl.eval/2``): the record that the verb builds and that every table and page reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from hydractl.files.model_records import (
    FILE_HASH,
    CalibrationRecord,
    CostRecord,
    DataSetRecord,
    DropoutRecord,
    MeasuredThreshold,
    ScoreDataRecord,
    SiteHeadsRecord,
    TrainingRecord,
)
from hydractl.files.records import (
    SCHEMA_TEXT,
    Count,
    Edges,
    Interval,
    Metrics,
    Number,
    Record,
    Sized,
    described,
    inline,
    metrics_of,
    needed,
    sparse,
)
from hydractl.jsonio import shown

EVAL_SCHEMA: Literal["hydractl.eval/2"] = "hydractl.eval/2"

# --- metrics ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SampleMetrics(Record, form="Labelled"):
    """Metrics of labelled samples; of unlabelled ones only how many they are."""

    n: Count | None = described("Number of samples.")
    metrics: Metrics = metrics_of("id")


@dataclass(frozen=True, kw_only=True)
class SeverityMetrics(Record, form="Severity"):
    """Metrics of one corruption at one severity, or their means over corruptions."""

    n: Count | None = described("Number of samples.")
    metrics: Metrics = metrics_of("id", by_severity=True)


@dataclass(frozen=True, kw_only=True)
class DetectionMetrics(Record, form="Detection"):
    """Metrics of telling OOD samples from ID samples."""

    metrics: Metrics = metrics_of("ood")


@dataclass(frozen=True, kw_only=True)
class OodSetMetrics(Record, form="OodSet"):
    """Metrics of telling the samples of one OOD set from ID samples."""

    group: str | None = described("`near` or `far`, where that was said.", null=True)
    n: Count | None = described("Number of OOD samples.")
    metrics: Metrics = metrics_of("ood")


@dataclass(frozen=True, kw_only=True)
class PairDiversity(Record, form="Pair"):
    """Metrics of how two members differ."""

    a: Count = needed("Number of the first member, from 0.")
    b: Count = needed("Number of the second member.")
    metrics: Metrics = metrics_of("diversity")


@dataclass(frozen=True, kw_only=True)
class MemberDiversity(Record, form="Diversity"):
    """Metrics of how the members differ on one data set."""

    metrics: Metrics = metrics_of("diversity")
    pairs: Sequence[PairDiversity] | None = described("The same for each pair of members.")


@dataclass(frozen=True, kw_only=True)
class ErrorMetrics(Record, form="WrongAnswers"):
    """Metrics of finding wrong answers among labelled ID samples."""

    metrics: Metrics = metrics_of("errors")


@dataclass(frozen=True, kw_only=True)
class OodDetection(Record, form="ByScore"):
    """Metrics of one OOD score: how it finds wrong answers, and how it tells OOD samples from ID samples."""

    errors: ErrorMetrics | None = described("Metrics of finding wrong answers on the ID data.")
    ood: Mapping[str, OodSetMetrics] = described("By OOD set its metrics.", empty=dict)
    near_avg: DetectionMetrics | None = described("Unweighted means over near OOD sets.")
    far_avg: DetectionMetrics | None = described("Unweighted means over far OOD sets.")
    ood_avg: DetectionMetrics | None = described("Unweighted means over all OOD sets.")


# --- curves -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CurveRecord(Record):
    """Base of curves, whose lists belong together."""

    @classmethod
    def problem(cls, values: Mapping[str, Any]) -> str | None:
        """Return the problem if the lists do not have one entry per bin, and `edges` one more; None if they do."""
        lengths = set()
        for name, entries in values.items():
            bins = len(entries)
            if name == "edges":
                bins -= 1
            lengths.add(bins)
        if len(lengths) > 1:
            return "has lists that differ in length"
        return None


@dataclass(frozen=True, kw_only=True)
class ReliabilityCurve(CurveRecord, form="Reliability"):
    """A reliability diagram: bins of equal width, and Wilson intervals of their accuracy."""

    edges: Edges = needed("Edges of the bins of confidence, one more than there are bins.")
    n: Sequence[Count] = needed("Number of samples in each bin.")
    confidence: Sequence[Number] = needed("Mean confidence in each bin; null of an empty one.")
    accuracy: Sequence[Number] = needed("Accuracy in each bin; null of an empty one.")
    low: Sequence[Number] = needed("Lower end of the interval of the accuracy; null of an empty bin.")
    high: Sequence[Number] = needed("Upper end of the interval of the accuracy; null of an empty bin.")


@dataclass(frozen=True, kw_only=True)
class RiskCoverageCurve(CurveRecord, form="RiskCoverage"):
    """Risk over coverage, by confidence."""

    coverage: Sequence[float] = needed("Shares of samples that are answered, ascending.")
    risk: Sequence[float] = needed("Share of wrong answers among them.")


@dataclass(frozen=True, kw_only=True)
class RocCurve(CurveRecord, form="Roc"):
    """The ROC curve of an OOD set."""

    fpr: Annotated[Sequence[float], Sized(1)] = needed("Shares of ID samples that are flagged.")
    tpr: Annotated[Sequence[float], Sized(1)] = needed("Shares of OOD samples that are flagged.")


@dataclass(frozen=True, kw_only=True)
class ScoreHistograms(CurveRecord, form="ScoreCounts"):
    """Histograms of OOD scores: `edges`, and by data set the number of samples in each bin."""

    edges: Edges = needed("Edges of the bins, one more than there are bins.")
    id: Sequence[Count] = needed("Number of ID samples in each bin.")
    ood: Mapping[str, Sequence[Count]] = inline()


@dataclass(frozen=True, kw_only=True)
class EvalCurves(Record, form="Curves"):
    """What the curves of a report are drawn from."""

    reliability: ReliabilityCurve | None = described("The reliability diagram of labelled ID samples.", null=True)
    risk_coverage: RiskCoverageCurve | None = described("Risk over coverage of labelled ID samples.", null=True)
    roc: Mapping[str, RocCurve] | None = described("By OOD set its ROC curve.", null=True)
    scores: ScoreHistograms | None = described("Histograms of OOD scores.", null=True)


# --- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PairedDifference(Record, form="Difference"):
    """A paired difference of this row and the first."""

    value: Number = described("This row minus the first.", null=True)
    ci: Interval | None = described("Its bootstrap interval.", null=True)


@dataclass(frozen=True, kw_only=True)
class ConformalSets(Record, form="Conformal"):
    """Conformal prediction sets."""

    method: str | None = described("The conformity score.")
    alpha: Number = described("The error rate asked for.")
    qhat: Number = described("The threshold from the validation data.")
    n_val: Count | None = described("Number of validation samples.")
    coverage: Number = described("Share of sets that hold the label.", null=True)
    mean_size: Number = described("Mean number of classes in a set.", null=True)
    empty: Number = described("Share of sets without a class.", null=True)


@dataclass(frozen=True, kw_only=True)
class EvalRow(Record, form="Row"):
    """One model, with all that was measured of it."""

    name: str = needed("Name of the row.")
    sha256: Any = described(FILE_HASH, null=True)
    ood_score: str | None = described("The OOD score of the OOD metrics and curves.")
    id: SampleMetrics = needed("Metrics of the ID data.")
    detection: OodDetection = inline(OodDetection)
    diversity: Mapping[str, MemberDiversity] = described("By data set how the members differ.", empty=dict)
    scores: Mapping[str, OodDetection] = sparse("OOD metrics by each OOD score asked for.", dict)
    members: Sequence[SampleMetrics] = described("Metrics of the ID data for each member alone.", empty=list)
    curves: EvalCurves = described("What the curves of a report are drawn from.", empty=EvalCurves)
    heads: Sequence[SiteHeadsRecord] = described("The heads at each site; empty where members differ.", empty=list)
    cost: CostRecord | None = described("The cost of one sample.")
    training: Sequence[TrainingRecord] = sparse("The trainings that members came straight from.", list)
    calibration: CalibrationRecord | None = described("The calibration that was applied.")
    threshold: MeasuredThreshold | None = described("The threshold and what it flags.")
    corruptions: Mapping[str, Mapping[str, SeverityMetrics]] = sparse("By corruption and severity.", dict)
    corruption_avg: Mapping[str, SeverityMetrics] = sparse("By severity the means over corruptions.", dict)
    fitted_on: ScoreDataRecord | None = described("The training data that OOD scores were fitted to.")
    mc_dropout: DropoutRecord | None = described("How the members were drawn by MC dropout.")
    conformal: ConformalSets | None = described("Conformal prediction sets.")
    seen: Mapping[str, Count | None] = sparse("By data set how many samples had been seen.", dict)
    ci: Mapping[str, Interval | None] = sparse("By dotted key the bootstrap interval.", dict)
    difference: Mapping[str, PairedDifference | None] = sparse(
        "By dotted key the paired difference of this row and the first.", dict
    )
    runs: Count | None = described("Number of runs that the figures are means of.")
    std: Mapping[str, Number] = sparse("By dotted key the sample standard deviation over runs.", dict)

    @property
    def macs(self) -> int | None:
        """The multiply-adds of one sample; None if unknown."""
        if self.cost is None:
            return None
        return self.cost.macs

    @property
    def single_macs(self) -> int | None:
        """The multiply-adds of one sample in the model with all its heads; None if unknown."""
        if self.cost is None:
            return None
        return self.cost.single_macs

    @property
    def files(self) -> list[str]:
        """The SHA-256 of each file of the row's model; empty if unknown."""
        if isinstance(self.sha256, list):
            return list(self.sha256)
        if self.sha256:
            return [self.sha256]
        return []


# --- the document -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OodSuite(Record, form="Suite"):
    """The OOD suite that was asked for."""

    name: str | None = described("Its name.")
    left_out: Sequence[str] | None = described("Its sets that were not found.")
    notes: Sequence[str] | None = described("In what it differs from the published suite.")


@dataclass(frozen=True, kw_only=True)
class BootstrapOptions(Record, form="Bootstrap"):
    """How intervals were drawn."""

    rounds: Count | None = described("Number of resamples.")
    level: Number = described("Level of the intervals.")
    seed: Count | None = described("Seed of the resamples.")


Conventions = Mapping[str, Any]
"""Explanations by key: a sentence for a metric; texts by score or row for e.g. ``ood_scores`` or ``max_length``."""


@dataclass(frozen=True, kw_only=True)
class EvalAnswer(Record, form="Eval"):
    """What `hydractl eval` measured."""

    schema: Literal["hydractl.eval/2"] = needed(SCHEMA_TEXT, EVAL_SCHEMA)
    models: Annotated[Sequence[EvalRow], Sized(1)] = needed("A row for each model; names differ.")
    test: Mapping[str, DataSetRecord] = described(
        "The data sets that were tested on, by name: `id` and the OOD sets.", empty=dict
    )
    val: DataSetRecord | None = described("The validation data that something was chosen on.")
    ood_val: Mapping[str, DataSetRecord] | None = described("By name the OOD validation sets that it was chosen on.")
    train: DataSetRecord | None = described("The training data that OOD scores were fitted to.")
    conventions: Conventions = described("A sentence on each metric that is in the rows.", empty=dict)
    note: str | None = described("How the model was chosen, as the command said it.")
    suite: OodSuite | None = described("The OOD suite that was asked for.")
    warnings: Sequence[str] | None = described("What makes the result less than it seems.")
    bootstrap: BootstrapOptions | None = described("How intervals were drawn.")
    over: Literal["seed", "data"] | None = described("What the runs of a row differ in.")

    @classmethod
    def problem(cls, values: Mapping[str, Any]) -> str | None:
        """Return the problem if several rows have the same name; None if all names differ."""
        counts = Counter(row.name for row in values["models"])
        twice = []
        for name, count in counts.items():
            if count > 1:
                twice.append(shown(name))
        if not twice:
            return None
        return f"two rows have the name {', '.join(twice)}"

    def said_of(self, convention: str, row: EvalRow) -> Any:
        """Return the text of a convention for one row; None if the convention has no texts by row, or none for this."""
        by_row = self.conventions.get(convention)
        if not isinstance(by_row, Mapping):
            return None
        return by_row.get(row.name)


# --- places -----------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A part of a row that holds metrics.

    Attributes:
        key: the dotted key of the part, e.g. ``ood.svhn``; intervals, differences and deviations are listed by it.
        metrics: returns the metrics from a row; empty if the row has none there.
    """

    key: str
    metrics: Callable[[EvalRow], Metrics]


OodAverage = Literal["near_avg", "far_avg", "ood_avg"]
IN_DISTRIBUTION = Place("id", lambda row: row.id.metrics)


def ood_set_place(name: str) -> Place:
    """Return the place of the metrics of an OOD set."""

    def metrics(row: EvalRow) -> Metrics:
        measured = row.detection.ood.get(name)
        if measured is None:
            return {}
        return measured.metrics

    return Place(f"ood.{name}", metrics)


def average_place(average: OodAverage) -> Place:
    """Return the place of means over OOD sets."""

    def average_in(row: EvalRow) -> Metrics:
        return average_of(row.detection, average)

    return Place(average, average_in)


def score_average_place(score: str) -> Place:
    """Return the place of means over all OOD sets by one OOD score."""

    def metrics(row: EvalRow) -> Metrics:
        detection = row.scores.get(score)
        if detection is None:
            return {}
        return average_of(detection, "ood_avg")

    return Place(f"scores.{score}.ood_avg", metrics)


def score_errors_place(score: str) -> Place:
    """Return the place of the metrics of wrong answers by one OOD score."""

    def metrics(row: EvalRow) -> Metrics:
        detection = row.scores.get(score)
        if detection is None:
            return {}
        return errors_of(detection)

    return Place(f"scores.{score}.errors", metrics)


def errors_of(detection: OodDetection) -> Metrics:
    """Return the metrics of wrong answers; empty if they were not measured."""
    if detection.errors is None:
        return {}
    return detection.errors.metrics


def average_of(detection: OodDetection, average: OodAverage) -> Metrics:
    """Return the means over some OOD sets; empty if there are none."""
    means: DetectionMetrics | None = getattr(detection, average)
    if means is None:
        return {}
    return means.metrics


def diversity_place(name: str) -> Place:
    """Return the place of the metrics of how members differ on a data set."""

    def metrics(row: EvalRow) -> Metrics:
        measured = row.diversity.get(name)
        if measured is None:
            return {}
        return measured.metrics

    return Place(f"diversity.{name}", metrics)


def parts_place(key: str) -> Place:
    """Return the place of an ID metric that consists of several numbers, e.g. ``accuracy_at``."""

    def metrics(row: EvalRow) -> Metrics:
        parts = row.id.metrics.get(key)
        if not isinstance(parts, Mapping):
            return {}
        return parts

    return Place(f"id.{key}", metrics)


def corruption_place(kind: str, severity: str) -> Place:
    """Return the place of the metrics of one corruption at one severity."""

    def metrics(row: EvalRow) -> Metrics:
        measured = row.corruptions.get(kind, {}).get(severity)
        if measured is None:
            return {}
        return measured.metrics

    return Place(f"corruptions.{kind}.{severity}", metrics)


def severity_place(severity: str) -> Place:
    """Return the place of the means over corruptions at one severity."""

    def metrics(row: EvalRow) -> Metrics:
        means = row.corruption_avg.get(severity)
        if means is None:
            return {}
        return means.metrics

    return Place(f"corruption_avg.{severity}", metrics)
