"""MIMO: one network that takes M inputs at once and gives M answers, one for each input.

Havasi et al., Training independent subnetworks for robust prediction (ICLR 2021), sections 2 and 3. The samples of a
batch are dealt to the inputs as in the authors' code (google/uncertainty-baselines, ``baselines/cifar/mimo.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.methods.base import TogetherOptions, argument
from hydractl.methods.method import Method
from hydractl.methods.study_rows import MEMBERS, ByTraining, StudyRow


@dataclass(frozen=True)
class MimoOptions(TogetherOptions):
    """``mimo:M[,RHO[,REPEATS]]``: members share a network that takes several inputs."""

    kind = "mimo"
    summary = (
        "Train one network of M images and M answers: of the rows of a batch a share RHO takes one sample M times, the "
        "others M that were shuffled, each sample REPEATS times; a.1.st, a.2.st and so on for a.st"
    )
    example = "3,0.25"
    made_by = "hydractl.methods.mimo.many_inputs:Mimo"

    equal: float = argument("RHO", float, 0.5, at_least=0, at_most=1)
    repeats: int = argument("REPEATS", int, 4, at_least=1, at_most=99)


METHOD = Method(
    "mimo",
    MimoOptions,
    rows=(StudyRow("mimo", ByTraining(MimoOptions(MEMBERS)), place=9, needs_classifier=True, needs_images=True),),
)
