"""The answer of watching: inputs of a model, compared with the ID samples that its checkpoint keeps as a reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hydractl.files.model_records import DataSetRecord
from hydractl.files.records import SCHEMA_TEXT, Count, Interval, Number, Record, described, needed

Verdict = Literal["alarm", "no shift", "cannot tell", "too few to tell"]


@dataclass(frozen=True, kw_only=True)
class ReferenceRecord(Record, form="Reference"):
    """The ID samples that inputs are compared with."""

    n: Count = needed("Number of samples.")
    flagged: Count | None = described("How many of them are flagged; null where there is no threshold.", null=True)
    confidence: Number = needed("Their mean confidence.")
    data: DataSetRecord | None = described("The data set, as its SPEC was written.")


@dataclass(frozen=True, kw_only=True)
class ShareShiftRecord(Record, form="ShareShift"):
    """The share of flagged inputs beside that of the reference."""

    share: float = needed("Share of the inputs that is flagged.")
    reference: float = needed("Share of the reference that is flagged.")
    difference: float = needed("The first minus the second.")
    ci: Interval = needed("The 95 % interval of the difference, by Newcombe.")
    low: float = needed("Its lower end for alarms, one-sided at the level of an alarm.")


@dataclass(frozen=True, kw_only=True)
class ScoreShiftRecord(Record, form="ScoreShift"):
    """How well OOD scores tell the inputs from the reference: 0.5 where they do not."""

    auroc: float = needed("AUROC of the inputs against the reference; above 0.5 where scores are higher than there.")
    ci: Interval = needed("Its 95 % interval, by DeLong.")
    low: float = needed("Its lower end for alarms, one-sided at the level of an alarm.")


@dataclass(frozen=True, kw_only=True)
class ClassShiftRecord(Record, form="ClassShift"):
    """The predicted classes beside those of the reference."""

    total_variation: float = needed("Half the sum over cells of the differences of their shares, 0 to 1.")
    ci: Interval = needed(
        "Its 95 % interval, by Newcombe of the cells that became more frequent; from 0 where p is 0.05 or more."
    )
    chi_squared: float = needed("The statistic of homogeneity.")
    degrees: Count = needed("Its degrees of freedom: cells less one.")
    p: float = needed("Its probability if nothing has changed.")


@dataclass(frozen=True, kw_only=True)
class WatchedWindowRecord(Record, form="WatchedWindow"):
    """Some inputs, one after another, beside the reference."""

    first: Count = needed("Place of the first of them among all inputs, from 0.")
    n: Count = needed("Number of inputs.")
    verdict: Verdict = needed("What they are, all in all.")
    alarms: Sequence[str] = needed("The figures that raise the alarm: `share`, `auroc`, `classes`.")
    needed_inputs: Count | None = described("About how many inputs would tell, where these cannot.", key="needed")
    confidence: Number = described("Mean confidence of the inputs.")
    share: ShareShiftRecord | None = described("The flagged inputs, where there is a threshold and enough inputs.")
    auroc: ScoreShiftRecord | None = described("Their OOD scores, where there are enough inputs.")
    classes: ClassShiftRecord | None = described("The predicted classes, where there are two or more, often enough.")
    advice: str = needed("What it means, in a line.")


@dataclass(frozen=True, kw_only=True)
class WatchedRecord(Record, form="Watched"):
    """Inputs beside the reference, in windows and as a whole."""

    reference: ReferenceRecord = needed("The reference.")
    windows: Sequence[WatchedWindowRecord] = needed("Windows of 1,000 inputs in order; the last may be shorter.")
    whole: WatchedWindowRecord = needed("All inputs as one window.")

    @property
    def alarms(self) -> int:
        """How many windows raise an alarm; all inputs count as one more."""
        verdicts = [window.verdict for window in (*self.windows, self.whole)]
        return verdicts.count("alarm")


TRAFFIC_SCHEMA: Literal["hydractl.traffic/1"] = "hydractl.traffic/1"


@dataclass(frozen=True, kw_only=True)
class TrafficFileRecord(Record, form="TrafficFile"):
    """The inputs of one run of `hydractl predict`."""

    name: str = needed("Name of the file that says it, without its ending.")
    model: str = needed("SHA-256 of the model that predicted.")
    n: Count = needed("Number of inputs.")
    watched: WatchedRecord = needed("The inputs beside the reference of that model.")


@dataclass(frozen=True, kw_only=True)
class TrafficAnswer(Record):
    """The inputs of several runs of `hydractl predict`, one after another in the order that they were given in."""

    schema: Literal["hydractl.traffic/1"] = needed(SCHEMA_TEXT, TRAFFIC_SCHEMA)
    files: Sequence[TrafficFileRecord] = needed("The runs.")
    warnings: Sequence[str] | None = described("What makes them hard to compare.")

    def requirable(self) -> dict[str, float | None]:
        """Return the figures that ``--require`` may name."""
        alarms = sum(file.watched.alarms for file in self.files)
        return {"n": sum(file.n for file in self.files), "alarms": alarms}


TRAFFIC_KEYS = ("n", "alarms")
"""The keys of :meth:`TrafficAnswer.requirable`."""
