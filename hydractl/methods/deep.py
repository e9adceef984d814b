"""A deep ensemble: members that are trained by seeds of their own.

Lakshminarayanan, Pritzel, Blundell, Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles
(NeurIPS 2017), where they start from random weights: ``finetune --ensemble deep:5 --init random``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hydractl.methods.base import MethodOptions, argument
from hydractl.methods.method import Method
from hydractl.methods.study_rows import BySeeds, StudyRow


@dataclass(frozen=True)
class DeepOptions(MethodOptions):
    """``deep:M``: nothing but the seed tells the trainings apart."""

    kind = "deep"
    summary = (
        "Train the model M times, with --seed and the next seeds, from the same weights but with --init head or "
        "random; a.st becomes a.0.st, a.1.st and so on"
    )
    example = "3"

    members: int = argument("M", int, at_least=1, at_most=1000)

    @property
    def trainings(self) -> int:
        """One for each member."""
        return self.members

    def of_one_training(self) -> DeepOptions:
        """Return an ordinary training."""
        return DeepOptions(1)

    def to_json(self) -> dict[str, Any] | None:
        """Return nothing: each member is what an ordinary training with its seed leaves."""
        return None


METHOD = Method(
    "deep",
    "Members that are trained by seeds of their own",
    DeepOptions,
    rows=(StudyRow("deep", BySeeds({"init": "random"}), place=1),),
)
