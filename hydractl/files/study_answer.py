"""The answer of a study (``hydractl.study/2``): the verdict, the choice, and every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from hydractl.files.eval_answer import MemberDiversity, OodDetection, SampleMetrics
from hydractl.files.model_records import ThresholdRecord
from hydractl.files.results import Count, Number, Record, Result, null, optional, schema, sparse, told

Purpose = Literal["predict", "export", "recalibrate", "free score"]
Word = Literal["better", "slightly better", "worse", "slightly worse", "no difference", "cannot tell"]


class FindingRecord(Record):
    """A paired difference on the test data: one row minus another."""

    metric: Annotated[str, told("Dotted key of the metric, as in an eval.")]
    value: Annotated[float, told("The difference.")]
    ci: Annotated[Sequence[float], Field(min_length=2, max_length=2), told("Its 95 % bootstrap interval.")]
    kind: Annotated[Word, told("What it says.")]
    needed: Count | None = null(
        "About how many samples of the smallest set would tell, if every set grows alike; null where these do."
    )


class MistakesRecord(Record):
    """Which score finds the wrong answers of the model to use."""

    row: Annotated[str, told("The row.")]
    score: Annotated[
        str, told("The score to trust: `best` if it is significantly better than MSP on the test data, else MSP.")
    ]
    best: str | None = null("The best score on validation data; null where these cannot tell.")
    auroc: Number = null("The AUROC of wrong answers of `best` on the test data.")
    auroc_msp: Number = null("That of MSP.")
    ci: Annotated[Sequence[float], Field(min_length=2, max_length=2)] | None = null(
        "The 95 % bootstrap interval of their paired difference."
    )


class RungRecord(Record):
    """A row with an OOD score."""

    row: Annotated[str, told("The row.")]
    score: Annotated[str, told("The OOD score.")]


class NextBestRecord(RungRecord):
    """What comes next to the choice on validation data, on the test data."""

    mac_ratio: Number = null("Its mult-adds over those of the single model.")
    line: Annotated[str, told("The same in a sentence.")]
    against_used: Annotated[Sequence[FindingRecord], told("Its differences to the model to use.")]


class VerdictRecord(Record):
    """What the test data say of the model to use."""

    answer: Annotated[str, told("The answer in a word or two.")]
    lines: Annotated[Sequence[str], Field(min_length=1), told("The same in sentences.")]
    next_best: NextBestRecord | None = null("What might have been chosen instead.")
    uncertain: str | None = null("What the first sentence ends with where resampled data often choose otherwise.")
    doubts: Annotated[Sequence[str], told("Of these, other ones that make it less sure.")]
    footnote: Annotated[str, told("What the intervals leave out.")]
    hardest: str | None = null("The score of the single model that is the hardest rival.")
    rivals: Annotated[Mapping[str, FindingRecord], told("The differences to the rivals fixed beforehand, by score.")]
    afterwards: Annotated[Mapping[str, FindingRecord], told("Other scores of the single model that did better.")]
    sets: Annotated[Mapping[str, FindingRecord], told("Against the hardest rival, by test set.")]
    against_hardest: Annotated[Sequence[FindingRecord], told("Against the hardest rival, by metric.")]
    against_baseline: Annotated[Sequence[FindingRecord], told("Against the single model as it is, with MSP.")]
    mistakes: MistakesRecord | None = optional("Which score to trust for mistakes, where test data have labels.")


class UseRecord(RungRecord):
    """The model to use, which is `best.st`."""

    temperature: Annotated[float, told("What the log of the averaged prediction is divided by.")]
    threshold: ThresholdRecord | None = null("From which score on a sample counts as OOD.")
    mac_ratio: Number = null("Its mult-adds over those of the single model.")
    param_ratio: Number = null("Its stored parameters over those of the single model.")
    stepped_down: Annotated[bool, told("Whether the test data led from the choice to it.")]


class StabilityRecord(Record):
    """How often resampled validation data lead to the same choice."""

    row: Annotated[float, told("Share of resamples with the same row.")]
    score: Annotated[float, told("Share of resamples with the same score.")]
    difference: Annotated[
        float | None,
        told(
            "Mean AUROC on the validation data of what the other resamples choose, minus that of the choice. Left out "
            "where all choose the same, or no set has a vote."
        ),
    ] = None


class ChoiceRecord(RungRecord):
    """What was chosen on validation data."""

    rule: Annotated[str, told("The rule in words.")]
    telling: Annotated[Sequence[str], told("The OOD validation sets that had a vote.")]
    blind: Annotated[Sequence[str], told("Those that had none.")]
    stability: Annotated[StabilityRecord, told("How sure the choice is.")]


class LadderRungRecord(RungRecord):
    """One step of what test data may lead down to."""

    against_next: Annotated[Sequence[FindingRecord], told("Its differences to the next one; empty for the last.")]


class SearchStateRecord(Record):
    """What a search measured at one step, on its data."""

    score: Annotated[float, told("The objective.")]
    accuracy: Annotated[float, told("Accuracy.")]
    auroc: Number = null("AUROC; null without OOD data.")


class SearchGainRecord(Record):
    """How far a search came."""

    removed: Annotated[Count, told("How many heads it removed for this row.")]
    before: Annotated[SearchStateRecord, told("With all heads.")]
    after: Annotated[SearchStateRecord, told("Without those.")]


class ValidationRecord(Record):
    """One row on validation data."""

    accuracy: Annotated[float, told("Accuracy.")]
    nll: Annotated[float, told("NLL after temperature scaling.")]
    mi: Annotated[float, told("Mutual information of the members, in nats.")]
    auroc: Annotated[Mapping[str, Mapping[str, Number]], told("By OOD score and OOD set the AUROC.")]


class TestedRecord(OodDetection):
    """One row on one data set, with its score and temperature."""

    id: Annotated[SampleMetrics, told("Metrics of the ID data.")]
    ood_score: Annotated[str, told("The OOD score.")]
    diversity: Annotated[Mapping[str, MemberDiversity], told("By data set how the members differ.")]


class DetectedRecord(OodDetection):
    """The detection of OOD samples under one score."""

    ood_score: Annotated[str, told("The OOD score.")]


class AnyRowRecord(Record):
    """What is known of a row, whether it ran on the test data or not."""

    name: Annotated[str, told("Its name.")]
    members: Annotated[Count, told("Number of members.")]
    macs: Count | None = null("Multiply-adds of one sample.")
    params: Count | None = null("Number of stored parameters.")
    mac_ratio: Number = null("`macs` over those of the single model.")
    temperature: Annotated[float, told("The temperature that validation data gave it.")]


class StudyRowRecord(AnyRowRecord):
    """One row of a study."""

    chosen: Annotated[bool, told("Whether validation data chose it.")]
    used: Annotated[bool, told("Whether it is `best.st`.")]
    score: Annotated[str, told("The OOD score that validation data gave it.")]
    search: SearchGainRecord | None = null("The search that it comes from, where there was one.")
    lr: Sequence[float] | None = optional(
        "The learning rate that each of its trainings kept, in their order; where there was one."
    )
    validation: Annotated[ValidationRecord, told("On validation data.")]
    test: Annotated[TestedRecord, told("On the test data, under its own score.")]
    common: DetectedRecord | None = null("The same under the score of the single model, if it has it.")


class RuledOutRecord(AnyRowRecord):
    """One row that validation data rule out, which did not run on the test data."""

    reason: Annotated[str, told("Why it cannot be chosen.")]
    validation: Annotated[TestedRecord, told("On the validation data, under one score.")]


class StudiedModelRecord(Record):
    """The model."""

    name: Annotated[str, told("Its name.")]
    sha256: Annotated[str, told("SHA-256 of its file.")]


class NextCommandRecord(Record):
    """A command that goes on from `best.st`."""

    purpose: Annotated[Purpose, told("What it is for.")]
    command: Annotated[Sequence[str], told("Its words, without `hydractl`.")]


class TimeRatio(Record):
    """The time of the model to use over that of the single model."""

    batch_size: Annotated[Count, told("Samples of a batch.")]
    ratio: Annotated[float, told("The ratio.")]
    ratio_ci: Annotated[Sequence[float], told("Its 95 % bootstrap interval.")]


class StudyAnswer(Result):
    """What `hydractl study` found."""

    schema_: Literal["hydractl.study/2"] = schema("hydractl.study/2")
    model: Annotated[StudiedModelRecord, told("The model that was studied.")]
    verdict: Annotated[VerdictRecord, told("The answer.")]
    use: Annotated[UseRecord, told("The model to use.")]
    choice: Annotated[ChoiceRecord, told("What validation data chose.")]
    ladder: Annotated[
        Sequence[LadderRungRecord], Field(min_length=1), told("The choice, and what test data may step down to.")
    ]
    common_score: Annotated[str, told("The OOD score under which all rows are compared.")]
    baseline: Annotated[TestedRecord, told("The single model as it is on the test data, with MSP and no temperature.")]
    rows: Annotated[
        Sequence[StudyRowRecord], Field(min_length=1), told("The rows on the test data, the single model first.")
    ]
    ruled_out: Sequence[RuledOutRecord] = sparse("The rows that validation data rule out, and that nobody named.", [])
    steps: Annotated[Sequence[Sequence[str]], told("The commands in order, without `hydractl`.")]
    next: Sequence[NextCommandRecord] | None = optional("What to do with `best.st`, on the data of the study.")
    latency: Sequence[TimeRatio] = sparse("By batch size the time of the model to use; what is printed has it.", [])
    cut: Sequence[str] | None = optional("What is left out to stay within the time; of a dry run.")
    seconds: float | None = optional("About how long it takes; of a dry run.")

    def _rows_of_table(self) -> Sequence[Mapping[str, Any]]:
        return [row.to_dict() for row in self.rows]
