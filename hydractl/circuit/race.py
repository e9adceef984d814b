"""One step of a search: find the candidate with the highest score without evaluating data that cannot change it.

Each candidate is a head to remove. A candidate is given up as soon as its best case cannot reach what another candidate
has already reached on all samples. The best case assumes that every sample it has not seen counts in its favour. Counts
are integers, so the winner is exactly the one that evaluating everything would find.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hydractl.circuit.counting import Tally
from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.objective import EvaluationCounts, reads_ood
from hydractl.circuit.winners import CandidateHead, Standing, Trial, standing

_SEEN_BEFORE_LEADER_ENDS = 0.3
"""The candidate in front runs to the end as soon as it has seen this share of the batches."""


@dataclass
class RacingHead:
    """One candidate in a race.

    Attributes:
        head: the candidate.
        open_for: the objectives that it may still win, or for which it has all counts.
        best_case: the most that it can still reach.
        counted_for: those objectives in ``open_for`` for which it has all counts.
        tally: its counts so far.
        final_counts: its counts when it is done, or from a journal; None while it runs.
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
        """Return the best standing that the candidate can still reach, comparable with the standings of others."""
        return standing(objective, self.head, self.best_case)

    def still_runs_for(self, objective: str) -> bool:
        """Return whether the candidate may still win an objective, but does not have all counts for it."""
        return objective in self.open_for and objective not in self.counted_for


