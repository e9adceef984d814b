"""The measurements of a search: written to its journal as it goes on, and read from the journal on a resume.

There are three kinds of records, told apart by a key: the model before the first removal (``base``), a candidate that
was evaluated (``of``), and a removal (``removed``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydractl.circuit.journal import HOW_TO_START_OVER, Journal, Record
from hydractl.circuit.objective import Doubt, EvaluationCounts
from hydractl.circuit.winners import CandidateHead, Trial
from hydractl.distributed import Processes
from hydractl.errors import InputError
from hydractl.jsonio import shown

_MOST_LOSS = 1 << 100
"""The highest summed loss that is accepted from a journal; far more than any data give."""

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


# --- checking what was found ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WholeData:
    """How much a search can count at most.

    Attributes:
        n_id, n_ood: the samples of all tasks, each as often as it is counted.
        several_tasks: whether there are several tasks; then not every ID sample is compared with every OOD sample.
    """

    n_id: int
    n_ood: int
    several_tasks: bool = False


def check_records(
    path: Path,
    journal: Journal,
    sizes: Mapping[str, int],
    heads: Collection[CandidateHead],
    objectives: Sequence[str],
    whole: WholeData,
) -> None:
    """Check that a journal holds only what this search could have written: a damaged number must not become a result.

    Args:
        path: the journal, for the message.
        journal: its records and its order.
        sizes: the number of samples of each set, by name.
        heads: the candidates.
        objectives: the objectives of the search.
        whole: how much can be counted.

    Raises:
        InputError: with a list of all records that this search could not have written.
    """
    problems = []
    if journal.order is not None and not _is_order_of_samples(journal.order, sizes):
        problems.append("the order of the samples is not one")

    removed_at: dict[tuple[str, int], list[int]] = {}  # the removed head, by objective and step
    for record in journal.records:
        try:
            is_sound = _is_sound_record(record, whole, heads, objectives)
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            RecursionError,
        ):  # a field is missing, or of another type
            is_sound = False
        if not is_sound:
            problems.append(f"no record of this search: {shown(record, 200)}")
            continue
        if "removed" not in record:
            continue

        # The same removal may be recorded twice, but one step cannot remove two heads.
        objective = record["removed"]
        step = record["step"]
        first_head = removed_at.setdefault((objective, step), record["head"])
        if first_head != record["head"]:
            problems.append(f"step {step} of {objective} removes two different heads")
    if problems:
        raise InputError(f"{path} is broken", hint=HOW_TO_START_OVER, problems=problems)


def _is_order_of_samples(order: Any, sizes: Mapping[str, int]) -> bool:
    """Return whether a JSON value lists, for each set, the indices of its samples in some order."""
    if not isinstance(order, dict) or set(order) != set(sizes):
        return False
    for name, size in sizes.items():
        indices = order[name]
        if not isinstance(indices, list) or not all(type(index) is int for index in indices):
            return False
        if sorted(indices) != list(range(size)):
            return False
    return True


def _is_sound_record(
    record: Record, whole: WholeData, heads: Collection[CandidateHead], objectives: Sequence[str]
) -> bool:
    """Return whether a record is sound; may raise instead if a field is missing or of another type.

    Args:
        record: a record of one of three kinds, told apart by a key: ``base``, the counts of the whole model; ``of``, a
            candidate that was evaluated; ``removed``, a head that was removed.
        whole: how much can be counted.
        heads: the candidates of the search.
        objectives: the objectives of the search.
    """
    # Case 1: the model before the first removal.
    if "base" in record:
        return _are_possible_counts(counts_from_record(record["base"]), whole)

    # The other kinds have a step. Cases 2 and 3: a candidate that was evaluated (`of`), or a removed head (`removed`).
    if type(record["step"]) is not int:
        return False
    trial = trial_from_record(record)
    is_evaluation = "of" in record
    objective = record["of"] if is_evaluation else record["removed"]
    if objective not in objectives:
        return False
    if is_evaluation and not isinstance(record["given_up"], list):
        return False

    # `off` has by how much the forecast of each objective was wrong; only a lazy search makes forecasts.
    if not all(type(error) is float for error in record.get("off", {}).values()):
        return False

    # The head itself, and the rivals that another machine may have removed instead.
    for counted in (trial, *trial.rivals):
        has_whole_numbers = all(type(index) is int for index in counted.head)  # excludes True, which equals 1
        if not has_whole_numbers or counted.head not in heads:
            return False
        if not _are_possible_counts(counted.counts, whole):
            return False
    return True


def _are_possible_counts(counts: EvaluationCounts, whole: WholeData) -> bool:
    """Return whether counts are whole numbers from 0 to the most that can be counted.

    Samples are limited by the samples of the data; sums over samples or pairs by the number of samples or pairs.
    ``two_u`` is twice the number of pairs of an ID and an OOD sample in the right order. ``doubt`` holds by how much
    rounding may change the counts.
    """
    most_two_u = 2 * counts.n_id * counts.n_ood
    if whole.several_tasks:
        most_two_u = 2 * whole.n_id * whole.n_ood  # pairs are weighted by task: the samples counted do not limit them

    # Every count with the most that it can be.
    two_u = 0 if counts.two_u is None else counts.two_u
    counts_and_limits = [
        (counts.n_id, whole.n_id),
        (counts.n_ood, whole.n_ood),
        (counts.correct, counts.n_id),
        (two_u, most_two_u),
        (counts.nll, _MOST_LOSS),
        (counts.doubt.fewer, counts.n_id),
        (counts.doubt.more, counts.n_id),
        (counts.doubt.lower, most_two_u),
        (counts.doubt.higher, most_two_u),
        (counts.doubt.loss, _MOST_LOSS),
    ]
    return all(type(count) is int and 0 <= count <= most for count, most in counts_and_limits)
