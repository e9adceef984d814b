"""Algorithm 1 with the gains of earlier steps for an order of evaluation (``--approx lazy``).

Lazy greedy search (Minoux 1978): each candidate keeps the gain that its removal had when it was last measured. At each
step the candidate with the highest known gain is measured anew, until the one on top has been measured in this step.
That would be exact if gains could only fall as more heads go; they can rise too, so the result is an approximation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.objective import Measured
from hydractl.circuit.race import Race, Runner
from hydractl.circuit.search import GreedySearch, Step
from hydractl.circuit.tally import Tally
from hydractl.circuit.tower import Candidate

_UNKNOWN = float("inf")

_A_STEP = 3
"""About how many candidates a step measures, as a guess for showing progress."""


class Lazy(GreedySearch):
    """Objectives that have removed the same heads are handled one after another and share what is measured.

    What an objective finds depends on no other: its known gains are only those that its own turn asked for. A journal
    needs nothing beside the evaluations; the turns of finished steps are taken again from them.

    Args:
        others: as in :class:`hydractl.circuit.search.GreedySearch`, for one process. Nothing is given up early, because
            a gain is known only when everything has been counted.
    """

    def __init__(self, evaluator: Evaluator, heads: Sequence[Candidate], **others: Any) -> None:
        super().__init__(evaluator, heads, **others)
        self._gains: dict[str, dict[Candidate, float]] = {}

    def to_come(self, number: int, budget: int) -> int:
        """All candidates in the first step, then a guess."""
        return (len(self.heads) if number == 1 else _A_STEP) + _A_STEP * (budget - number)

    def choose(self, group: list[str], number: int, left: list[tuple[int, Candidate]]) -> dict[str, Step]:
        """The first of each objective's queue that has been measured in this step."""
        counted = {head: measured for head, (measured, _) in self._evaluated(group, number).items()}
        tallies: dict[Candidate, Tally] = {}
        places = {head: place for place, head in left}

        def measure(heads: Sequence[Candidate]) -> None:
            new = [(places[head], head) for head in heads if head not in counted]
            if new:
                race = self._race(group, number, new, counted)
                tallies.update({head: race.tally_of(head) for _, head in new})

        if number == 1:
            measure(list(places))
        steps = {}
        for objective in group:

            def look(head: Candidate, objective: str = objective) -> Measured:
                if head not in counted:
                    measure(self._company(objective, head, places))
                return counted[head]

            head = self._turn(objective, left, look)
            steps[objective] = self._complete(Step(head, counted[head]), tallies.get(head, Tally()))
        return steps

    def _race(
        self,
        group: list[str],
        number: int,
        places: list[tuple[int, Candidate]],
        counted: dict[Candidate, Measured],
    ) -> Race:
        def finished(runner: Runner) -> None:
            counted[runner.candidate] = runner.measured
            self._finished(runner, group, number)

        race = Race(self.evaluator, group, places, bounds=False, at_once=self.at_once, finished=finished)
        race.run()
        return race

    def _company(self, objective: str, head: Candidate, places: dict[Candidate, int]) -> list[Candidate]:
        """With a head those of its site that come next in the queue, where several are computed together anyway."""
        gains = self._gains[objective]
        others = [other for other in places if other[0] == head[0] and other != head]
        others.sort(key=lambda other: (-gains[other], places[other]))
        return [head, *others[: self.at_once - 1]]

    def _turn(
        self, objective: str, left: Sequence[tuple[int, Candidate]], look: Callable[[Candidate], Measured]
    ) -> Candidate:
        """Measure the top of the queue until it has been measured in this turn."""
        gains = self._gains.setdefault(objective, dict.fromkeys(self.heads, _UNKNOWN))
        before = self.before(objective).key(objective)
        seen: set[Candidate] = set()
        while True:
            _, head = max(left, key=lambda place: (gains[place[1]], -place[0]))
            if head in seen:
                return head
            gains[head] = look(head).key(objective) - before
            seen.add(head)

    def _remembered(self, group: list[str], number: int) -> dict[str, Step] | None:
        """The step, if a journal has it and all that its turns asked for; the queues then stand as they did."""
        steps = super()._remembered(group, number)
        if not steps:
            return None
        counted = {head: measured for head, (measured, _) in self._evaluated(group, number).items()}
        gone = set(self.found[group[0]].removed)
        left = [(place, head) for place, head in enumerate(self.heads) if head not in gone]
        for objective in group:
            self._turn(objective, left, counted.__getitem__)
        return steps
