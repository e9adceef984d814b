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
from typing import Unpack

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.search import GreedySearch, ObjectiveRanking, SearchKeywords, same_model
from hydractl.circuit.winners import CandidateHead, Trial, best_first, lowest_chosen


class Headmap(GreedySearch):
    """Objectives that have chosen the same heads share their evaluations. Each is of all samples that they read.

    Args:
        kept: how many heads to choose at each site; of a site that has fewer, all.
        others: as in :class:`hydractl.circuit.search.GreedySearch`; ``bounds`` says nothing here.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        heads: Sequence[CandidateHead],
        *,
        kept: Mapping[int, int],
        **others: Unpack[SearchKeywords],
    ) -> None:
        super().__init__(evaluator, heads, **others)
        self.kept = dict(kept)

    def run(self, objectives: Sequence[str], budget: int | None = None) -> dict[str, ObjectiveRanking]:
        """Go over the sites of the candidates once.

        Args:
            objectives: the opposites of losses: the heads with the lowest scores are chosen.
            budget: what is removed is what ``kept`` leaves over.

        Returns:
            For each objective the heads that were not chosen, the highest score first, of equal ones the lowest site
            and then the lowest head, each with the counts when it was masked.
        """
        base = self._base()
        self.rankings = {objective: ObjectiveRanking(base) for objective in objectives}
        chosen: dict[str, list[CandidateHead]] = {objective: [] for objective in objectives}
        sites = dict.fromkeys(site for site, _ in self.heads)
        for step, site in enumerate(sites, start=1):
            groups = same_model(chosen)
            heads_to_come = sum(head[0] >= site for head in self.heads)
            self._expect(len(groups) * heads_to_come)
            for masked, group in groups.items():
                trials = self._try_site(group, step, masked, site)
                for objective in group:
                    of_objective = [replace(trial, counts=trial.counts.read_by(objective)) for trial in trials]
                    chosen_here, left_over = lowest_chosen(objective, of_objective, self.kept[site])
                    chosen[objective] += [trial.head for trial in chosen_here]
                    self.rankings[objective].steps += left_over

        for objective, ranking in self.rankings.items():
            ranking.steps = best_first(objective, ranking.steps)
            for step, removal in enumerate(ranking.steps, start=1):
                self.on_removal(objective, step, removal)
        return self.rankings

    def _try_site(self, group: list[str], step: int, masked: Sequence[CandidateHead], site: int) -> list[Trial]:
        """Return the trial of each head of one site, masked beside those that were chosen before."""
        heads = [head for head in self.heads if head[0] == site]
        known = self.memory.evaluations(group[0], step)
        if not known.keys() >= set(heads):
            self.evaluator.begin(masked)
        trials = self._race(group, step, heads, bounds=False).run()[group[0]]
        self.memory.sync()
        return self._trials_of_all(trials)
