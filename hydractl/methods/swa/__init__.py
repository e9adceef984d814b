"""The weights at the end of a training as one Gaussian: SWA is its mean, members drawn from it are SWAG's.

Izmailov et al., Averaging Weights Leads to Wider Optima (UAI 2018); Maddox et al., A Simple Baseline for Bayesian
Uncertainty in Deep Learning (NeurIPS 2019).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hydractl.methods.base import LENGTH, CourseMethod, FinetuneRequest, MethodOption, OptionValues
from hydractl.methods.study_rows import MEMBERS, ByOneTraining, ByTraining, StudyRow

if TYPE_CHECKING:
    from hydractl.training.course import CourseOptions


_TWENTY_WEIGHTS = {"swa": "0.5,20", "schedule": "constant"}
"""The average of 20 weights of the second half of a training, as many as the rank of SWAG."""


class SwaMethod(CourseMethod):
    """The model is an average of weights; with ``--swag`` members are drawn around it."""

    name = "swa"
    rows = (
        StudyRow("swa", ByTraining(_TWENTY_WEIGHTS), place=5, least_steps=40),
        # Draws lie so close together that their MLPs would be averaged back to the mean.
        StudyRow(
            "swag", ByOneTraining({**_TWENTY_WEIGHTS, "swag": str(MEMBERS)}, merge="none"), place=5, least_steps=40
        ),
    )
    options = (
        MethodOption(
            "swa",
            str,
            "Write the average of the weights after this share of the steps, at a constant learning rate: of N "
            "weights, evenly spread, or of one for each epoch left [default: off]",
            heading=LENGTH,
            metavar="START[,N]",
            pattern=r"0?\.(?=0*[1-9])[0-9]{1,6}(,([2-9]|[1-9][0-9]{1,5}))?",
            example="0.75",
        ),
        MethodOption(
            "swag",
            str,
            "Write M members drawn by --seed from SWAG's Gaussian around the average of --swa, whose low-rank half is "
            "of the last RANK weights, 20 by default: a.1.st, a.2.st and so on for a.st [default: the average itself]",
            heading=LENGTH,
            metavar="M[,RANK]",
            pattern=r"([2-9]|[1-9][0-9]{1,2})(,([2-9]|[1-9][0-9]{1,2}))?",
            example="3,20",
        ),
    )

    def models(self, values: OptionValues) -> int | None:
        """Return how many members are drawn; None for the average itself."""
        swag = values["swag"]
        if swag is None:
            return None
        return int(swag.partition(",")[0])

    def conflicts(self, request: FinetuneRequest) -> list[str]:
        """List what is missing: a learning rate while it averages."""
        problems = super().conflicts(request)
        if request.schedule == "cosine" and request.has_default("lr_floor"):
            problems.append(
                f"--swa{request.where('swa')} needs the learning rate while it averages: --lr-floor, a fraction of "
                "--lr, or --schedule constant"
            )
        return problems

    def sets_aside(self, request: FinetuneRequest) -> dict[str, str]:
        """Return the options that mean nothing beside it: no epoch is chosen, and the rate does not go to zero."""
        unused = super().sets_aside(request)
        if request.schedule == "linear":
            unused["schedule"] = "swa"
        return unused

    def course(self, values: OptionValues) -> CourseOptions:
        """Return when weights are collected, and what is drawn around their average."""
        averaging = import_module("hydractl.methods.swa.averaging")
        options: CourseOptions = averaging.AverageOptions.parse(values["swa"], values["swag"])
        return options


METHOD = SwaMethod()
