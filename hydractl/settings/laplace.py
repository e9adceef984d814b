"""The options of ``laplace``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.settings.common import Batched
from hydractl.settings.option import option

laplace_option = partial(option, "Posterior")


@dataclass(kw_only=True)
class LaplaceSettings(Batched):
    """Options of ``laplace``."""

    verb: ClassVar[str] = "laplace"
    needs_output_file: ClassVar[bool] = True
    lacks: ClassVar[tuple[str, ...]] = ("tower",)
    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("prior", "val"),)

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
        "Count the curvature as that of N samples; fewer widen the posterior [samples; default: those of --data]",
        metavar="N",
        above=0,
    )

    def conflicts(self) -> list[str]:
        """Data always, and one way to the prior."""
        return self.needs("data") + self.at_most_one("prior", "val")
