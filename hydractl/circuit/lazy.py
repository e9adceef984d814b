"""Algorithm 1 that evaluates only heads whose forecast may still win (``--approx lazy:N``).

Every head has an estimate of the score without it. The head with the best estimate is evaluated on all data, and its
score replaces its estimate. This is repeated until the best head is one that has been evaluated. The method is lazy
evaluation (Minoux 1978), with estimates instead of upper bounds, since no objective here is submodular.

An estimate is a forecast from a gradient (``forecasts.py``), plus the error that the forecast of this head had when the
head was last evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Unpack

import numpy as np

from hydractl.circuit.counting import Tally, Values
from hydractl.circuit.evaluator import Evaluator, over_batches
from hydractl.circuit.forecasts import (
    Slopes,
    current_quantities,
    forecast,
    of_task,
    quantities_needed,
    slopes,
)
from hydractl.circuit.journal import Record
from hydractl.circuit.search import GreedySearch, SearchKeywords, evaluations
from hydractl.circuit.winners import CandidateHead, Trial

SLOPES_EVERY = 6
"""Slopes are computed anew every so many steps."""

USUALLY_ASKED = 2
"""The usual number of candidates that a step evaluates if it may evaluate more.

Steps of the models it was tried on evaluated 1.4 to 1.7.
"""


@dataclass
class _LazyStep:
    """One step of a search, and what has been evaluated in it so far.

    Attributes:
        group: the objectives that have removed the same heads so far.
        step: the number of the step, from 1.
        forecasts: for each objective the forecast score without each head that is left.
        known: the evaluations of this step, including those from a journal.
        counted: the heads whose counts this run has asked for; winners are chosen among these only.
        last_evaluated: the head that was evaluated last in this run; None if all evaluations came from the journal.
    """

    group: list[str]
    step: int
    forecasts: Mapping[str, Mapping[CandidateHead, float]]
    known: dict[CandidateHead, Trial]
    counted: list[CandidateHead] = field(default_factory=list)
    last_evaluated: CandidateHead | None = None


class Lazy(GreedySearch):
    """The search of ``--approx lazy:N``.

    Each step evaluates the candidate with the best estimate, until the best candidate is one that has been evaluated.

    Slopes exist for heads of the tower that reads samples. For a head of the tower that reads labels, no single
    backward pass gives its effect on each sample. Its forecast is that nothing changes, and the first step evaluates
    all such heads.

    A candidate is evaluated by running the model without that head. If the head is then removed, the next step goes on
    from the states of that run. Several processes share the batches. Objectives that have removed the same heads choose
    among all candidates that were evaluated.

    Args:
        evaluator: an evaluator that can keep the states of a tried model beside those of the current model.
        size: how many candidates a step evaluates at most, for each objective.
        every: slopes are computed anew every so many steps; in between, forecasts apply the old slopes to the current
            quantities of the samples.
        others: keyword arguments of :class:`hydractl.circuit.search.GreedySearch`; ``bounds`` and ``at_once`` have no
            effect here.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        heads: Sequence[tuple[int, int]],
        *,
        size: int,
        every: int = SLOPES_EVERY,
        **others: Unpack[SearchKeywords],
    ) -> None:
        """Begin without slopes and without any evaluation.

        A slope is the derivative of a number of a sample by a gate on a head; forecasts are made from slopes.
        """
        super().__init__(evaluator, heads, **others)
        self.size = size
        self.every = every

        # The slopes that were computed at step `_slopes_step`, by the heads that were removed at that step.
        self._slopes: dict[tuple[CandidateHead, ...], Slopes] = {}
        self._slopes_step = 0

        # For each objective and head, the score minus the forecast when the head was last evaluated with these slopes.
        self._forecast_errors: dict[tuple[str, CandidateHead], float] = {}

    def evaluations_to_come(self, step: int, budget: int) -> int:
        """Return how many evaluations to expect from a step on; objectives that ask for different heads need more.

        Args:
            step: the number of the step, from 1.
            budget: how many heads the search removes.
        """
        removed = step - 1  # each step before has removed one head
        expected = evaluations(len(self.heads) - removed, budget - removed, self.size)
        if step == 1:
            # Heads of the tower that reads labels have no slopes: the first step evaluates all of them.
            expected += sum(self.evaluator.reads_labels(head.site) for head in self.heads)
        return expected

    def _show_evaluations_left(self, evaluations: int) -> None:
        """Set the total of the progress. It is not divided by processes, as each takes part in every evaluation."""
        self.progress.set_total(self.evaluations + evaluations)

    def choose_winners(self, group: list[str], step: int, left: list[CandidateHead]) -> dict[str, Trial]:
        """Evaluate the candidates that may win, and return the best evaluated candidate for each objective.

        Args:
            group: the objectives, which have removed the same heads so far.
            step: the number of the step.
            left: the candidates, the heads that are left.
        """
        # The quantities of all samples under the current model, and their slopes by a gate on each head. A quantity
        # (e.g. the margin of the label) changes by minus its slope if the head is removed.
        slopes_of_heads = self._slopes_of_step(group, step)
        columns = slopes_of_heads.columns_of(left)
        now = current_quantities(self.evaluator, quantities_needed(group), self.processes)

        # Each task has its own forecast, made from the samples of that task only; a forecast is their mean.
        forecasts_of_tasks: dict[str, list[np.ndarray]] = {objective: [] for objective in group}  # [tasks, heads] each
        for task in range(self.evaluator.tasks):
            now_of_task = of_task(self.evaluator, task, now)
            slopes_of_task = of_task(self.evaluator, task, slopes_of_heads.of_batches)
            change = {name: values[:, columns].double() for name, values in slopes_of_task.items()}
            for objective, of_tasks in forecasts_of_tasks.items():
                of_tasks.append(forecast(objective, now_of_task, change))
        forecasts: dict[str, dict[CandidateHead, float]] = {}
        for objective, of_tasks in forecasts_of_tasks.items():
            means = np.mean(of_tasks, axis=0)  # [heads]
            forecasts[objective] = dict(zip(left, means.tolist(), strict=True))

        # Evaluate candidates until, for each objective, no forecast is better than the best score.
        this_step = _LazyStep(
            group,
            step,
            forecasts=forecasts,
            known=self.memory.evaluations_of_step(group[0], step),
        )

        # Heads without slopes have no useful forecast: each is counted once in the whole search.
        for head in left:
            never_evaluated = (group[0], head) not in self._forecast_errors
            if self.evaluator.reads_labels(head.site) and never_evaluated:
                self._count(this_step, head)
        self._count_while_an_estimate_leads(this_step, left)

        # The next estimates of these heads take the errors of their forecasts into account.
        self._note_forecast_errors(group, step, this_step.known)

        # Every process has the same counts, so only the first one contributes trials.
        trials: list[Trial] = []
        if self.processes.rank == 0:
            trials = [Trial(head, this_step.known[head].counts) for head in this_step.counted]
        winners = self._winners_across_processes(dict.fromkeys(group, trials))

        # The evaluator still has the states of the model that was tried last. If its head wins, keep them: the next
        # step starts from that model.
        winning_heads = [winner.head for winner in winners.values()]
        if this_step.last_evaluated in winning_heads:
            self.evaluator.go_on_with_tried()
        return winners

    def _count_while_an_estimate_leads(self, this_step: _LazyStep, left: Sequence[CandidateHead]) -> None:
        """Evaluate heads until, for each objective, no estimate is above the best score; at most ``size`` heads.

        Heads are ordered by score if they have been evaluated ("counted"), and by estimate if not. The head in front is
        evaluated, which may move it back. This ends as soon as the head in front has been evaluated.

        Args:
            this_step: the step; its counts are changed in place.
            left: the heads that may still be removed.
        """
        if not left:
            return
        for objective in this_step.group:
            score_or_estimate = partial(self._score_or_estimate, this_step, objective)
            for _ in range(self.size):
                in_front = max(sorted(left), key=score_or_estimate)  # of equal ones the lowest site, then head
                if in_front in this_step.counted:
                    break  # no other head is estimated to be better
                self._count(this_step, in_front)

    def _score_or_estimate(self, this_step: _LazyStep, objective: str, head: CandidateHead) -> float:
        """Return the score without a head if it has been counted, else its forecast plus the last forecast error."""
        if head in this_step.counted:
            return this_step.known[head].counts.score(objective)
        return this_step.forecasts[objective][head] + self._forecast_errors.get((objective, head), 0.0)

    def _count(self, this_step: _LazyStep, head: CandidateHead) -> None:
        """Add the counts of the model without a head to a step, from the journal or by evaluating it now."""
        if head not in this_step.known:
            this_step.known[head] = self._evaluate_without(head, this_step)
            this_step.last_evaluated = head
        this_step.counted.append(head)

    def _evaluate_without(self, head: CandidateHead, this_step: _LazyStep) -> Trial:
        """Return the counts over all data without one more head, and how far the forecast of each objective was off.

        Both are also stored in the journal. Afterwards the evaluator is at the model without the head.

        Args:
            head: the head to remove, in addition to those that the objectives of the step have removed already.
            this_step: the step; its forecasts are compared with the scores.
        """
        first_objective = this_step.group[0]
        removed = self.rankings[first_objective].removed

        # Go to the model without the head as a trial ("aside"): the states of the current model are kept.
        self.evaluator.go_to_model_without([*removed, head], aside=True)

        def record_of_batch(batch: int) -> Record:
            """Return the counts of one batch as JSON values, which processes can exchange."""
            values = self.evaluator.current_values(batch)
            return {**vars(values), "scores": values.scores.tolist(), "tasks": [*values.tasks]}

        # Each process evaluates some batches; afterwards all processes have the records of all batches, from JSON.
        record_by_batch = over_batches(self.evaluator, record_of_batch, self.processes)

        # Add up in the order of the batches, so that every process gets exactly the same counts.
        tally = Tally(self.evaluator.shares)
        for batch in sorted(record_by_batch):
            record = record_by_batch[batch]
            scores = np.array(record["scores"])
            tally.add(batch, Values(**{**record, "scores": scores}))
        counts = tally.counts()

        # How far the forecast was off, for each objective. Memory writes the evaluation to the journal.
        errors = {}
        for objective in this_step.group:
            score = counts.score(objective)
            forecast_score = this_step.forecasts[objective][head]
            errors[objective] = score - forecast_score
        evaluation = Trial(head, counts, forecast_errors=errors)
        self.memory.keep_evaluation(first_objective, this_step.step, evaluation)
        self.evaluations += 1
        self.progress.advance()
        return evaluation

    # --- estimates ----------------------------------------------------------------------------------------------------

    def _slopes_of_step(self, group: list[str], step: int) -> Slopes:
        """Return the slopes that a step forecasts with.

        A slope is the derivative of a number of a sample, e.g. its margin, by a gate on a head. Slopes are computed at
        steps 1, 1 + ``every``, 1 + 2 * ``every`` and so on, and kept until the next of these steps; with ``every`` 6,
        step 12 uses those of step 7. If they are missing, e.g. after a resume, they are computed now: the evaluator
        goes to the model of that earlier step, and comes back.

        Args:
            group: the objectives that have removed the same heads.
            step: the number of the step, from 1.
        """
        # The model at which the slopes are computed, named by its removed heads in model order. The first line also
        # sets `_slopes_step`, the step of that model.
        self._drop_older_slopes(step)
        removed = self.rankings[group[0]].removed
        removed_then = removed[: self._slopes_step - 1]  # each step before has removed one head
        model_then = tuple(sorted(removed_then))

        # Objectives need different quantities, so known slopes may lack some of them.
        names = quantities_needed(group)
        known = self._slopes.get(model_then)
        if known is not None and set(names).issubset(known.names):
            return known

        # Compute them now, if necessary at the earlier model.
        is_at_that_step = removed_then == removed
        if not is_at_that_step:
            self.evaluator.go_to_model_without(removed_then)
        self._slopes[model_then] = slopes(self.evaluator, names)
        if not is_at_that_step:
            self.evaluator.go_to_model_without(removed)
        return self._slopes[model_then]

    def _drop_older_slopes(self, step: int) -> None:
        """Drop the slopes of an older step than this one forecasts with, and the errors of the forecasts from them.

        Slopes are renewed every so many steps: with 6, at the steps 1, 7, 13 and so on. The step that the slopes belong
        to is stored in ``_slopes_step``. Heads of the label tower have no slopes: the errors of their forecasts stay.
        """
        steps_since_slopes = (step - 1) % self.every
        slopes_step = step - steps_since_slopes
        if slopes_step == self._slopes_step:
            return
        self._slopes_step = slopes_step
        self._slopes.clear()
        for objective, head in list(self._forecast_errors):
            if not self.evaluator.reads_labels(head.site):
                del self._forecast_errors[objective, head]

    # --- memory -------------------------------------------------------------------------------------------------------

    def _note_forecast_errors(self, group: list[str], step: int, evaluations: Mapping[CandidateHead, Trial]) -> None:
        """Remember how far the forecasts of the evaluated heads were off, for each objective of a group.

        Later estimates of these heads add the error to the forecast, as long as the slopes stay the same.
        """
        self._drop_older_slopes(step)
        for head, evaluation in evaluations.items():
            errors = evaluation.forecast_errors
            assert errors is not None
            for objective in group:
                self._forecast_errors[objective, head] = errors[objective]

    def _winners_in_journal(self, group: list[str], step: int) -> dict[str, Trial] | None:
        """Return the winners of a step if the journal has all of them, and also note how far its forecasts were off."""
        winners = super()._winners_in_journal(group, step)
        if winners:
            evaluations = self.memory.evaluations_of_step(group[0], step)
            self._note_forecast_errors(group, step, evaluations)
        return winners
