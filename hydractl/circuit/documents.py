"""How a circuit (``hydractl.circuit/2``) is made from a ranking of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydractl.circuit.objective import LOSS_UNIT, OBJECTIVE_BY_NAME, EvaluationCounts
from hydractl.circuit.scope import Scope, SearchOptions
from hydractl.circuit.search import ObjectiveRanking
from hydractl.circuit.tasks import Task, role_of
from hydractl.circuit.winners import CandidateHead
from hydractl.data.base import Dataset
from hydractl.files.circuit_answer import (
    CircuitAnswer,
    MaskRecord,
    RemovalRecord,
    SearchCounts,
    SearchedGain,
    SeenRecord,
)
from hydractl.files.description import provenance
from hydractl.files.fingerprints import Entry, entry, merged
from hydractl.files.model_records import ProvenanceRecord
from hydractl.heads.mask import Head
from hydractl.model.matching import asked_classes

LOW_GAIN = 0.2
"""The share of wrongly ordered pairs of validation samples below which circuits were seen not to help.

On other OOD data of the same model, circuits that corrected 2 to 10 % of the pairs did not help, and circuits that
corrected 21 to 46 % did (docs/numbers/made-ood-samples.md).
"""


@dataclass(frozen=True)
class CircuitWriter:
    """Makes the circuits of one search.

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

    def answer(self, objective: str, ranking: ObjectiveRanking) -> CircuitAnswer:
        """Return the circuit of one objective from its ranking.

        What would say nothing is left out, e.g. the gain if there is none, the tower if both were searched, and the
        start mask if the search began with the whole model.
        """
        source = self.scope.source
        mask = source.description.mask
        options = self.options

        # The settings of the search; its budget counts all heads that are gone at the end.
        search: dict[str, Any] = {
            "objective": objective,
            "algorithm": options.algorithm,
            "approx": options.approx,
            "ood_score": options.ood_score,
            "budget": self.scope.removed_before + len(ranking.steps),
        }
        if options.max_drop is not None:
            search["max_drop"] = options.max_drop

        # The model and the data that the circuit was made from.
        settings = {**search, **self._provenance_details()}
        made_by = provenance("extract-circuit", options.seed, [source.sha256], settings, source.lineage)

        # The sets that this search has seen, and the sets that their samples were made from, with their roles.
        id_fingerprints = [dataset.fingerprint() for name, dataset in self.data.items() if role_of(name) == "id"]
        entries: list[Entry] = []
        for name, dataset in self.data.items():
            role = role_of(name)
            for origin in dataset.origins():
                # OOD samples may be made from ID samples: their set is listed already, as an ID set.
                is_made_of_id = origin is not dataset and origin.fingerprint() in id_fingerprints
                if not is_made_of_id:
                    entries.append(entry("extract-circuit", role, origin))
        seen = merged(source.description.seen, self.scope.seen, entries)

        # The removals.
        removals = []
        for number, step in enumerate(ranking.steps, start=1):
            site, head = self.names[step.head]
            counts = _counts(step.counts, objective)
            removals.append(RemovalRecord(step=number, site=site, head=head, **counts))
        return CircuitAnswer(
            arch=source.description.arch,
            **search,
            ended="max_drop" if ranking.ended else None,
            loss_unit=LOSS_UNIT if objective == "nll" else None,
            sites=dict(mask.heads),
            base=SearchCounts(**_counts(ranking.base, objective)),
            removed=removals,
            gain=self._gain(objective, ranking),
            source=ProvenanceRecord.model_validate(made_by),
            tower=None if options.tower == "both" else options.tower,
            start_mask=None if mask.is_full else MaskRecord.model_validate(mask.to_json()),
            seen=[SeenRecord.model_validate(use) for use in seen],
            warnings=self.warnings,
        )

    def _provenance_details(self) -> dict[str, object]:
        """Return the provenance settings beyond those of the search: its scope, how the model ran, and the data.

        Data sets are named by fingerprints. With several tasks (each an ID set and the OOD set it is measured against)
        these are listed, too.
        """
        source = self.scope.source

        # The scope, how the model ran, and the first ID and OOD set; there may be no OOD data.
        ood_fingerprint = self.data["ood"].fingerprint() if "ood" in self.data else None
        details: dict[str, object] = {
            **self.scope.details,
            "batch_size": self.options.batch_size,
            "dtype": self.options.dtype,
            "max_length": source.description.preprocess.get("max_length"),
            **asked_classes(source, self.options.tower),
            "val": self.data["id"].fingerprint(),
            "ood_val": ood_fingerprint,
        }

        # The tasks; a single one is fully described by its data.
        if len(self.tasks) > 1:
            documents = []
            for task in self.tasks:
                document: dict[str, object] = {"val": _set_document(self.data[task.data])}
                if task.ood is not None:
                    document["ood_val"] = _set_document(self.data[task.ood])
                document["weight"] = 1  # every task counts equally in the mean
                documents.append(document)
            details["tasks"] = documents
        return details

    def _gain(self, objective: str, ranking: ObjectiveRanking) -> SearchedGain | None:
        """Return the AUROC on the validation samples before the first and after the last removal, and the gain.

        E.g. from 0.90 to 0.92, a fifth of the wrongly ordered pairs is corrected: (0.92 - 0.90) / (1 - 0.90) = 0.2.

        None if this says nothing: the search is not the greedy one, the objective reads no OOD samples, no head was
        removed, or the AUROC was 1 before.
        """
        may_raise_auroc = self.options.algorithm == "greedy" and OBJECTIVE_BY_NAME[objective].needs_ood
        if not may_raise_auroc or not ranking.steps:
            return None
        before = ranking.base.score("ood")
        if before == 1:
            return None
        after = ranking.steps[-1].counts.score("ood")

        # The share of the wrongly ordered pairs (1 - AUROC) that the circuit puts right.
        corrected = (after - before) / (1 - before)
        return SearchedGain(before=before, after=after, corrected=corrected, low=corrected < LOW_GAIN)


def _counts(counts: EvaluationCounts, objective: str) -> dict[str, Any]:
    """Return the fields of :class:`SearchCounts`: the counts of one evaluation, and the score of an objective."""
    return {
        "correct": counts.correct,
        "n_id": counts.n_id,
        "two_u": counts.two_u,
        "n_ood": None if counts.two_u is None else counts.n_ood,
        # The loss depends on rounding, so it is written only if it decided something.
        "nll": counts.nll if objective == "nll" else None,
        "score": counts.score(objective),
    }


def _set_document(dataset: Dataset) -> dict[str, str]:
    """Return the entry of a set in the provenance."""
    return {"spec": dataset.spec, "fingerprint": dataset.fingerprint()}
