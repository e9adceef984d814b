"""Algorithm 1 of the paper (D.1.2): greedy backward elimination over all heads of a model.

At each step every remaining head is ablated alone on top of the heads already removed, and the head whose removal
gives the highest score is removed for good. Ties: lowest site first, then lowest head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypedDict

from hydractl.circuit.counting import Tally, Values
from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.journal import Journal, NoJournal
from hydractl.circuit.memory import (
    HeadEvaluation,
    SearchMemory,
    TrialRecord,
    record_of_trial,
    trial_from_record,
)
from hydractl.circuit.objective import EvaluationCounts, Limits, allowed, limits_of
from hydractl.circuit.race import Race, RacingHead
from hydractl.circuit.winners import CandidateHead, Trial, contenders, winner_of
from hydractl.distributed import Processes
from hydractl.expressions.conditions import Constraint
from hydractl.log import Progress


@dataclass
class ObjectiveRanking:
    """The ranking of one objective.

    Attributes:
        base: the counts of the model before the first removal.
        steps: the removals, each with the counts without its head.
        ended: the option that ended them before the budget did; None where none did.
    """

    base: EvaluationCounts
    steps: list[Trial] = field(default_factory=list)
    ended: str | None = None

    @property
    def removed(self) -> list[CandidateHead]:
        """The heads removed so far, in order."""
        return [step.head for step in self.steps]


def _tell_nobody(objective: str, step: int, removal: Trial) -> None:
    pass


class SearchKeywords(TypedDict, total=False):
    """The keyword arguments that every search takes; see :class:`GreedySearch`."""

    bounds: bool
    at_once: int
    constraints: Sequence[Constraint]
    max_drop: Fraction | None
    journal: Journal | None
    processes: Processes | None
    progress: Progress | None
    on_removal: Callable[[str, int, Trial], None]


class GreedySearch:
    """Rankings for any number of objectives; those that have removed the same heads share their evaluations.

    Args:
        evaluator: what is to be searched.
        heads: the candidates in model order, each by the number of its site and its position there.
        bounds, at_once: as in :class:`hydractl.circuit.race.Race`.
        constraints: the scores that every removal has to keep; a ranking ends where no candidate keeps them.
        max_drop: a ranking ends before the first step that takes accuracy further below that of the model.
        journal: where evaluations are kept and found again.
        processes: the processes that share the candidates.
        progress: where the number of evaluations is shown.
        on_removal: called with each removal: the objective, the number of the step, and the winner's trial.

    Attributes:
        rankings: the ranking of each objective so far.
        evaluations: how many candidates this process has evaluated.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        heads: Sequence[tuple[int, int]],
        *,
        bounds: bool = True,
        at_once: int = 1,
        constraints: Sequence[Constraint] = (),
        max_drop: Fraction | None = None,
        journal: Journal | None = None,
        processes: Processes | None = None,
        progress: Progress | None = None,
        on_removal: Callable[[str, int, Trial], None] = _tell_nobody,
    ) -> None:
        self.evaluator = evaluator
        self.heads = [CandidateHead(*head) for head in heads]
        self.bounds = bounds
        self.at_once = at_once
        self.constraints = constraints
        self.max_drop = max_drop
        self.processes = processes or Processes()
        self.memory = SearchMemory(journal or NoJournal(), self.processes)
        self.progress = progress or Progress()
        self.on_removal = on_removal
        self.evaluations = 0
        self.rankings: dict[str, ObjectiveRanking] = {}
        # Every removal keeps the first; a winner that does not keep the second as well ends its ranking.
        self._limits: Limits = {}
        self._end_limits: Limits = {}

    def run(self, objectives: Sequence[str], budget: int) -> dict[str, ObjectiveRanking]:
        """Remove ``budget`` heads one after another for each objective, or fewer where a constraint ends the ranking.

        Returns:
            The ranking of each objective.
        """
        base = self._base()
        self._limits = limits_of(self.constraints, base)
        if self.max_drop is not None:
            highest_drop = Constraint("acc", self.max_drop, below_base=True)
            self._end_limits = limits_of([highest_drop], base)

        self.rankings = {objective: ObjectiveRanking(base) for objective in objectives}
        for step in range(1, budget + 1):
            groups = same_model(self._removed_by_running())
            evaluations_of_group = self.to_come(step, budget)
            self._expect(len(groups) * evaluations_of_group)
            for removed, group in groups.items():
                winners = self._remembered(group, step)
                if winners is None:
                    winners = self._run_step(group, step, removed)
                for objective in group:
                    self._take(objective, step, winners.get(objective))
        return self.rankings

    def _removed_by_running(self) -> dict[str, list[CandidateHead]]:
        """Return the heads removed so far by each objective whose ranking has not ended."""
        removed = {}
        for objective, ranking in self.rankings.items():
            if ranking.ended is None:
                removed[objective] = ranking.removed
        return removed

    def _take(self, objective: str, step: int, winner: Trial | None) -> None:
        """Add a removal to the ranking of an objective, or end the ranking."""
        ranking = self.rankings[objective]
        if winner is None:
            ranking.ended = "subject_to"
        elif not allowed(winner.counts, self._end_limits):
            ranking.ended = "max_drop"
        else:
            ranking.steps.append(winner)
            self.on_removal(objective, step, winner)

    def to_come(self, step: int, budget: int) -> int:
        """Return how many evaluations there may be from a step on, for objectives that have removed the same heads."""
        removed = step - 1
        return evaluations(len(self.heads) - removed, budget - removed)

    def _base(self) -> EvaluationCounts:
        """Return the counts of the model before the first removal."""
        known = self.memory.base()
        if known is not None:
            return known
        self.evaluator.begin([])
        empty_tally = Tally(self.evaluator.shares)
        base = self._over_all(empty_tally, self.evaluator.current)
        self.memory.keep_base(base)
        return base

    def _over_all(self, tally: Tally, values: Callable[[int], Values]) -> EvaluationCounts:
        """Add the batches that a tally has not seen yet, and return the counts over all data.

        Args:
            tally: the counts of some batches.
            values: returns the results of a batch, by its number.
        """
        for chunk in self.evaluator.chunks:
            for batch in chunk:
                if batch not in tally.seen:
                    tally.add(batch, values(batch))
            self.evaluator.forget(chunk)
        return tally.counts()

    def _run_step(self, group: list[str], step: int, removed: Sequence[CandidateHead]) -> dict[str, Trial]:
        """Choose the head to remove for objectives that have removed the same heads, and keep it in the journal.

        Args:
            group: the objectives.
            step: the number of the step.
            removed: the heads they have removed.

        Returns:
            The winner of each objective, without the objectives for which no candidate is allowed.
        """
        self.evaluator.begin(removed)
        left = [head for head in self.heads if head not in removed]
        winners = self.choose(group, step, left)
        for objective in group:
            winner = winners.get(objective)
            self.memory.keep_removal(objective, step, winner)
        self.memory.sync()
        return winners

    def choose(self, group: list[str], step: int, left: list[CandidateHead]) -> dict[str, Trial]:
        """Choose the best of the candidates left, for each objective that has one.

        The evaluator must be at the model of the step.
        """
        race = self._race(group, step, left, self.bounds)
        trials = race.run()
        winners = {}
        for objective, winner in self._winners_of_all(trials).items():
            counted_here = race.tally_of(winner.head)
            winners[objective] = self._complete(winner, counted_here)
        return winners

    def _race(self, group: list[str], step: int, left: Sequence[CandidateHead], bounds: bool) -> Race:
        """Build the race of this process's candidates; those that a journal knows are already counted.

        The objectives of a group have removed the same heads: the journal keeps what they share under the first.
        """
        first_objective = group[0]

        def keep(contestant: RacingHead) -> None:
            """Keep what was counted of a candidate that the race is done with."""
            given_up = [objective for objective in group if objective not in contestant.open_for]
            evaluation = HeadEvaluation(contestant.head, contestant.counts, given_up)
            self.evaluations += 1
            self.memory.keep_own_evaluation(first_objective, step, evaluation)
            self.progress.advance()

        return Race(
            self.evaluator,
            group,
            self._dealt_to_this_process(left),
            bounds=bounds,
            at_once=self.at_once,
            limits=self._limits,
            known=self.memory.evaluations(first_objective, step),
            finished=keep,
        )

    def _expect(self, evaluations: int) -> None:
        """Tell the progress how many evaluations are left, in all processes together."""
        left_here = evaluations // self.processes.size
        self.progress.set_total(self.evaluations + left_here)

    def _complete(self, winner: Trial, tally: Tally) -> Trial:
        """Count the winner on the data that its objective did not need, so that each step has counts over all data."""
        if winner.counts.n_ood == self.evaluator.n_ood:
            return winner
        site, position = winner.head
        positions = [position] * self.at_once  # another number would round differently

        def without_winner(batch: int) -> Values:
            values = self.evaluator.without_each(batch, site, positions)
            return values[0]

        counts = self._over_all(tally, without_winner)
        return replace(winner, counts=counts)

    def _remembered(self, group: list[str], step: int) -> dict[str, Trial] | None:
        """Return the winners of a step if a journal has all of them; without the objectives that ended there."""
        return self.memory.removals(group, step)

    # --- several processes --------------------------------------------------------------------------------------------

    def _dealt_to_this_process(self, left: Sequence[CandidateHead]) -> list[CandidateHead]:
        """Return the candidates of this process, in model order.

        The most expensive ones are dealt first, each to the process that has least to do so far.
        """
        samples = self.evaluator.size
        sites = {site for site, _ in left}
        price_of_site = {site: self.evaluator.price(site, samples) for site in sites}
        in_model_order = sorted(left)
        dearest_first = sorted(in_model_order, key=lambda head: -price_of_site[head.site])
        loads = [0.0] * self.processes.size
        dealt_here = []
        for head in dearest_first:
            least_loaded = loads.index(min(loads))
            loads[least_loaded] += price_of_site[head.site]
            if least_loaded == self.processes.rank:
                dealt_here.append(head)
        return sorted(dealt_here)

    def _winners_of_all(self, trials: Mapping[str, Sequence[Trial]]) -> dict[str, Trial]:
        """Choose the best candidate of all processes for each objective, with those that could have won elsewhere.

        Args:
            trials: for each objective the trials of this process.

        Returns:
            The winner of each objective, without the objectives for which no candidate is allowed.
        """
        # Only those that could win are told to the other processes.
        records_here: dict[str, list[TrialRecord]] = {}
        for objective, trials_of_objective in trials.items():
            could_win = contenders(objective, trials_of_objective, self._limits)
            records_here[objective] = [record_of_trial(trial) for trial in could_win]
        records_by_process = self.processes.gather(records_here)

        winners = {}
        for objective in trials:
            trials_of_all: list[Trial] = []
            for records in records_by_process:
                records_of_objective = records.get(objective, [])
                trials_of_all += map(trial_from_record, records_of_objective)
            winner = winner_of(objective, trials_of_all, self._limits)
            if winner is not None:
                winners[objective] = winner
        return winners

    def _trials_of_all(self, trials_here: Sequence[Trial]) -> list[Trial]:
        """Return the trials of all processes, in every process."""
        records_here = [record_of_trial(trial) for trial in trials_here]
        trials_of_all: list[Trial] = []
        for records in self.processes.gather(records_here):
            trials_of_all += map(trial_from_record, records)
        return trials_of_all


def same_model(removed: Mapping[str, Sequence[CandidateHead]]) -> dict[tuple[CandidateHead, ...], list[str]]:
    """Group objectives by the heads they have removed: the same heads in another order are the same model."""
    groups: dict[tuple[CandidateHead, ...], list[str]] = {}
    for objective, heads in removed.items():
        in_model_order = tuple(sorted(heads))
        groups.setdefault(in_model_order, []).append(objective)
    return groups


def evaluations(heads: int, budget: int) -> int:
    """Return how many evaluations of the whole data Algorithm 1 needs: 5,784 to remove 48 of 144 heads."""
    candidates_by_step = [heads - step for step in range(budget)]
    return sum(candidates_by_step)
