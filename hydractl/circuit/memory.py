"""The measurements of a search: written to its journal as it goes on, and read from the journal on a resume.

There are three kinds of records, told apart by a key: the model before the first removal (``base``), a candidate that
was evaluated (``of``), and a removal (``removed``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hydractl.circuit.journal import Journal, Record
from hydractl.circuit.objective import Doubt, EvaluationCounts
from hydractl.circuit.winners import CandidateHead, Trial
from hydractl.distributed import Processes

# --- records ----------------------------------------------------------------------------------------------------------


def record_of_counts(counts: EvaluationCounts) -> Record:
    """Return the record of an evaluation."""
    return {**vars(counts), "doubt": list(counts.doubt)}


def counts_from_record(record: Record) -> EvaluationCounts:
    """Return the evaluation, the inverse of :func:`record_of_counts`."""
    counts = {name: record[name] for name in ("correct", "n_id", "two_u", "n_ood", "nll")}
    return EvaluationCounts(**counts, doubt=Doubt(*record.get("doubt", ())))


def record_of_trial(trial: Trial) -> Record:
    """Return the record of a head and what was counted without it."""
    record = {"head": list(trial.head), **record_of_counts(trial.counts)}
    if trial.rivals:
        record["rivals"] = list(map(record_of_trial, trial.rivals))
    return record


def trial_from_record(record: Record) -> Trial:
    """Return the trial, the inverse of :func:`record_of_trial`."""
    rivals = map(trial_from_record, record.get("rivals", ()))
    return Trial(CandidateHead(*record["head"]), counts_from_record(record), tuple(rivals))


@dataclass(frozen=True)
class HeadEvaluation:
    """One candidate that was evaluated.

    Attributes:
        head: the candidate.
        counts: what was counted without it.
        given_up: the objectives for which it was given up before everything was counted.
        forecast_errors: for each objective the score minus its forecast; None if there were no forecasts.
    """

    head: CandidateHead
    counts: EvaluationCounts
    given_up: Sequence[str] = ()
    forecast_errors: Mapping[str, float] | None = None

    def record(self, objective: str, step: int) -> Record:
        """Return the record of this evaluation, made in a step of an objective."""
        forecasts = {} if self.forecast_errors is None else {"off": dict(self.forecast_errors)}
        facts = {"of": objective, "step": step, "head": list(self.head), "given_up": list(self.given_up)}
        return {**facts, **forecasts, **record_of_counts(self.counts)}

    @classmethod
    def from_record(cls, record: Record) -> HeadEvaluation:
        """Return the evaluation, the inverse of :meth:`record`."""
        head = CandidateHead(*record["head"])
        return cls(head, counts_from_record(record), record["given_up"], record.get("off"))


class SearchMemory:
    """The journal of a search, in terms of heads, trials and evaluations.

    Facts that all processes know are written by the first process only.
    """

    def __init__(self, journal: Journal, processes: Processes) -> None:
        self._journal = journal
        self._writes_common = processes.rank == 0

    def sync(self) -> None:
        """Flush the journal, so that what was stored survives a loss of power."""
        self._journal.sync()

    def base_counts(self) -> EvaluationCounts | None:
        """Return the counts before the first removal; None if the journal does not have them."""
        for record in self._journal.records:
            if "base" in record:
                return counts_from_record(record["base"])
        return None

    def keep_base(self, counts: EvaluationCounts) -> None:
        """Store the counts before the first removal."""
        if self._writes_common:
            self._journal.append({"base": record_of_counts(counts)})

    def winners_of_step(self, objectives: Sequence[str], step: int) -> dict[str, Trial] | None:
        """Return the winner of a step for each of some objectives, from the journal.

        Returns:
            The winner of each objective; None if the journal lacks the step for any of the objectives.
        """
        winner_by_objective: dict[str, Trial] = {}
        for record in self._journal.records:
            if record.get("step") != step:
                continue
            # A record with a step is a removal, or an evaluation, which is ignored here.
            if record.get("removed") in objectives:
                winner_by_objective[record["removed"]] = trial_from_record(record)
        if len(winner_by_objective) < len(objectives):
            return None
        return winner_by_objective

    def keep_removal(self, objective: str, step: int, winner: Trial) -> None:
        """Store the winner of a step."""
        if self._writes_common:
            self._journal.append({"removed": objective, "step": step, **record_of_trial(winner)})

    def evaluations_of_step(self, objective: str, step: int) -> dict[CandidateHead, HeadEvaluation]:
        """Return the candidates that were evaluated in a step of an objective, from the journal."""
        evaluations = {}
        for record in self._journal.records:
            if record.get("of") == objective and record.get("step") == step:
                evaluation = HeadEvaluation.from_record(record)
                evaluations[evaluation.head] = evaluation
        return evaluations

    def keep_own_evaluation(self, objective: str, step: int, evaluation: HeadEvaluation) -> None:
        """Store a candidate that only this process has evaluated."""
        self._journal.append(evaluation.record(objective, step))

    def keep_common_evaluation(self, objective: str, step: int, evaluation: HeadEvaluation) -> None:
        """Store a candidate that all processes have evaluated together; only the first process writes it."""
        if self._writes_common:
            self.keep_own_evaluation(objective, step, evaluation)
