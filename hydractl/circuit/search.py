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
        base: what the model gave before the first removal.
        steps: the removals.
        ended: the option that ended them before the budget did.
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
    """What every search can be given; see :class:`GreedySearch`."""

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
        constraints: what every removal has to keep; the search ends where none does.
        max_drop: the search ends before the first step that takes accuracy further below that of the model.
        journal: where evaluations are kept and found again.
        processes: who shares the candidates.
        progress: of the evaluations.
        on_removal: called with each removal: the objective, the number of the step, and what went.
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
        # What every removal has to keep, and what a winner has to keep beside that for its ranking to go on.
        self._limits: Limits = {}
        self._end_limits: Limits = {}

    def run(self, objectives: Sequence[str], budget: int) -> dict[str, ObjectiveRanking]:
        """Remove ``budget`` heads one after another, for each objective, or fewer where a constraint ends it."""
        base = self._base()
        self._limits = limits_of(self.constraints, base)
        if self.max_drop is not None:
            highest_drop = Constraint("acc", self.max_drop, below_base=True)
            self._end_limits = limits_of([highest_drop], base)
        self.rankings = {objective: ObjectiveRanking(base) for objective in objectives}
        for step in range(1, budget + 1):
            groups = same_model(self._removed_by_running())
            self._expect(len(groups) * self.to_come(step, budget))
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
        return evaluations(len(self.heads) - step + 1, budget - step + 1)

    def _base(self) -> EvaluationCounts:
        """Return what the model gives before the first removal."""
        known = self.memory.base()
        if known is not None:
            return known
        self.evaluator.begin([])
        base = self._over_all(Tally(self.evaluator.shares), self.evaluator.current)
        self.memory.keep_base(base)
        return base

    def _over_all(self, tally: Tally, values: Callable[[int], Values]) -> EvaluationCounts:
        """Return the counts over everything: what has been counted, and the values of the other batches."""
        for chunk in self.evaluator.chunks:
            for batch in chunk:
                if batch not in tally.seen:
                    tally.add(batch, values(batch))
            self.evaluator.forget(chunk)
        return tally.counts()

    def _run_step(self, group: list[str], step: int, removed: Sequence[CandidateHead]) -> dict[str, Trial]:
        """Remove one head for objectives that have removed the same heads."""
        self.evaluator.begin(removed)
        winners = self.choose(group, step, self._left(removed))
        for objective in group:
            self.memory.keep_removal(objective, step, winners.get(objective))
        self.memory.sync()
        return winners

    def _left(self, removed: Sequence[CandidateHead]) -> list[CandidateHead]:
        """Return the candidates of a step."""
        return [head for head in self.heads if head not in removed]

    def choose(self, group: list[str], step: int, left: list[CandidateHead]) -> dict[str, Trial]:
        """Choose the best of the candidates left, for each objective that has one.

        The evaluator must be at the model of the step.
        """
        race = self._race(group, step, left, self.bounds)
        winners = {}
        for objective, winner in self._winners_of_all(race.run()).items():
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
        self.progress.set_total(self.evaluations + evaluations // self.processes.size)

    def _complete(self, winner: Trial, tally: Tally) -> Trial:
        """Count what the winner's objective did not need, so that each step says how the whole data fares."""
        if winner.counts.n_ood == self.evaluator.n_ood:
            return winner
        site, position = winner.head
        positions = [position] * self.at_once  # another number would round otherwise

        def without_winner(batch: int) -> Values:
            return self.evaluator.without_each(batch, site, positions)[0]

        return replace(winner, counts=self._over_all(tally, without_winner))

    def _remembered(self, group: list[str], step: int) -> dict[str, Trial] | None:
        """Return the winners of a step if a journal has all of them; without the objectives that ended there."""
        return self.memory.removals(group, step)

    # --- several processes --------------------------------------------------------------------------------------------

    def _dealt_to_this_process(self, left: Sequence[CandidateHead]) -> list[CandidateHead]:
        """Return the candidates of this process: the dearest are dealt first, each to the process with least to do."""
        samples = self.evaluator.size
        sites = {site for site, _ in left}
        price_of_site = {site: self.evaluator.price(site, samples) for site in sites}
        dearest_first = sorted(left, key=lambda head: (-price_of_site[head.site], head))
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

        An objective for which no candidate is allowed is left out.
        """
        records_here: dict[str, list[TrialRecord]] = {}
        for objective, trials_of_objective in trials.items():
            could_win = contenders(objective, trials_of_objective, self._limits)
            records_here[objective] = [record_of_trial(trial) for trial in could_win]
        records_by_process = self.processes.gather(records_here)

        winners = {}
        for objective in trials:
            trials_of_all: list[Trial] = []
            for records in records_by_process:
                trials_of_all += map(trial_from_record, records.get(objective, []))
            winner = winner_of(objective, trials_of_all, self._limits)
            if winner is not None:
                winners[objective] = winner
        return winners

    def _trials_of_all(self, trials_here: Sequence[Trial]) -> list[Trial]:
        """Gather, in every process, what any of them has counted of some candidates."""
        trials_of_all: list[Trial] = []
        for records in self.processes.gather([record_of_trial(trial) for trial in trials_here]):
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
    """Count the evaluations of the whole data that Algorithm 1 needs: 5,784 to remove 48 of 144 heads."""
    candidates_by_step = [heads - step for step in range(budget)]
    return sum(candidates_by_step)
