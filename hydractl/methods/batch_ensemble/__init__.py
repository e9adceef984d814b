"""BatchEnsemble on pretrained weights: members that differ in rank-one factors of their linear layers.

Wen, Tran, Ba, BatchEnsemble: an Alternative Approach to Efficient Ensemble and Lifelong Learning (ICLR 2020),
equations 1 and 5.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hydractl.methods.base import AdapterMethod, MethodOption, OptionValues
from hydractl.methods.study_rows import BySeeds, StudyRow

if TYPE_CHECKING:
    from hydractl.training.adapters import Adapter


class BatchEnsembleMethod(AdapterMethod):
    """Factors are trained in the place of the weights of the blocks."""

    name = "batch_ensemble"
    rows = (StudyRow("batch-ensemble", BySeeds({"batch_ensemble": "0.1"}), place=3),)
    options = (
        MethodOption(
            "batch_ensemble",
            float,
            "Train rank-one factors of the linear layers of the blocks, drawn around 1 by --seed with this standard "
            "deviation, their biases, and the classifier [default: off, the weights themselves]",
            metavar="STD",
            at_least=0,
        ),
    )

    def adapter(self, values: OptionValues) -> Adapter:
        """Return the factors, drawn with this standard deviation."""
        factors = import_module("hydractl.methods.batch_ensemble.factors")
        adapter: Adapter = factors.BatchEnsemble(values["batch_ensemble"])
        return adapter


METHOD = BatchEnsembleMethod()
