"""Algorithm 1 that asks again only for heads whose forecast may still win (``--approx lazy:N``).

Every head has an estimate of the score without it. The head with the best one is evaluated on all the data, and its
score takes the place of its estimate, until what is in front has been evaluated: lazy evaluations (Minoux 1978), with
estimates in place of upper bounds, as no objective here is submodular.

An estimate is a forecast from a gradient (``forecasts.py``), and how far the forecast of that head was off when it was
last evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypedDict, Unpack

import numpy as np

from hydractl.circuit.counting import Tally, Values
from hydractl.circuit.evaluator import Evaluator, over_batches
from hydractl.circuit.forecasts import (
    Slopes,
    current_quantities,
    forecast,
    quantities_needed,
    samples_of_task,
    slopes,
)
from hydractl.circuit.memory import HeadEvaluation
from hydractl.circuit.objective import Doubt, EvaluationCounts
from hydractl.circuit.search import GreedySearch, SearchKeywords
from hydractl.circuit.winners import CandidateHead, Trial, first_of_highest

SLOPES_EVERY = 6
"""Slopes are taken anew once in so many steps."""

USUALLY_ASKED = 2
"""The usual number of candidates that a step evaluates, where it may evaluate more.

Steps of the models it was tried on evaluated 1.4 to 1.7.
"""


class Lazy(GreedySearch):
    """The search of ``--approx lazy:N``.

    Each step evaluates the candidate with the best estimate, until the one in front has been evaluated.

    Slopes are of heads of the tower that reads samples. For a head of the tower of the labels no single pass backward
    gives what it does to each sample: its forecast is that nothing changes, and the first step evaluates all of them.

    The model that is evaluated is the one without the head, and if the head is removed the next step goes on with its
    states. Several processes share the batches. Objectives that have removed the same heads choose among all that was
    evaluated.

    Args:
        evaluator: one that keeps states beside those of the model as it is.
        size: how many candidates a step evaluates at most, for each objective.
        every: slopes are taken anew once in so many steps; in between, forecasts apply the old ones to the samples as
            they are now.
        others: as in :class:`hydractl.circuit.search.GreedySearch`; ``bounds`` and ``at_once`` have no effect here.
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
        super().__init__(evaluator, heads, **others)
        self.size = size
        self.every = every
        # The slopes that the step `_slopes_step` took, by the heads that were removed then.
        self._slopes: dict[tuple[CandidateHead, ...], Slopes] = {}
        self._slopes_step = 0
        # For each objective and head the step of its last evaluation, and the score minus the forecast there.
        self._off: dict[tuple[str, CandidateHead], tuple[int, float]] = {}

    def to_come(self, step: int, budget: int) -> int:
        """Return how many evaluations there may be from a step on; more where objectives ask for different heads."""
        expected = 0
        if step == 1:
            heads_of_labels = [head for head in self.heads if self._of_labels(head)]
            expected += len(heads_of_labels)
        for later_step in range(step, budget + 1):
            heads_left = len(self.heads) - later_step + 1
            expected += min(self.size, heads_left)
        return expected

    def _expect(self, evaluations: int) -> None:
        total = self.evaluations + evaluations  # not divided: every process has a part in each evaluation
        self.progress.set_total(total)

    def choose(self, group: list[str], step: int, left: list[CandidateHead]) -> dict[str, Trial]:
        """Evaluate the candidates that may win, and return the best of those evaluated."""
        forecasts = self._forecasts(group, step, left)
        known = self.memory.evaluations(group[0], step)
        counted: dict[CandidateHead, EvaluationCounts] = {}
        last_evaluated: CandidateHead | None = None

        def count(head: CandidateHead) -> None:
            nonlocal last_evaluated
            if head not in known:
                forecasts_of_head = {objective: forecasts[objective][head] for objective in group}
                known[head] = self._evaluate(group, step, head, forecasts_of_head)
                last_evaluated = head
            counted[head] = known[head].counts

        def score_or_estimate(objective: str, head: CandidateHead) -> float:
            if head in counted:
                return counted[head].score(objective)
            return forecasts[objective][head] + self._correction(objective, head)

        # Heads without slopes are evaluated once, in the first step.
        for head in left:
            never_evaluated = (group[0], head) not in self._off
            if self._of_labels(head) and never_evaluated:
                count(head)

        # Then the one in front, until it is one that has been evaluated.
        if left:
            for objective in group:
                for _ in range(self.size):
                    in_front = first_of_highest(left, partial(score_or_estimate, objective))
                    if in_front in counted:
                        break
                    count(in_front)

        self._learn(group, step, known)
        trials: list[Trial] = []
        if self.processes.rank == 0:  # every process has counted the same
            trials = [Trial(head, counts) for head, counts in counted.items()]
        winners = self._winners_of_all(dict.fromkeys(group, trials))
        if any(winner.head == last_evaluated for winner in winners.values()):
            self.evaluator.keep_tried()
        return winners

    def _evaluate(
        self, group: list[str], step: int, head: CandidateHead, forecasts: Mapping[str, float]
    ) -> HeadEvaluation:
        """Count everything without one more head, and keep the counts in the journal.

        Args:
            group: the objectives that have removed the same heads.
            step: the number of the step.
            head: the head that is left out.
            forecasts: the forecast score of each objective, from which the evaluation notes the distance.
        """
        removed = self.rankings[group[0]].removed
        self.evaluator.begin([*removed, head], aside=True)

        def of_batch(batch: int) -> _ValuesRecord:
            return _record_of_values(self.evaluator.current(batch))

        records = over_batches(self.evaluator, of_batch, self.processes)
        tally = Tally(self.evaluator.shares)
        for batch in sorted(records):
            tally.add(batch, _values_from_record(records[batch]))
        counts = tally.counts()

        off = {}
        for objective, forecast_score in forecasts.items():
            off[objective] = counts.score(objective) - forecast_score
        evaluation = HeadEvaluation(head, counts, off=off)
        self.memory.keep_common_evaluation(group[0], step, evaluation)
        self.evaluations += 1
        self.progress.advance()
        return evaluation

    # --- estimates ----------------------------------------------------------------------------------------------------

    def _forecasts(
        self, group: list[str], step: int, left: Sequence[CandidateHead]
    ) -> dict[str, dict[CandidateHead, float]]:
        """Return for each objective the forecast score without each head, the weighted mean over tasks."""
        slopes_of_step = self._slopes_for(group, step)
        change = slopes_of_step.by(left)
        now = current_quantities(self.evaluator, quantities_needed(group), self.processes)
        weights = self.evaluator.weights
        tasks = [samples_of_task(self.evaluator, task) for task in range(len(weights))]
        forecasts = {}
        for objective in group:
            forecasts_of_tasks = []  # [tasks, heads]
            for inside, outside in tasks:
                now_of_task = now.of_samples(inside, outside)
                change_of_task = change.of_samples(inside, outside)
                forecasts_of_tasks.append(forecast(objective, now_of_task, change_of_task))
            means = np.average(forecasts_of_tasks, axis=0, weights=weights)  # [heads]
            forecasts[objective] = dict(zip(left, means.tolist(), strict=True))
        return forecasts

    def _slopes_for(self, group: list[str], step: int) -> Slopes:
        """Return the slopes at the latest step that takes them, measured now where that has not been done."""
        steps_since = (step - 1) % self.every
        latest = step - steps_since
        if latest != self._slopes_step:
            self._slopes.clear()
            self._slopes_step = latest

        removed = self.rankings[group[0]].removed
        removed_then = removed[: latest - 1]
        names = quantities_needed(group)
        key = tuple(sorted(removed_then))
        known = self._slopes.get(key)
        if known is not None:
            known_names = set(known.quantities.inside)
            if known_names.issuperset(names):
                return known

        # Where they are not known, they are taken at the model of that step, and the evaluator comes back from it.
        is_at_that_step = removed_then == removed
        if not is_at_that_step:
            self.evaluator.begin(removed_then)
        self._slopes[key] = slopes(self.evaluator, names)
        if not is_at_that_step:
            self.evaluator.begin(removed)
        return self._slopes[key]

    def _correction(self, objective: str, head: CandidateHead) -> float:
        """Return the score minus the forecast of a head when it was last evaluated; 0 if it has not been.

        It is also 0 if slopes have been taken anew since, except for heads of the tower of the labels, which have none.
        """
        never_evaluated = (0, 0.0)
        step, off = self._off.get((objective, head), never_evaluated)
        slopes_are_newer = step < self._slopes_step
        if slopes_are_newer and not self._of_labels(head):
            return 0.0
        return off

    def _of_labels(self, head: CandidateHead) -> bool:
        """Return whether a head is one of the tower of the labels."""
        labels = self.evaluator.labels
        return labels is not None and head.site in labels.sites

    # --- memory -------------------------------------------------------------------------------------------------------

    def _learn(self, group: list[str], step: int, evaluations: Mapping[CandidateHead, HeadEvaluation]) -> None:
        """Remember how far the forecasts of the evaluated heads were off."""
        for head, evaluation in evaluations.items():
            assert evaluation.off is not None
            for objective in group:
                self._off[objective, head] = (step, evaluation.off[objective])

    def _remembered(self, group: list[str], step: int) -> dict[str, Trial] | None:
        winners = super()._remembered(group, step)
        if winners:
            evaluations = self.memory.evaluations(group[0], step)
            self._learn(group, step, evaluations)
        return winners


class _ValuesRecord(TypedDict):
    """The results of one batch, as processes tell them to each other."""

    labelled: bool
    scores: list[float]
    correct: int
    nll: int
    brier: int
    doubt: list[int]
    near: float | list[float]
    tasks: list[int]


def _record_of_values(values: Values) -> _ValuesRecord:
    """Return the results of one batch as JSON values."""
    return {
        "labelled": values.labelled,
        "scores": values.scores.tolist(),
        "correct": values.correct,
        "nll": values.nll,
        "brier": values.brier,
        "doubt": list(values.doubt),
        "near": np.asarray(values.near).tolist(),
        "tasks": list(values.tasks),
    }


def _values_from_record(record: _ValuesRecord) -> Values:
    """Return the results of one batch, the inverse of :func:`_record_of_values`."""
    return Values(
        labelled=record["labelled"],
        scores=np.array(record["scores"]),
        correct=record["correct"],
        nll=record["nll"],
        brier=record["brier"],
        doubt=Doubt(*record["doubt"]),
        near=np.array(record["near"]),
        tasks=record["tasks"],
    )
