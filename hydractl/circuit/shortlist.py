"""Algorithm 1 among the few candidates that a forecast from a gradient puts first (``--approx shortlist:N``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.objective import Measured
from hydractl.circuit.race import Runner
from hydractl.circuit.search import GreedySearch, Step
from hydractl.circuit.slopes import Quantities, current_quantities, forecast, needed, slopes
from hydractl.circuit.tower import Candidate

Places = list[tuple[int, Candidate]]


class Shortlist(GreedySearch):
    """At each step the race is only among the candidates that are forecast to be best; it is exact among them.

    The forecasts are those of :mod:`hydractl.circuit.slopes`, for heads of the tower that reads samples. What a head of
    the tower of the labels does to each sample takes no single pass backward, so those heads are listed by what their
    removal gained when it was last measured; the first step measures all of them.

    Objectives that have removed the same heads race on their lists together, so each may find more than it would alone.

    Args:
        size: how many candidates are listed for each objective and tower.
        every: slopes are taken anew once in so many steps; in between, forecasts add them to what the samples are now.
        others: as in :class:`hydractl.circuit.search.GreedySearch`.
    """

    def __init__(
        self, evaluator: Evaluator, heads: Sequence[Candidate], *, size: int, every: int = 3, **others: Any
    ) -> None:
        super().__init__(evaluator, heads, **others)
        self.size, self.every = size, every
        self._slopes: dict[tuple[Candidate, ...], tuple[list[Candidate], Quantities]] = {}
        self._taken_at = 0
        self._counted: dict[Candidate, Measured] = {}
        self._gains: dict[tuple[str, Candidate], int] = {}

    def to_come(self, number: int, budget: int) -> int:
        """As many as are listed, more where objectives race together or all heads of the labels are measured."""
        labels = sum(self._of_labels(head) for head in self.heads)
        towers = len({self._of_labels(head) for head in self.heads})
        found = sum(min(self.size * towers, len(self.heads) - step + 1) for step in range(number, budget + 1))
        return found + (max(0, labels - self.size) if number == 1 else 0)

    def choose(self, group: list[str], number: int, left: Places) -> dict[str, Step]:
        """The best of those listed."""
        listed = self._listed(group, number) or self._list(group, number, left)
        labels = [head for head in listed if self._of_labels(head)]
        self._counted = {head: measured for head, (measured, _) in self._evaluated(group, number).items()}
        bounds = self.bounds
        # Only complete counts say what a removal gains; of a head of the labels they cost little more than a part.
        self.bounds = bounds and not labels
        try:
            steps = super().choose(group, number, [place for place in left if place[1] in listed])
        finally:
            self.bounds = bounds
        if labels:
            self._learn(group, self._shared({head: self._counted[head] for head in labels if head in self._counted}))
        return steps

    def _finished(self, runner: Runner, group: list[str], number: int) -> None:
        super()._finished(runner, group, number)
        self._counted[runner.candidate] = runner.measured

    # --- the list -----------------------------------------------------------------------------------------------------

    def _listed(self, group: list[str], number: int) -> list[Candidate]:
        """The list as a journal has it."""
        for record in self.memory.records:
            if record.get("listed") == group and record["step"] == number:
                return [(site, head) for site, head in record["heads"]]
        return []

    def _list(self, group: list[str], number: int, left: Places) -> list[Candidate]:
        """Make a list, the same in all processes."""
        found: set[int] = set()
        for of_labels in (False, True):
            places = [place for place in left if self._of_labels(place[1]) == of_labels]
            if len(places) <= self.size:
                found.update(index for index, _ in places)
            elif of_labels:
                found.update(self._by_gains(group, places))
            else:
                found.update(self._by_forecasts(group, number, places))
        heads = [self.heads[index] for index in sorted(found)]
        if self.processes is not None:
            # Machines of different make round differently.
            heads = [(site, head) for site, head in self.processes.gather(heads)[0]]
        self._keep({"listed": group, "step": number, "heads": heads})
        return heads

    def _by_forecasts(self, group: list[str], number: int, places: Places) -> set[int]:
        heads, all_slopes = self._slopes_for(group, number)
        columns = {head: column for column, head in enumerate(heads)}
        change = all_slopes.of([columns[head] for _, head in places])
        now = current_quantities(self.evaluator, needed(group))
        found: set[int] = set()
        for objective in group:
            values = forecast(objective, now, change)
            order = sorted(range(len(places)), key=lambda i: (-values[i], places[i][0]))
            found.update(places[i][0] for i in order[: self.size])
        return found

    def _slopes_for(self, group: list[str], number: int) -> tuple[list[Candidate], Quantities]:
        """The slopes at the latest step that takes them, measured now where that has not been done."""
        step = number - (number - 1) % self.every
        if step != self._taken_at:
            self._slopes.clear()
            self._taken_at = step
        removed = self.found[group[0]].removed
        then, names = removed[: step - 1], needed(group)
        key = tuple(sorted(then))
        if key not in self._slopes or not set(names) <= set(self._slopes[key][1].inside):
            if then != removed:
                self.evaluator.begin(then)
            self._slopes[key] = slopes(self.evaluator, names)
            if then != removed:
                self.evaluator.begin(removed)
        return self._slopes[key]

    # --- heads of the labels ------------------------------------------------------------------------------------------

    def _of_labels(self, head: Candidate) -> bool:
        return self.evaluator.labels is not None and head[0] in self.evaluator.labels.sites

    def _by_gains(self, group: list[str], places: Places) -> set[int]:
        found: set[int] = set()
        for objective in group:
            if any((objective, head) not in self._gains for _, head in places):
                return {index for index, _ in places}
            order = sorted(places, key=lambda place: (-self._gains[objective, place[1]], place[0]))
            found.update(index for index, _ in order[: self.size])
        return found

    def _learn(self, group: list[str], counted: Mapping[Candidate, Measured]) -> None:
        for objective in group:
            key = self.before(objective).key(objective)
            for head, measured in counted.items():
                if self._of_labels(head):
                    self._gains[objective, head] = measured.key(objective) - key

    def _remembered(self, group: list[str], number: int) -> dict[str, Step] | None:
        steps = super()._remembered(group, number)
        if steps:
            self._learn(group, {head: measured for head, (measured, _) in self._evaluated(group, number).items()})
        return steps
