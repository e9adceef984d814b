"""SWAG: members drawn from a Gaussian whose mean is the average of the weights at the end of a training.

Maddox et al., A Simple Baseline for Bayesian Uncertainty in Deep Learning (NeurIPS 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from hydractl.methods.base import argument
from hydractl.methods.method import Method
from hydractl.methods.study_rows import MEMBERS, ByTraining, StudyRow
from hydractl_more_methods.swa import AveragingOptions

if TYPE_CHECKING:
    from hydractl.training.course import CourseMaker


@dataclass(frozen=True)
class SwagOptions(AveragingOptions):
    """``swag:M[,RANK[,START[,N]]]``: members are drawn around the average of SWA."""

    kind = "swag"
    summary = (
        "Write M members drawn by --seed from the Gaussian around the average of swa:START,N, whose low-rank half is "
        "of the last RANK weights: a.1.st, a.2.st and so on for a.st"
    )
    example = "3,20,0.5,40"

    members: int = argument("M", int, at_least=2, at_most=999)
    rank: int = argument("RANK", int, 20, at_least=2, at_most=999)
    start: float = argument("START", float, 0.5, above=0, below=1)
    count: int | None = argument("N", int, None, at_least=2, at_most=999_999)

    def models(self) -> int:
        """Return the number of members, which are all drawn after one training."""
        return self.members

    def course(self) -> CourseMaker:
        """Return what makes the course that averages weights and draws the members around their average."""
        averaging = import_module("hydractl_more_methods.averaging")
        options = averaging.AverageOptions(
            start=self.start,
            count=self.count,
            members=self.members,
            rank=self.rank,
        )
        return partial(averaging.Averaging, options=options)


# The draws lie so close together that merging their MLPs would average them back to the mean.
_OF_A_STUDY = ByTraining(SwagOptions(MEMBERS, 20, 0.5, 20), {"schedule": "constant"})

METHOD = Method(
    "swag",
    SwagOptions,
    rows=(StudyRow("swag", _OF_A_STUDY, place=5),),
)
