"""What a choice meets on the test data: its hardest rival, free scores seen afterwards, and the ladder below it.

Everything that a choice is compared with is fixed before a test sample is read. Test data may only step down the ladder
from there: from the choice to the single model with its own score, and from that to the single model with MSP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hydractl.studies.words import CANNOT_TELL, GAINS, Finding


@dataclass(frozen=True)
class Rung:
    """A row with an OOD score."""

    row: str
    score: str


def ladder(chosen: Rung, own_rung: Rung, reference: Rung) -> list[Rung]:
    """Return the choice, the single model with its own score and the single model with MSP, each once."""
    return list(dict.fromkeys([chosen, own_rung, reference]))


def end_of(steps: Sequence[Finding]) -> int:
    """Return the place of the rung where the verdict ends.

    A rung is kept where it is better than the next one, or where the data cannot tell; it is left where there is no
    difference, or a loss.

    Args:
        steps: of each rung but the last its difference to the next one.
    """
    for place, step in enumerate(steps):
        if step.kind in GAINS or step.kind == CANNOT_TELL:
            return place
    return len(steps)


@dataclass(frozen=True)
class Met:
    """What one rung met on the test data, in differences of mean AUROC to the single model under its scores.

    Attributes:
        rivals: by score, those fixed beforehand.
        others: by score, the other free ones, which were seen afterwards.
    """

    rivals: Mapping[str, Finding]
    others: Mapping[str, Finding]

    @property
    def hardest(self) -> str | None:
        """The rival against which the interval reaches lowest, the first of equals; None without any."""
        lower_ends = {score: finding.ci[0] for score, finding in self.rivals.items()}
        return min(lower_ends, key=lower_ends.__getitem__, default=None)

    @property
    def better_afterwards(self) -> dict[str, Finding]:
        """Free scores that did significantly better, the one that did so most first."""
        ahead = []
        for score, finding in self.others.items():
            _, high = finding.ci
            if high < 0:
                ahead.append(score)
        ahead.sort(key=lambda score: self.others[score].value)
        return {score: self.others[score] for score in ahead}
