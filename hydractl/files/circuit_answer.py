"""The answers of the verbs that choose heads: masks, scores of heads and circuits."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from hydractl.files.model_records import ProvenanceRecord
from hydractl.files.results import Count, Number, Record, Result, optional, sparse
from hydractl.heads.mask import MOST_HEADS


def _whole_digests(hashes: str) -> str:
    """Return base64 of fingerprints, which must hold whole ones of six bytes."""
    if len(base64.b64decode(hashes, validate=True)) % 6:  # what is no base64 is a ValueError, too
        raise ValueError("cuts a fingerprint")
    return hashes


class SeenRecord(Record):
    """One use of a data set by what is behind a file."""

    by: str
    """The verb that used it."""
    as_: str
    """What it was used as: `id`, `ood`, `train`, `val`, `ood_val` or `calibration`."""
    data: str
    """Fingerprint of the data set."""
    n: Count
    """Number of its samples that were used."""
    hashes: Annotated[str, AfterValidator(_whole_digests)]
    """Base64 of the first six bytes of each sample's SHA-256, ascending, each once."""
    decoder: str | None = optional(
        "Versions of what decoded its images; empty for texts and arrays. Older files, whose fingerprints are of bytes "
        "as they were stored, lack it."
    )


HeadCount = Annotated[Count, Field(le=MOST_HEADS)]
"""The number of heads of a site; a limit keeps an untrusted file from filling the memory."""


def _each_once(kept: Sequence[int], info: ValidationInfo) -> Sequence[int]:
    """Return the heads that a site keeps, each of which it has, and none of which may be listed twice."""
    heads = info.data.get("heads")
    if heads is not None and any(head >= heads for head in kept):
        raise ValueError(f"names a head that is not there: the site has {heads}")
    if len(set(kept)) < len(kept):
        raise ValueError("names a head twice")
    return kept


class MaskSiteRecord(Record):
    """The heads that a mask keeps at one site."""

    heads: HeadCount | None = optional("Number of heads before any pruning.")
    kept: Annotated[Sequence[Count], AfterValidator(_each_once)]
    """The kept heads, in the original numbering."""


class KeptSite(MaskSiteRecord):
    """A site of a head map."""

    site: str
    """Path of the attention block."""


class MaskHeads(Record):
    """What of a mask tells which heads it keeps."""

    arch: str | None = optional("Architecture of the model.")
    sites: Mapping[str, MaskSiteRecord]
    """Every site of the model, by path."""

    @property
    def head_map(self) -> list[KeptSite]:
        """The heads of every site, in order."""
        return [KeptSite(site=path, heads=site.heads, kept=site.kept) for path, site in self.sites.items()]


class MaskRecord(MaskHeads, Result):
    """A head mask: which heads are kept at each site."""

    schema_: Literal["hydractl.mask/1"] = "hydractl.mask/1"
    source: ProvenanceRecord | None = optional("Verb, inputs, settings, versions and seed it was made by.")
    seen: Sequence[SeenRecord] | None = optional("The samples that were seen in making it.")


class ScoredHeads(Record):
    """What of a scores file tells the score of each head."""

    sites: Mapping[str, Sequence[Number]]
    """By site one number a head; null for one that is gone."""


class ScoresAnswer(Result, extra="allow"):
    """Importance of heads: higher means keep. A dry run tells the model, the output and the heads by site."""

    schema_: Literal["hydractl.scores/1"] = "hydractl.scores/1"
    arch: str | None = optional("Architecture of the model.")
    method: str | None = optional("The criterion.")
    sites: Mapping[str, Sequence[Number]]
    """By site one number a head; null for one that is gone."""
    cahp: Mapping[str, object] | None = optional("Of this method how many heads to keep, and which.")
    source: ProvenanceRecord | None = optional("Verb, inputs, settings, versions and seed they were made by.")
    seen: Sequence[SeenRecord] | None = optional("The samples that were seen in making them.")

    def _rows_of_table(self) -> Sequence[Mapping[str, Any]]:
        """Return a row for each head, with its ``site``, ``head`` and ``score``."""
        rows = []
        for site, scores in self.sites.items():
            for head, score in enumerate(scores):
                rows.append({"site": site, "head": head, "score": score})
        return rows


