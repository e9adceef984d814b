"""Magnitude of single weights (Han et al. 2015, arXiv 1506.02626): ``|w|``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hydractl.criteria.base import Calibration
from hydractl.criteria.weights.base import WeightCriterion

if TYPE_CHECKING:
    from torch import Tensor


class Magnitude(WeightCriterion):
    """Absolute value; needs no data."""

    name = "magnitude"
    needs_data = False

    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """Score weights by their absolute values alone."""
        return {name: weight.float().abs() for name, weight in weights.items()}


CRITERION = Magnitude()
