"""Complementary attention head pruning (CAHP, arXiv 2606.19150), which decides by itself how many heads are kept.

This is our reading, made from the abstract and a review of the paper. Every head has a separability signature: the
Jeffries-Matusita distance of each pair of classes in its output. For every k, k-medoids over the Euclidean distances
between signatures (FasterPAM, Schubert and Rousseeuw 2021, doi 10.1016/j.is.2021.101804) chooses k heads that represent
all heads. A polynomial in k is fitted to the accuracy with only those heads; its knee is the number of heads to keep
(:mod:`hydractl.criteria.cahp.head_choice`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from hydractl.criteria.criterion import Calibration, Decider, Decision, ScoredModel, argument
from hydractl.errors import UsageError, distribution_of
from hydractl.heads.mask import Site

_PACKAGES = ("sklearn", "kmedoids")


@dataclass(frozen=True)
class Cahp(Decider):
    """The score of a head is the share of the numbers k for which it is one of the k representatives."""

    name = "cahp"
    needs_data = True
    degree: int = argument(
        3, "Degree of the polynomial whose knee is the number of heads that are kept", at_least=2, at_most=9
    )

    def check(self, sites: Sequence[Site]) -> None:
        """Check that the two required packages are installed, and that all heads read samples, not prompts.

        Args:
            sites: the attention modules whose heads are to be scored.

        Raises:
            UsageError: some heads are in a text tower, or a package is not installed.
        """
        missing = [distribution_of(module) for module in _PACKAGES if importlib.util.find_spec(module) is None]
        if missing:
            needed = " and ".join(missing)
            raise UsageError(f"--method cahp needs {needed}, not installed here", hint="pip install 'hydractl[cahp]'")
        towers = {site.tower for site in sites}
        if "text" in towers:
            raise UsageError(
                "--method cahp compares heads by what they make of samples, the text tower reads prompts",
                hint="add --tower visual",
            )

    def decide(self, model: ScoredModel, calibration: Calibration, sites: Sequence[int]) -> Decision:
        """Return the decision of :func:`hydractl.criteria.cahp.head_choice.choose_heads`."""
        # Imported here, because it imports numpy and torch, which are too slow for the help texts.
        from hydractl.criteria.cahp.head_choice import choose_heads

        return choose_heads(model, calibration, sites, self.degree)


CRITERION = Cahp()
