"""One step of a search: which candidate scores highest, evaluating no sample that cannot change the answer.

A candidate is given up as soon as the best case of the samples it has not seen, every one of them right and on its
side, cannot reach what another candidate has already reached on all of them. The counts are integers, so the winner is
exactly that of evaluating everything. A candidate that could win on a machine that rounds otherwise is not given up.
``winners.py`` says who is out of reach of whom; here it is decided who runs next, on which batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hydractl.circuit.counting import Tally, Values
from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.memory import HeadEvaluation
from hydractl.circuit.objective import EvaluationCounts, Limits, reads_ood
from hydractl.circuit.winners import CandidateHead, Standing, SureLeads, Trial, standing
from hydractl.metrics.ood import two_u

_MOST_PAIRED = 64
"""Up to this many ID or OOD batches, the batches are ordered anew at every step; the cost grows with the square."""

_SEEN_BEFORE_LEADER_ENDS = 0.3
"""The candidate in front runs to the end once it has seen this share of the batches."""


@dataclass
class RacingHead:
    """One candidate in a race.

    Attributes:
        head: the candidate.
        open_for: the objectives that it may still win, or has all counts for.
        best_case: the most that it can still reach, with rounding in its favour.
        counted_for: those of the open objectives that it has all counts for.
        tally: its counts so far.
        final_counts: its counts once it is done, or where they come from a journal; None while it runs.
    """

    head: CandidateHead
    open_for: set[str]
    best_case: EvaluationCounts
    counted_for: set[str] = field(default_factory=set)
    tally: Tally = field(default_factory=Tally)
    final_counts: EvaluationCounts | None = None

    @property
    def counts(self) -> EvaluationCounts:
        """The counts so far."""
        if self.final_counts is not None:
            return self.final_counts
        return self.tally.counts()

    def hope(self, objective: str) -> Standing:
        """Return the best standing that it can still reach, comparable with what others have reached."""
        return standing(objective, self.head, self.best_case)

    def still_runs_for(self, objective: str) -> bool:
        """Return whether it may still win an objective, and has not all counts for it."""
        return objective in self.open_for and objective not in self.counted_for


class Race:
    """All candidates of one step, for every objective that has removed the same heads so far.

    Args:
        evaluator: at the model with these heads removed.
        objectives: what to choose for.
        heads: the candidates.
        bounds: whether candidates are given up early; without, each is evaluated on everything its objectives need.
        at_once: how many candidates of one site run together.
        limits: what a candidate has to keep; one that cannot is given up like one that cannot win.
        known: of some candidates, what a journal says.
        finished: called with each candidate as soon as it is done.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        objectives: Sequence[str],
        heads: Sequence[CandidateHead],
        *,
        bounds: bool,
        at_once: int,
        limits: Limits,
        known: Mapping[CandidateHead, HeadEvaluation],
        finished: Callable[[RacingHead], None],
    ) -> None:
        self.evaluator = evaluator
        self.objectives = list(objectives)
        self.bounds = bounds
        self.at_once = at_once
        self.limits = limits
        self.finished = finished
        self._leads = SureLeads(limits)
        self._counted: dict[str, list[RacingHead]] = {objective: [] for objective in objectives}
        self._contestants: list[RacingHead] = []

        nothing_counted = EvaluationCounts(correct=0, n_id=0, two_u=None, n_ood=0)
        best_case_of_nothing = nothing_counted.best_case(evaluator.n_id, evaluator.n_ood)
        for head in heads:
            contestant = RacingHead(
                head,
                open_for=set(self.objectives),
                best_case=best_case_of_nothing,
                tally=Tally(evaluator.shares),
            )
            if head in known:
                self._enter_known(contestant, known[head])
            else:
                self._contestants.append(contestant)

    def _enter_known(self, contestant: RacingHead, evaluation: HeadEvaluation) -> None:
        """Enter a candidate that a journal knows: it does not run, and counts for what it was not given up for."""
        contestant.final_counts = evaluation.counts
        contestant.open_for.difference_update(evaluation.given_up)
        for objective in contestant.open_for:
            self._enter_counted(contestant, objective)

    def run(self) -> dict[str, list[Trial]]:
        """Run the race, and return for each objective the candidates that were not given up, the winner among them."""
        all_in_memory = len(self.evaluator.chunks) == 1
        if self.bounds and all_in_memory:
            for objective in self.objectives:
                self._find_winner(objective)
        else:
            self._run_chunks()

        trials: dict[str, list[Trial]] = {}
        for objective, contestants in self._counted.items():
            trials[objective] = []
            for contestant in contestants:
                trial = Trial(contestant.head, contestant.counts)
                trials[objective].append(trial)
        return trials

    def tally_of(self, head: CandidateHead) -> Tally:
        """Return what has been counted of a candidate here.

        It is empty where another process or a journal counted the candidate.
        """
        for contestant in self._contestants:
            if contestant.head == head:
                return contestant.tally
        return Tally(self.evaluator.shares)

    # --- all data in memory, bounds: the best case decides who goes on ------------------------------------------------

    def _find_winner(self, objective: str) -> None:
        """Evaluate candidates until each is counted to its end or out of reach, for one objective.

        The candidate with the best hope always runs next, by one batch, so that no candidate runs a batch that it need
        not run whoever wins. One exception: the leader soon runs to the end, to be done with some candidates early.
        The winner is then among the candidates noted in :attr:`_counted`.
        """
        order = self._batches_in_order(objective)
        while True:
            running = [contestant for contestant in self._contestants if contestant.still_runs_for(objective)]
            if not running:
                return
            leader = max(running, key=lambda contestant: contestant.hope(objective))
            next_batches = [batch for batch in order if batch not in leader.tally.seen]
            batches_seen = len(order) - len(next_batches)
            goes_to_the_end = batches_seen >= _SEEN_BEFORE_LEADER_ENDS * len(order)
            if not goes_to_the_end:
                next_batches = next_batches[:1]
            for batch in next_batches:
                is_given_up = objective not in leader.open_for  # perhaps by what the batch before showed
                if not is_given_up:
                    companions = self._companions(leader, running, batch, objective)
                    self._evaluate_unit([leader, *companions], batch)

    def _companions(
        self, leader: RacingHead, running: Sequence[RacingHead], batch: int, objective: str
    ) -> list[RacingHead]:
        """Return who runs a batch together with the candidate in front: the most hopeful of its site.

        Only candidates of one site can run together, and ``at_once`` of them, the leader included.
        """

        def hope(contestant: RacingHead) -> Standing:
            return contestant.hope(objective)

        candidates = []
        for contestant in running:
            if contestant is leader:
                continue
            if contestant.head.site != leader.head.site:
                continue
            if batch not in contestant.tally.seen:
                candidates.append(contestant)
        candidates.sort(key=hope, reverse=True)
        places_left = self.at_once - 1
        return candidates[:places_left]

    def _batches_in_order(self, objective: str) -> list[int]:
        """Return the batches that an objective needs, first those on which the model as it is loses most.

        What a candidate loses shows there first. With too many batches to compare in pairs they keep their order.
        """
        needed = self._batches_read_by([objective])
        id_batches = [batch for batch in needed if self._is_id(batch)]
        ood_count = len(needed) - len(id_batches)
        if max(len(id_batches), ood_count) > _MOST_PAIRED:
            return needed

        # The losses of each batch by itself, [batches], and of each pair of batches, [batches, batches].
        values_of_batches = [self.evaluator.current_values(batch) for batch in needed]
        measured = {objective, *self.limits}
        losses = [_loss_of_single_samples(values, measured) for values in values_of_batches]
        alone = np.array(losses)
        paired = _paired_losses(values_of_batches)

        # Both kinds of loss as shares of their totals, which may be 0. Each pair stands in the matrix twice.
        total_alone = max(alone.sum(), 1e-9)
        total_paired = max(paired.sum() / 2, 1e-9)
        order = _greedy_order(alone / total_alone, paired / total_paired)
        return [needed[index] for index in order]

    def _is_id(self, batch: int) -> bool:
        """Return whether a batch is one of ID samples; those of OOD samples have no labels."""
        return self.evaluator.batches[batch].labels is not None

    def _batches_read_by(self, objectives: Sequence[str]) -> list[int]:
        """Return the batches that any of some objectives reads."""
        needed = []
        for batch in range(len(self.evaluator.batches)):
            if any(self._is_read_by(objective, batch) for objective in objectives):
                needed.append(batch)
        return needed

    def _is_read_by(self, objective: str, batch: int) -> bool:
        """Return whether an objective, or a limit, reads a batch; all of them read every ID batch."""
        return self._is_id(batch) or self._needs_ood(objective)

    def _needs_ood(self, objective: str) -> bool:
        """Return whether an objective, or any of the limits, reads OOD samples."""
        measured = (objective, *self.limits)
        return reads_ood(measured)

    # --- one candidate after another ----------------------------------------------------------------------------------

    def _run_chunks(self) -> None:
        """Run all candidates on the batches whose states fit into memory together, then on the next ones.

        Candidates of one site that run together are a unit. With bounds and three parts or more, the most hopeful unit
        runs to the end after the first part, so that others can be given up against what it reached.
        """
        parts = self._batches_read_by_chunk()
        for number, part in enumerate(parts):
            units = self._units_by_hope()
            is_after_first_part = number == 1 and len(parts) > 2
            if self.bounds and is_after_first_part and units:
                most_hopeful = units.pop(0)
                for later_part in parts[number:]:
                    self._run_part(most_hopeful, later_part)
                    self.evaluator.drop_traces(later_part)
            for unit in units:
                self._run_part(unit, part)
            self.evaluator.drop_traces(part)

    def _batches_read_by_chunk(self) -> list[list[int]]:
        """Return the batches that any objective reads, those of one chunk in one list."""
        needed = set(self._batches_read_by(self.objectives))
        parts = []
        for chunk in self.evaluator.chunks:
            part = [batch for batch in chunk if batch in needed]
            if part:
                parts.append(part)
        return parts

    def _run_part(self, unit: Sequence[RacingHead], part: Sequence[int]) -> None:
        """Run some candidates of one site on the batches of one part."""
        for batch in part:
            self._evaluate_unit(unit, batch)

    def _units_by_hope(self) -> list[list[RacingHead]]:
        """Group the candidates that are not done into units that run together, the most hopeful unit first.

        A unit holds at most ``at_once`` candidates, all of one site, the most hopeful first. Hope is the best standing
        that a candidate can still reach for the first objective.
        """
        first_objective = self.objectives[0]

        def hope(contestant: RacingHead) -> Standing:
            return contestant.hope(first_objective)

        def hope_of_unit(unit: list[RacingHead]) -> Standing:
            most_hopeful = unit[0]
            return hope(most_hopeful)

        running = [contestant for contestant in self._contestants if contestant.final_counts is None]
        most_hopeful_first = sorted(running, key=hope, reverse=True)
        by_site: dict[int, list[RacingHead]] = {}
        for contestant in most_hopeful_first:
            contestants_of_site = by_site.setdefault(contestant.head.site, [])
            contestants_of_site.append(contestant)

        units = []
        for contestants_of_site in by_site.values():
            for start in range(0, len(contestants_of_site), self.at_once):
                end = start + self.at_once
                unit = contestants_of_site[start:end]
                units.append(unit)
        return sorted(units, key=hope_of_unit, reverse=True)

    # --- running ------------------------------------------------------------------------------------------------------

    def _evaluate_unit(self, unit: Sequence[RacingHead], batch: int) -> None:
        """Evaluate some candidates of one site on one batch, and judge each by its new counts.

        Nothing runs where no candidate of them both may win and lacks the batch.
        """
        is_needed = any(self._still_needs(contestant, batch) for contestant in unit)
        if not is_needed:
            return

        # Always the same number of candidates at once, since another number would round differently: the last one is
        # repeated, and the results of the repetitions are not read.
        site = unit[0].head.site
        positions = [contestant.head.position for contestant in unit]
        repetitions = self.at_once - len(positions)
        padding = [positions[-1]] * repetitions
        values_of_positions = self.evaluator.values_without_each(batch, site, positions + padding)
        values_of_unit = values_of_positions[: len(unit)]
        for contestant, values in zip(unit, values_of_unit, strict=True):
            # Asked again: another candidate of the unit may just have put this one out of reach.
            if self._still_needs(contestant, batch):
                contestant.tally.add(batch, values)
                self._judge_after_batch(contestant)

    def _still_needs(self, contestant: RacingHead, batch: int) -> bool:
        """Return whether a batch can still tell something about a candidate: it is not done, and lacks the batch."""
        is_done = contestant.final_counts is not None
        if is_done:
            return False
        if batch in contestant.tally.seen:
            return False
        return any(self._is_read_by(objective, batch) for objective in contestant.open_for)

    def _judge_after_batch(self, contestant: RacingHead) -> None:
        """Judge a candidate that has seen one more batch.

        Its best case is lowered to what is still possible; objectives that it can then no longer win are dropped, and
        those that it has all counts for are noted as counted.
        """
        n_id = self.evaluator.n_id
        n_ood = self.evaluator.n_ood
        counts = contestant.tally.counts()
        contestant.best_case = counts.most.best_case(n_id, n_ood, contestant.tally.seen_pairs)
        self._drop_lost_objectives(contestant)

        # Accuracy and losses are counted once all ID samples are; an objective that reads OOD samples needs these too.
        has_all_id = counts.n_id == n_id
        has_all_ood = counts.n_ood == n_ood
        for objective in self.objectives:
            if not contestant.still_runs_for(objective):
                continue
            lacks_ood = self._needs_ood(objective) and not has_all_ood
            if has_all_id and not lacks_ood:
                self._enter_counted(contestant, objective)
        self._finish_if_nothing_left(contestant)

    def _enter_counted(self, contestant: RacingHead, objective: str) -> None:
        """Enter a candidate that has all counts of an objective; if it leads now, others may be out of reach."""
        contestant.counted_for.add(objective)
        self._counted[objective].append(contestant)
        trial = Trial(contestant.head, contestant.counts)
        leads_now = self._leads.raise_if_ahead(objective, trial)
        if not leads_now:
            return
        for other in self._contestants:
            if other is not contestant:
                self._drop_lost_objectives(other)
                self._finish_if_nothing_left(other)

    def _drop_lost_objectives(self, contestant: RacingHead) -> None:
        """Drop the objectives that the candidate can no longer win; without bounds, none is dropped."""
        if not self.bounds:
            return
        not_counted_yet = contestant.open_for - contestant.counted_for
        for objective in not_counted_yet:
            if self._leads.out_of_reach(objective, contestant.head, contestant.best_case):
                contestant.open_for.discard(objective)

    def _finish_if_nothing_left(self, contestant: RacingHead) -> None:
        """Note as done a candidate that has nothing left to win or to count."""
        is_done = contestant.final_counts is not None
        if is_done:
            return
        has_nothing_to_count = contestant.open_for <= contestant.counted_for
        if has_nothing_to_count:
            contestant.final_counts = contestant.tally.counts()
            self.finished(contestant)