class SearchCounts(Record):
    """The counts of one evaluation in a search."""

    correct: Count
    """How many ID samples are classified right."""
    n_id: Count
    """Number of ID samples."""
    two_u: Count | None = None
    """Twice the Mann-Whitney U; null without OOD data."""
    n_ood: Count | None = None
    """Number of OOD samples; null without OOD data."""
    nll: Count | None = optional("Summed NLL in units of `loss_unit`; of that objective.")
    score: float
    """The objective as a number."""


class RemovedHead(Record):
    """A head that a search removed."""

    site: str
    """Site of the removed head."""
    head: Count
    """The removed head, in the original numbering."""


class RemovalRecord(SearchCounts):
    """One step of a search: the head removed, and the counts right after it."""

    step: Count
    """Number of the step, from 1."""
    site: str
    """Site of the removed head."""
    head: Count
    """The removed head, in the original numbering."""


class SearchedGain(Record):
    """How the AUROC on the validation samples rose from the whole model to the last step."""

    before: float
    """Of the model that the search began with."""
    after: float
    """After the last step."""
    corrected: float
    """The share of wrongly ordered pairs of an ID and an OOD sample put right."""
    low: bool
    """Whether that is below what was seen to help."""


class SearchEstimate(Result):
    """What a dry run tells of a search for circuits."""

    schema_: Literal["hydractl.circuit/2"] = "hydractl.circuit/2"
    model: str
    """Name of the model."""
    budget: Count
    """How many heads it would remove."""
    heads: Count
    """How many there are."""
    objectives: Sequence[str]
    """What each circuit maximises."""
    evaluations_per_objective: Count
    """Evaluations of the whole data for each objective."""
    seconds: float
    """About how long that takes."""
    memory_bytes: Count
    """Size of what is kept between evaluations."""
    chunks: Count
    """Into how many parts the data are cut."""
    files_: Sequence[str]
    """What it would write."""


class CircuitAnswer(Result):
    """An order in which heads are removed: nested masks for every budget up to its length, but for `headmap`."""

    schema_: Literal["hydractl.circuit/2"] = "hydractl.circuit/2"
    rows_in = "removed"
    arch: str | None = optional("Architecture of the model.")
    objective: str | None = optional("What each step maximises.")
    algorithm: str | None = optional("`greedy` or `headmap`.")
    approx: str | None = None
    """The approximation; null of an exact search."""
    ood_score: str | None = optional("The OOD score whose AUROC counts.")
    budget: Count | None = optional("How many heads were to be removed in all, or were, if it ended.")
    max_drop: float | None = optional("The value of `--max-drop`.")
    ended: Literal["max_drop"] | None = optional("What ended it before the budget.")
    loss_unit: float | None = optional("The unit of `nll`.")
    sites: Mapping[str, Count] | None = optional("By site its number of heads.")
    base: SearchCounts | None = optional("The counts before the first removal.")
    removed: Sequence[RemovalRecord]
    """The removals in order."""
    gain: SearchedGain | None = optional("What the OOD validation samples gained; with OOD data, but not headmap.")
    source: ProvenanceRecord | None = optional("Verb, inputs, settings, versions and seed it was made by.")
    tower: str | None = optional("The tower that the search was kept to, of a model with two.")
    start_mask: MaskRecord | None = optional("The heads that the search began with, where some were gone.")
    seen: Sequence[SeenRecord] | None = optional("The samples that were seen in making it.")


class CircuitHeads(Record):
    """What of a circuit tells which heads it keeps; one that was made by hand has no counts."""

    sites: Mapping[str, HeadCount] = sparse("By site its number of heads.", {})
    removed: Sequence[RemovedHead]
    """The removals in order."""
    start_mask: MaskHeads | None = optional("The heads that the search began with, where some were gone.")

    @property
    def head_map(self) -> list[KeptSite]:
        """The heads that are left after all removals, for each attention layer ("site"), in the order of the model."""
        removed = {(step.site, step.head) for step in self.removed}
        sites = []
        for path, heads in self.sites.items():
            # The search began with all heads, or with those of a mask.
            at_start: Sequence[int] = range(heads)
            if self.start_mask is not None and path in self.start_mask.sites:
                at_start = self.start_mask.sites[path].kept
            kept = [head for head in at_start if (path, head) not in removed]
            sites.append(KeptSite(site=path, heads=heads, kept=kept))
        return sites


class CircuitsAnswer(Result):
    """Circuits of several objectives."""

    schema_: Literal["hydractl.circuits/1"] = "hydractl.circuits/1"
    rows_in = "circuits"
    circuits: Sequence[CircuitAnswer]
    """One for each objective."""
