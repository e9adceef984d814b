"""Algorithm 1 of the paper (D.1.2): greedy backward elimination over all heads of a model.

At each step every remaining head is ablated alone, in addition to the heads already removed. The head whose removal
gives the highest score is removed for good. Ties are won by the lowest site, then the lowest head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import TypedDict

from hydractl.circuit.counting import Tally, Values
from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.journal import Journal, NoJournal
from hydractl.circuit.memory import SearchMemory, trial_from_record
from hydractl.circuit.objective import EvaluationCounts, fewest_correct
from hydractl.circuit.race import Race, RacingHead
from hydractl.circuit.winners import CandidateHead, Trial, best_first
from hydractl.distributed import Processes
from hydractl.log import Progress


@dataclass
class ObjectiveRanking:
    """The ranking of one objective.

    Attributes:
        base: the counts of the model before the first removal.
        steps: the removals in order, each with the counts without its head.
        ended: the option that ended the ranking before its budget, e.g. "max_drop"; None if no option did.
    """

    base: EvaluationCounts
    steps: list[Trial] = field(default_factory=list)
    ended: str | None = None

    @property
    def removed(self) -> list[CandidateHead]:
        """The heads removed so far, in order."""
        return [step.head for step in self.steps]


def _ignore_removal(objective: str, step: int, removal: Trial) -> None:
    """Do nothing: the default of ``on_removal``."""


class SearchKeywords(TypedDict, total=False):
    """The keyword arguments that every search takes; see :class:`GreedySearch`."""

    at_once: int
    max_drop: Fraction | None
    journal: Journal | None
    processes: Processes | None
    progress: Progress | None
    on_removal: Callable[[str, int, Trial], None]


class GreedySearch:
    """Rankings for any number of objectives; objectives that have removed the same heads share their evaluations.

    Args:
        evaluator: the model and the data to search with.
        heads: the candidates in model order, each by the index of its site and its position there.
        bounds: whether a candidate is given up as soon as it can no longer win.
        at_once: how many candidates of one site run together.
        max_drop: a ranking ends before the first step that lowers accuracy by more than this below the whole model's.
        journal: stores evaluations, and has those of a resumed search.
        processes: the processes that share the candidates.
        progress: shows the number of evaluations.
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
        max_drop: Fraction | None = None,
        journal: Journal | None = None,
        processes: Processes | None = None,
        progress: Progress | None = None,
        on_removal: Callable[[str, int, Trial], None] = _ignore_removal,
    ) -> None:
        """Store the arguments, and begin without rankings; :meth:`run` sets the limit of accuracy."""
        self.evaluator = evaluator
        self.heads = [CandidateHead(*head) for head in heads]
        self.bounds = bounds
        self.at_once = at_once
        self.max_drop = max_drop
        self.processes = processes or Processes()
        self.memory = SearchMemory(journal or NoJournal())
        self.progress = progress or Progress()
        self.on_removal = on_removal
        self.evaluations = 0
        self.rankings: dict[str, ObjectiveRanking] = {}

        # If the best removal of a step leaves fewer samples right, the ranking ends; set by `run` for `max_drop`.
        self._fewest_correct = 0

    def run(self, objectives: Sequence[str], budget: int) -> dict[str, ObjectiveRanking]:
        """Remove one head per step for each objective, until ``budget`` heads are removed or its ranking ends.

        A ranking ends before the first step at which the winner lowers accuracy by more than ``max_drop``.

        Returns:
            The ranking of each objective; the rankings are also stored in :attr:`rankings`.
        """
        base = self._counts_of_whole_model()
        if self.max_drop is not None:
            self._fewest_correct = fewest_correct(base, self.max_drop)
        self.rankings = {objective: ObjectiveRanking(base) for objective in objectives}
        for step in range(1, budget + 1):
            # Objectives that have removed the same heads have the same model, so one step serves all of them.
            running = {name: ranking.removed for name, ranking in self.rankings.items() if ranking.ended is None}
            groups = objectives_by_removed_heads(running)
            evaluations_of_group = self.evaluations_to_come(step, budget)
            self._show_evaluations_left(len(groups) * evaluations_of_group)
            for removed, group in groups.items():
                winners = self._winners_in_journal(group, step)
                if winners is None:
                    self.evaluator.go_to_model_without(removed)
                    left = [head for head in self.heads if head not in removed]
                    winners = self.choose_winners(group, step, left)
                    for objective in group:
                        self.memory.keep_removal(objective, step, winners[objective])
                    self.memory.sync()
                for objective in group:
                    winner = winners[objective]
                    ranking = self.rankings[objective]
                    if winner.counts.correct < self._fewest_correct:
                        ranking.ended = "max_drop"
                    else:
                        ranking.steps.append(winner)
                        self.on_removal(objective, step, winner)
        return self.rankings

    def evaluations_to_come(self, step: int, budget: int) -> int:
        """Return the highest number of evaluations from a step on, for objectives that have removed the same heads."""
        removed = step - 1
        return evaluations(len(self.heads) - removed, budget - removed)

    def _counts_of_whole_model(self) -> EvaluationCounts:
        """Return the counts of the model before the first removal, from the journal or counted now and stored there."""
        known = self.memory.base_counts()
        if known is not None:
            return known
        self.evaluator.go_to_model_without([])
        empty_tally = Tally(self.evaluator.shares)
        base = self._count_over_all_data(empty_tally, values_of_batch=self.evaluator.current_values)
        self.memory.keep_base(base)
        return base

    def _count_over_all_data(self, tally: Tally, values_of_batch: Callable[[int], Values]) -> EvaluationCounts:
        """Return the counts of a model over all data; batches that its tally has not seen yet are evaluated now.

        Args:
            tally: the counts of some batches; changed in place.
            values_of_batch: returns the results of a batch, by its index.
        """
        for chunk in self.evaluator.memory.chunks:
            for batch in chunk:
                if batch not in tally.seen:
                    values = values_of_batch(batch)
                    tally.add(batch, values)
            self.evaluator.drop_traces(chunk)
        return tally.counts()

    def choose_winners(self, group: list[str], step: int, left: list[CandidateHead]) -> dict[str, Trial]:
        """Return for each objective the head whose removal gives the highest score, with its counts over all data.

        The evaluator must be at the model of the step.

        Args:
            group: the objectives, which have removed the same heads so far.
            step: the number of the step.
            left: the candidates, the heads that are left.
        """
        # A race evaluates the candidates of this process and gives up those that cannot win. The best one of all
        # processes wins.
        race = self._build_race(group, step, left, self.bounds)
        trials_here = race.run()
        winners = self._winners_across_processes(trials_here)

        # An objective such as accuracy reads no OOD samples: count the winner on them, too.
        completed = {}
        for objective, winner in winners.items():
            counted_here = race.tally_of(winner.head)
            completed[objective] = self._with_counts_over_all_data(winner, counted_here)
        return completed

    def _show_evaluations_left(self, evaluations: int) -> None:
        """Set the total of the progress: the evaluations of this process so far, and its share of those left."""
        self.progress.set_total(self.evaluations + evaluations // self.processes.size)

    def _winners_across_processes(self, trials: Mapping[str, Sequence[Trial]]) -> dict[str, Trial]:
        """Return the best candidate of all processes for each objective.

        Args:
            trials: for each objective the trials of this process (heads with what was counted without them); perhaps
                none.

        Returns:
            The winner of each objective, the same in all processes.
        """
        winners = {}
        for objective, its_trials in trials.items():
            best_here = best_first(objective, its_trials)[:1]  # one trial or none
            best_of_each_process = self._trials_across_processes(best_here)
            winners[objective] = best_first(objective, best_of_each_process)[0]
        return winners

    def _build_race(self, group: list[str], step: int, left: Sequence[CandidateHead], bounds: bool) -> Race:
        """Return the race of one step, which is not run yet: it evaluates the candidates of this process.

        Evaluations in the journal of an interrupted search are used again. The objectives of the group have removed the
        same heads so far, so they share their evaluations: the journal stores these under the first objective.

        Args:
            group: the objectives that a winner is to be found for.
            step: the number of the step.
            left: the candidates of all processes.
            bounds: whether candidates are given up as soon as they can no longer win.
        """
        first_objective = group[0]

        def keep_finished(contestant: RacingHead) -> None:
            """Store the counts of a candidate that the race is done with in the journal, and count the evaluation."""
            given_up = [objective for objective in group if objective not in contestant.open_for]
            evaluation = Trial(contestant.head, contestant.counts, given_up=tuple(given_up))
            self.evaluations += 1
            self.memory.keep_evaluation(first_objective, step, evaluation)
            self.progress.advance()

        return Race(
            self.evaluator,
            group,
            self._dealt_to_this_process(left),
            bounds=bounds,
            at_once=self.at_once,
            known=self.memory.evaluations_of_step(first_objective, step),
            finished=keep_finished,
        )

    def _with_counts_over_all_data(self, winner: Trial, tally: Tally) -> Trial:
        """Return the winner counted on all data, including OOD samples that an objective such as accuracy did not need.

        Args:
            winner: the trial that won a step.
            tally: what this process has counted of the winner; the missing batches are added to it.
        """
        has_all_counts = winner.counts.n_ood == self.evaluator.n_ood  # a winner has seen all ID samples in any case
        if has_all_counts:
            return winner
        site, position = winner.head

        # Run as many heads at once as the race does, since another number would round differently: repeat the winner.
        positions = [position] * self.at_once

        def values_without_winner(batch: int) -> Values:
            values_of_repetitions = self.evaluator.values_without_each(batch, site, positions)
            return values_of_repetitions[0]

        counts = self._count_over_all_data(tally, values_without_winner)
        return replace(winner, counts=counts)

    def _winners_in_journal(self, group: list[str], step: int) -> dict[str, Trial] | None:
        """Return the winners of a step if the journal has the step of every objective."""
        return self.memory.winners_of_step(group, step)

    # --- several processes --------------------------------------------------------------------------------------------

    def _dealt_to_this_process(self, left: Sequence[CandidateHead]) -> list[CandidateHead]:
        """Return the candidates that this process evaluates, in model order: they are dealt out one by one.

        A candidate costs as much as the one before or less, so no process gets more than one dear one more than others.
        Every process deals in the same way, so nothing has to be exchanged.
        """
        return sorted(left)[self.processes.rank :: self.processes.size]

    def _trials_across_processes(self, trials_here: Sequence[Trial]) -> list[Trial]:
        """Return the trials of all processes, in the order of the processes; every process returns the same.

        A trial is a head and what was counted without it. Processes exchange trials as JSON records.
        """
        trials: list[Trial] = []
        for records_of_process in self.processes.gather(list(map(asdict, trials_here))):
            trials += map(trial_from_record, records_of_process)
        return trials


def objectives_by_removed_heads(
    removed: Mapping[str, Sequence[CandidateHead]],
) -> dict[tuple[CandidateHead, ...], list[str]]:
    """Group objectives by the heads they have removed.

    Args:
        removed: for each objective its removed heads, in the order of their removal.

    Returns:
        The objectives of each group, by their removed heads in model order: the order of removal makes no difference to
        the model.
    """
    groups: dict[tuple[CandidateHead, ...], list[str]] = {}
    for objective, heads in removed.items():
        in_model_order = tuple(sorted(heads))
        groups.setdefault(in_model_order, []).append(objective)
    return groups


def evaluations(heads: int, budget: int, most_in_a_step: int | None = None) -> int:
    """Return how many evaluations of the whole data Algorithm 1 needs: 5,784 to remove ``budget`` = 48 of 144 heads.

    Each step evaluates every head that is left, one fewer than the step before, or at most ``most_in_a_step`` of them.
    """
    candidates_by_step = [heads - step for step in range(budget)]
    if most_in_a_step is not None:
        candidates_by_step = [min(most_in_a_step, left) for left in candidates_by_step]
    return sum(candidates_by_step)
