"""Importance of single weights: one criterion a file, found by name as those of heads are.

Importing this, or the file of a criterion, must not import torch: the help texts list what the criteria declare.
"""

from __future__ import annotations

from hydractl.criteria.weights.base import WeightCriterion, lowest_weights, matrices
from hydractl.files.plugins import Registry

WEIGHT_CRITERIA: Registry[WeightCriterion] = Registry(__name__, __path__, "CRITERION", helpers=("base",))

__all__ = ["WEIGHT_CRITERIA", "WeightCriterion", "lowest_weights", "matrices"]
