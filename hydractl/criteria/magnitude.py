"""Weight magnitude: the mean absolute value of a head's four projections (Han et al. 2015, arXiv 1506.02626).

``score = (mean |W_Q| + mean |W_K| + mean |W_V| + mean |W_O|) / 4`` over the head's rows (columns for W_O).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hydractl.criteria.criterion import Calibration, Criterion, ScoredModel

if TYPE_CHECKING:
    from torch import Tensor


class Magnitude(Criterion):
    """Mean absolute weight; needs no data."""

    name = "magnitude"
    needs_data = False

    def score(self, model: ScoredModel, calibration: Calibration, sites: Sequence[int]) -> dict[int, list[float]]:
        """Return the scores of the heads at each site (attention module), by its index, from the weights alone.

        A score is the mean of the mean magnitudes of a head's query, key, value and output projections; the model does
        not run.
        """
        scores = {}
        for site_index in sites:
            weights = model.head_weights(site_index).for_each_head()
            total = _mean_magnitude(weights.q)
            for projection in (weights.k, weights.v, weights.o):
                total = total + _mean_magnitude(projection)
            scores[site_index] = (total / 4).tolist()
        return scores


def _mean_magnitude(projection: Tensor) -> Tensor:
    """Return the mean absolute value of a projection, ``[heads, ...]``, for each head, ``[heads]``."""
    magnitudes = projection.double().abs()
    by_head = magnitudes.flatten(1)  # [heads, values]
    return by_head.mean(1)


CRITERION = Magnitude()
