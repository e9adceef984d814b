"""Stochastic weight averaging: the average of the weights at the end of a training.

Izmailov et al., Averaging Weights Leads to Wider Optima (UAI 2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from hydractl.methods.base import FinetuneRequest, argument
from hydractl.methods.method import Method
from hydractl.methods.study_rows import ByTraining, StudyRow
from hydractl_more_methods.collecting import CollectingOptions

if TYPE_CHECKING:
    from hydractl.training.course import CourseMaker


@dataclass(frozen=True)
class AveragingOptions(CollectingOptions):
    """Options of a method that collects weights at the end of a training, at a learning rate above zero."""

    def conflicts(self, request: FinetuneRequest) -> list[str]:
        """Return a sentence for each option that conflicts with this method.

        One of them is a cosine without a floor: the learning rate would be zero while weights are collected.
        """
        problems = super().conflicts(request)
        ends_at_zero = request.schedule == "cosine" and request.has_default("lr_floor")
        if ends_at_zero:
            problems.append(
                f"--ensemble {self.kind}{request.where('ensemble')} needs the learning rate while it averages: "
                "--schedule constant, or the key lr_floor, a fraction of --lr"
            )
        return problems

    def sets_aside(self, request: FinetuneRequest) -> list[str]:
        """Return the options without effect: those that choose an epoch, and a linear schedule, which ends at zero."""
        unused = super().sets_aside(request)
        if request.schedule == "linear":
            unused.append("schedule")
        return unused


@dataclass(frozen=True)
class SwaOptions(AveragingOptions):
    """``swa:START[,N]``: the model is an average of weights."""

    kind = "swa"
    summary = (
        "Write the average of the weights after this share of the steps, at a constant learning rate: of N weights, "
        "evenly spread, or of one for each epoch left"
    )
    example = "0.75"

    start: float = argument("START", float, above=0, below=1)
    count: int | None = argument("N", int, None, at_least=2, at_most=999_999)

    def course(self) -> CourseMaker:
        """Return what makes the course that averages weights."""
        averaging = import_module("hydractl_more_methods.averaging")
        options = averaging.AverageOptions(start=self.start, count=self.count)
        return partial(averaging.Averaging, options=options)


# Average 20 weights of the second half of a training, as many as the rank of SWAG.
_OF_A_STUDY = ByTraining(SwaOptions(0.5, 20), {"schedule": "constant"})

METHOD = Method(
    "swa",
    SwaOptions,
    rows=(StudyRow("swa", _OF_A_STUDY, place=5),),
)
