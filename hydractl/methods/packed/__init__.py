"""Packed-Ensembles: M narrow networks that see the same batches, in the place of one wide network.

Laurent et al., Packed-Ensembles for Efficient Uncertainty Estimation (ICLR 2023), sections 3 and 4.
"""

from __future__ import annotations

from fractions import Fraction
from importlib import import_module
from typing import TYPE_CHECKING

from hydractl.methods.base import MethodOption, OptionValues, TogetherMethod
from hydractl.methods.study_rows import MEMBERS, ByOneTraining, StudyRow

if TYPE_CHECKING:
    from hydractl.training.members import MemberMaker


def _from_scratch(heads: int) -> ByOneTraining:
    """Return the training from random weights, with the paper's alpha of 2, or near it where no head would be whole."""
    heads_of_member = max(1, round(heads * 2 / 3))
    alpha = Fraction(heads_of_member * MEMBERS, heads)
    return ByOneTraining({"packed": f"{MEMBERS},{alpha}", "init": "random"}, merge="none")


class PackedMethod(TogetherMethod):
    """Members are narrow networks that are trained side by side."""

    name = "packed"
    rows = (StudyRow("packed", _from_scratch, place=8, needs_classifier=True),)
    options = (
        MethodOption(
            "packed",
            str,
            "Train M networks of ALPHA / M of the width on the same batches, their layers cut into GAMMA groups: "
            "a.1.st, a.2.st and so on for a.st; ALPHA may be 9/4 [default: off; GAMMA 1]",
            metavar="M,ALPHA[,GAMMA]",
            pattern=r"([2-9]|[1-9][0-9]),[1-9][0-9]?(\.[0-9]{1,3}|/[1-9][0-9]?)?(,[1-9][0-9]?)?",
            example="3,2",
        ),
    )

    def together(self, values: OptionValues) -> MemberMaker:
        """Return what makes the networks that ``M,ALPHA[,GAMMA]`` asks for."""
        narrow = import_module("hydractl.methods.packed.narrow")
        maker: MemberMaker = narrow.Packed.parse(values["packed"])
        return maker


METHOD = PackedMethod()
