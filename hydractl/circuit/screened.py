"""Algorithm 1 that evaluates all heads in bfloat16, and only those that may be the best again (``--approx bfloat16``).

Processors made for bfloat16 multiply matrices several times faster in it. The wide format is that of ``--dtype``,
float32 or float64. A step leaves out heads in two rounds:

1. Every head is evaluated in bfloat16. A head is left out if it is behind the best one, even with every sample whose
   class is uncertain counted in its favour, and against the best one.
2. The batches with such samples are evaluated in the wide format, which settles their classes. A head is left out if it
   is behind now.

The heads that are left are evaluated in the wide format like the heads of an exact search, and the best of them is
removed.

Not only classes change, but also scores. The AUROC or mean loss of a head in the wide format minus that in bfloat16 is
its *error*. An error that all heads have in common changes nothing; by how much errors differ is measured on some heads
(the pilots), which are evaluated in both formats at first, and on every head that is removed. Both rounds allow for
such differences.

This is an approximation, since the errors of most heads are not measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor

from hydractl.circuit.counting import LOGIT_TOLERANCE, Tally, Values
from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.journal import HOW_TO_START_OVER
from hydractl.circuit.memory import HeadEvaluation
from hydractl.circuit.objective import OBJECTIVE_BY_NAME, EvaluationCounts
from hydractl.circuit.race import Race, RacingHead, units_of_sites
from hydractl.circuit.search import GreedySearch, SearchKeywords, counts_without
from hydractl.circuit.winners import CandidateHead, Trial
from hydractl.errors import InputError

PILOTS = 8
"""How many heads are evaluated in both formats, to measure by how much their errors differ."""

WORTH_IT = 0.7
"""A block must take at most this share of its time in the wide format, else an exact search may well take less time.

With bounds, an exact search does 0.6 to 0.9 of the work of a screened one in the models it was tried on.
"""

USUALLY_AGAIN = 0.15
"""The share of all work without bounds that the plan of a search expects in the wide format.

Searches of the models it was tried on did 0.08 (72 heads) and 0.26 (24 heads).
"""

_DEVIATIONS = 6
"""How many standard deviations of errors two heads may be apart for the lower one to be perhaps the better one.

That is about four standard deviations of the difference of two errors, which is larger by the square root of 2.
"""

_FEWEST_DEVIATIONS = 4
"""A step allowed for too little if that was fewer standard deviations than this, with the error of its winner."""

_MOST_APART = 2 * LOGIT_TOLERANCE[torch.bfloat16]
"""Whether a sample is classified right is uncertain if the logit of its label and the highest other one differ by less.

It is a share of the largest logit in magnitude, or of 1 if that is larger. A logit was seen to move by up to about half
of it between the formats.
"""

NearHeads = dict[str, dict[CandidateHead, EvaluationCounts]]
"""For each objective the heads that may be the best, with their counts."""


class CoarseEvaluator(Evaluator):
    """An evaluator of a model in bfloat16, whose doubt is about the classes of samples, and nothing else.

    Args:
        arguments, options: those of :class:`hydractl.circuit.evaluator.Evaluator`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, logit_tolerance=_MOST_APART, **options)

    def _values_from_reads(self, batch: int, read: Tensor, classes: Tensor | None) -> Values:
        """Return the counts of one batch; differences of OOD scores and losses are measured, and no part of doubt."""
        values = super()._values_from_reads(batch, read, classes)
        doubt = values.doubt._replace(loss=0)
        return replace(values, doubt=doubt, near=0.0)


