"""Packed-Ensembles: M narrow networks that see the same batches, in the place of one wide network.

Laurent et al., Packed-Ensembles for Efficient Uncertainty Estimation (ICLR 2023), sections 3 and 4.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hydractl.methods.base import MethodOption, OptionValues, TogetherMethod

if TYPE_CHECKING:
    from hydractl.training.members import MemberMaker


class PackedMethod(TogetherMethod):
    """Members are narrow networks that are trained side by side."""

    name = "packed"
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
