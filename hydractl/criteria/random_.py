"""Random importance, the control of every comparison: uniform on [0, 1), drawn by the seed in model order."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hydractl.criteria.base import Calibration, Criterion, ScoredModel


class Random(Criterion):
    """Uniform random scores; needs no data."""

    name = "random"
    needs_data = False
    compares_towers = True

    def score(self, model: ScoredModel, calibration: Calibration, sites: Sequence[int]) -> dict[int, list[float]]:
        """Every head of the model is drawn, present or not, so that a mask does not shift the draw of others."""
        draw = random.Random(calibration.seed)
        everything = [[draw.random() for _ in range(site.heads)] for site in model.sites]
        kept = model.description.mask.kept
        return {i: [everything[i][h] for h in kept[model.sites[i].path]] for i in sites}


CRITERION = Random()
