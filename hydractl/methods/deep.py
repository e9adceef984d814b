"""A deep ensemble: members that are trained from random weights, each by a seed of its own.

Lakshminarayanan, Pritzel, Blundell, Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles
(NeurIPS 2017). ``finetune --members N --init random`` makes one; it has no option of its own.
"""

from __future__ import annotations

from hydractl.methods.base import Method
from hydractl.methods.study_rows import BySeeds, StudyRow


class DeepMethod(Method):
    """Members differ in everything."""

    name = "deep"
    rows = (StudyRow("deep", BySeeds({"init": "random"}), place=1),)


METHOD = DeepMethod()
