"""Masksembles: one network whose MLPs are masked in several fixed ways, each a member.

Durasov, Bagautdinov, Baque, Fua, Masksembles for Uncertainty Estimation (CVPR 2021), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from hydractl.methods.base import TogetherOptions, argument
from hydractl.methods.method import Method
from hydractl.methods.study_rows import MEMBERS, ByTraining, StudyRow

if TYPE_CHECKING:
    from hydractl.training.members import MemberMaker


@dataclass(frozen=True)
class MasksemblesOptions(TogetherOptions):
    """``masksembles:M,S``: members share all weights and see other neurons of the MLPs."""

    kind = "masksembles"
    summary = (
        "Train one network whose MLPs are masked in M ways, drawn by --seed, a part of each batch in each way: a.1.st, "
        "a.2.st and so on for a.st; S is 1 for equal masks, and the larger the less they overlap"
    )
    example = "3,2"

    scale: float = argument("S", float, at_least=1, at_most=6)

    def together(self) -> MemberMaker:
        """Return the maker of the network with this many masks."""
        masks = import_module("hydractl_more_methods.masks")
        maker: MemberMaker = masks.Masksembles(self.members, self.scale)
        return maker


METHOD = Method(
    "masksembles",
    MasksemblesOptions,
    # Members are close to each other, and merging would average their MLPs.
    rows=(StudyRow("masksembles", ByTraining(MasksemblesOptions(MEMBERS, 2.0)), place=9),),
)
