"""Algorithm 1 of the paper (D.1.2): greedy backward elimination over all heads of a model.

At each step every remaining head is ablated alone on top of the heads already removed, and the head whose removal
gives the highest score is removed for good. Ties: lowest site first, then lowest head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.objective import Doubt, Measured
from hydractl.circuit.race import Race, Runner
from hydractl.circuit.rounding import contenders
from hydractl.circuit.tally import Tally
from hydractl.circuit.tower import Candidate
from hydractl.distributed import Processes


@dataclass(frozen=True)
class Step:
    """One removal.

    Attributes:
        rivals: the candidates that could have won on a machine that rounds otherwise, the best first.
    """

    candidate: Candidate
    measured: Measured
    rivals: tuple[Step, ...] = ()


@dataclass
class Found:
    """The ranking of one objective: what the model gave before the first removal, and the removals."""

    base: Measured
    steps: list[Step] = field(default_factory=list)

    @property
    def removed(self) -> list[Candidate]:
        """The heads removed so far, in order."""
        return [step.candidate for step in self.steps]


class Memory(Protocol):
    """What survives the end of the process: a journal, or nothing."""

    records: list[dict[str, Any]]

    def append(self, record: Mapping[str, Any]) -> None:
        """Keep one more."""

    def sync(self) -> None:
        """Make sure that it is kept."""


class Nothing:
    """A memory that keeps nothing."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def append(self, record: Mapping[str, Any]) -> None:
        """Forget it."""

    def sync(self) -> None:
        """Nothing to do."""


@dataclass
class Observer:
    """What a search tells while it runs.

    Attributes:
        evaluated: a candidate is done.
        removed: by which objective, in which step, what.
        begins: a step, with how many different models, and the evaluations that are left of each.
    """

    evaluated: Callable[[], None] = lambda: None
    removed: Callable[[str, int, Step], None] = lambda objective, number, step: None
    begins: Callable[[int, int, int], None] = lambda number, groups, left: None


