"""The fields of the circuit file ``hydractl.circuit/2``, and how a document is made from a ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, cast

from hydractl.circuit.objective import LOSS_OBJECTIVES, LOSS_UNIT, OBJECTIVE_BY_NAME, EvaluationCounts
from hydractl.circuit.scope import Scope, SearchOptions
from hydractl.circuit.search import ObjectiveRanking
from hydractl.circuit.tasks import Task, role_of
from hydractl.circuit.winners import CandidateHead, Trial
from hydractl.data.base import Dataset
from hydractl.files.description import provenance
from hydractl.files.fingerprints import Entry, entry, merged
from hydractl.heads.mask import Head, MaskDocument
from hydractl.model.matching import asked_classes

LOW_GAIN = 0.2
"""The share of wrongly ordered pairs of validation samples below which circuits were seen not to help.

On other OOD data of the same model, circuits that corrected 2 to 17 % of the pairs did not help, and circuits that
corrected 21 to 71 % did (docs/circuits.md).
"""


# --- the fields -------------------------------------------------------------------------------------------------------


class CountsDocument(TypedDict, total=False):
    """The counts of one evaluation; losses only where they matter."""

    correct: int
    n_id: int
    two_u: int | None
    n_ood: int | None
    nll: int
    brier: int
    score: float


class RemovalDocument(CountsDocument, total=False):
    """One step: the head that went, and the counts without it."""

    step: int
    site: str
    head: int


class GainDocument(TypedDict):
    """How the AUROC on the validation samples rose.

    ``corrected`` is the share of the wrongly ordered pairs that were put right, ``low`` whether that is little.
    """

    before: float
    after: float
    corrected: float
    low: bool


class RivalDocument(TypedDict):
    """A head that another machine may remove instead: its score, and the ``most`` that it may have elsewhere."""

    site: str
    head: int
    score: float
    most: float


class RoundingDocument(TypedDict):
    """A step at which a machine that rounds otherwise may remove another head.

    ``lead`` is by how much its score is above that of the best other head, ``least`` the score that it may have
    elsewhere.
    """

    step: int
    lead: float
    least: float
    rivals: list[RivalDocument]


class SearchDocument(TypedDict, total=False):
    """The settings of a search that decide what its circuit is for."""

    objective: str
    algorithm: str
    approx: str | None
    ood_score: str
    budget: int
    max_drop: float


class CircuitDocument(SearchDocument, total=False):
    """A whole circuit file."""

    schema: str
    arch: str
    ended: str
    loss_unit: float
    sites: dict[str, int]
    base: CountsDocument
    removed: list[RemovalDocument]
    gain: GainDocument
    rounding: list[RoundingDocument]
    source: dict[str, object]
    tower: str
    start_mask: MaskDocument
    seen: list[Entry]
    warnings: list[str]


class TaskDocument(TypedDict, total=False):
    """One task: its sets, each by SPEC and fingerprint, and its weight."""

    val: dict[str, str]
    ood_val: dict[str, str]
    weight: int


# --- making a document ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CircuitWriter:
    """Makes the circuit documents of one search.

    Attributes:
        scope, options: the scope and the options of the search.
        names: the site and the original number of each candidate.
        data: the sets by name.
        tasks: which ID set was measured against which OOD set.
        warnings: the warnings about the data.
    """

    scope: Scope
    options: SearchOptions
    names: Mapping[CandidateHead, Head]
    data: Mapping[str, Dataset]
    tasks: Sequence[Task]
    warnings: Sequence[str] = ()

    def document(self, objective: str, ranking: ObjectiveRanking) -> CircuitDocument:
        """Return the circuit of one objective from its ranking, with its fields in the order of the file.

        Fields that would say nothing are left out, e.g. the gain if there is none, the tower if both were searched, and
        the start mask if the search began with the whole model.
        """
        source = self.scope.source
        mask = source.description.mask

        # The search and its result.
        search = self._search_document(objective, ranking)
        facts = {"schema": "hydractl.circuit/2", "arch": source.description.arch, **search}
        document = cast(CircuitDocument, facts)
        if ranking.ended:
            document["ended"] = ranking.ended
        if objective in LOSS_OBJECTIVES:
            document["loss_unit"] = LOSS_UNIT
        document["sites"] = dict(mask.heads)
        document["base"] = self._counts_document(ranking.base, objective)
        document["removed"] = self._removal_documents(ranking, objective)
        gain = self._gain_document(objective, ranking)
        if gain is not None:
            document["gain"] = gain
        rounding = self._rounding_documents(objective, ranking)
        if rounding:
            document["rounding"] = rounding

        # The model and the data that the circuit was made from.
        settings = {**search, **self._provenance_details()}
        document["source"] = provenance(
            "extract-circuit",
            self.options.seed,
            [source.sha256],
            settings,
            source.lineage,
        )
        tower = self.options.tower
        if tower is not None and tower != "both":
            document["tower"] = tower
        if not mask.is_full:
            document["start_mask"] = mask.to_json()
        seen_by_model = source.description.seen
        document["seen"] = merged(seen_by_model, self.scope.seen, self._entries_seen())
        if self.warnings:
            document["warnings"] = list(self.warnings)
        return document

    def _search_document(self, objective: str, ranking: ObjectiveRanking) -> SearchDocument:
        """Return the settings of the search; its budget includes the heads that were removed before it began."""
        # A budget counts all heads that are gone at the end.
        options = self.options
        removed_before = self.scope.total - self.scope.budget
        removed_at_end = removed_before + len(ranking.steps)
        search: SearchDocument = {
            "objective": objective,
            "algorithm": options.algorithm,
            "approx": options.approx,
            "ood_score": options.ood_score,
            "budget": removed_at_end,
        }

        # The limit of the search, if there was one.
        if options.max_drop is not None:
            search["max_drop"] = options.max_drop
        return search

    def _provenance_details(self) -> dict[str, object]:
        """Return the provenance settings beyond those of the search: its scope, how the model ran, and the data."""
        source = self.scope.source

        # There may be no OOD data.
        ood_fingerprint = self.data["ood"].fingerprint() if "ood" in self.data else None

        # The scope, how the model ran, and the data.
        details: dict[str, object] = {
            **self.scope.details,
            "batch_size": self.options.batch_size,
            "dtype": self.options.dtype,
            "max_length": source.description.preprocess.get("max_length"),
            **asked_classes(source, self.options.tower),
            "val": self.data["id"].fingerprint(),
            "ood_val": ood_fingerprint,
        }

        # A single task is fully described by its data.
        if len(self.tasks) > 1:
            details["tasks"] = [self._task_document(task) for task in self.tasks]
        return details

    def _task_document(self, task: Task) -> TaskDocument:
        """Return the entry of one task in the provenance."""
        document: TaskDocument = {"val": _set_document(self.data[task.data])}
        if task.ood is not None:
            document["ood_val"] = _set_document(self.data[task.ood])
        document["weight"] = 1  # every task counts equally in the mean
        return document

    def _removal_documents(self, ranking: ObjectiveRanking, objective: str) -> list[RemovalDocument]:
        """Return the removals of a ranking as documents, each with its step, head and counts."""
        documents: list[RemovalDocument] = []
        for number, step in enumerate(ranking.steps, start=1):
            site, head = self.names[step.head]
            counts = self._counts_document(step.counts, objective)
            documents.append({"step": number, "site": site, "head": head, **counts})
        return documents

    def _counts_document(self, counts: EvaluationCounts, objective: str) -> CountsDocument:
        """Return the counts of one evaluation, and the score of an objective; a loss only if it decided the search.

        Args:
            counts: the counts.
            objective: the objective whose score is written.
        """
        n_ood = None if counts.two_u is None else counts.n_ood
        document: CountsDocument = {
            "correct": counts.correct,
            "n_id": counts.n_id,
            "two_u": counts.two_u,
            "n_ood": n_ood,
        }

        # Losses depend on rounding, so they are written only if they decided something.
        if objective == "nll":
            document["nll"] = counts.nll
        if objective == "brier":
            document["brier"] = counts.brier
        document["score"] = counts.score(objective)
        return document

    def _gain_document(self, objective: str, ranking: ObjectiveRanking) -> GainDocument | None:
        """Return how much the AUROC on the validation samples rose.

        None if this says nothing: the search is not the greedy one, the objective reads no OOD samples, no head was
        removed, or the AUROC was 1 before.
        """
        if self.options.algorithm != "greedy":
            return None
        if not OBJECTIVE_BY_NAME[objective].needs_ood:
            return None
        if not ranking.steps:
            return None
        before = ranking.base.score("ood")
        if before == 1:
            return None
        last_step = ranking.steps[-1]
        after = last_step.counts.score("ood")

        # The share of the wrongly ordered pairs (1 - AUROC) that the circuit puts right.
        corrected = (after - before) / (1 - before)
        return {"before": before, "after": after, "corrected": corrected, "low": corrected < LOW_GAIN}

    def _rounding_documents(self, objective: str, ranking: ObjectiveRanking) -> list[RoundingDocument]:
        """List the steps at which a machine that rounds otherwise may remove another head.

        Each entry has the ``lead`` of the winner's score over that of its best rival, the ``least`` score that the
        winner may have on another machine, and the rivals, the best first.
        """
        documents: list[RoundingDocument] = []
        for number, step in enumerate(ranking.steps, start=1):
            if not step.rivals:
                continue
            rivals = [self._rival_document(rival, objective) for rival in step.rivals]
            best_rival = rivals[0]
            lead = step.counts.score(objective) - best_rival["score"]
            least = step.counts.least.score(objective)
            documents.append({"step": number, "lead": lead, "least": least, "rivals": rivals})
        return documents

    def _rival_document(self, rival: Trial, objective: str) -> RivalDocument:
        """Return the entry of a rival, a trial that another machine may prefer; ``most`` is its highest score there."""
        site, head = self.names[rival.head]
        score = rival.counts.score(objective)
        most = rival.counts.most.score(objective)
        return {"site": site, "head": head, "score": score, "most": most}

    def _entries_seen(self) -> list[Entry]:
        """List the sets that this search has seen, and the sets that their samples were made from, with their roles."""
        id_fingerprints = [dataset.fingerprint() for name, dataset in self.data.items() if role_of(name) == "id"]

        entries: list[Entry] = []
        for name, dataset in self.data.items():
            role = role_of(name)
            for origin in dataset.origins():
                # OOD samples may be made from ID samples: their set is listed already, as an ID set.
                is_made_of_id = origin is not dataset and origin.fingerprint() in id_fingerprints
                if not is_made_of_id:
                    entries.append(entry("extract-circuit", role, origin))
        return entries


def _set_document(dataset: Dataset) -> dict[str, str]:
    """Return the entry of a set in the provenance."""
    return {"spec": dataset.spec, "fingerprint": dataset.fingerprint()}
