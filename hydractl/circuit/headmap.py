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
from hydractl.circuit.search import GreedySearch, ObjectiveRanking, SearchKeywords, objectives_by_removed_heads
from hydractl.circuit.winners import CandidateHead, Trial, best_first, lowest_chosen


class Headmap(GreedySearch):
    """The search of ``--algorithm headmap``.

    Objectives that have chosen the same heads share their evaluations, which are of all samples that any of them reads.

    Args:
        kept: how many heads to choose at each site; of a site that has fewer, all.
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
        """Go over the sites of the candidates once.

        Args:
            objectives: their scores are the opposites of losses, so the heads with the lowest scores are chosen.
            budget: without effect: all heads that ``kept`` leaves over are removed.

        Returns:
            For each objective the heads that were not chosen, the highest score first, of equal ones the lowest site
            and then the lowest head, each with the counts when it was masked.
        """
        base = self._counts_of_whole_model()
        self.rankings = {}
        chosen: dict[str, list[CandidateHead]] = {}
        for objective in objectives:
            self.rankings[objective] = ObjectiveRanking(base)
            chosen[objective] = []

        # One step a site: the heads of the site are tried, beside those chosen before.
        sites = dict.fromkeys(site for site, _ in self.heads)  # each once, in model order
        for step, site in enumerate(sites, start=1):
            # Objectives that have chosen the same heads mask the same model, so one step serves all of them.
            groups = objectives_by_removed_heads(chosen)
            heads_left = [head for head in self.heads if head.site >= site]
            self._show_evaluations_left(len(groups) * len(heads_left))
            for masked, group in groups.items():
                trials = self._try_site(group, step, masked, site)
                for objective in group:
                    chosen_at_site, left_over = self._split_site(objective, site, trials)
                    chosen[objective] += chosen_at_site
                    self.rankings[objective].steps += left_over

        self._sort_rankings()
        return self.rankings

    def _sort_rankings(self) -> None:
        """Put the removals of each objective, which were noted site after site, in order of score, and report them."""
        for objective, ranking in self.rankings.items():
            ranking.steps = best_first(objective, ranking.steps)
            for step, removal in enumerate(ranking.steps, start=1):
                self.on_removal(objective, step, removal)

    def _split_site(
        self, objective: str, site: int, trials: Sequence[Trial]
    ) -> tuple[list[CandidateHead], list[Trial]]:
        """Return the heads of a site that an objective chooses, and the trials of the others, which are removed.

        Args:
            objective: the heads with the lowest scores by it are chosen.
            site: the number of the attention block.
            trials: of all heads of the site.
        """
        # Trials are shared by objectives: each ranks by the counts that it reads, whatever the others made count.
        trials_as_read = []
        for trial in trials:
            counts = trial.counts.read_by(objective)
            trials_as_read.append(replace(trial, counts=counts))
        chosen, left_over = lowest_chosen(objective, trials_as_read, self.kept[site])
        return [trial.head for trial in chosen], left_over

    def _try_site(self, group: list[str], step: int, masked: Sequence[CandidateHead], site: int) -> list[Trial]:
        """Return the trial of each head of one site, masked beside those that were chosen before.

        Args:
            group: the objectives that have chosen the same heads.
            step: the number of the step, under which the journal keeps its evaluations.
            masked: the heads that were chosen at earlier sites.
            site: the number of the attention block.
        """
        heads = [head for head in self.heads if head.site == site]
        first_objective = group[0]
        known = self.memory.evaluations_of_step(first_objective, step)
        all_known = all(head in known for head in heads)
        if not all_known:
            self.evaluator.go_to_model_without(masked)
        race = self._build_race(group, step, heads, bounds=False)
        trials_by_objective = race.run()
        self.memory.sync()
        # Without bounds, every objective of the group has the trials of all heads.
        trials_here = trials_by_objective[first_objective]
        return self._trials_across_processes(trials_here)
