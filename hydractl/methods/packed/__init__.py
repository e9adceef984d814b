"""Packed-Ensembles: M narrow networks that see the same batches, instead of one wide network.

Laurent et al., Packed-Ensembles for Efficient Uncertainty Estimation (ICLR 2023), sections 3 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hydractl.methods.base import TogetherOptions, argument
from hydractl.methods.method import Method
from hydractl.methods.study_rows import MEMBERS, ByTraining, StudyRow


@dataclass(frozen=True)
class PackedOptions(TogetherOptions):
    """``packed:M,ALPHA``: members are narrow networks that are trained side by side."""

    kind = "packed"
    summary = (
        "Train M networks of ALPHA / M of the width on the same batches, from --init random: a.1.st, a.2.st and so on "
        "for a.st; ALPHA may be 9/4"
    )
    example = "3,2"
    made_by = "hydractl.methods.packed.narrow:Packed"

    alpha: Fraction | float = argument("ALPHA", Fraction, at_least=1, at_most=99)


def _from_scratch(heads: int) -> ByTraining:
    """Return the recipe of a training from random weights.

    Alpha is the paper's 2, or close to it if members would not have a whole number of heads.

    Args:
        heads: the number of heads at each site of the studied model.
    """
    heads_of_member = round(heads * 2 / 3)  # alpha / M
    heads_of_all = max(1, heads_of_member) * MEMBERS
    alpha = Fraction(heads_of_all, heads)
    return ByTraining(
        ensemble=PackedOptions(MEMBERS, alpha),
        options={"init": "random"},
    )


METHOD = Method(
    "packed",
    PackedOptions,
    rows=(StudyRow("packed", _from_scratch, place=8, needs_classifier=True),),
)
