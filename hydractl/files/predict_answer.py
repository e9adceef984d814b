"""The summary of predictions (``hydractl.predict/1``): how many inputs there were, and how many were flagged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hydractl.files.records import SCHEMA_TEXT, Count, Interval, Number, Record, described, needed

PREDICT_SCHEMA: Literal["hydractl.predict/1"] = "hydractl.predict/1"


@dataclass(frozen=True, kw_only=True)
class PredictingModelRecord(Record, form="PredictingModel"):
    """The model that predicted, and what its checkpoint holds for it."""

    name: str = needed("Its name.")
    sha256: str = needed("SHA-256 of its file.")
    members: Count = needed("Number of its members.")
    ood_score: str = needed("Its OOD score.")
    threshold: float | None = needed("The score from which on a sample is flagged; null where the file holds none.")
    temperature: float | None = described("The temperature of its averaged prediction; null for none, or one a class.")
    conformal: float | None = described("The error rate that its prediction sets were made for.")


@dataclass(frozen=True, kw_only=True)
class FlaggedRecord(Record, form="Flagged"):
    """The samples that are flagged as OOD."""

    n: Count = needed("How many.")
    share: Number = needed("Their share of all samples; null without samples.")
    ci: Interval | None = needed("The 95 % interval of that share, by Wilson; null without samples.")


@dataclass(frozen=True, kw_only=True)
class PredictedClassRecord(Record, form="PredictedClass"):
    """A class, and how often it was predicted."""

    label: str | int = needed("Its name, or its number where it has none.")
    n: Count = needed("Number of samples.")


@dataclass(frozen=True, kw_only=True)
class SkippedRecord(Record, form="Skipped"):
    """The samples that could not be read."""

    n: Count = needed("How many.")
    ids: Sequence[str] = needed("The first 1,000 of them.")


@dataclass(frozen=True, kw_only=True)
class PredictAnswer(Record):
    """What `hydractl predict` found, over all samples."""

    schema: Literal["hydractl.predict/1"] = needed(SCHEMA_TEXT, PREDICT_SCHEMA)
    model: PredictingModelRecord = needed("The model.")
    n: Count = needed("Number of samples that were predicted.")
    confidence: Number = needed("Their mean confidence; null without samples.")
    ood: FlaggedRecord | None = described("The samples that are flagged, where there is a threshold.")
    classes: Sequence[PredictedClassRecord] = needed("The predicted classes, the most frequent first.")
    skipped: SkippedRecord | None = described("The samples that could not be read, where there are some.")
    output: str | None = described("The file that has a line for each sample; null where they were printed.")
    first: Sequence[Mapping[str, Any]] | None = described("The first samples; only a printed table has them.")

    def requirable(self) -> dict[str, float | None]:
        """Return the figures that ``--require`` may name."""
        return {
            "n": self.n,
            "skipped": 0 if self.skipped is None else self.skipped.n,
            "confidence": self.confidence,
            "ood_share": None if self.ood is None else self.ood.share,
        }


REQUIRABLE = ("n", "skipped", "confidence", "ood_share")
"""The keys of :meth:`PredictAnswer.requirable`."""


@dataclass(frozen=True, kw_only=True)
class PlannedPredictions(Record):
    """The plan of predictions."""

    model: str = needed("Name of the model.")
    samples: Count = needed("Number of samples that would be predicted.")
    files: Sequence[str] = needed("What it would write.")
