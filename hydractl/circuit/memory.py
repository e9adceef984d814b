"""The measurements of a search: written to its journal as it goes on, and read from the journal on a resume.

There are three kinds of records, told apart by a key: the model before the first removal (``base``), a candidate that
was evaluated (``of``), and a removal (``removed``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from hydractl.circuit.journal import Journal, Record
from hydractl.circuit.objective import EvaluationCounts
from hydractl.circuit.winners import CandidateHead, Trial


def trial_from_record(record: Record) -> Trial:
    """Return the trial, the inverse of :func:`dataclasses.asdict`; the record may have been JSON in between."""
    return Trial(
        head=CandidateHead(*record["head"]),
        counts=EvaluationCounts(**record["counts"]),
        given_up=tuple(record["given_up"]),
        forecast_errors=record["forecast_errors"],
    )


class SearchMemory:
    """The journal of a search, in terms of heads, trials and evaluations."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def sync(self) -> None:
        """Flush the journal, so that what was stored survives a loss of power."""
        self._journal.sync()

    def base_counts(self) -> EvaluationCounts | None:
        """Return the counts before the first removal; None if the journal does not have them."""
        for record in self._journal.records:
            if "base" in record:
                return EvaluationCounts(**record["base"])
        return None

    def keep_base(self, counts: EvaluationCounts) -> None:
        """Store the counts before the first removal."""
        self._journal.append({"base": asdict(counts)})

    def winners_of_step(self, objectives: Sequence[str], step: int) -> dict[str, Trial] | None:
        """Return the head that each of some objectives removed in a step, with its counts, from the journal.

        None if the journal lacks the step for any of the objectives.
        """
        winner_by_objective: dict[str, Trial] = {}
        for record in self._journal.records:
            if record.get("step") != step:
                continue
            # A record with a step is a removal, or an evaluation, which is ignored here. The entry "removed" of a
            # removal is not the head but the name of the objective that removed it.
            if record.get("removed") in objectives:
                objective: str = record["removed"]
                winner_by_objective[objective] = trial_from_record(record)
        if len(winner_by_objective) < len(objectives):
            return None
        return winner_by_objective

    def keep_removal(self, objective: str, step: int, winner: Trial) -> None:
        """Store the winner of a step."""
        self._journal.append({"removed": objective, "step": step, **asdict(winner)})

    def evaluations_of_step(self, objective: str, step: int) -> dict[CandidateHead, Trial]:
        """Return the candidates that were evaluated in a step of an objective, from the journal."""
        evaluations = {}
        for record in self._journal.records:
            if record.get("of") == objective and record.get("step") == step:
                evaluation = trial_from_record(record)
                evaluations[evaluation.head] = evaluation
        return evaluations

    def keep_evaluation(self, objective: str, step: int, evaluation: Trial) -> None:
        """Store a candidate that was evaluated."""
        self._journal.append({"of": objective, "step": step, **asdict(evaluation)})
