"""The fields of the circuit file ``hydractl.circuit/2``, and how one is made from a ranking."""

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
from hydractl.expressions.conditions import parse_constraint
from hydractl.files.description import provenance
from hydractl.files.fingerprints import Entry, entry, merged
from hydractl.heads.mask import Head, MaskDocument
from hydractl.model.matching import asked_classes

LOW_GAIN = 0.2
"""Circuits that correct a smaller share of the wrongly ordered pairs of validation samples were seen not to help.

On other OOD data of the same model, circuits that corrected 2 to 17 % did not help, and those that corrected 21 to 71 %
did (docs/circuits.md).
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


class AgreementDocument(TypedDict):
    """How far a circuit agrees with an exact one; see :func:`hydractl.circuit.agreement.agreement`."""

    removals: int
    jaccard: dict[str, float | None]
    kendall_tau: float | None
    score_lost: float | None


class SearchDocument(TypedDict, total=False):
    """The settings of a search that decide what its circuit is for."""

    objective: str
    algorithm: str
    approx: str | None
    ood_score: str
    budget: int
    max_drop: float
    subject_to: list[str]


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
    agreement: AgreementDocument


class TaskDocument(TypedDict, total=False):
    """One task: its sets, each by SPEC and fingerprint, and its weight."""

    val: dict[str, str]
    ood_val: dict[str, str]
    weight: int


# --- making a document ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CircuitWriter:
    """Makes the circuit documents of one search, from what they have in common.

    Attributes:
        scope, options: of the search.
        names: the site and the original number of each candidate.
        data: the sets by name.
        tasks: which ID set was measured against which OOD set.
        doubts: the warnings about the data.
    """

    scope: Scope
    options: SearchOptions
    names: Mapping[CandidateHead, Head]
    data: Mapping[str, Dataset]
    tasks: Sequence[Task]
    doubts: Sequence[str] = ()

    def document(self, objective: str, ranking: ObjectiveRanking) -> CircuitDocument:
        """Return the circuit of one objective from its ranking, its fields in the order of the file.

        Fields that say nothing are left out: the gain where there is none, the tower where both were searched, the
        start mask of a whole model, and so on.
        """
        source = self.scope.source
        mask = source.description.mask
        constrained = [parse_constraint(text).key for text in self.options.subject_to]

        # The search and its result.
        search = self._search_document(objective, ranking)
        facts = {"schema": "hydractl.circuit/2", "arch": source.description.arch, **search}
        document = cast(CircuitDocument, facts)
        if ranking.ended:
            document["ended"] = ranking.ended
        decided_by = {objective, *constrained}
        if decided_by.intersection(LOSS_OBJECTIVES):
            document["loss_unit"] = LOSS_UNIT
        document["sites"] = dict(mask.heads)
        document["base"] = self._counts_document(ranking.base, objective, constrained)
        document["removed"] = self._removal_documents(ranking, objective, constrained)
        gain = self._gain_document(objective, ranking)
        if gain is not None:
            document["gain"] = gain
        rounding = self._rounding_documents(objective, ranking)
        if rounding:
            document["rounding"] = rounding

        # The model and the data that it comes from.
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
        if self.doubts:
            document["warnings"] = list(self.doubts)
        return document

    def _search_document(self, objective: str, ranking: ObjectiveRanking) -> SearchDocument:
        """Return what was searched for, and how many heads are gone at the end, with those gone at the beginning."""
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
        if options.max_drop is not None:
            search["max_drop"] = options.max_drop
        if options.subject_to:
            search["subject_to"] = list(options.subject_to)
        return search

    def _provenance_details(self) -> dict[str, object]:
        """Return what the provenance says beyond what was searched for: scope, settings of the run, and data."""
        source = self.scope.source
        ood_fingerprint = None
        if "ood" in self.data:
            ood_fingerprint = self.data["ood"].fingerprint()
        details: dict[str, object] = {
            **self.scope.details,
            "batch_size": self.options.batch_size,
            "dtype": self.options.dtype,
            "max_length": source.description.preprocess.get("max_length"),
            **asked_classes(source, self.options.tower),
            "val": self.data["id"].fingerprint(),
            "ood_val": ood_fingerprint,
        }
        if len(self.tasks) > 1:
            details["tasks"] = [self._task_document(task) for task in self.tasks]
        return details

    def _task_document(self, task: Task) -> TaskDocument:
        """Return the entry of one task in the provenance."""
        document: TaskDocument = {"val": _set_document(self.data[task.data])}
        if task.ood is not None:
            document["ood_val"] = _set_document(self.data[task.ood])
        document["weight"] = task.weight
        return document

    def _removal_documents(
        self, ranking: ObjectiveRanking, objective: str, constrained: Sequence[str]
    ) -> list[RemovalDocument]:
        """Return the steps of a ranking, each with its head and its counts."""
        documents: list[RemovalDocument] = []
        for number, step in enumerate(ranking.steps, start=1):
            site, head = self.names[step.head]
            counts = self._counts_document(step.counts, objective, constrained)
            documents.append({"step": number, "site": site, "head": head, **counts})
        return documents

    def _counts_document(self, counts: EvaluationCounts, objective: str, constrained: Sequence[str]) -> CountsDocument:
        """Return the counts and the score of an objective; a loss only where it decided.

        Args:
            counts: of one evaluation.
            objective: whose score is written.
            constrained: the objectives that a constraint limits.
        """
        decided_by = (objective, *constrained)
        n_ood = None
        if counts.two_u is not None:
            n_ood = counts.n_ood
        document: CountsDocument = {
            "correct": counts.correct,
            "n_id": counts.n_id,
            "two_u": counts.two_u,
            "n_ood": n_ood,
        }
        if "nll" in decided_by:
            document["nll"] = counts.nll
        if "brier" in decided_by:
            document["brier"] = counts.brier
        document["score"] = counts.score(objective)
        return document

    def _gain_document(self, objective: str, ranking: ObjectiveRanking) -> GainDocument | None:
        """Return how the AUROC on the validation samples rose.

        None where that says nothing: for another search than the greedy one, for an objective that reads no OOD
        samples, where no head was removed, and where the AUROC was 1 before.
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
        corrected = (after - before) / (1 - before)
        return {"before": before, "after": after, "corrected": corrected, "low": corrected < LOW_GAIN}

    def _rounding_documents(self, objective: str, ranking: ObjectiveRanking) -> list[RoundingDocument]:
        """List the steps at which a machine that rounds otherwise may remove another head.

        Each has the ``lead`` of the winner over the best of its rivals, the ``least`` score that the winner may have on
        another machine, and the rivals, the best first.
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
        """Return the entry of a trial that another machine may prefer."""
        site, head = self.names[rival.head]
        score = rival.counts.score(objective)
        most = rival.counts.most.score(objective)
        return {"site": site, "head": head, "score": score, "most": most}

    def _entries_seen(self) -> list[Entry]:
        """List the sets that this search has seen, and those that their samples were made of, each with its role."""
        id_fingerprints = []
        for name, dataset in self.data.items():
            if role_of(name) == "id":
                id_fingerprints.append(dataset.fingerprint())

        entries: list[Entry] = []
        for name, dataset in self.data.items():
            role = role_of(name)
            for origin in dataset.origins():
                # OOD samples that were made of ID samples come from a set that is listed already, as an ID set.
                is_made_of_id = origin is not dataset and origin.fingerprint() in id_fingerprints
                if not is_made_of_id:
                    entries.append(entry("extract-circuit", role, origin))
        return entries


def _set_document(dataset: Dataset) -> dict[str, str]:
    """Return the entry of a set in the provenance."""
    return {"spec": dataset.spec, "fingerprint": dataset.fingerprint()}
