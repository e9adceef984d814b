"""BatchEnsemble on pretrained weights: members that differ in rank-one factors of their linear layers.

Wen, Tran, Ba, BatchEnsemble: an Alternative Approach to Efficient Ensemble and Lifelong Learning (ICLR 2020),
equations 1 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.methods.base import SeededOptions, argument
from hydractl.methods.method import Method
from hydractl.methods.study_rows import BySeeds, StudyRow


@dataclass(frozen=True)
class BatchEnsembleOptions(SeededOptions):
    """``batch-ensemble:STD[,M]``: factors are trained instead of the weights of the blocks."""

    kind = "batch-ensemble"
    summary = (
        "Train rank-one factors of the linear layers of the blocks, drawn around 1 by the seed with this standard "
        "deviation, their biases, and the classifier, M times by --seed and the next seeds"
    )
    example = "0.1,3"
    adapted_by = "hydractl.methods.batch_ensemble.factors:BatchEnsemble"

    std: float = argument("STD", float, at_least=0)


METHOD = Method(
    "batch_ensemble",
    BatchEnsembleOptions,
    rows=(StudyRow("batch-ensemble", BySeeds(ensemble=BatchEnsembleOptions(0.1)), place=3),),
)
