"""The options of MC dropout: one model that is run several times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hydractl.settings.common import Common
from hydractl.settings.option import option

_PASSES = "MC dropout"


@dataclass(kw_only=True)
class Passes(Common):
    """Options of MC dropout; see ``hydractl.evaluate.mc_dropout``.

    Attributes:
        default_samples: how often, where nothing is said.
    """

    default_samples: ClassVar[int] = 10

    mc_dropout: float | None = option(
        None,
        help="Run every MODEL --samples times with dropout of rate P in the places of finetune --dropout, and measure "
        "the passes as an ensemble",
        metavar="P",
        at_least=0,
        below=1,
        group=_PASSES,
    )
    samples: int | None = option(
        None, help="Passes with --mc-dropout", unit="passes", at_least=2, group=_PASSES, default_text="10"
    )

    def settle(self) -> None:
        """The default number of passes, if only the rate is given."""
        super().settle()
        if self.mc_dropout is not None and self.samples is None:
            self.samples = self.default_samples

    def conflicts(self) -> list[str]:
        """Passes are those of MC dropout."""
        found = super().conflicts()
        if self.samples is not None and self.mc_dropout is None:
            found.append(f"--samples{self.where('samples')} needs --mc-dropout")
        return found

    def passes(self) -> dict[str, Any] | None:
        """``p``, ``samples`` and ``seed`` of MC dropout; None without."""
        if self.mc_dropout is None:
            return None
        return {"p": self.mc_dropout, "samples": self.samples, "seed": self.seed}
