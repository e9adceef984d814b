"""A Laplace approximation over the last linear layers: no members, but a posterior that every forward pass uses.

Daxberger et al., Laplace Redux (NeurIPS 2021); for models that compare images with texts Baumann et al., Post-hoc
Probabilistic Vision-Language Models (2024). ``finetune --ensemble laplace`` fits it and trains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.methods.base import FinetuneRequest, MethodOptions, argument
from hydractl.methods.method import Method
from hydractl.methods.study_rows import ByTraining, StudyRow

_TIMES_OF_PAIRS = 10
"""How often each pair of an image and a caption counts: the tau of Baumann et al., ``pseudo_data_count`` in their
scripts; 1 is the curvature of all pairs."""


@dataclass(frozen=True)
class LaplaceOptions(MethodOptions):
    """``laplace[:TIMES[,PRIOR]]``: the classifier, or both projections of a CLIP, get a posterior."""

    kind = "laplace"
    summary = (
        "Train nothing, but fit a Gaussian posterior of the classifier, or of the projections of a CLIP (BayesVLM), in "
        "one pass over --train, whose labels are not read; the curvature counts as that of TIMES the samples (by "
        f"default 1, of pairs of images and captions {_TIMES_OF_PAIRS}; fewer widen the posterior); PRIOR is the "
        "precision of the prior (by default that of the lowest NLL on --val, else of the highest marginal likelihood)"
    )
    example = "10,0.5"
    trains = False

    times: float | None = argument("TIMES", float, None, above=0)
    prior: float | None = argument("PRIOR", float, None, above=0)

    def conflicts(self, request: FinetuneRequest) -> list[str]:
        """Return a sentence on validation data, which would choose the prior that is given."""
        if self.prior is None or request.val is None:
            return []
        return [f"--val chooses the prior: without PRIOR in --ensemble {self}{request.where('ensemble')}"]

    def counted_samples(self, samples: int, *, are_pairs: bool) -> float:
        """Return the number of samples that the curvature counts as.

        Args:
            samples: the number of training samples.
            are_pairs: whether they are pairs of images and captions.
        """
        if self.times is not None:
            return float(self.times) * samples
        if are_pairs:
            return _TIMES_OF_PAIRS * samples
        return samples


METHOD = Method(
    "laplace",
    LaplaceOptions,
    rows=(StudyRow("laplace", ByTraining(LaplaceOptions()), place=6, needs_labels=False, needs_classifier=True),),
)