class Screened(GreedySearch):
    """The search of ``--approx bfloat16``.

    The first step measures the pilots, which are spread evenly over all heads. Objectives that have removed the same
    heads are searched together: a head that may be the best of one of them is evaluated for all of them.

    The evaluations of whole heads in the wide format are those of :class:`hydractl.circuit.search.GreedySearch`: with
    bounds, shared by processes, and stored in the journal. The two rounds before are not stored; a resumed search
    repeats them for the step that was interrupted.

    Args:
        evaluator: the model and the data in the wide format.
        heads: the candidates, more than there are pilots.
        coarse: the same model and data in bfloat16.
        others: keyword arguments of :class:`hydractl.circuit.search.GreedySearch`; there may be no constraints.

    Attributes:
        coarse_evaluations: how many candidates this process has evaluated in bfloat16, pilots included.
        whole_steps: how many steps allowed for too little, and therefore evaluated all heads in the wide format.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        heads: Sequence[tuple[int, int]],
        *,
        coarse: CoarseEvaluator,
        **others: Unpack[SearchKeywords],
    ) -> None:
        """Begin without any error measured."""
        super().__init__(evaluator, heads, **others)
        self.coarse = coarse
        self.coarse_evaluations = 0
        self.whole_steps = 0

        # For each objective the errors of the pilots and of the removed heads.
        self._errors: dict[str, list[float]] = {}

    def choose_winners(self, group: list[str], step: int, left: list[CandidateHead]) -> dict[str, Trial]:
        """Leave out candidates in two rounds, and choose the best of the others in the wide format.

        Args:
            group: the objectives, which have removed the same heads so far.
            step: the number of the step.
            left: the candidates, the heads that are left.

        Returns:
            The winner of each objective, with its error.
        """
        known = self.memory.evaluations_of_step(group[0], step)
        self.coarse.go_to_model_without(self.rankings[group[0]].removed)
        if step == 1:
            self._measure_pilots(group, known)

        # The two rounds: `near` and `settled` have the heads that may be the best of any of the objectives.
        slack = {objective: self._slack(objective, _DEVIATIONS, self._errors[objective]) for objective in group}
        race = self._coarse_race(group, left, slack)
        near = self._nearest(race.run(), slack)
        settled = self._nearest(self._settled_trials(race, near), slack)
        heads_near = {head for counts_of_heads in settled.values() for head in counts_of_heads}
        winners = self._winners_of_race(group, step, sorted(heads_near), known)
        winners = self._with_errors(winners, near)

        # If the winners show that more should have been allowed for, any other head may be better.
        enough = [self._was_enough(objective, winners[objective], near, slack) for objective in group]
        if not all(enough):
            self.whole_steps += 1
            self._share(group, step, known)
            winners = self._winners_of_race(group, step, left, known)
            winners = self._with_errors(winners, near)
        self._note_errors(winners)
        return winners

    @property
    def has_evaluated(self) -> bool:
        """Whether this process has evaluated any candidate, in any format."""
        return self.coarse_evaluations > 0 or super().has_evaluated

    @property
    def evaluations_text(self) -> str:
        """The numbers of candidates that this process has evaluated in each format, for a message."""
        wide = str(self.evaluator.model.dtype).removeprefix("torch.")
        text = f"{self.coarse_evaluations:,} candidates in bfloat16, {self.evaluations:,} in {wide}"
        if self.whole_steps:
            text += f" (all that were left in {self.whole_steps} steps where bfloat16 was further off than expected)"
        return text

    def _show_evaluations_left(self, evaluations: int) -> None:
        """Set the total of the progress, which shows the evaluations in bfloat16."""
        pilots_left = 0 if self._errors else PILOTS
        left_here = (evaluations + pilots_left) // self.processes.size
        self.progress.set_total(self.coarse_evaluations + left_here)

    def _count_evaluation(self) -> None:
        """Count one evaluation in the wide format, which the progress does not show."""
        self.evaluations += 1

    def _count_coarse_evaluation(self) -> None:
        """Count one evaluation in bfloat16, and show it."""
        self.coarse_evaluations += 1
        self.progress.advance()

    # --- the two rounds -----------------------------------------------------------------------------------------------

    def _coarse_race(self, group: Sequence[str], left: Sequence[CandidateHead], slack: Mapping[str, int]) -> Race:
        """Return a race in bfloat16 of the candidates of this process, without limits and without a journal."""

        def count(candidate: RacingHead) -> None:
            self._count_coarse_evaluation()

        return Race(
            self.coarse,
            group,
            self._dealt_to_this_process(left),
            bounds=self.bounds,
            at_once=self.at_once,
            limits={},
            known={},
            slack=slack,
            finished=count,
        )

    def _nearest(self, trials_here: Mapping[str, Sequence[Trial]], slack: Mapping[str, int]) -> NearHeads:
        """Return the heads that may be the best of each objective, from the trials of all processes.

        A head may be the best if its highest key is less than ``slack`` below the highest of all lowest keys. Highest
        and lowest are meant with all uncertain classes in favour of the head, and against it.
        """
        near: NearHeads = {}
        for objective, trials in self._gather_by_objective(trials_here).items():
            lead = max(trial.counts.least.key(objective) for trial in trials)
            near[objective] = {}
            for trial in trials:
                distance = lead - trial.counts.most.key(objective)
                if distance < slack[objective]:
                    near[objective][trial.head] = trial.counts
        return near

    def _settled_trials(self, race: Race, near: NearHeads) -> dict[str, list[Trial]]:
        """Return the trials of the heads that are near and were evaluated by this process, with their classes settled.

        Classes are left as they are for objectives that do not count how many samples are right.

        Args:
            race: the race in bfloat16; its tallies are changed.
            near: the heads that may be the best of each objective.
        """
        tallies_to_settle = {}
        near_here: dict[str, list[Trial]] = {objective: [] for objective in near}
        for objective, counts_of_heads in near.items():
            for head, counts in counts_of_heads.items():
                tally = race.tally_of(head)
                if not tally.seen:  # another process has evaluated it
                    continue
                near_here[objective].append(Trial(head, counts))
                if OBJECTIVE_BY_NAME[objective].counts_right:
                    tallies_to_settle[head] = tally

        self._settle_classes(tallies_to_settle)
        settled: dict[str, list[Trial]] = {}
        for objective, trials in near_here.items():
            if OBJECTIVE_BY_NAME[objective].counts_right:
                trials = [replace(trial, counts=tallies_to_settle[trial.head].counts()) for trial in trials]
            settled[objective] = trials
        return settled

    def _settle_classes(self, tallies: Mapping[CandidateHead, Tally]) -> None:
        """Count anew, in the wide format, how many samples of uncertain batches are classified right.

        Args:
            tallies: for some heads what was counted in bfloat16; changed in place.
        """
        units = units_of_sites(sorted(tallies), self.at_once)
        for chunk in self.evaluator.chunks:
            for unit in units:
                site = unit[0].site
                positions = [head.position for head in unit]
                for batch in chunk:
                    uncertain = [batch in tallies[head].uncertain for head in unit]
                    if not any(uncertain):
                        continue
                    values_of_unit = self.evaluator.values_in_company(batch, site, positions, self.at_once)
                    for head, is_uncertain, values in zip(unit, uncertain, values_of_unit, strict=True):
                        if is_uncertain:
                            tallies[head].settle_classes(batch, values)
            self.evaluator.drop_traces(chunk)

    # --- errors -------------------------------------------------------------------------------------------------------

    def _measure_pilots(self, group: Sequence[str], known: dict[CandidateHead, HeadEvaluation]) -> None:
        """Measure the errors of the pilots for all objectives, or take them from the journal.

        Each process evaluates some of the pilots. The evaluators must be at the model of the first step.

        Args:
            group: the objectives.
            known: the evaluations of the first step that the journal has; those of the pilots are added.
        """
        first_objective = group[0]
        pilots = _spread_evenly(self.heads, PILOTS)
        new_pilots = [head for head in pilots if head not in known]
        for head in new_pilots[self.processes.rank :: self.processes.size]:
            evaluation = self._evaluate_in_both_formats(head, group)
            known[head] = evaluation
            self.memory.keep_own_evaluation(first_objective, 1, evaluation)
            self._count_evaluation()
            self._count_coarse_evaluation()

        # A later step cannot do without the pilots, so they are on the disk before any process goes on.
        self.memory.sync()
        self._share(group, 1, known)
        self._note_errors_of_pilots(group, known)

    def _evaluate_in_both_formats(self, head: CandidateHead, objectives: Sequence[str]) -> HeadEvaluation:
        """Return the evaluation of a head in the wide format, with its errors."""
        counts = counts_without(self.evaluator, head, Tally(self.evaluator.shares), self.at_once)
        coarse_counts = counts_without(self.coarse, head, Tally(self.coarse.shares), self.at_once)
        errors = {objective: _error(objective, counts, coarse_counts) for objective in objectives}
        return HeadEvaluation(head, counts, score_errors=errors)

    def _note_errors_of_pilots(self, group: Sequence[str], known: Mapping[CandidateHead, HeadEvaluation]) -> None:
        """Begin the errors of each objective with those of the pilots.

        Args:
            group: the objectives.
            known: the evaluations of the first step.

        Raises:
            InputError: the journal lacks them.
        """
        for objective in group:
            self._errors[objective] = []
            for head in _spread_evenly(self.heads, PILOTS):
                evaluation = known.get(head)
                if evaluation is None or objective not in (evaluation.score_errors or {}):
                    raise _no_errors_in_journal(1)
                assert evaluation.score_errors is not None
                self._errors[objective].append(evaluation.score_errors[objective])

    def _with_errors(self, winners: Mapping[str, Trial], near: NearHeads) -> dict[str, Trial]:
        """Return winners with their errors; one that is not near is evaluated in bfloat16 now.

        Args:
            winners: the winner of each objective.
            near: the heads that may be the best of each objective, with their counts in bfloat16.
        """
        with_errors = {}
        for objective, winner in winners.items():
            coarse_counts = near[objective].get(winner.head)
            if coarse_counts is not None:
                error = _error(objective, winner.counts, coarse_counts)
            else:
                error = self._error_measured_now(objective, winner)
            with_errors[objective] = replace(winner, score_error=error)
        return with_errors

    def _error_measured_now(self, objective: str, winner: Trial) -> float:
        """Return the error of a head that is evaluated in bfloat16 now; it is that of the first process in all."""
        error = None
        if self.processes.rank == 0:
            coarse_counts = counts_without(self.coarse, winner.head, Tally(self.coarse.shares), self.at_once)
            error = _error(objective, winner.counts, coarse_counts)
            self._count_coarse_evaluation()
        error_of_first: float = self.processes.gather(error)[0]
        return error_of_first

    def _note_errors(self, winners: Mapping[str, Trial]) -> None:
        """Remember the errors of the winners of a step."""
        for objective, winner in winners.items():
            assert winner.score_error is not None
            self._errors[objective].append(winner.score_error)

    def _slack(self, objective: str, deviations: int, errors: Sequence[float]) -> int:
        """Return by how much a key must be below another one in bfloat16 for the head to be taken to be behind.

        Args:
            objective: the objective.
            deviations: how many standard deviations of errors to allow.
            errors: the measured errors.
        """
        base = self.rankings[objective].base
        keys_per_score = OBJECTIVE_BY_NAME[objective].scale(base.n_id, base.n_ood)
        allowed_error = deviations * statistics.stdev(errors)
        return 1 + math.ceil(allowed_error * keys_per_score)

    def _was_enough(self, objective: str, winner: Trial, near: NearHeads, slack: Mapping[str, int]) -> bool:
        """Return whether a step has allowed for enough, as far as its winner tells.

        The winner must be near, its classes must be among those that were held possible, and its error must be no
        surprise beside the others.
        """
        coarse_counts = near[objective].get(winner.head)
        if coarse_counts is None:
            return False
        least = coarse_counts.least.correct
        most = coarse_counts.most.correct
        counts_right = OBJECTIVE_BY_NAME[objective].counts_right
        if counts_right and not least <= winner.counts.correct <= most:
            return False
        assert winner.score_error is not None
        errors = [*self._errors[objective], winner.score_error]
        return self._slack(objective, _FEWEST_DEVIATIONS, errors) <= slack[objective]

    # --- memory -------------------------------------------------------------------------------------------------------

    def _share(self, group: Sequence[str], step: int, known: dict[CandidateHead, HeadEvaluation]) -> None:
        """Add to the known evaluations of a step those of the other processes, so that none of them is repeated."""
        records_here = [evaluation.record(group[0], step) for evaluation in known.values()]
        for records in self.processes.gather(records_here):
            for record in records:
                evaluation = HeadEvaluation.from_record(record)
                known.setdefault(evaluation.head, evaluation)

    def _winners_in_journal(self, group: list[str], step: int) -> dict[str, Trial] | None:
        """Return the winners of a step if the journal has all of them, and also remember the errors it has.

        Raises:
            InputError: the journal has the winners without their errors.
        """
        winners = super()._winners_in_journal(group, step)
        if winners is None:
            return None
        if step == 1:
            known = self.memory.evaluations_of_step(group[0], step)
            self._note_errors_of_pilots(group, known)
        if any(winner.score_error is None for winner in winners.values()):
            raise _no_errors_in_journal(step)
        self._note_errors(winners)
        return winners


def _no_errors_in_journal(step: int) -> InputError:
    """Return the error for a journal that has a step, but not how far its scores in both formats differ."""
    message = f"the journal does not say how far scores in both formats differ in step {step}"
    return InputError(message, hint=HOW_TO_START_OVER)


def _error(objective: str, counts: EvaluationCounts, coarse_counts: EvaluationCounts) -> float:
    """Return the score of a head in the wide format minus that in bfloat16, without what right samples add to both.

    That is left out because bfloat16 says itself which classes are uncertain. For accuracy the error is 0.

    Args:
        objective: the objective.
        counts, coarse_counts: the counts over all data in each format.
    """
    rule = OBJECTIVE_BY_NAME[objective]
    key = rule.key(replace(counts, correct=0))
    coarse_key = rule.key(replace(coarse_counts, correct=0))
    return (key - coarse_key) / rule.scale(counts.n_id, counts.n_ood)


def _spread_evenly(heads: Sequence[CandidateHead], count: int) -> list[CandidateHead]:
    """Return so many of the heads, at equal distances in their order; the first and the last are among them."""
    last = len(heads) - 1
    return [heads[round(index * last / (count - 1))] for index in range(count)]
