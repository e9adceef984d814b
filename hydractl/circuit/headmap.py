"""``--algorithm headmap``: one pass over the sites, the best heads of each of them kept.

Wang et al. 2025, "HeadMap: Locating and Enhancing Knowledge Circuits in LLMs", ICLR 2025, as Hydra Ensembles cites it:
the sites are gone through in model order; each head of a site is masked alone, together with the heads that were chosen
at the sites before; the k heads of the site whose masking gives the highest loss are chosen. The chosen heads are the
circuit. That takes as many evaluations of the data as there are heads.

A chosen head is masked during the pass only: the result keeps the chosen heads and removes the others. In what order,
the method does not say: scores of different sites were measured with different numbers of masked heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.objective import Measured
from hydractl.circuit.race import Step, best_first, could_win
from hydractl.circuit.search import Found, GreedySearch, same_model
from hydractl.circuit.tower import Candidate


class Headmap(GreedySearch):
    """Objectives that have chosen the same heads share their evaluations. Each is of all samples that they read.

    Args:
        kept: how many heads to choose at each site; of a site that has fewer, all.
        others: as in :class:`hydractl.circuit.search.GreedySearch`; ``bounds`` says nothing here.
    """

    def __init__(
        self, evaluator: Evaluator, heads: Sequence[Candidate], *, kept: Mapping[int, int], **others: Any
    ) -> None:
        super().__init__(evaluator, heads, **others)
        self.kept = dict(kept)

    def run(self, objectives: Sequence[str], budget: int | None = None) -> dict[str, Found]:
        """Go over the sites of the candidates once.

        Args:
            objectives: the opposites of losses: the heads with the lowest scores are chosen.
            budget: what is removed is what ``kept`` leaves over.

        Returns:
            For each objective the heads that were not chosen, the highest score first, of equal ones the lowest site
            and then the lowest head, each with the counts when it was masked.
        """
        base = self._base()
        self.found = {objective: Found(base) for objective in objectives}
        chosen: dict[str, list[Candidate]] = {objective: [] for objective in objectives}
        for number, site in enumerate(dict.fromkeys(site for site, _ in self.heads), start=1):
            left = [head for head in self.heads if head[0] == site]
            groups = same_model(chosen)
            self._expect(len(groups) * sum(head[0] >= site for head in self.heads))
            for masked, group in groups.items():
                counted = self._site(group, number, masked, left)
                for objective in group:
                    steps = best_first(objective, [Step(head, counted[head].read_by(objective)) for head in left])
                    gone = max(0, len(steps) - self.kept[site])
                    self.found[objective].steps += [_with_rivals(objective, s, steps[gone:]) for s in steps[:gone]]
                    chosen[objective] += [step.candidate for step in steps[gone:]]
        for objective, found in self.found.items():
            found.steps = best_first(objective, found.steps)
            for number, step in enumerate(found.steps, start=1):
                self.removed(objective, number, step)
        return self.found

    def _site(
        self, group: list[str], number: int, masked: Sequence[Candidate], left: list[Candidate]
    ) -> dict[Candidate, Measured]:
        """The counts with each head of one site masked beside those that were chosen before."""
        if not self._evaluated(group, number).keys() >= set(left):
            self.evaluator.begin(masked)
        own = self._race(group, number, left, bounds=False).run()[group[0]]
        self.journal.sync()
        return self._shared({step.candidate: step.measured for step in own})


def _with_rivals(objective: str, step: Step, chosen: Sequence[Step]) -> Step:
    """A head that is not chosen, and those chosen in its place that rounding may have put there."""
    return replace(step, rivals=tuple(other for other in chosen if could_win(objective, other, step)))
