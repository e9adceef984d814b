"""The form of an eval, made of the metrics there are: a document that has it can be reported on.

This imports pydantic: import it where an eval is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, create_model, model_validator

from hydractl.files.documents import (
    Calibration,
    Cascade,
    Cost,
    Count,
    DataSet,
    Edges,
    Form,
    McDropout,
    Number,
    Probe,
    Schema,
    ScoreData,
    Sha256,
    SiteHeads,
    Threshold,
    Training,
    equally_long,
    read_document,
)
from hydractl.jsonio import shown
from hydractl.metrics.declaration import Kind, metrics

F = TypeVar("F", bound=Form)


def measured(kind: Kind, *, by_severity: bool = False) -> Callable[[type[F]], type[F]]:
    """Add a field for each metric of a kind to the form below, those that other packages declare too.

    Args:
        by_severity: only those that are taken of each corruption and severity.
    """
    fields: dict[str, Any] = {}
    for place, metric in enumerate(metric for metric in metrics(kind) if metric.by_severity or not by_severity):
        number = dict[str, Number] if metric.parts else Number
        # By its alias a key may be anything, the names of pydantic's own methods too.
        fields[f"metric_{place}"] = (number | None, Field(None, alias=metric.key, description=metric.convention))

    def with_metrics(form: type[F]) -> type[F]:
        return create_model(form.__name__, __base__=form, __doc__=form.__doc__, **fields)

    return with_metrics


@measured("id")
class Labelled(Form):
    """Metrics of labelled samples; of unlabelled ones only how many they are."""

    n: Count | None = Field(None, description="Number of samples.")


@measured("id", by_severity=True)
class Severity(Form):
    """Metrics of one corruption at one severity, or their means over corruptions."""

    n: Count | None = Field(None, description="Number of samples.")


@measured("ood")
class Detection(Form):
    """Metrics of telling OOD samples from ID samples."""


class OodSet(Detection):
    """Metrics of telling the samples of one OOD set from ID samples."""

    n: Count | None = Field(None, description="Number of OOD samples.")
    group: str | None = Field(None, description="`near` or `far`, where that was said.")


@measured("diversity")
class Spread(Form):
    """Metrics of how members differ."""


class Pair(Spread):
    """Metrics of how two members differ."""

    a: Count = Field(description="Number of the first member, from 0.")
    b: Count = Field(description="Number of the second member.")


class Diversity(Spread):
    """Metrics of how the members differ on one data set."""

    pairs: list[Pair] | None = Field(None, description="The same for each pair of members.")


class Lists(Form):
    """Lists of one length; of `edges`, there is one more."""

    @model_validator(mode="after")
    def _fits(self) -> Lists:
        equally_long(*(values[1:] if name == "edges" else values for name, values in self))
        return self


class Reliability(Lists):
    """A reliability diagram: bins of equal width, and Wilson intervals of their accuracy."""

    edges: Edges = Field(description="Edges of the bins of confidence, one more than there are bins.")
    n: list[Count] = Field(description="Number of samples in each bin.")
    confidence: list[Number] = Field(description="Mean confidence in each bin; null of an empty one.")
    accuracy: list[Number] = Field(description="Accuracy in each bin; null of an empty one.")
    low: list[Number] = Field(description="Lower end of the interval of the accuracy; null of an empty bin.")
    high: list[Number] = Field(description="Upper end of the interval of the accuracy; null of an empty bin.")


class RiskCoverage(Lists):
    """Risk over coverage, by confidence."""

    coverage: list[float] = Field(description="Shares of samples that are answered, ascending.")
    risk: list[float] = Field(description="Share of wrong answers among them.")


class Roc(Lists):
    """The ROC curve of an OOD set."""

    fpr: list[float] = Field(min_length=1, description="Shares of ID samples that are flagged.")
    tpr: list[float] = Field(min_length=1, description="Shares of OOD samples that are flagged.")


class ScoreCounts(Lists):
    """Histograms of OOD scores: `edges`, and by data set the number of samples in each bin."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[Count]]

    edges: Edges = Field(description="Edges of the bins, one more than there are bins.")
    id: list[Count] = Field(description="Number of ID samples in each bin.")


class Curves(Form):
    """What the curves of a report are drawn from."""

    reliability: Reliability | None = Field(None, description="The reliability diagram of labelled ID samples.")
    risk_coverage: RiskCoverage | None = Field(None, description="Risk over coverage of labelled ID samples.")
    roc: dict[str, Roc] | None = Field(None, description="By OOD set its ROC curve.")
    scores: ScoreCounts | None = Field(None, description="Histograms of OOD scores.")


Interval = Annotated[list[Number], Field(min_length=2, max_length=2)]


class Difference(Form):
    """A paired difference of this row and the first."""

    value: Number = Field(None, description="This row minus the first.")
    ci: Interval | None = Field(None, description="Its bootstrap interval.")


class Conformal(Form):
    """Conformal prediction sets."""

    method: str | None = Field(None, description="The conformity score.")
    alpha: Number = Field(None, description="The error rate asked for.")
    qhat: Number = Field(None, description="The threshold from the validation data.")
    n_val: Count | None = Field(None, description="Number of validation samples.")
    coverage: Number = Field(None, description="Share of sets that hold the label.")
    mean_size: Number = Field(None, description="Mean number of classes in a set.")
    empty: Number = Field(None, description="Share of sets without a class.")


