"""Random importance of single weights, the control: uniform on [0, 1), drawn by the seed in the order of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hydractl.criteria.base import Calibration
from hydractl.criteria.weights.base import WeightCriterion

if TYPE_CHECKING:
    from torch import Tensor


class Random(WeightCriterion):
    """Uniform random scores; needs no data."""

    name = "random"
    needs_data = False

    def score(self, weights: Mapping[str, Tensor], model: Any, calibration: Calibration) -> dict[str, Tensor]:
        """A draw for every weight, removed before or not."""
        import torch

        generator = torch.Generator().manual_seed(calibration.seed)
        return {name: torch.rand(weights[name].shape, generator=generator) for name in sorted(weights)}


CRITERION = Random()
