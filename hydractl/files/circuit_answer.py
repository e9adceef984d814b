"""The answers of the verbs that choose heads: masks, scores of heads and circuits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hydractl.files.model_records import ProvenanceRecord
from hydractl.files.records import SCHEMA_TEXT, Count, Number, Record, described, needed


@dataclass(frozen=True, kw_only=True)
class SeenRecord(Record, form="Seen"):
    """One use of a data set by what is behind a file."""

    by: str = needed("The verb that used it.")
    as_: str = needed("What it was used as: `id`, `ood`, `train`, `val`, `ood_val` or `calibration`.", key="as")
    data: str = needed("Fingerprint of the data set.")
    n: Count = needed("Number of its samples that were used.")
    hashes: str = needed("Base64 of the first six bytes of each sample's SHA-256, ascending, each once.")


@dataclass(frozen=True, kw_only=True)
class MaskSiteRecord(Record, form="MaskSite"):
    """The heads that a mask keeps at one site."""

    heads: Count | None = described("Number of heads before any pruning.")
    kept: Sequence[Count] = needed("The kept heads, in the original numbering.")


@dataclass(frozen=True, kw_only=True)
class MaskRecord(Record, form="Mask"):
    """A head mask: which heads are kept at each site."""

    schema: Literal["hydractl.mask/1"] = needed(SCHEMA_TEXT, "hydractl.mask/1")
    arch: str | None = described("Architecture of the model.")
    sites: Mapping[str, MaskSiteRecord] = needed("Every site of the model, by path.")
    source: ProvenanceRecord | None = described("Verb, inputs, settings, versions and seed it was made by.")
    seen: Sequence[SeenRecord] | None = described("The samples that were seen in making it.")


@dataclass(frozen=True, kw_only=True)
class ScoresAnswer(Record, form="Scores"):
    """Importance of heads: higher means keep."""

    schema: Literal["hydractl.scores/1"] = needed(SCHEMA_TEXT, "hydractl.scores/1")
    arch: str | None = described("Architecture of the model.")
    method: str | None = described("The criterion.")
    sites: Mapping[str, Sequence[Number]] = needed("By site one number a head; null for one that is gone.")
    cahp: Mapping[str, object] | None = described("Of this method how many heads to keep, and which.")
    source: ProvenanceRecord | None = described("Verb, inputs, settings, versions and seed they were made by.")
    seen: Sequence[SeenRecord] | None = described("The samples that were seen in making them.")


@dataclass(frozen=True, kw_only=True)
class SearchCounts(Record, form="Measured"):
    """The counts of one evaluation in a search."""

    correct: Count = needed("How many ID samples are classified right.")
    n_id: Count = needed("Number of ID samples.")
    two_u: Count | None = described("Twice the Mann-Whitney U; null without OOD data.")
    n_ood: Count | None = described("Number of OOD samples; null without OOD data.")
    nll: Count | None = described("Summed NLL in units of `loss_unit`; of that objective or constraint.")
    brier: Count | None = described("Summed Brier score, likewise.")
    score: float = needed("The objective as a number.")


@dataclass(frozen=True, kw_only=True)
class RemovalRecord(SearchCounts, form="Removal"):
    """One step of a search: the head removed, and the counts right after it."""

    step: Count = needed("Number of the step, from 1.")
    site: str = needed("Site of the removed head.")
    head: Count = needed("The removed head, in the original numbering.")


@dataclass(frozen=True, kw_only=True)
class RivalRecord(Record, form="Rival"):
    """A head that could be removed instead on another machine."""

    site: str = needed("Its site.")
    head: Count = needed("The head, in the original numbering.")
    score: float = needed("Its score.")
    most: float = needed("The most that its score may be on another machine.")


@dataclass(frozen=True, kw_only=True)
class UndecidedStep(Record, form="Undecided"):
    """A step whose winner led by less than rounding."""

    step: Count = needed("Number of the step.")
    lead: float = needed("The score of the step minus that of the best rival.")
    least: float = needed("The least that the score may be on another machine.")
    rivals: Sequence[RivalRecord] = needed("The heads that could go there instead, the best first.")


@dataclass(frozen=True, kw_only=True)
class SearchedGain(Record, form="Gain"):
    """How the AUROC on the validation samples rose from the whole model to the last step."""

    before: float = needed("Of the model that the search began with.")
    after: float = needed("After the last step.")
    corrected: float = needed("The share of wrongly ordered pairs of an ID and an OOD sample put right.")
    low: bool = needed("Whether that is below what was seen to help.")


@dataclass(frozen=True, kw_only=True)
class CircuitAnswer(Record, form="Circuit"):
    """An order in which heads are removed: nested masks for every budget up to its length, but for `headmap`."""

    schema: Literal["hydractl.circuit/2"] = needed(SCHEMA_TEXT, "hydractl.circuit/2")
    arch: str | None = described("Architecture of the model.")
    objective: str | None = described("What each step maximises.")
    algorithm: str | None = described("`greedy` or `headmap`.")
    approx: str | None = described("The approximation; null of an exact search.")
    ood_score: str | None = described("The OOD score whose AUROC counts.")
    budget: Count | None = described("How many heads were to be removed in all, or were, if it ended.")
    max_drop: float | None = described("The value of `--max-drop`.")
    ended: Literal["max_drop"] | None = described("What ended it before the budget.")
    loss_unit: float | None = described("The unit of `nll` and `brier`.")
    sites: Mapping[str, Count] | None = described("By site its number of heads.")
    base: SearchCounts | None = described("The counts before the first removal.")
    removed: Sequence[RemovalRecord] = needed("The removals in order.")
    gain: SearchedGain | None = described("What the OOD validation samples gained; with OOD data, but not headmap.")
    rounding: Sequence[UndecidedStep] | None = described("The steps whose winner led by less than rounding.")
    source: ProvenanceRecord | None = described("Verb, inputs, settings, versions and seed it was made by.")
    tower: str | None = described("The tower that the search was kept to, of a model with two.")
    start_mask: MaskRecord | None = described("The heads that the search began with, where some were gone.")
    seen: Sequence[SeenRecord] | None = described("The samples that were seen in making it.")
    warnings: Sequence[str] | None = described("What is odd about the data.")
