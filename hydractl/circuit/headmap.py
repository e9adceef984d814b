"""``--algorithm headmap``: one pass over the sites (attention blocks), which keeps the best heads of each site.

The method is that of Wang et al. 2025, "HeadMap: Locating and Enhancing Knowledge Circuits in LLMs", ICLR 2025, as
Hydra Ensembles cites it. It goes through the sites in model order. At each site, every head is masked alone, together
with the heads that were chosen at earlier sites. The k heads of the site whose masking gives the highest loss are
chosen. The chosen heads are the circuit. This takes as many evaluations of the data as there are heads.

A chosen head is masked during the pass only: the result keeps the chosen heads and removes the others. The method does
not say in what order to remove them: scores of different sites were measured with different numbers of masked heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Unpack

from hydractl.circuit.evaluator import Evaluator
from hydractl.circuit.search import GreedySearch, ObjectiveRanking, SearchKeywords, objectives_by_removed_heads
from hydractl.circuit.winners import CandidateHead, best_first


class Headmap(GreedySearch):
    """The search of ``--algorithm headmap``.

    Objectives that have chosen the same heads share their evaluations, which cover all samples that any of them reads.

    Args:
        kept: how many heads to choose at each site; a site with fewer heads keeps all of them.
        others: the keyword arguments of :class:`hydractl.circuit.search.GreedySearch`; ``bounds`` has no effect here.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        heads: Sequence[tuple[int, int]],
        *,
        kept: Mapping[int, int],
        **others: Unpack[SearchKeywords],
    ) -> None:
        super().__init__(evaluator, heads, **others)
        self.kept = dict(kept)

    def run(self, objectives: Sequence[str], budget: int | None = None) -> dict[str, ObjectiveRanking]:
        """Choose heads site by site, and rank the heads that were not chosen.

        At each site (attention block) every head is tried: it is masked together with the heads chosen at earlier
        sites. The ``kept[site]`` heads whose masking gives the lowest scores are chosen. A chosen head stays masked for
        the rest of the pass, but the result keeps it and removes all other heads.

        Args:
            objectives: the objectives by whose scores heads are compared (higher is better); each chooses by itself.
            budget: ignored, as ``kept`` decides how many heads are removed; every search takes this argument.

        Returns:
            For each objective the ranking of the heads that were not chosen, each with the counts when it was masked.
            The highest score comes first; equal scores are ordered by site and then by head. The rankings are also
            stored in :attr:`rankings`.
        """
        # At the beginning no head is chosen, and every ranking is empty.
        counts_of_whole_model = self._counts_of_whole_model()
        self.rankings = {}
        chosen: dict[str, list[CandidateHead]] = {}
        for objective in objectives:
            self.rankings[objective] = ObjectiveRanking(counts_of_whole_model)
            chosen[objective] = []

        sites = dict.fromkeys(site for site, _ in self.heads)  # each site once, in model order
        for step, site in enumerate(sites, start=1):
            # Objectives that have chosen the same heads mask the same heads, so one trial of a head serves all of them.
            groups = objectives_by_removed_heads(chosen)
            heads_left = [head for head in self.heads if head.site >= site]
            self._show_evaluations_left(len(groups) * len(heads_left))
            for chosen_before, group in groups.items():
                # Try each head of the site, masked together with the heads that were chosen before.
                heads = [head for head in self.heads if head.site == site]
                first_objective = group[0]
                known = self.memory.evaluations_of_step(first_objective, step)

                # The model is needed only if the journal does not know all heads of the site.
                all_known = all(head in known for head in heads)
                if not all_known:
                    self.evaluator.go_to_model_without(chosen_before)
                race = self._build_race(group, step, heads, bounds=False)
                trials_by_objective = race.run()
                self.memory.sync()
                # Without bounds, every objective of the group has the trials of all heads.
                trials_here = trials_by_objective[first_objective]
                trials = self._trials_across_processes(trials_here)
                for objective in group:
                    # Objectives share trials, which may count more than this objective reads: leave only what it reads.
                    trials_as_read = [replace(trial, counts=trial.counts.read_by(objective)) for trial in trials]
                    # The last ones, whose masking hurts most, are chosen; the others are ranked for removal.
                    in_order = best_first(objective, trials_as_read)
                    not_chosen = max(0, len(in_order) - self.kept[site])
                    chosen[objective] += [trial.head for trial in in_order[not_chosen:]]
                    self.rankings[objective].steps += in_order[:not_chosen]

        # So far, the steps of each ranking are in the order of the sites: sort them by score.
        for objective, ranking in self.rankings.items():
            ranking.steps = best_first(objective, ranking.steps)
            for step, removal in enumerate(ranking.steps, start=1):
                self.on_removal(objective, step, removal)
        return self.rankings
