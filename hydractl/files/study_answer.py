"""The answer of a study (``hydractl.study/2``): the verdict, the choice, and every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from hydractl.files.eval_answer import MemberDiversity, OodDetection, SampleMetrics
from hydractl.files.model_records import ThresholdRecord
from hydractl.files.records import SCHEMA_TEXT, Count, Number, Record, Sized, described, inline, needed

Purpose = Literal["predict", "export", "recalibrate", "free score"]
Word = Literal["better", "slightly better", "worse", "slightly worse", "no difference", "cannot tell"]

STUDY_SCHEMA: Literal["hydractl.study/2"] = "hydractl.study/2"


@dataclass(frozen=True, kw_only=True)
class FindingRecord(Record, form="Finding"):
    """A paired difference on the test data: one row minus another."""

    metric: str = needed("Dotted key of the metric, as in an eval.")
    value: float = needed("The difference.")
    ci: Annotated[Sequence[float], Sized(2, 2)] = needed("Its 95 % bootstrap interval.")
    kind: Word = needed("What it says.")
    needed: Count | None = described(
        "About how many samples of the smallest set would tell, if every set grows alike; null where these do.",
        null=True,
    )


@dataclass(frozen=True, kw_only=True)
class MistakesRecord(Record, form="Mistakes"):
    """Which score finds the wrong answers of the model to use."""

    row: str = needed("The row.")
    score: str = needed("The score to trust: `best` if it is significantly better than MSP on the test data, else MSP.")
    best: str | None = described("The best score on validation data; null where these cannot tell.", null=True)
    auroc: Number = described("The AUROC of wrong answers of `best` on the test data.", null=True)
    auroc_msp: Number = described("That of MSP.", null=True)
    ci: Annotated[Sequence[float], Sized(2, 2)] | None = described(
        "The 95 % bootstrap interval of their paired difference.", null=True
    )


@dataclass(frozen=True, kw_only=True)
class VerdictRecord(Record, form="Verdict"):
    """What the test data say of the model to use."""

    answer: str = needed("The answer in a word or two.")
    lines: Annotated[Sequence[str], Sized(1)] = needed("The same in sentences.")
    doubts: Sequence[str] = needed("Of these, those that make it less sure.")
    footnote: str = needed("What the intervals leave out.")
    hardest: str | None = described("The score of the single model that is the hardest rival.", null=True)
    rivals: Mapping[str, FindingRecord] = needed("The differences to the rivals fixed beforehand, by score.")
    afterwards: Mapping[str, FindingRecord] = needed("Other scores of the single model that did better.")
    sets: Mapping[str, FindingRecord] = needed("Against the hardest rival, by test set.")
    against_hardest: Sequence[FindingRecord] = needed("Against the hardest rival, by metric.")
    against_baseline: Sequence[FindingRecord] = needed("Against the single model as it is, with MSP.")
    mistakes: MistakesRecord | None = described("Which score to trust for mistakes, where test data have labels.")


@dataclass(frozen=True, kw_only=True)
class UseRecord(Record, form="Use"):
    """The model to use, which is `best.st`."""

    row: str = needed("The row.")
    score: str = needed("The OOD score.")
    temperature: float = needed("What the log of the averaged prediction is divided by.")
    threshold: ThresholdRecord | None = described("From which score on a sample counts as OOD.", null=True)
    mac_ratio: Number = described("Its mult-adds over those of the single model.", null=True)
    param_ratio: Number = described("Its stored parameters over those of the single model.", null=True)
    stepped_down: bool = needed("Whether the test data led from the choice to it.")


@dataclass(frozen=True, kw_only=True)
class StabilityRecord(Record, form="Stability"):
    """How often resampled validation data lead to the same choice."""

    row: float = needed("Share of resamples with the same row.")
    score: float = needed("Share of resamples with the same score.")


@dataclass(frozen=True, kw_only=True)
class ChoiceRecord(Record, form="Choice"):
    """What was chosen on validation data."""

    row: str = needed("The row.")
    score: str = needed("The OOD score.")
    rule: str = needed("The rule in words.")
    telling: Sequence[str] = needed("The OOD validation sets that had a vote.")
    blind: Sequence[str] = needed("Those that had none.")
    stability: StabilityRecord = needed("How sure the choice is.")


@dataclass(frozen=True, kw_only=True)
class LadderRungRecord(Record, form="LadderRung"):
    """One step of what test data may lead down to."""

    row: str = needed("The row.")
    score: str = needed("The OOD score.")
    against_next: Sequence[FindingRecord] = needed("Its differences to the next one; empty for the last.")


@dataclass(frozen=True, kw_only=True)
class SearchStateRecord(Record, form="SearchState"):
    """What a search measured at one step, on its data."""

    score: float = needed("The objective.")
    accuracy: float = needed("Accuracy.")
    auroc: Number = described("AUROC; null without OOD data.", null=True)


@dataclass(frozen=True, kw_only=True)
class SearchGainRecord(Record, form="SearchGain"):
    """How far a search came."""

    removed: Count = needed("How many heads it removed for this row.")
    before: SearchStateRecord = needed("With all heads.")
    after: SearchStateRecord = needed("Without those.")


@dataclass(frozen=True, kw_only=True)
class ValidationRecord(Record, form="Validation"):
    """One row on validation data."""

    accuracy: float = needed("Accuracy.")
    nll: float = needed("NLL after temperature scaling.")
    mi: float = needed("Mutual information of the members, in nats.")
    auroc: Mapping[str, Mapping[str, Number]] = needed("By OOD score and OOD set the AUROC.")


@dataclass(frozen=True, kw_only=True)
class TestedRecord(Record, form="Tested"):
    """One row on the test data, with its score and temperature."""

    detection: OodDetection = inline(OodDetection)
    id: SampleMetrics = needed("Metrics of the ID data.")
    ood_score: str = needed("The OOD score.")
    diversity: Mapping[str, MemberDiversity] = needed("By data set how the members differ.")


@dataclass(frozen=True, kw_only=True)
class DetectedRecord(Record, form="Detected"):
    """The detection of OOD samples under one score."""

    detection: OodDetection = inline(OodDetection)
    ood_score: str = needed("The OOD score.")


@dataclass(frozen=True, kw_only=True)
class StudyRowRecord(Record, form="StudyRow"):
    """One row of a study."""

    name: str = needed("Its name.")
    chosen: bool = needed("Whether validation data chose it.")
    used: bool = needed("Whether it is `best.st`.")
    members: Count = needed("Number of members.")
    macs: Count | None = described("Multiply-adds of one sample.", null=True)
    params: Count | None = described("Number of stored parameters.", null=True)
    mac_ratio: Number = described("`macs` over those of the single model.", null=True)
    temperature: float = needed("The temperature that validation data gave it.")
    score: str = needed("The OOD score that validation data gave it.")
    search: SearchGainRecord | None = described("The search that it comes from, where there was one.", null=True)
    lr: Sequence[float] | None = described(
        "The learning rate that each of its trainings kept, in their order; where there was one."
    )
    validation: ValidationRecord = needed("On validation data.")
    test: TestedRecord = needed("On the test data, under its own score.")
    common: DetectedRecord | None = described("The same under the score of the single model, if it has it.", null=True)


@dataclass(frozen=True, kw_only=True)
class StudiedModelRecord(Record, form="StudiedModel"):
    """The model."""

    name: str = needed("Its name.")
    sha256: str = needed("SHA-256 of its file.")


@dataclass(frozen=True, kw_only=True)
class NextCommandRecord(Record, form="NextCommand"):
    """A command that goes on from `best.st`."""

    purpose: Purpose = needed("What it is for.")
    command: Sequence[str] = needed("Its words, without `hydractl`.")


@dataclass(frozen=True, kw_only=True)
class StudyAnswer(Record, form="Study"):
    """What `hydractl study` found."""

    schema: Literal["hydractl.study/2"] = needed(SCHEMA_TEXT, STUDY_SCHEMA)
    model: StudiedModelRecord = needed("The model that was studied.")
    verdict: VerdictRecord = needed("The answer.")
    use: UseRecord = needed("The model to use.")
    choice: ChoiceRecord = needed("What validation data chose.")
    ladder: Annotated[Sequence[LadderRungRecord], Sized(1)] = needed("The choice, and what test data may step down to.")
    common_score: str = needed("The OOD score under which all rows are compared.")
    baseline: TestedRecord = needed("The single model as it is on the test data, with MSP and no temperature.")
    rows: Annotated[Sequence[StudyRowRecord], Sized(1)] = needed("All rows, the single model first.")
    steps: Sequence[Sequence[str]] = needed("The commands in order, without `hydractl`.")
    next: Sequence[NextCommandRecord] | None = described("What to do with `best.st`, on the data of the study.")
    warnings: Sequence[str] | None = described("What makes the result less than it seems.")
