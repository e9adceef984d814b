"""A LoRA ensemble: members that differ in low-rank matrices on their heads, each trained with its own seed.

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.methods.base import SeededOptions, argument
from hydractl.methods.method import Method
from hydractl.methods.study_rows import BySeeds, StudyRow


@dataclass(frozen=True)
class LoraOptions(SeededOptions):
    """``lora:RANK,ALPHA[,M]``: low-rank matrices are trained instead of the weights of the heads."""

    kind = "lora"
    summary = (
        "Train matrices of rank RANK on queries, keys, values and outputs, scaled by ALPHA / RANK, and the classifier, "
        "M times by --seed and the next seeds"
    )
    example = "4,8,3"
    adapted_by = "hydractl.methods.lora.matrices:LoRA"

    rank: int = argument("RANK", int, at_least=1, at_most=9999)
    alpha: float = argument("ALPHA", float, at_least=0, at_most=99999)


METHOD = Method(
    "lora",
    LoraOptions,
    rows=(StudyRow("lora", BySeeds(ensemble=LoraOptions(4, 8)), place=2),),
)
