"""Algorithm 1 of the paper (D.1.2): greedy backward elimination over all heads of a model.

At each step every remaining head is ablated alone on top of the heads already removed, and the head whose removal
gives the highest score is removed for good. Ties: lowest site first, then lowest head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.journal import START_OVER, Journal, NoJournal
from hydractl.circuit.objective import Doubt, Limits, Measured, Tally, Values, allowed, limits_of
from hydractl.circuit.race import Race, Runner, Step, contenders
from hydractl.circuit.tower import Candidate
from hydractl.distributed import Processes
from hydractl.errors import InputError
from hydractl.expressions.conditions import Constraint
from hydractl.jsonio import shown
from hydractl.log import Progress

_MOST_LOSS = 1 << 100


@dataclass
class Found:
    """The ranking of one objective.

    Attributes:
        base: what the model gave before the first removal.
        steps: the removals.
        ended: the option that ended them before the budget did.
    """

    base: Measured
    steps: list[Step] = field(default_factory=list)
    ended: str | None = None

    @property
    def removed(self) -> list[Candidate]:
        """The heads removed so far, in order."""
        return [step.candidate for step in self.steps]


class GreedySearch:
    """Rankings for any number of objectives; those that have removed the same heads share their evaluations.

    Args:
        evaluator: what is to be searched.
        heads: the candidates in model order.
        bounds, at_once: as in :class:`hydractl.circuit.race.Race`.
        constraints: what every removal has to keep; the search ends where none does.
        max_drop: the search ends before the first step that takes accuracy further below that of the model.
        affordable: whether one more head may go after those removed; the search ends where none may.
        journal: where evaluations are kept and found again.
        processes: who shares the candidates.
        progress: of the evaluations.
        removed: called with each removal: the objective, the number of the step, and what went.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        heads: Sequence[Candidate],
        *,
        bounds: bool = True,
        at_once: int = 1,
        constraints: Sequence[Constraint] = (),
        max_drop: Fraction | None = None,
        affordable: Callable[[Sequence[Candidate], Candidate], bool] = lambda removed, head: True,
        journal: Journal | None = None,
        processes: Processes | None = None,
        progress: Progress | None = None,
        removed: Callable[[str, int, Step], None] = lambda objective, number, step: None,
    ) -> None:
        self.evaluator = evaluator
        self.heads = list(heads)
        self.bounds, self.at_once = bounds, at_once
        self.constraints, self.max_drop, self.affordable = constraints, max_drop, affordable
        self._limits: Limits = {}
        self._end: Limits = {}
        self.journal = journal or NoJournal()
        self.processes = processes or Processes()
        self.progress = progress or Progress()
        self.removed = removed
        self.evaluations = 0
        self.found: dict[str, Found] = {}

    def run(self, objectives: Sequence[str], budget: int) -> dict[str, Found]:
        """Remove ``budget`` heads one after another, for each objective, or fewer where a constraint ends it."""
        base = self._base()
        self._limits = limits_of(self.constraints, base)
        self._end = {} if self.max_drop is None else limits_of([Constraint("acc", self.max_drop, True)], base)
        self.found = {objective: Found(base) for objective in objectives}
        for number in range(1, budget + 1):
            groups = same_model({o: found.removed for o, found in self.found.items() if found.ended is None})
            self._expect(len(groups) * self.to_come(number, budget))
            for removed, group in groups.items():
                steps = self._remembered(group, number)
                if steps is None:
                    steps = self._step(group, number, removed)
                for objective in group:
                    self._take(objective, number, steps.get(objective))
        return self.found

    def _take(self, objective: str, number: int, step: Step | None) -> None:
        """Add a removal to its ranking, or end that."""
        found = self.found[objective]
        if step is None or not allowed(step.measured, self._end):
            found.ended = "max_drop" if step else "subject_to" if self._left(found.removed) else "max_cost"
            return
        found.steps.append(step)
        self.removed(objective, number, step)

    def to_come(self, number: int, budget: int) -> int:
        """Return how many evaluations there may be from a step on, for objectives that have removed the same heads."""
        return evaluations(len(self.heads) - number + 1, budget - number + 1)

    def _base(self) -> Measured:
        for record in self.journal.records:
            if "base" in record:
                return measured_of(record["base"])
        self.evaluator.begin([])
        base = self._over_all(Tally(self.evaluator.shares), self.evaluator.current)
        self._keep({"base": counts_of(base)})
        return base

    def _over_all(self, tally: Tally, values: Callable[[int], Values]) -> Measured:
        """Return the counts over everything: what has been counted, and the values of the other batches."""
        for chunk in self.evaluator.chunks:
            for batch in chunk:
                if batch not in tally.seen:
                    tally.add(batch, values(batch))
            self.evaluator.forget(chunk)
        return tally.measured()

    def _step(self, group: list[str], number: int, removed: Sequence[Candidate]) -> dict[str, Step]:
        """Remove one head for objectives that have removed the same heads."""
        self.evaluator.begin(removed)
        steps = self.choose(group, number, self._left(removed))
        for objective in group:
            step = steps.get(objective)
            self._keep(
                {"ended": objective, "step": number}
                if step is None
                else {"removed": objective, "step": number, **record_of(step)}
            )
        self.journal.sync()
        return steps

    def _left(self, removed: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates of a step."""
        return [head for head in self.heads if head not in removed and self.affordable(removed, head)]

    def choose(self, group: list[str], number: int, left: list[Candidate]) -> dict[str, Step]:
        """Choose the best of the candidates left, for each objective that has one.

        The evaluator must be at the model of the step.
        """
        race = self._race(group, number, left, self.bounds)
        best = self._together(race.run())
        return {objective: self._complete(step, race.tally_of(step.candidate)) for objective, step in best.items()}

    def _race(self, group: list[str], number: int, left: Sequence[Candidate], bounds: bool) -> Race:
        """Build the race of this process's candidates; those that a journal knows are already counted."""
        return Race(
            self.evaluator,
            group,
            self._own(left),
            bounds=bounds,
            at_once=self.at_once,
            limits=self._limits,
            known=self._evaluated(group, number),
            finished=lambda runner: self._finished(runner, group, number),
        )

    def _finished(self, runner: Runner, group: list[str], number: int) -> None:
        self.evaluations += 1
        given_up = [objective for objective in group if objective not in runner.alive]
        record = {"of": group[0], "step": number, "head": list(runner.candidate), "given_up": given_up}
        self.journal.append({**record, **counts_of(runner.measured)})
        self.progress.advance()

    def _expect(self, evaluations: int) -> None:
        """Tell the progress how many evaluations are left, in all processes together."""
        self.progress.set_total(self.evaluations + evaluations // self.processes.size)

    # --- several processes --------------------------------------------------------------------------------------------

    def _own(self, left: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates of this process: the dearest are dealt first, each to the process with least to do."""
        loads = [0.0] * self.processes.size
        mine = []
        samples = self.evaluator.size
        prices = {site: self.evaluator.price(site, samples) for site in dict.fromkeys(site for site, _ in left)}
        for site, head in sorted(left, key=lambda candidate: (-prices[candidate[0]], candidate)):
            least = loads.index(min(loads))
            loads[least] += prices[site]
            if least == self.processes.rank:
                mine.append((site, head))
        return sorted(mine)

    def _together(self, arrived: Mapping[str, Sequence[Step]]) -> dict[str, Step]:
        """Choose the best candidate of all processes for each objective, and keep those that could have won elsewhere.

        The counts of these rivals leave out OOD samples where the objective reads none. An objective for which no
        candidate is allowed is left out.
        """
        own = {o: [record_of(step) for step in contenders(o, steps, self._limits)] for o, steps in arrived.items()}
        everyone = self.processes.gather(own)
        best = {}
        for objective in arrived:
            steps = [step_of(record) for records in everyone for record in records.get(objective, [])]
            ordered = contenders(objective, steps, self._limits)
            if not ordered or not allowed(ordered[0].measured, self._limits):
                continue
            winner, *rivals = ordered
            read = tuple(replace(rival, measured=rival.measured.read_by(objective)) for rival in rivals)
            best[objective] = replace(winner, rivals=read)
        return best

    def _shared(self, own: Mapping[Candidate, Measured]) -> dict[Candidate, Measured]:
        """Gather, in every process, what any of them has counted of some candidates."""
        everyone = self.processes.gather([record_of(Step(head, measured)) for head, measured in own.items()])
        return {_head(record): measured_of(record) for records in everyone for record in records}

    def _complete(self, step: Step, tally: Tally) -> Step:
        """Count what the winner's objective did not need, so that each step says how the whole data fares."""
        if step.measured.n_ood == self.evaluator.n_ood:
            return step
        site, head = step.candidate
        heads = [head] * self.at_once  # another number would round otherwise
        return replace(step, measured=self._over_all(tally, lambda b: self.evaluator.without_each(b, site, heads)[0]))

    # --- memory -------------------------------------------------------------------------------------------------------

    def _keep(self, record: Mapping[str, Any]) -> None:
        """Write a record that all processes know into the journal, in the first process only."""
        if self.processes.rank == 0:
            self.journal.append(record)

    def _remembered(self, group: list[str], number: int) -> dict[str, Step] | None:
        """Return the step as a journal has it, if it has all of it; without the objectives that ended there."""
        found = {
            record["removed"]: step_of(record)
            for record in self.journal.records
            if record.get("removed") in group and record.get("step") == number
        }
        ended = {r["ended"] for r in self.journal.records if r.get("ended") in group and r["step"] == number}
        return found if len(found) + len(ended) == len(group) else None

    def _evaluated(self, group: list[str], number: int) -> dict[Candidate, tuple[Measured, list[str]]]:
        """Return the counts that a journal has of a step that was not finished.

        Returns:
            For each candidate its counts, and the objectives it was given up for.
        """
        return {
            _head(record): (measured_of(record), record["given_up"])
            for record in self.journal.records
            if record.get("of") == group[0] and record.get("step") == number
        }


def same_model(removed: Mapping[str, Sequence[Candidate]]) -> dict[tuple[Candidate, ...], list[str]]:
    """Group objectives by the heads they have removed: the same heads in another order are the same model."""
    groups: dict[tuple[Candidate, ...], list[str]] = {}
    for objective, heads in removed.items():
        groups.setdefault(tuple(sorted(heads)), []).append(objective)
    return groups


def evaluations(heads: int, budget: int) -> int:
    """Evaluations of the whole data that Algorithm 1 needs: 5,784 for 48 of 144 heads."""
    return sum(heads - step for step in range(budget))


# --- records of a journal ---------------------------------------------------------------------------------------------

_Whole = tuple[int, int, bool]  # the ID and OOD samples of the data, and whether they are of several tasks


def _head(record: Mapping[str, Any]) -> Candidate:
    site, head = record["head"]
    return site, head


def counts_of(measured: Measured) -> dict[str, Any]:
    """Return the integers of an evaluation, as a journal holds them."""
    return {**vars(measured), "doubt": list(measured.doubt)}


def measured_of(record: Mapping[str, Any]) -> Measured:
    """Return the evaluation, the inverse of :func:`counts_of`."""
    names = ("correct", "n_id", "two_u", "n_ood", "nll", "brier")
    return Measured(**{name: record[name] for name in names}, doubt=Doubt(*record.get("doubt", ())))


def record_of(step: Step) -> dict[str, Any]:
    """Return a candidate and its counts, as a journal holds them."""
    rivals = {"rivals": [record_of(rival) for rival in step.rivals]} if step.rivals else {}
    return {"head": list(step.candidate), **counts_of(step.measured), **rivals}


def step_of(record: Mapping[str, Any]) -> Step:
    """Return the step, the inverse of :func:`record_of`."""
    return Step(_head(record), measured_of(record), tuple(map(step_of, record.get("rivals", ()))))


def check_records(
    path: Path,
    journal: Journal,
    sizes: Mapping[str, int],
    heads: Collection[Candidate],
    objectives: Sequence[str],
    whole: tuple[int, int] | None = None,
) -> None:
    """Check that the journal at a path holds what a search wrote: a damaged figure must not become a result.

    Args:
        sizes: samples of the data, ``id`` and ``ood``.
        whole: of several tasks, the ID and OOD samples of all of them, as often as they count.

    Raises:
        InputError: listing every record that cannot be one.
    """
    problems = []
    if journal.order is not None and not _is_order(journal.order, sizes):
        problems.append("the order of the samples is not one")
    removed: dict[tuple[str, int], Any] = {}
    most = (*(whole or (sizes["id"], sizes.get("ood", 0))), whole is not None)
    for record in journal.records:
        if not _is_record(record, most, heads, objectives):
            problems.append(f"no record of this search: {shown(record, 200)}")
        elif "removed" in record:
            place = (record["removed"], record["step"])
            if removed.setdefault(place, record["head"]) != record["head"]:
                problems.append(f"step {place[1]} of {place[0]} removes two different heads")
    if problems:
        raise InputError(f"{path} is broken", hint=START_OVER, problems=problems)


def _is_order(order: Any, sizes: Mapping[str, int]) -> bool:
    if not isinstance(order, dict) or set(order) != set(sizes):
        return False
    whole = all(isinstance(own, list) and all(type(i) is int for i in own) for own in order.values())
    return whole and all(sorted(own) == list(range(sizes[name])) for name, own in order.items())


def _is_record(
    record: Mapping[str, Any], whole: _Whole, heads: Collection[Candidate], objectives: Sequence[str]
) -> bool:
    try:
        if "base" in record:
            return _are_counts(measured_of(record["base"]), whole)
        if type(record["step"]) is not int:
            return False
        if "ended" in record:
            return record["ended"] in objectives
        step = step_of(record)
        sound = record["of" if "of" in record else "removed"] in objectives
        sound = sound and ("of" not in record or isinstance(record["given_up"], list))
        sound = sound and all(type(off) is float for off in record.get("off", {}).values())
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):  # missing, or of another type
        return False
    return sound and all(
        _is_candidate(one.candidate, heads) and _are_counts(one.measured, whole) for one in (step, *step.rivals)
    )


def _is_candidate(pair: tuple[Any, ...], heads: Collection[Candidate]) -> bool:
    return all(type(i) is int for i in pair) and pair in heads


def _are_counts(m: Measured, whole: _Whole) -> bool:
    n_id, n_ood, several = whole
    counts = (m.n_id, m.n_ood, m.correct, 0 if m.two_u is None else m.two_u, m.nll, m.brier, *m.doubt)
    if not all(type(count) is int and count >= 0 for count in counts):
        return False
    pairs = 2 * (n_id * n_ood if several else m.n_id * m.n_ood)
    most_doubt = Doubt(m.n_id, m.n_id, pairs, pairs, _MOST_LOSS)
    most = (n_id, n_ood, m.n_id, pairs, _MOST_LOSS, _MOST_LOSS, *most_doubt)
    return all(count <= highest for count, highest in zip(counts, most, strict=True))
