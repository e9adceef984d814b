"""One step of a search: which candidate scores highest, evaluating no sample that cannot change the answer.

A candidate is given up as soon as the best case of the samples it has not seen, every one of them right and on its
side, cannot reach what another candidate has already reached on all of them. The counts are integers, so the winner is
exactly that of evaluating everything. A candidate that could win on a machine that rounds otherwise is not given up.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.objective import OBJECTIVES, Limits, Measured, Tally, Values, allowed
from hydractl.circuit.tower import Candidate
from hydractl.metrics.ood import two_u

_MOST_PAIRED = 64
"""Up to how many batches on a side the batches are ordered anew at every step."""

_AHEAD = 0.3
"""The share of the samples from which on the candidate in front goes on to the end."""

Rank = tuple[int, int, int]
"""The key of what a candidate counted, its site and its head, both negative: of equal ones the lower wins."""


@dataclass(frozen=True)
class Step:
    """One head and what was counted without it.

    Attributes:
        rivals: of a removal, the candidates that could have won on a machine that rounds otherwise, the best first.
    """

    candidate: Candidate
    measured: Measured
    rivals: tuple[Step, ...] = ()


def best_first(objective: str, steps: Sequence[Step]) -> list[Step]:
    """The highest score first, of equal ones the lowest site, then the lowest head."""
    return sorted(steps, key=lambda step: (-step.measured.key(objective), step.candidate))


def contenders(objective: str, steps: Sequence[Step], limits: Limits) -> list[Step]:
    """The winner, and after it those that could have won on another machine, the best first.

    A candidate contends unless another one has more at the least than it has at the most. So who contends hangs only on
    what was counted, not on the order of counting. With ``limits``, the winner is the best that keeps them, and they
    too may be kept or not as rounding has it; where none keeps them, there is no winner, and the first is not allowed.
    """
    possible = [step for step in steps if allowed(step.measured.most, limits)]
    winner = best_first(objective, [step for step in possible if allowed(step.measured, limits)])[:1]
    sure = [step for step in possible if allowed(step.measured.least, limits)]
    if sure:
        surest = min(sure, key=lambda step: (-step.measured.least.key(objective), step.candidate))
        possible = [step for step in possible if step is surest or could_win(objective, step, surest)]
    return winner + [step for step in best_first(objective, possible) if step not in winner]


def could_win(objective: str, step: Step, other: Step) -> bool:
    """Whether rounding could put one candidate before another.

    Two that counted the very same, losses to the last unit, are the same model: what went are heads that do nothing.
    """
    own, its = step.measured.read_by(objective), other.measured.read_by(objective)
    could = (-own.most.key(objective), step.candidate) < (-its.least.key(objective), other.candidate)
    return could and own != its


@dataclass
class Runner:
    """One candidate in a race.

    Attributes:
        alive: the objectives it may still win.
        reached: those of the alive ones that it has all counts for.
        known: its counts, where they come from a journal or are all there.
        best_case: the most that it can still reach, with rounding in its favour.
    """

    candidate: Candidate
    alive: set[str]
    best_case: Measured
    reached: set[str] = field(default_factory=set)
    tally: Tally = field(default_factory=Tally)
    known: Measured | None = None

    @property
    def measured(self) -> Measured:
        """The counts so far."""
        return self.known or self.tally.measured()

    def hope(self, objective: str) -> Rank:
        """Return the best rank that it can still reach, comparable with what others have reached."""
        return _rank(self.best_case, objective, self.candidate)


class Race:
    """All candidates of one step, for every objective that has removed the same heads so far.

    Args:
        evaluator: at the model with these heads removed.
        objectives: what to choose for.
        bounds: whether candidates are given up early; without, each is evaluated on everything its objectives need.
        at_once: how many candidates of one site run together.
        limits: what a candidate has to keep; one that cannot is given up like one that cannot win.
        known: of some candidates, what a journal says: counts, and the objectives they were given up for.
        finished: called with each candidate that is done, as soon as it is.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        objectives: Sequence[str],
        candidates: Sequence[Candidate],
        *,
        bounds: bool,
        at_once: int,
        limits: Limits,
        known: Mapping[Candidate, tuple[Measured, list[str]]],
        finished: Callable[[Runner], None],
    ) -> None:
        self.evaluator = evaluator
        self.objectives = list(objectives)
        self.bounds = bounds
        self.at_once = at_once
        self.limits = limits
        self.finished = finished
        # By objective what the best candidate has reached with rounding against it.
        self._best: dict[str, Rank] = {}
        self._arrived: dict[str, list[Runner]] = {objective: [] for objective in objectives}
        self._runners: list[Runner] = []
        nothing = Measured(0, 0, None, 0).best_case(evaluator.n_id, evaluator.n_ood)
        for candidate in candidates:
            runner = Runner(candidate, set(self.objectives), nothing, tally=Tally(evaluator.shares))
            if candidate in known:
                runner.known, given_up = known[candidate]
                runner.alive.difference_update(given_up)
                for objective in runner.alive:
                    self._arrive(runner, objective)
            else:
                self._runners.append(runner)

    def run(self) -> dict[str, list[Step]]:
        """Run the race: for each objective the candidates that were not given up, the winner among them."""
        if self.bounds and len(self.evaluator.chunks) == 1:
            for objective in self.objectives:
                self._settle(objective)
        else:
            self._run_chunks()
        return {o: [Step(r.candidate, r.measured) for r in runners] for o, runners in self._arrived.items()}

    def tally_of(self, candidate: Candidate) -> Tally:
        """Return what has been counted of a candidate here.

        It is empty where another process or a journal counted the candidate.
        """
        return next((r.tally for r in self._runners if r.candidate == candidate), Tally(self.evaluator.shares))

    # --- all data in memory, bounds: the best case decides who goes on ------------------------------------------------

    def _settle(self, objective: str) -> None:
        """Find the winner of one objective.

        It is always the candidate with the best hope that goes on, by one batch. So nobody runs a batch that it need
        not run whoever wins; only to be done with some candidates early, the one in front is soon taken to the end.
        """
        order = self._order(objective)
        while running := [r for r in self._runners if objective in r.alive and objective not in r.reached]:
            leader = max(running, key=lambda runner: runner.hope(objective))
            left = [batch for batch in order if batch not in leader.tally.seen]
            ahead = len(order) - len(left) >= _AHEAD * len(order)
            for batch in left if ahead else left[:1]:
                if objective in leader.alive:
                    self._advance([leader, *self._beside(leader, running, batch, objective)], batch)

    def _beside(self, leader: Runner, running: Sequence[Runner], batch: int, objective: str) -> list[Runner]:
        """Who runs together with the candidate in front: the most hopeful of its site."""
        site = leader.candidate[0]
        others = [r for r in running if r.candidate[0] == site and r is not leader and batch not in r.tally.seen]
        return sorted(others, key=lambda runner: runner.hope(objective), reverse=True)[: self.at_once - 1]

    def _order(self, objective: str) -> list[int]:
        """The batches that an objective needs, those first that the model as it is loses most on."""
        needed = self._needed([objective])
        sides = Counter(self.evaluator.batches[batch].labels is None for batch in needed)
        if max(sides.values()) > _MOST_PAIRED:
            return needed
        values = [self.evaluator.current(batch) for batch in needed]
        alone = np.array([sum(_loss_alone(value, key) for key in {objective, *self.limits}) for value in values])
        paired = np.zeros((len(needed), len(needed)))
        for i, o in itertools.product(range(len(needed)), repeat=2):
            if values[i].labelled and not values[o].labelled and set(values[i].tasks) & set(values[o].tasks):
                paired[i, o] = paired[o, i] = _inverted(values[i], values[o])
        # Both kinds of loss as shares of their totals.
        order = _greedy(alone / max(alone.sum(), 1e-9), paired / max(paired.sum() / 2, 1e-9))
        return [needed[i] for i in order]

    def _needed(self, objectives: Sequence[str]) -> list[int]:
        batches = self.evaluator.batches
        return [b for b in range(len(batches)) if any(self._reads(objective, b) for objective in objectives)]

    def _reads(self, objective: str, batch: int) -> bool:
        return self._needs_ood(objective) or self.evaluator.batches[batch].labels is not None

    def _needs_ood(self, objective: str) -> bool:
        return any(OBJECTIVES[key].needs_ood for key in (objective, *self.limits))

    # --- one candidate after another ----------------------------------------------------------------------------------

    def _run_chunks(self) -> None:
        """Run all candidates on the batches whose states fit into memory together, then on the next ones."""
        needed = set(self._needed(self.objectives))
        parts = [part for chunk in self.evaluator.chunks if (part := [b for b in chunk if b in needed])]
        for number, part in enumerate(parts):
            units = self._units()
            if self.bounds and number == 1 and units and len(parts) > 2:
                # The most hopeful go to the end, so that others can be given up against what they reached.
                for rest in parts[number:]:
                    self._run_part(units[0], rest)
                    self.evaluator.forget(rest)
                units = units[1:]
            for unit in units:
                self._run_part(unit, part)
            self.evaluator.forget(part)

    def _run_part(self, unit: Sequence[Runner], part: Sequence[int]) -> None:
        for batch in part:
            self._advance(unit, batch)

    def _units(self) -> list[list[Runner]]:
        """The candidates that are not done, those of one site that run together in one list; the most hopeful first."""

        def hope(runner: Runner) -> Rank:
            return runner.hope(self.objectives[0])

        sites: dict[int, list[Runner]] = {}
        for runner in sorted((r for r in self._runners if r.known is None), key=hope, reverse=True):
            sites.setdefault(runner.candidate[0], []).append(runner)
        units = [own[i : i + self.at_once] for own in sites.values() for i in range(0, len(own), self.at_once)]
        return sorted(units, key=lambda unit: hope(unit[0]), reverse=True)

    # --- running ------------------------------------------------------------------------------------------------------

    def _advance(self, unit: Sequence[Runner], batch: int) -> None:
        """Evaluate some candidates of one site on one batch, if one of them may win and has not seen it."""
        if not any(self._wants(runner, batch) for runner in unit):
            return
        heads = [runner.candidate[1] for runner in unit]
        # Always as many candidates at once: another number would round otherwise.
        padded = heads + heads[-1:] * (self.at_once - len(heads))
        counted = self.evaluator.without_each(batch, unit[0].candidate[0], padded)
        for runner, values in zip(unit, counted, strict=False):
            if self._wants(runner, batch):
                runner.tally.add(batch, values)
                self._counted(runner)

    def _wants(self, runner: Runner, batch: int) -> bool:
        if runner.known is not None or batch in runner.tally.seen:
            return False
        return any(self._reads(objective, batch) for objective in runner.alive)

    def _counted(self, runner: Runner) -> None:
        """Note that a candidate has seen one more batch: it may be out, or have all counts that an objective needs."""
        n_id, n_ood = self.evaluator.n_id, self.evaluator.n_ood
        measured = runner.tally.measured()
        runner.best_case = measured.most.best_case(n_id, n_ood, runner.tally.seen_pairs)
        self._give_up(runner)
        for objective in self.objectives:
            complete = measured.n_id == n_id and (measured.n_ood == n_ood or not self._needs_ood(objective))
            if complete and objective in runner.alive - runner.reached:
                self._arrive(runner, objective)
        self._finish(runner)

    def _arrive(self, runner: Runner, objective: str) -> None:
        """Note that a candidate has all its counts: it may be the best so far, which may put others out."""
        runner.reached.add(objective)
        self._arrived[objective].append(runner)
        if not allowed(runner.measured.least, self.limits):
            return
        surely = _rank(runner.measured.least, objective, runner.candidate)
        if objective not in self._best or surely > self._best[objective]:
            self._best[objective] = surely
            for other in self._runners:
                if other is not runner:
                    self._give_up(other)
                    self._finish(other)

    def _give_up(self, runner: Runner) -> None:
        """Drop the objectives that the candidate can no longer win."""
        if not self.bounds:
            return
        for objective in runner.alive - runner.reached:
            beaten = objective in self._best and runner.hope(objective) < self._best[objective]
            if beaten or not allowed(runner.best_case, self.limits):
                runner.alive.discard(objective)

    def _finish(self, runner: Runner) -> None:
        """Note as done a candidate that has nothing left to win or to count."""
        if runner.known is None and runner.alive <= runner.reached:
            runner.known = runner.tally.measured()
            self.finished(runner)


def _rank(measured: Measured, objective: str, candidate: Candidate) -> Rank:
    site, head = candidate
    return measured.key(objective), -site, -head


def _loss_alone(values: Values, objective: str) -> float:
    """Return the loss on one batch of an objective that reads ID samples one by one; 0 for OOD samples and others."""
    if not values.labelled:
        return 0.0
    if objective in ("nll", "brier"):
        return float(values.nll if objective == "nll" else values.brier)
    return float(len(values.scores) - values.correct) if objective in ("acc", "avg") else 0.0


def _inverted(inside: Values, outside: Values) -> int:
    """Count twice the pairs of two batches in which the OOD sample does not score above the ID one."""
    return 2 * len(inside.scores) * len(outside.scores) - two_u(inside.scores, outside.scores)


def _greedy(alone: np.ndarray, paired: np.ndarray) -> list[int]:
    """Order batches: each time the one that adds most to the loss on those so far, the first with some foresight."""
    gain = alone + 0.1 * paired.sum(axis=1)
    order: list[int] = []
    for _ in range(len(gain)):
        best = int(gain.argmax())
        order.append(best)
        gain = gain + paired[best]
        gain[best] = -np.inf
    return order