class Race:
    """All candidates of one step, for all objectives that have removed the same heads so far.

    Args:
        evaluator: an evaluator whose current model lacks these heads.
        objectives: the objectives to find a winner for.
        heads: the candidates.
        bounds: whether to give candidates up early; without, each is evaluated on everything its objectives need.
        at_once: how many candidates of one site run together.
        known: evaluations of some candidates from a journal.
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
        known: Mapping[CandidateHead, Trial],
        finished: Callable[[RacingHead], None],
    ) -> None:
        """Begin a race between candidates, each a head to remove; it is run by :meth:`run`.

        A candidate is evaluated on one batch after another. Its best case is what it would reach if all samples that it
        has not seen counted in its favour. Candidates that an interrupted search has counted (``known``) do not run
        again.
        """
        self.evaluator = evaluator
        self.objectives = list(objectives)
        self.bounds = bounds
        self.at_once = at_once
        self.finished = finished

        # By objective: the best standing (comparable score) that a candidate has reached on all samples, and the
        # candidates with all counts. `_contestants` are those that were to run here; the known ones are not among them.
        self._leads: dict[str, Standing] = {}
        self._counted: dict[str, list[RacingHead]] = {objective: [] for objective in objectives}
        self._contestants: list[RacingHead] = []

        # Enter all candidates. At first, every one of them can still be perfect.
        nothing_counted = EvaluationCounts(correct=0, n_id=0, two_u=None, n_ood=0)
        best_case_of_nothing = nothing_counted.best_case(evaluator.n_id, evaluator.n_ood)
        for head in heads:
            contestant = RacingHead(
                head,
                open_for=set(self.objectives),
                best_case=best_case_of_nothing,
                tally=Tally(evaluator.shares),
            )
            if head not in known:
                self._contestants.append(contestant)
                continue

            # Counted before the search was interrupted: it has all counts, but for objectives it was given up for.
            evaluation = known[head]
            contestant.final_counts = evaluation.counts
            contestant.open_for.difference_update(evaluation.given_up)
            for objective in contestant.open_for:
                self._enter_counted(contestant, objective)

    def run(self) -> dict[str, list[Trial]]:
        """Run the race; return for each objective the heads that were not given up, each with its counts (a trial).

        The winner is among them. A candidate is given up when it can no longer win.
        """
        # Candidates can take turns batch by batch only if the states of all batches are in memory (in one chunk).
        all_in_memory = len(self.evaluator.memory.chunks) == 1
        if self.bounds and all_in_memory:
            for objective in self.objectives:
                self._find_winner(objective)
        else:
            self._run_chunks()

        trials = {}
        for objective, contestants in self._counted.items():
            trials[objective] = [Trial(contestant.head, contestant.counts) for contestant in contestants]
        return trials

    def tally_of(self, head: CandidateHead) -> Tally:
        """Return what has been counted here of a candidate.

        It is empty if another process or a journal counted the candidate.
        """
        for contestant in self._contestants:
            if contestant.head == head:
                return contestant.tally
        return Tally(self.evaluator.shares)

    # --- all data in memory, with bounds: the best case decides who goes on -------------------------------------------

    def _find_winner(self, objective: str) -> None:
        """Evaluate candidates for one objective until each has seen all batches or cannot win.

        The winner is then among the candidates in :attr:`_counted`. In each turn the leader runs, the candidate with
        the greatest hope (the best standing that it can still reach):

        * usually on one batch, so no candidate runs a batch that it could have been spared;
        * if it has seen 30 % of the batches, on all that are left, as its final score rules others out.
        """
        order = self._batches_read_by([objective])  # indices of batches
        while True:
            running = [contestant for contestant in self._contestants if contestant.still_runs_for(objective)]
            if not running:
                return
            leader = max(running, key=lambda contestant: contestant.hope(objective))
            batches_left = [batch for batch in order if batch not in leader.tally.seen]
            batches_seen = len(order) - len(batches_left)

            # A leader that has seen enough batches runs all that are left, any other only the next one.
            goes_to_the_end = batches_seen >= _SEEN_BEFORE_LEADER_ENDS * len(order)
            batches_to_run = batches_left if goes_to_the_end else batches_left[:1]
            for batch in batches_to_run:
                if objective not in leader.open_for:  # the batch before has ruled it out
                    break
                # Beside the leader run the most hopeful candidates of its site (attention block) that have not seen the
                # batch; those of other sites cannot run together with it.
                site = leader.head.site
                unseen = [other for other in running if other.head.site == site and batch not in other.tally.seen]
                companions = sorted(unseen, key=lambda other: other.hope(objective), reverse=True)
                others = [other for other in companions if other is not leader]
                self._evaluate_unit([leader, *others[: self.at_once - 1]], batch)

    def _is_id(self, batch: int) -> bool:
        """Return whether a batch holds ID samples; batches of OOD samples have no labels."""
        return self.evaluator.batches[batch].labels is not None

    def _batches_read_by(self, objectives: Sequence[str]) -> list[int]:
        """Return the indices of the batches that any of these objectives reads, ID and OOD batches mixed evenly.

        The batches of each side (ID or OOD) keep their order, and the shorter side is spread over the longer one. E.g.
        with the ID batches 0 and 1 and the OOD batches 2 to 5, the order is 2, 0, 3, 4, 1, 5. So the first batches
        already give pairs of an ID and an OOD sample, over which an AUROC is counted.
        """
        sides: dict[bool, list[int]] = {True: [], False: []}
        for batch in range(len(self.evaluator.batches)):
            if any(self._is_read_by(objective, batch) for objective in objectives):
                sides[self._is_id(batch)].append(batch)

        # Where the middle of each batch is in its side, as a share of the side's length: 0.25 and 0.75 for two batches.
        relative_position = {}
        for batches in sides.values():
            for index, batch in enumerate(batches):
                relative_position[batch] = (index + 0.5) / len(batches)
        return sorted(relative_position, key=relative_position.__getitem__)

    def _is_read_by(self, objective: str, batch: int) -> bool:
        """Return whether an objective reads a batch; ID batches are always read."""
        return self._is_id(batch) or reads_ood([objective])

    # --- one candidate after another ----------------------------------------------------------------------------------

    def _run_chunks(self) -> None:
        """Run all candidates on the batches whose states fit into memory together, then on the next chunk, and so on.

        A chunk is a part of the batches, a unit a few candidates of one site (attention block) that run together. The
        counts are collected in the candidates. With bounds, candidates that can no longer win are given up. Then, if
        there are three chunks or more, the unit that can still reach the most runs to the end after the first chunk:
        its final scores rule out others.
        """
        # The batches of each chunk that an objective reads; chunks without such batches are left out.
        needed = set(self._batches_read_by(self.objectives))
        batches_of_chunks = [[batch for batch in chunk if batch in needed] for chunk in self.evaluator.memory.chunks]
        batches_by_chunk = [batches for batches in batches_of_chunks if batches]
        for chunk_index, batches in enumerate(batches_by_chunk):
            # After a chunk, some candidates are given up, and the hopes of others have changed.
            units = self._units_by_hope()
            is_second_of_many = chunk_index == 1 and len(batches_by_chunk) > 2
            if self.bounds and is_second_of_many and units:
                most_hopeful = units.pop(0)
                for later_batches in batches_by_chunk[chunk_index:]:
                    for batch in later_batches:
                        self._evaluate_unit(most_hopeful, batch)
                    self.evaluator.drop_traces(later_batches)

            # All other units run this chunk only; then its states make room for those of the next chunk.
            for unit in units:
                for batch in batches:
                    self._evaluate_unit(unit, batch)
            self.evaluator.drop_traces(batches)

    def _units_by_hope(self) -> list[list[RacingHead]]:
        """Return the candidates that are not done, in units of up to ``at_once`` that run together.

        A unit has candidates of one site (attention block) only. Units and the candidates in them are sorted by hope,
        the best standing that a candidate can still reach for the first objective; a unit counts as its first one. E.g.
        with ``at_once`` 2 and hopes 9, 7, 4 at site A and 8 at site B: [A9, A7], [B8], [A4].
        """
        first_objective = self.objectives[0]
        running = [contestant for contestant in self._contestants if contestant.final_counts is None]
        most_hopeful_first = sorted(running, key=lambda contestant: contestant.hope(first_objective), reverse=True)

        # Group by site; within a site the most hopeful candidate stays first.
        by_site: dict[int, list[RacingHead]] = {}
        for contestant in most_hopeful_first:
            by_site.setdefault(contestant.head.site, []).append(contestant)

        # Cut each site into units of `at_once` candidates.
        units = []
        for contestants_of_site in by_site.values():
            for start in range(0, len(contestants_of_site), self.at_once):
                units.append(contestants_of_site[start : start + self.at_once])
        return sorted(units, key=lambda unit: unit[0].hope(first_objective), reverse=True)

    # --- running ------------------------------------------------------------------------------------------------------

    def _evaluate_unit(self, unit: Sequence[RacingHead], batch: int) -> None:
        """Evaluate some candidates of one site on one batch, and add the results to the counts of each.

        Nothing runs unless at least one candidate still needs the batch. Each is judged at once: it may be given up, or
        rule out others.
        """
        is_needed = any(self._still_needs(contestant, batch) for contestant in unit)
        if not is_needed:
            return

        # Always run the same number of candidates at once, since another number would round differently: repeat the
        # last one as padding, and ignore the results of the repetitions.
        site = unit[0].head.site
        positions = [contestant.head.position for contestant in unit]
        repetitions = self.at_once - len(positions)
        padding = [positions[-1]] * repetitions
        values_of_positions = self.evaluator.values_without_each(batch, site, positions + padding)
        values_of_unit = values_of_positions[: len(unit)]
        for contestant, values in zip(unit, values_of_unit, strict=True):
            # Ask again: another candidate of the unit may just have put this one out of reach.
            if self._still_needs(contestant, batch):
                contestant.tally.add(batch, values)
                self._judge_after_batch(contestant)

    def _still_needs(self, contestant: RacingHead, batch: int) -> bool:
        """Return whether a batch can still change how a candidate fares.

        That is, the candidate is not done, has not seen the batch, and may win an objective that reads it.
        """
        if contestant.final_counts is not None or batch in contestant.tally.seen:
            return False
        return any(self._is_read_by(objective, batch) for objective in contestant.open_for)

    def _judge_after_batch(self, contestant: RacingHead) -> None:
        """Judge a candidate that has seen one more batch.

        The order matters:

        1. Its best case (all unseen samples in its favour) is lowered, and objectives that it cannot win are dropped.
        2. Objectives for which it has all counts are entered; its score there may rule out other candidates.
        3. If nothing is left to count, the candidate is done.
        """
        n_id = self.evaluator.n_id
        n_ood = self.evaluator.n_ood
        counts = contestant.tally.counts()
        contestant.best_case = counts.best_case(n_id, n_ood, contestant.tally.seen_pairs)
        self._drop_lost_objectives(contestant)

        # All objectives need the counts of all ID samples; those that read OOD samples also need all OOD samples.
        has_all_id = counts.n_id == n_id
        has_all_ood = counts.n_ood == n_ood
        for objective in self.objectives:
            if not contestant.still_runs_for(objective):
                continue
            has_all_counts = has_all_id and has_all_ood if reads_ood([objective]) else has_all_id
            if has_all_counts:
                self._enter_counted(contestant, objective)  # may put other candidates out of reach
        self._finish_if_nothing_left(contestant)

    def _enter_counted(self, contestant: RacingHead, objective: str) -> None:
        """Note that a candidate has all counts for an objective.

        If it is now the best one (the highest standing), candidates that cannot reach it any more are given up.
        """
        contestant.counted_for.add(objective)
        self._counted[objective].append(contestant)
        reached = standing(objective, contestant.head, contestant.counts)
        lead = self._leads.get(objective)
        if lead is not None and reached <= lead:
            return

        # It leads: compare the best case of each other candidate with it.
        self._leads[objective] = reached
        for other in self._contestants:
            if other is not contestant:
                self._drop_lost_objectives(other)
                self._finish_if_nothing_left(other)

    def _drop_lost_objectives(self, contestant: RacingHead) -> None:
        """Drop the objectives that the candidate can no longer win; without bounds, no objective is dropped."""
        if not self.bounds:
            return
        for objective in contestant.open_for - contestant.counted_for:
            lead = self._leads.get(objective)
            if lead is not None and contestant.hope(objective) < lead:
                contestant.open_for.discard(objective)

    def _finish_if_nothing_left(self, contestant: RacingHead) -> None:
        """Mark a candidate as done, and report it to ``finished``, if it has nothing left to win or to count."""
        if contestant.final_counts is None and contestant.open_for <= contestant.counted_for:
            contestant.final_counts = contestant.tally.counts()
            self.finished(contestant)