class GreedySearch:
    """Rankings for any number of objectives; those that have removed the same heads share their evaluations.

    Args:
        evaluator: what is to be searched.
        heads: the candidates in model order.
        bounds, at_once: as in :class:`hydractl.circuit.race.Race`.
        memory: where evaluations are kept and found again.
        processes: who shares the candidates.
        observer: who is told.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        heads: Sequence[Candidate],
        *,
        bounds: bool = True,
        at_once: int = 1,
        memory: Memory | None = None,
        processes: Processes | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.evaluator = evaluator
        self.heads = list(heads)
        self.bounds, self.at_once = bounds, at_once
        self.memory = memory or Nothing()
        self.processes = processes
        self.observer = observer or Observer()
        self.evaluations = 0
        self.found: dict[str, Found] = {}

    def run(self, objectives: Sequence[str], budget: int) -> dict[str, Found]:
        """Remove ``budget`` heads one after another, for each objective."""
        base = self._base()
        self.found = found = {objective: Found(base) for objective in objectives}
        for number in range(1, budget + 1):
            groups = list(self._groups(found).values())
            self.observer.begins(number, len(groups), self.to_come(number, budget))
            for group in groups:
                steps = self._remembered(group, number) or self._step(group, number, found[group[0]].removed)
                for objective in group:
                    found[objective].steps.append(steps[objective])
                    self.observer.removed(objective, number, steps[objective])
        return found

    def to_come(self, number: int, budget: int) -> int:
        """How many evaluations there may be from a step on, for objectives that have removed the same heads."""
        return evaluations(len(self.heads) - number + 1, budget - number + 1)

    def before(self, objective: str) -> Measured:
        """What the model gave that the present step of an objective begins with."""
        found = self.found[objective]
        return found.steps[-1].measured if found.steps else found.base

    def _groups(self, found: Mapping[str, Found]) -> dict[tuple[Candidate, ...], list[str]]:
        """Objectives by the heads they have removed: the same heads in another order are the same model."""
        groups: dict[tuple[Candidate, ...], list[str]] = {}
        for objective, ranking in found.items():
            groups.setdefault(tuple(sorted(ranking.removed)), []).append(objective)
        return groups

    def _base(self) -> Measured:
        for record in self.memory.records:
            if "base" in record:
                return measured_of(record["base"])
        self.evaluator.begin([])
        base = self._measured()
        self._keep({"base": counts_of(base)})
        return base

    def _measured(self) -> Measured:
        """The counts of the model as it is, over everything."""
        tally = Tally()
        for chunk in self.evaluator.chunks:
            for batch in chunk:
                tally.add(batch, self.evaluator.current(batch))
            self.evaluator.forget(chunk)
        return tally.measured()

    def _step(self, group: list[str], number: int, removed: list[Candidate]) -> dict[str, Step]:
        """One removal for objectives that have removed the same heads."""
        self.evaluator.begin(removed)
        gone = set(removed)
        left = [(index, head) for index, head in enumerate(self.heads) if head not in gone]
        steps = self.choose(group, number, left)
        for objective, step in steps.items():
            self._keep({"removed": objective, "step": number, **record_of(step)})
        self.memory.sync()
        return steps

    def choose(self, group: list[str], number: int, left: list[tuple[int, Candidate]]) -> dict[str, Step]:
        """The best candidate for each objective, the evaluator being at the model without the heads removed so far.

        Args:
            group: the objectives.
            number: of the step, from 1.
            left: the candidates with their places in model order.
        """
        race = Race(
            self.evaluator,
            group,
            self._own(left),
            bounds=self.bounds,
            at_once=self.at_once,
            known=self._evaluated(group, number),
            finished=lambda runner: self._finished(runner, group, number),
        )
        return {
            o: self._complete(step, race.tally_of(step.candidate)) for o, step in self._together(race.run()).items()
        }

    def _finished(self, runner: Runner, group: list[str], number: int) -> None:
        self.evaluations += 1
        record = {"of": group[0], "step": number, "head": list(runner.candidate), "given_up": list(runner.given_up)}
        self.memory.append({**record, **counts_of(runner.measured)})
        self.observer.evaluated()

    # --- several processes --------------------------------------------------------------------------------------------

    def _own(self, left: list[tuple[int, Candidate]]) -> list[tuple[int, Candidate]]:
        """The candidates of this process: the dearest first, each to the one that has least to do."""
        if self.processes is None or self.processes.size == 1:
            return left
        loads = [0.0] * self.processes.size
        mine = []
        samples = self.evaluator.n_id + self.evaluator.n_ood
        prices = {site: self.evaluator.price(site, samples) for site in dict.fromkeys(head[0] for _, head in left)}
        for index, candidate in sorted(left, key=lambda one: (-prices[one[1][0]], one[0])):
            least = loads.index(min(loads))
            loads[least] += prices[candidate[0]]
            if least == self.processes.rank:
                mine.append((index, candidate))
        return sorted(mine)

    def _together(self, arrived: Mapping[str, Sequence[Runner]]) -> dict[str, Step]:
        """The best of all processes for each objective, of samples that its objective may not have read counted."""
        own = {
            objective: [record_of(Step(r.candidate, r.measured)) for r in contenders(objective, runners)]
            for objective, runners in arrived.items()
            if runners
        }
        everyone = [own] if self.processes is None else self.processes.gather(own)
        found = {}
        for objective in arrived:
            winner, *rivals = contenders(objective, [step_of(r) for one in everyone for r in one.get(objective, [])])
            read = tuple(replace(rival, measured=rival.measured.read_by(objective)) for rival in rivals)
            found[objective] = replace(winner, rivals=read)
        return found

    def _shared(self, own: Mapping[Candidate, Measured]) -> dict[Candidate, Measured]:
        """What any process has counted of some candidates, in every process."""
        found = [record_of(Step(head, measured)) for head, measured in own.items()]
        everyone = [found] if self.processes is None else self.processes.gather(found)
        return {_head(record): measured_of(record) for one in everyone for record in one}

    def _complete(self, step: Step, tally: Tally) -> Step:
        """Count what the winner's objective did not need, so that each step says how the whole data fares."""
        if step.measured.n_ood == self.evaluator.n_ood:
            return step
        site, head = step.candidate
        for chunk in self.evaluator.chunks:
            for batch in chunk:
                if batch not in tally.seen:
                    tally.add(batch, self.evaluator.without_each(batch, site, [head] * self.at_once)[0])
            self.evaluator.forget(chunk)
        return replace(step, measured=tally.measured())

    # --- memory -------------------------------------------------------------------------------------------------------

    def _keep(self, record: Mapping[str, Any]) -> None:
        """What all processes know is kept by the first."""
        if self.processes is None or self.processes.rank == 0:
            self.memory.append(record)

    def _remembered(self, group: list[str], number: int) -> dict[str, Step] | None:
        """The step as a journal has it, if it has all of it."""
        found = {
            record["removed"]: step_of(record)
            for record in self.memory.records
            if record.get("removed") in group and record.get("step") == number
        }
        return found if len(found) == len(group) else None

    def _evaluated(self, group: list[str], number: int) -> dict[Candidate, tuple[Measured, list[str]]]:
        """What a journal has of a step that was not finished."""
        return {
            _head(record): (measured_of(record), record["given_up"])
            for record in self.memory.records
            if record.get("of") == group[0] and record.get("step") == number
        }


def _head(record: Mapping[str, Any]) -> Candidate:
    site, head = record["head"]
    return site, head


def counts_of(measured: Measured) -> dict[str, Any]:
    """The integers of an evaluation, as a journal holds them."""
    return {
        "correct": measured.correct,
        "n_id": measured.n_id,
        "two_u": measured.two_u,
        "n_ood": measured.n_ood,
        "nll": measured.nll,
        "brier": measured.brier,
        "doubt": list(measured.doubt),
    }


def measured_of(record: Mapping[str, Any]) -> Measured:
    """The inverse of :func:`counts_of`."""
    names = ("correct", "n_id", "two_u", "n_ood", "nll", "brier")
    return Measured(**{name: record[name] for name in names}, doubt=Doubt(*record.get("doubt", ())))


def record_of(step: Step) -> dict[str, Any]:
    """A candidate and its counts, as a journal holds them."""
    rivals = {"rivals": [record_of(rival) for rival in step.rivals]} if step.rivals else {}
    return {"head": list(step.candidate), **counts_of(step.measured), **rivals}


def step_of(record: Mapping[str, Any]) -> Step:
    """The inverse of :func:`record_of`."""
    return Step(_head(record), measured_of(record), tuple(map(step_of, record.get("rivals", ()))))


def evaluations(heads: int, budget: int) -> int:
    """Evaluations of the whole data that Algorithm 1 needs: 5,784 for 48 of 144 heads."""
    return sum(heads - step for step in range(budget))
