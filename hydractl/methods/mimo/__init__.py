"""MIMO: one network that takes M inputs at once and gives M answers, each for an input of its own.

Havasi et al., Training independent subnetworks for robust prediction (ICLR 2021), sections 2 and 3. Which samples meet
is dealt as in the authors' code (google/uncertainty-baselines, ``baselines/cifar/mimo.py``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hydractl.methods.base import MethodOption, OptionValues, TogetherMethod
from hydractl.methods.study_rows import MEMBERS, ByOneTraining, StudyRow

if TYPE_CHECKING:
    from hydractl.training.members import MemberMaker


class MimoMethod(TogetherMethod):
    """Members share a network that takes several inputs."""

    name = "mimo"
    rows = (StudyRow("mimo", ByOneTraining({"mimo": str(MEMBERS)}), place=9, needs_classifier=True),)
    options = (
        MethodOption(
            "mimo",
            str,
            "Train one network of M inputs and M answers: of the rows of a batch a share RHO takes one sample M times, "
            "the others M that were shuffled, each sample REPEATS times; a.1.st, a.2.st and so on for a.st "
            "[default: off; RHO 0.5, REPEATS 4]",
            metavar="M[,RHO[,REPEATS]]",
            pattern=r"([2-9]|[1-9][0-9])(,(0|0?\.[0-9]{1,6}|1)(\.0)?(,[1-9][0-9]?)?)?",
            example="3,0.5",
        ),
    )

    def together(self, values: OptionValues) -> MemberMaker:
        """Return what makes the network that ``M[,RHO[,REPEATS]]`` asks for."""
        many_inputs = import_module("hydractl.methods.mimo.many_inputs")
        maker: MemberMaker = many_inputs.Mimo.parse(values["mimo"])
        return maker


METHOD = MimoMethod()
