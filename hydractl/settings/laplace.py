"""The options of ``laplace``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.settings.common import SPEC_FORMS, Batched, Rule, file_option
from hydractl.settings.option import option
from hydractl.settings.rules import at_most_one, required

laplace_option = partial(option, "Posterior")


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
    pseudo_data: float | None = laplace_option(
        "Count the curvature as that of N samples; fewer widen the posterior [samples; default: those of --train]",
        metavar="N",
        above=0,
    )