# --- in which order batches show most ---------------------------------------------------------------------------------


def _loss_of_single_samples(values: Values, objectives: set[str]) -> float:
    """Return the loss on one batch of the objectives that read ID samples one by one.

    It is 0 for OOD samples, and for objectives that read pairs of samples only.
    """
    if not values.labelled:
        return 0.0
    wrong = float(len(values.scores) - values.correct)
    loss_of_objective = {
        "acc": wrong,
        "avg": wrong,
        "nll": float(values.nll),
        "brier": float(values.brier),
    }
    losses = [loss_of_objective.get(objective, 0.0) for objective in objectives]
    return sum(losses)


def _paired_losses(values: Sequence[Values]) -> np.ndarray:
    """Return the AUROC loss of each two batches: twice the number of their pairs in the wrong order.

    Args:
        values: the results of each batch.

    Returns:
        Symmetric ``[batches, batches]``; zero for batches that are not one of ID and one of OOD samples of a task.
    """
    losses = np.zeros((len(values), len(values)))
    for id_batch, inside in enumerate(values):
        if not inside.labelled:
            continue
        for ood_batch, outside in enumerate(values):
            if outside.labelled:
                continue
            common_tasks = set(inside.tasks).intersection(outside.tasks)
            if common_tasks:
                loss = _twice_inverted_pairs(inside, outside)
                losses[id_batch, ood_batch] = loss
                losses[ood_batch, id_batch] = loss
    return losses


def _twice_inverted_pairs(inside: Values, outside: Values) -> int:
    """Return twice the number of pairs in which the OOD sample does not score above the ID one, ties counted half."""
    pairs = len(inside.scores) * len(outside.scores)
    return 2 * pairs - two_u(inside.scores, outside.scores)


def _greedy_order(alone: np.ndarray, paired: np.ndarray) -> list[int]:
    """Return the indices of all batches in order, each time the one that adds most to the loss on those so far.

    Args:
        alone: the loss on each batch by itself, ``[batches]``.
        paired: the loss by the pairs of each two batches, ``[batches, batches]``.
    """
    # A batch counts a little for its pairs with all others, so that the first one is chosen with some foresight.
    gain = alone + 0.1 * paired.sum(axis=1)
    order: list[int] = []
    for _ in range(len(gain)):
        best = int(gain.argmax())
        order.append(best)
        gain = gain + paired[best]
        gain[best] = -np.inf  # never again
    return order
