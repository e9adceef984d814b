"""The options of ``laplace``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.settings.common import SPEC_FORMS, Batched, Rule, file_option
from hydractl.settings.option import option
from hydractl.settings.rules import at_most_one, required

laplace_option = partial(option, "Posterior")

_TIMES_OF_PAIRS = 10
"""How often each pair of an image and a caption counts: the tau of Baumann et al., ``pseudo_data_count`` in their
scripts; 1 is the curvature of all pairs."""

_NUMBER = r"[0-9]{1,9}(\.[0-9]{1,9})?"
_ZERO = r"0*(\.0*)?x?$"


@dataclass(kw_only=True)
class LaplaceSettings(Batched):
    """Options of ``laplace``."""

    verb: ClassVar[str] = "laplace"
    needs_output_file: ClassVar[bool] = True
    lacks: ClassVar[tuple[str, ...]] = ("data", "tower")
    rules: ClassVar[tuple[Rule, ...]] = (required("train"), at_most_one("prior", "val"))
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("prior", "val"),)

    train: str | None = file_option(
        f"The training data, or for a CLIP pairs of images and captions; {SPEC_FORMS}", metavar="SPEC", often=True
    )
    val: str | None = laplace_option(
        "Labelled validation data, as a SPEC: the prior of the lowest NLL on it is taken [default: the prior of the "
        "highest marginal likelihood]",
        metavar="SPEC",
        often=True,
    )
    prior: float | None = laplace_option(
        "Precision of the prior of the weights, instead of choosing it", metavar="X", above=0, often=True
    )
    pseudo_data: str | None = laplace_option(
        "Count the curvature as that of N samples, or of K times those of --train; fewer widen the posterior [default: "
        f"1x, and {_TIMES_OF_PAIRS}x for pairs of images and captions]",
        metavar="N|Kx",
        pattern=rf"(?!{_ZERO}){_NUMBER}x?",
        example="10x",
    )

    def pseudo_samples(self, samples: int, *, are_pairs: bool) -> float:
        """Return the number of samples that the curvature counts as.

        It is N for ``--pseudo-data N``, and K times ``samples`` for ``--pseudo-data Kx``; by default 1x, and 10x for
        pairs.

        Args:
            samples: the number of training samples.
            are_pairs: whether they are pairs of images and captions.
        """
        asked = self.pseudo_data
        if asked is None and are_pairs:
            return _TIMES_OF_PAIRS * samples
        if asked is None:
            return samples
        if asked.endswith("x"):
            return float(asked[:-1]) * samples
        return float(asked)
