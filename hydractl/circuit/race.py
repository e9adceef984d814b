"""One step of a search: which candidate scores highest, evaluating no sample that cannot change the answer.

A candidate is given up as soon as the best case of the samples it has not seen, every one of them right and on its
side, cannot reach what another candidate has already reached on all of them. The counts are integers, so the winner is
exactly that of evaluating everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.objective import OBJECTIVES, Measured
from hydractl.circuit.tally import Tally, Values
from hydractl.circuit.tower import Candidate
from hydractl.metrics.ood import two_u

_MOST_PAIRED = 64
"""Up to how many batches on a side the batches are ordered anew at every step."""


@dataclass
class Runner:
    """One candidate in a race.

    Attributes:
        index: its place in model order, which decides ties: the lower one wins.
        alive: the objectives it may still win.
        given_up: those it cannot.
        known: its counts, where they come from a journal.
    """

    candidate: Candidate
    index: int
    alive: set[str]
    given_up: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    known: Measured | None = None

    @property
    def measured(self) -> Measured:
        """What has been counted so far."""
        return self.known or self.tally.measured()


Best = dict[str, tuple[int, int]]
"""Per objective the highest key reached, and minus the index of the candidate that reached it."""


class Race:
    """All candidates of one step, for every objective that has removed the same heads so far.

    Args:
        evaluator: at the model with these heads removed.
        objectives: what to choose for.
        candidates: with their places in model order.
        bounds: whether candidates are given up early; without, each is evaluated on everything its objectives need.
        at_once: how many candidates of one site run together.
        known: of some candidates, what a journal says: counts, and the objectives they were given up for.
        finished: called with each candidate that is done, as soon as it is.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        objectives: Sequence[str],
        candidates: Sequence[tuple[int, Candidate]],
        *,
        bounds: bool = True,
        at_once: int = 1,
        known: Mapping[Candidate, tuple[Measured, list[str]]] | None = None,
        finished: Callable[[Runner], None] = lambda runner: None,
    ) -> None:
        self.evaluator = evaluator
        self.objectives = list(objectives)
        self.bounds = bounds
        self.at_once = at_once
        self.finished = finished
        self.best: Best = {}
        self.winners: dict[str, Runner] = {}
        self._with_ood = any(OBJECTIVES[o].needs_ood for o in objectives)
        self._runners: list[Runner] = []
        known = known or {}
        for index, candidate in candidates:
            runner = Runner(candidate, index, set(self.objectives))
            if candidate in known:
                runner.known, runner.given_up = known[candidate][0], list(known[candidate][1])
                runner.alive.difference_update(runner.given_up)
                self._arrive(runner)
            else:
                self._runners.append(runner)

    def run(self) -> dict[str, Runner]:
        """The winner of each objective."""
        order = self._order()
        parts = self._scouts(order) if self.bounds else [order]
        chunked = len(self.evaluator.chunks) > 1
        if chunked:
            parts = [part for chunk in self.evaluator.chunks if (part := [b for b in chunk if b in set(order)])]
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            units = self._units()
            if chunked and self.bounds and number == 1 and units and not last:
                self._run_through(units[0], parts[number:])
                units = units[1:]
            for unit in units:
                self._advance(unit, part, last)
            self.evaluator.forget(part)
        return self.winners

    def tally_of(self, candidate: Candidate) -> Tally:
        """What has been counted of a candidate here; nothing where another process or a journal counted it."""
        return next((r.tally for r in self._runners if r.candidate == candidate), Tally())

    # --- order --------------------------------------------------------------------------------------------------------

    def _order(self) -> list[int]:
        """The batches that the objectives need, those first that the model as it is loses most on."""
        everything = range(len(self.evaluator.batches))
        needed = [b for b in everything if self._with_ood or self.evaluator.batches[b].labels is not None]
        inside = [b for b in needed if self.evaluator.batches[b].labels is not None]
        outside = [b for b in needed if self.evaluator.batches[b].labels is None]
        if not self.bounds or len(self.evaluator.chunks) > 1 or max(len(inside), len(outside)) > _MOST_PAIRED:
            return needed
        values = {batch: self.evaluator.current(batch) for batch in needed}
        alone = np.array([self._loss_alone(values[b]) for b in inside])
        paired = np.array([[_inverted(values[i], values[o]) for o in outside] for i in inside], dtype=float)
        paired = paired.reshape(len(inside), len(outside))
        total = self._shares(alone, paired)
        return _greedy(inside, outside, *total)

    def _loss_alone(self, values: Values) -> float:
        """What an ID batch costs the objectives that read ID samples one by one."""
        size = len(values.scores)
        parts = {"acc": size - values.correct, "avg": size - values.correct, "nll": values.nll, "brier": values.brier}
        return float(sum(parts.get(objective, 0) for objective in self.objectives))

    def _shares(self, alone: np.ndarray, paired: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both kinds of loss as shares of their totals."""
        return alone / max(alone.sum(), 1e-9), paired / max(paired.sum(), 1e-9)

    def _scouts(self, order: list[int]) -> list[list[int]]:
        """The first batch of each kind, which all candidates run, so that the most promising go on first."""
        labelled = [self.evaluator.batches[b].labels is not None for b in order]
        first = {order[labelled.index(kind)] for kind in (True, False) if kind in labelled}
        scouts, rest = [b for b in order if b in first], [b for b in order if b not in first]
        return [scouts, rest] if rest else [scouts]

    def _units(self) -> list[list[Runner]]:
        """The candidates that are not done, those of one site that run together in one list; the most hopeful first."""
        runners = [runner for runner in self._runners if runner.alive and runner.known is None]
        hopes = self._hopes(runners) if self.bounds else {runner.index: runner.index for runner in runners}
        sites: dict[int, list[Runner]] = {}
        for runner in sorted(runners, key=lambda r: (hopes[r.index], r.index)):
            sites.setdefault(runner.candidate[0], []).append(runner)
        units = [all_[i : i + self.at_once] for all_ in sites.values() for i in range(0, len(all_), self.at_once)]
        return sorted(units, key=lambda unit: min((hopes[r.index], r.index) for r in unit))

    def _hopes(self, runners: Sequence[Runner]) -> dict[int, int]:
        """By index, how many candidates have a better best case, for the objective where these are fewest."""
        cases = {runner.index: self._best_case(runner) for runner in runners}
        found = dict.fromkeys(cases, len(runners))
        for objective in self.objectives:
            order = sorted(cases, key=lambda index: (-cases[index].key(objective), index))
            for rank, index in enumerate(order):
                found[index] = min(found[index], rank)
        return found

    def _best_case(self, runner: Runner) -> Measured:
        pairs = any(OBJECTIVES[objective].needs_ood for objective in runner.alive)
        return runner.tally.measured(pairs).best_case(self.evaluator.n_id, self.evaluator.n_ood)

    # --- running ------------------------------------------------------------------------------------------------------

    def _run_through(self, unit: list[Runner], parts: Sequence[Sequence[int]]) -> None:
        """Take the most hopeful candidates to the end, so that others can be given up against what they reached."""
        for number, part in enumerate(parts):
            self._advance(unit, part, number == len(parts) - 1)
            self.evaluator.forget(part)

    def _advance(self, unit: list[Runner], batches: Sequence[int], last: bool) -> None:
        """Evaluate some candidates of one site on some batches, as long as one of them may win."""
        site = unit[0].candidate[0]
        heads = [runner.candidate[1] for runner in unit]
        # Always as many candidates at once: another number would round otherwise.
        padded = heads + heads[-1:] * (self.at_once - len(heads))
        for batch in batches:
            labelled = self.evaluator.batches[batch].labels is not None
            if not any(self._wants(runner, labelled) for runner in unit):
                continue
            for runner, values in zip(unit, self.evaluator.without_each(batch, site, padded), strict=False):
                if batch not in runner.tally.seen and self._wants(runner, labelled):
                    runner.tally.add(batch, values)
                    self._give_up(runner)
        for runner in unit:
            if last and runner.alive and runner.known is None:
                runner.known = runner.tally.measured()
                self._arrive(runner)
                self.finished(runner)

    def _wants(self, runner: Runner, labelled: bool) -> bool:
        return any(labelled or OBJECTIVES[objective].needs_ood for objective in runner.alive)

    def _give_up(self, runner: Runner) -> None:
        """Drop the objectives that the candidate can no longer win."""
        if not self.bounds or not self.best:
            return
        best_case = self._best_case(runner)
        for objective in self.objectives:
            if objective not in runner.alive or objective not in self.best:
                continue
            if (best_case.key(objective), -runner.index) < self.best[objective]:
                runner.alive.discard(objective)
                runner.given_up.append(objective)
        if not runner.alive:
            self.finished(runner)

    def _arrive(self, runner: Runner) -> None:
        """A candidate with all its counts may be the best so far."""
        for objective in self.objectives:
            if objective in runner.alive:
                reached = (runner.measured.key(objective), -runner.index)
                if objective not in self.best or reached > self.best[objective]:
                    self.best[objective] = reached
                    self.winners[objective] = runner


def _inverted(inside: Values, outside: Values) -> int:
    """Twice the pairs of two batches in which the OOD sample does not score above the ID one."""
    return 2 * len(inside.scores) * len(outside.scores) - two_u(inside.scores, outside.scores)


def _greedy(inside: list[int], outside: list[int], alone: np.ndarray, paired: np.ndarray) -> list[int]:
    """Each time the batch that adds most to the loss on the batches so far, a little foresight deciding the first."""
    found: list[int] = []
    left_in, left_out = set(range(len(inside))), set(range(len(outside)))
    gain_in = alone + 0.1 * paired.sum(axis=1)
    gain_out = 0.1 * paired.sum(axis=0)
    while left_in or left_out:
        best_in = max(left_in, key=lambda i: (gain_in[i], -i), default=None)
        best_out = max(left_out, key=lambda o: (gain_out[o], -o), default=None)
        if best_out is None or (best_in is not None and gain_in[best_in] >= gain_out[best_out]):
            assert best_in is not None
            left_in.discard(best_in)
            found.append(inside[best_in])
            gain_out = gain_out + paired[best_in]
        else:
            left_out.discard(best_out)
            found.append(outside[best_out])
            gain_in = gain_in + paired[:, best_out]
    return found
