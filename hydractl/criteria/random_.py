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
        """Draw for every head of the model, present or not, so that a mask does not shift the draw of others."""
        generator = random.Random(calibration.seed)
        scores = {}
        for i, site in enumerate(model.sites):
            drawn = [generator.random() for _ in range(site.heads)]
            if i in sites:
                scores[i] = [drawn[head] for head in model.description.mask.kept[site.path]]
        return {i: scores[i] for i in sites}


CRITERION = RandomHeads()