class MeasuredThreshold(Threshold):
    """A threshold and what it flags."""

    id_flagged: Number = Field(None, description="Share of ID samples at or above it.")
    ood_flagged: dict[str, Number] | None = Field(None, description="By OOD set the share at or above it.")


class MeasuredCascade(Cascade):
    """A cascade, and how many samples go on in it."""

    share: dict[str, Number] = Field(description="By data set the share of samples that run all members.")


class ByScore(Form):
    """OOD metrics by one OOD score."""

    ood: dict[str, OodSet] | None = Field(None, description="By OOD set its metrics.")
    near_avg: Detection | None = Field(None, description="Unweighted means over near OOD sets.")
    far_avg: Detection | None = Field(None, description="Unweighted means over far OOD sets.")
    ood_avg: Detection | None = Field(None, description="Unweighted means over all OOD sets.")


class Row(ByScore):
    """One model, with all that was measured of it."""

    name: str = Field(description="Name of the row.")
    sha256: Sha256 = None
    id: Labelled = Field(description="Metrics of the ID data.")
    ood_score: str | None = Field(None, description="The OOD score of the OOD metrics and curves.")
    scores: dict[str, ByScore] | None = Field(None, description="OOD metrics by each OOD score asked for.")
    diversity: dict[str, Diversity] | None = Field(None, description="By data set how the members differ.")
    members: list[Labelled] | None = Field(None, description="Metrics of the ID data for each member alone.")
    curves: Curves | None = Field(None, description="What the curves of a report are drawn from.")
    heads: list[SiteHeads] | None = Field(None, description="The heads at each site; empty where members differ.")
    cost: Cost | None = Field(None, description="The cost of one sample.")
    training: list[Training] | None = Field(None, description="The trainings that members came straight from.")
    ci: dict[str, Interval | None] | None = Field(None, description="By dotted key the bootstrap interval.")
    difference: dict[str, Difference | None] | None = Field(
        None, description="By dotted key the paired difference of this row and the first."
    )
    calibration: Calibration | None = Field(None, description="The calibration that was applied.")
    threshold: MeasuredThreshold | None = Field(None, description="The threshold and what it flags.")
    cascade: MeasuredCascade | None = Field(None, description="The cascade, and how many samples go on in it.")
    conformal: Conformal | None = Field(None, description="Conformal prediction sets.")
    corruptions: dict[str, dict[str, Severity]] | None = Field(None, description="By corruption and severity.")
    corruption_avg: dict[str, Severity] | None = Field(None, description="By severity the means over corruptions.")
    fitted_on: ScoreData | None = Field(None, description="The training data that OOD scores were fitted to.")
    seen: dict[str, Count | None] | None = Field(None, description="By data set how many samples had been seen.")
    mc_dropout: McDropout | None = Field(None, description="How the members were drawn by MC dropout.")
    probe: Probe | None = Field(None, description="The classifier of features that was measured.")
    runs: Count | None = Field(None, description="Number of runs that the figures are means of.")
    std: dict[str, Number] | None = Field(None, description="By dotted key the sample standard deviation over runs.")


class Suite(Form):
    """The OOD suite that was asked for."""

    name: str | None = Field(None, description="Its name.")
    left_out: list[str] | None = Field(None, description="Its sets that were not found.")
    notes: list[str] | None = Field(None, description="In what it differs from the published suite.")


class Bootstrap(Form):
    """How intervals were drawn."""

    rounds: Count | None = Field(None, description="Number of resamples.")
    level: Number = Field(None, description="Level of the intervals.")
    seed: Count | None = Field(None, description="Seed of the resamples.")


class Eval(Form):
    """What `hydractl eval` measured."""

    schema_: Literal["hydractl.eval/1"] = Schema
    models: list[Row] = Field(min_length=1, description="A row for each model; names differ.")
    data: dict[str, DataSet] | None = Field(None, description="The data sets by name.")
    conventions: dict[str, Any] | None = Field(None, description="A sentence on each metric that is in the rows.")
    note: str | None = Field(None, description="How the model was chosen, as the command said it.")
    suite: Suite | None = Field(None, description="The OOD suite that was asked for.")
    bootstrap: Bootstrap | None = Field(None, description="How intervals were drawn.")
    over: Literal["seed", "data"] | None = Field(None, description="What the runs of a row differ in.")
    warnings: list[str] | None = Field(None, description="What makes the result less than it seems.")

    @model_validator(mode="after")
    def _names_differ(self) -> Eval:
        names = [row.name for row in self.models]
        twice = [shown(name) for name, count in Counter(names).items() if count > 1]
        if twice:
            raise ValueError(f"two rows have the name {', '.join(twice)}")
        return self


def read_eval(path: str) -> dict[str, Any]:
    """The document of an eval; ``-`` is standard input.

    Raises:
        InputError: for anything else, listing what is wrong with it.
    """
    return read_document(path, Eval)
