"""A deep ensemble: members that are trained one by one, each with its own seed.

Lakshminarayanan, Pritzel, Blundell, Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles
(NeurIPS 2017), whose members start from random weights: ``finetune --ensemble deep:5 --init random``. Members that
start from one pretrained model each get their own new classifier: ``finetune --ensemble deep:5 --init head``.
"""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.methods.base import MethodOptions, argument
from hydractl.methods.method import Method
from hydractl.methods.study_rows import BySeeds, StudyRow


@dataclass(frozen=True)
class DeepOptions(MethodOptions):
    """``deep:M``: the trainings differ in nothing but the seed."""

    kind = "deep"
    summary = (
        "Train the model M times, with --seed and the next seeds, from the same weights but with --init head or "
        "random; a.st becomes a.0.st, a.1.st and so on"
    )
    example = "3"

    members: int = argument("M", int, at_least=1, at_most=1000)

    @property
    def trainings(self) -> int:
        """The number of trainings: one for each member."""
        return self.members

    def of_one_training(self) -> DeepOptions:
        """Return the options of an ordinary training."""
        return DeepOptions(1)

    def to_json(self) -> dict[str, object] | None:
        """Return None, because each member is the result of an ordinary training with its seed."""
        return None


_FROM_THE_CHECKPOINT = BySeeds(of_classifiers={"init": "head"})
_FROM_RANDOM_WEIGHTS = BySeeds({"init": "random"})

METHOD = Method(
    "deep",
    DeepOptions,
    rows=(
        StudyRow("deep", _FROM_THE_CHECKPOINT, place=1),
        StudyRow("deep-random", _FROM_RANDOM_WEIGHTS, place=1),
    ),
)
