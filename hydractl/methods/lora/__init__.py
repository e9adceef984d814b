"""A LoRA ensemble: members that differ in low-rank matrices on their heads, trained by seeds of their own.

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, section 4.1.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hydractl.methods.base import AdapterMethod, MethodOption, OptionValues
from hydractl.methods.study_rows import BySeeds, StudyRow

if TYPE_CHECKING:
    from hydractl.training.adapters import Adapter


class LoraMethod(AdapterMethod):
    """Low-rank matrices are trained in the place of the weights of the heads."""

    name = "lora"
    rows = (StudyRow("lora", BySeeds({"lora": "4,8"}), place=2),)
    options = (
        MethodOption(
            "lora",
            str,
            "Train matrices of rank R on queries, keys, values and outputs, scaled by ALPHA / R, and the classifier "
            "[default: off, the weights themselves]",
            metavar="R,ALPHA",
            pattern=r"[1-9][0-9]{0,3},[0-9]{1,5}(\.[0-9]{1,5})?",
            example="4,8",
        ),
    )

    def adapter(self, values: OptionValues) -> Adapter:
        """Return the matrices that ``R,ALPHA`` asks for."""
        rank, alpha = values["lora"].split(",")
        matrices = import_module("hydractl.methods.lora.matrices")
        adapter: Adapter = matrices.LoRA(int(rank), float(alpha))
        return adapter


METHOD = LoraMethod()
