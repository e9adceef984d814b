"""The summary of predictions (``hydractl.predict/1``): how many inputs there were, and how many were flagged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from hydractl.files.results import Count, KnownInterval, Record, Result, optional


class PredictingModelRecord(Record):
    """The model that predicted, and what its checkpoint holds for it."""

    name: str
    """Its name."""
    sha256: str
    """SHA-256 of its file."""
    members: Count
    """Number of its members."""
    ood_score: str
    """Its OOD score."""
    threshold: float | None
    """The score from which on a sample is flagged; null where the file holds none."""
    temperature: float | None = optional("The temperature of its averaged prediction; null for none, or one a class.")
    conformal: float | None = optional("The error rate that its prediction sets were made for.")


class FlaggedRecord(Record):
    """The samples that are flagged as OOD."""

    n: Count
    """How many."""
    share: float
    """Their share of all samples."""
    ci: KnownInterval
    """The 95 % interval of that share, by Wilson."""

    def in_percent(self) -> str:
        """Return the share and its interval, such as ``4.50% (95 % interval 2.39% to 8.33%)``."""
        low, high = self.ci
        return f"{self.share:.2%} (95 % interval {low:.2%} to {high:.2%})"


class PredictedClassRecord(Record):
    """A class, and how often it was predicted."""

    label: str | int
    """Its name, or its number where it has none."""
    n: Count
    """Number of samples."""


class SkippedRecord(Record):
    """The samples that could not be read."""

    n: Count
    """How many."""
    ids: Sequence[str]
    """The first 1,000 of them."""


class PredictAnswer(Result):
    """What `hydractl predict` found, over all samples."""

    schema_: Literal["hydractl.predict/1"] = "hydractl.predict/1"
    model: PredictingModelRecord
    """The model."""
    n: Count
    """Number of samples that were predicted."""
    confidence: float
    """Their mean confidence."""
    ood: FlaggedRecord | None = optional("The samples that are flagged, where there is a threshold.")
    classes: Sequence[PredictedClassRecord]
    """The predicted classes, the most frequent first."""
    skipped: SkippedRecord | None = optional("The samples that could not be read, where there are some.")
    cut: Count | None = optional("Number of texts that were longer than the model reads, where there are some.")
    output: str | None = optional("The file that has a line for each sample; null where they were printed.")
    first: Sequence[Mapping[str, Any]] | None = optional("The first samples; only a printed table has them.")
    files_: Sequence[str] | None = optional("What a dry run would write.")

    @property
    def ood_share(self) -> float | None:
        """The share of samples that are flagged; None without a threshold."""
        return None if self.ood is None else self.ood.share

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The samples: ``id``, ``predicted``, ``confidence``, ``ood_score`` ...; empty if a file has them."""
        return self.__dict__.get("_rows", ())

    def with_rows(self, rows: Sequence[Mapping[str, Any]]) -> Self:
        """Return this summary, which from now on knows the samples."""
        self.__dict__["_rows"] = rows
        return self

    def _rows_of_table(self) -> Sequence[Mapping[str, Any]]:
        return self.rows

    def requirable(self) -> dict[str, float | None]:
        """Return the figures that ``--require`` may name."""
        return {
            "n": self.n,
            "skipped": 0 if self.skipped is None else self.skipped.n,
            "confidence": self.confidence,
            "ood_share": self.ood_share,
        }


REQUIRABLE = ("n", "skipped", "confidence", "ood_share")
"""The keys of :meth:`PredictAnswer.requirable`."""
