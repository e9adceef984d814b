"""ABNN: a pretrained network whose norms are noisy, so that members share all other weights.

Franchi et al., Make Me a BNN: A Simple Strategy for Estimating Bayesian Uncertainty from Pre-trained Models (CVPR
2024), section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from hydractl.methods.base import FinetuneRequest, SeededOptions, argument
from hydractl.methods.method import Method
from hydractl.methods.study_rows import BySeeds, StudyRow

if TYPE_CHECKING:
    from torch import Tensor

    from hydractl.training.adapters import Adapter


@dataclass(frozen=True)
class AbnnOptions(SeededOptions):
    """``abnn:STD[,M][,PRIOR]``: norms are trained under noise instead of the other weights."""

    kind = "abnn"
    summary = (
        "Train the norms, whose weights are multiplied by noise around 1 with this standard deviation, drawn anew in "
        "every pass, and the classifier, M times by --seed and the next seeds, which draw the noise that stays, and of "
        "C classes about sqrt(C) that weigh PRIOR in the loss"
    )
    example = "0.1,3"

    std: float = argument("STD", float, at_least=0)
    _: KW_ONLY
    prior: float = argument("PRIOR", float, 1.0, above=0)

    def conflicts(self, request: FinetuneRequest) -> list[str]:
        """Return a sentence on a loss without classes that could have weights."""
        if request.loss == "contrastive" and self.prior != 1:
            return [f"--ensemble abnn with PRIOR{request.where('ensemble')} does not go with --loss contrastive"]
        return []

    def class_weights(self, seed: int) -> Callable[[int], Tensor] | None:
        """Return the function that weighs classes by PRIOR, as the seed draws them; None if all weigh the same."""
        if self.prior == 1:
            return None
        noise = import_module("hydractl_more_methods.noise")
        return partial(noise.class_weights, weight=self.prior, seed=seed)

    def adapter(self) -> Adapter:
        """Return the adapter that puts noise of this standard deviation on the norms."""
        noise = import_module("hydractl_more_methods.noise")
        adapter: Adapter = noise.NoisyNorms(self.std)
        return adapter


METHOD = Method(
    "abnn",
    AbnnOptions,
    # The noise is the default of the authors' layer. Members differ in their norms alone, which merging would average.
    rows=(StudyRow("abnn", BySeeds(ensemble=AbnnOptions(0.1)), place=3),),
)
