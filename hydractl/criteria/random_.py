"""Random importance, the control of every comparison: uniform on [0, 1), drawn by the seed in model order."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hydractl.criteria.criterion import Calibration, Criterion, ScoredModel


class RandomHeads(Criterion):
    """Uniform random scores; needs no data."""

    name = "random"
    needs_data = False
    compares_towers = True

    def score(self, model: ScoredModel, calibration: Calibration, sites: Sequence[int]) -> dict[int, list[float]]:
        """Return random scores of the present heads at each site (attention module), by its index.

        A score is drawn for every head, present or not, so that removing heads does not change the scores of others.
        """
        generator = random.Random(calibration.seed)
        scores_of_all_sites: list[list[float]] = []
        for site in model.sites:
            scores_of_all_heads = [generator.random() for _ in range(site.heads)]
            present = model.description.mask.kept[site.path]
            scores_of_site = [scores_of_all_heads[head] for head in present]
            scores_of_all_sites.append(scores_of_site)
        return {site_index: scores_of_all_sites[site_index] for site_index in sites}


CRITERION = RandomHeads()
