"""Comparisons of a choice on the test data: its hardest rival, the free scores, and the ladder that it heads.

A free score is another OOD score of the single model: it costs no further computation. Everything that a choice is
compared with is fixed before any test sample is read. Test data can only move the verdict down the ladder: from the
choice to the single model with its own score, and from there to the single model with MSP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hydractl.studies.words import CANNOT_TELL, GAINS, Finding


@dataclass(frozen=True)
class Rung:
    """A row with an OOD score, as a rung of the ladder."""

    row: str
    score: str


def ladder(chosen: Rung, own_rung: Rung, reference: Rung) -> list[Rung]:
    """Return the choice, the single model with its own score, and the single model with MSP, without repetition."""
    return list(dict.fromkeys([chosen, own_rung, reference]))


def end_of(steps: Sequence[Finding]) -> int:
    """Return the index of the rung where the verdict ends.

    A rung is kept if it is better than the next one, or if the data cannot tell. Otherwise (no difference, or worse)
    the next rung is looked at.

    Args:
        steps: the difference of each rung, except the last, to the next one.
    """
    for index, step in enumerate(steps):
        if step.kind in (*GAINS, CANNOT_TELL):
            return index
    return len(steps)


@dataclass(frozen=True)
class AgainstSingle:
    """Differences of mean AUROC on the test data: one rung minus the single model under each of its scores.

    Attributes:
        rivals: the differences to the scores that were fixed beforehand, by score.
        others: the differences to all other scores of the single model, which were seen only afterwards, by score.
    """

    rivals: dict[str, Finding]
    others: dict[str, Finding]

    @property
    def hardest(self) -> str | None:
        """The rival score with the lowest lower end of its interval, the first of equals; None without rivals."""
        return min(self.rivals, key=lambda score: self.rivals[score].ci[0], default=None)

    @property
    def unbeaten(self) -> str | None:
        """Of :attr:`others` the score nearest to the rung, or ahead of it, that it does not beat significantly.

        None if the rung is significantly better than the single model under each of them.
        """
        not_beaten = [score for score, finding in self.others.items() if finding.kind not in GAINS]
        return min(not_beaten, key=lambda score: self.others[score].value, default=None)


def ahead(findings: Mapping[str, Finding]) -> dict[str, Finding]:
    """Return those differences to free scores that are significantly below 0, by score, the largest lead first."""
    leads = {score: finding for score, finding in findings.items() if finding.ci[1] < 0}
    return dict(sorted(leads.items(), key=lambda lead: lead[1].value))
