"""The answer of a study (``hydractl.study/2``): the verdict, the choice, and every row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from hydractl.files.bench_answer import BenchRow
from hydractl.files.eval_answer import MemberDiversity, OodDetection, SampleMetrics
from hydractl.files.model_records import MeasuredThreshold
from hydractl.files.results import Count, Interval, KnownInterval, Number, Record, Result, optional, sparse

Purpose = Literal["predict", "export", "recalibrate", "free score"]
Word = Literal["better", "slightly better", "worse", "slightly worse", "no difference", "cannot tell"]


class FindingRecord(Record):
    """A paired difference on the test data: one row minus another."""

    metric: str
    """Dotted key of the metric, as in an eval."""
    value: float
    """The difference."""
    ci: KnownInterval
    """Its 95 % bootstrap interval."""
    kind: Word
    """What it says."""
    needed: Count | None = None
    """About how many samples of the smallest set would tell, if every set grows alike; null where these do."""


class MistakesRecord(Record):
    """Which score finds the wrong answers of the model to use."""

    row: str
    """The row."""
    score: str
    """The score to trust: `best` if it is significantly better than MSP on the test data, else MSP."""
    best: str | None = None
    """The best score on validation data; null where these cannot tell."""
    auroc: Number = None
    """The AUROC of wrong answers of `best` on the test data."""
    auroc_msp: Number = None
    """That of MSP."""
    ci: KnownInterval | None = None
    """The 95 % bootstrap interval of their paired difference."""


class RungRecord(Record):
    """A row with an OOD score."""

    row: str
    """The row."""
    score: str
    """The OOD score."""


class NextBestRecord(RungRecord):
    """A model that might have been chosen instead, on the test data."""

    mac_ratio: Number = None
    """Its mult-adds over those of the single model."""
    line: str
    """The same in a sentence."""
    against_used: Sequence[FindingRecord]
    """Its differences to the model to use."""


def lines_on_rows(records: Iterable[NextBestRecord | None]) -> list[str]:
    """Return the sentences of these records, the last one of each row."""
    lines = {record.row: record.line for record in records if record is not None}
    return list(lines.values())


class VerdictRecord(Record):
    """What the test data say of the model to use."""

    answer: str
    """The answer in a word or two."""
    lines: Annotated[Sequence[str], Field(min_length=1)]
    """The same in sentences."""
    next_best: NextBestRecord | None = None
    """What comes next to the choice on validation data."""
    highest: NextBestRecord | None = optional("What is highest on the test data, where that is another model.")
    uncertain: str | None = None
    """What the first sentence ends with where resampled data often choose otherwise."""
    doubts: Sequence[str]
    """Of these, other ones that make it less sure."""
    footnote: str
    """What the intervals leave out."""
    hardest: str | None = None
    """The score of the single model that is the hardest rival."""
    rivals: Mapping[str, FindingRecord]
    """The differences to the rivals fixed beforehand, by score."""
    afterwards: Mapping[str, FindingRecord]
    """Other scores of the single model that did better."""
    sets: Mapping[str, FindingRecord]
    """Against the hardest rival, by test set."""
    against_hardest: Sequence[FindingRecord]
    """Against the hardest rival, by metric."""
    against_baseline: Sequence[FindingRecord]
    """Against the single model as it is, with MSP."""
    mistakes: MistakesRecord | None = optional("Which score to trust for mistakes, where test data have labels.")

    @property
    def on_other_rows(self) -> list[str]:
        """The sentences on what might have been chosen instead."""
        return lines_on_rows([self.next_best, self.highest])


class UseRecord(RungRecord):
    """The model to use, which is `best.st`."""

    temperature: float
    """What the log of the averaged prediction is divided by."""
    threshold: MeasuredThreshold | None = None
    """From which score on a sample counts as OOD, and what it flags."""
    mac_ratio: Number = None
    """Its mult-adds over those of the single model."""
    param_ratio: Number = None
    """Its stored parameters over those of the single model."""
    bytes: Count | None = optional("Size of `best.st`.")
    stepped_down: bool
    """Whether the test data led from the choice to it."""


class StabilityRecord(Record):
    """How often resampled validation data lead to the same choice."""

    row: float
    """Share of resamples with the same row."""
    score: float
    """Share of resamples with the same score."""
    difference: float | None = None
    """Mean AUROC on the validation data of what the other resamples choose, minus that of the choice. Left out where
    all choose the same, or no set has a vote.
    """


class ChoiceRecord(RungRecord):
    """What was chosen on validation data."""

    rule: str
    """The rule in words."""
    telling: Sequence[str]
    """The OOD validation sets that had a vote."""
    blind: Sequence[str]
    """Those that had none."""
    n: Count | None = optional("Number of ID samples that it was chosen on, and the threshold.")
    stability: StabilityRecord
    """How sure the choice is."""


class LadderRungRecord(RungRecord):
    """One step of what test data may lead down to."""

    against_next: Sequence[FindingRecord]
    """Its differences to the next one; empty for the last."""


class ValidationRecord(Record):
    """One row on validation data."""

    accuracy: float
    """Accuracy."""
    nll: float
    """NLL after temperature scaling."""
    mi: float
    """Mutual information of the members, in nats."""
    auroc: Mapping[str, Mapping[str, Number]]
    """By OOD score and OOD set the AUROC."""


class TestedRecord(OodDetection):
    """One row on one data set, with its score and temperature."""

    id: SampleMetrics
    """Metrics of the ID data."""
    ood_score: str
    """The OOD score."""
    diversity: Mapping[str, MemberDiversity]
    """By data set how the members differ."""


class DetectedRecord(OodDetection):
    """The detection of OOD samples under one score."""

    ood_score: str
    """The OOD score."""


class AnyRowRecord(Record):
    """What is known of a row, whether it ran on the test data or not."""

    name: str
    """Its name."""
    members: Count
    """Number of members."""
    macs: Count | None = None
    """Mult-adds of one sample."""
    params: Count | None = None
    """Number of stored parameters."""
    mac_ratio: Number = None
    """`macs` over those of the single model."""
    temperature: float
    """The temperature that validation data gave it."""


class StudyRowRecord(AnyRowRecord):
    """One row of a study."""

    chosen: bool
    """Whether validation data chose it."""
    used: bool
    """Whether it is `best.st`."""
    score: str
    """The OOD score that validation data gave it."""
    lr: Sequence[float] | None = optional(
        "The learning rate that each of its trainings kept, in their order; where there was one."
    )
    validation: ValidationRecord
    """On validation data."""
    test: TestedRecord
    """On the test data, under its own score."""
    common: DetectedRecord | None = None
    """The same under the score of the single model, if it has it."""


class RuledOutRecord(AnyRowRecord):
    """One row that validation data rule out, which did not run on the test data."""

    reason: str
    """Why it cannot be chosen."""
    validation: TestedRecord
    """On the validation data, under one score."""


class StudiedModelRecord(Record):
    """The model."""

    name: str
    """Its name."""
    sha256: str
    """SHA-256 of its file."""
    bytes: Count | None = optional("Size of its file.")


class NextCommandRecord(Record):
    """A command that goes on from `best.st`."""

    purpose: Purpose
    """What it is for."""
    command: Sequence[str]
    """Its words, without `hydractl`."""


class StudyAnswer(Result):
    """What `hydractl study` found."""

    schema_: Literal["hydractl.study/2"] = "hydractl.study/2"
    rows_in = "rows"
    model: StudiedModelRecord
    """The model that was studied."""
    verdict: VerdictRecord
    """The answer."""
    use: UseRecord
    """The model to use."""
    choice: ChoiceRecord
    """What validation data chose."""
    ladder: Annotated[Sequence[LadderRungRecord], Field(min_length=1)]
    """The choice, and what test data may step down to."""
    common_score: str
    """The OOD score under which all rows are compared."""
    baseline: TestedRecord
    """The single model as it is on the test data, with MSP and no temperature."""
    baseline_ci: Mapping[str, Interval | None] = sparse("By dotted key the bootstrap interval of `baseline`.", {})
    baseline_threshold: MeasuredThreshold | None = optional(
        "What `baseline` flags with a threshold of its own, set like that of `use`."
    )
    rows: Annotated[Sequence[StudyRowRecord], Field(min_length=1)]
    """The rows on the test data, the single model first."""
    ruled_out: Sequence[RuledOutRecord] = sparse("The rows that validation data rule out, and that nobody named.", [])
    steps: Sequence[Sequence[str]]
    """The commands in order, without `hydractl`."""
    next: Sequence[NextCommandRecord] | None = optional("What to do with `best.st`, on the data of the study.")
    timed: Sequence[BenchRow] = sparse("The times of the single model and of the model to use; of what is shown.", [])
    cut: Sequence[str] | None = optional("What is left out to stay within the time; of a dry run.")
    seconds: float | None = optional("About how long it takes; of a dry run.")
