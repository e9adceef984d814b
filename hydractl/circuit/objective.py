"""What a circuit search maximises, kept as integers so that ties are ties (paper D.1.2).

``S_acc`` = share of ID samples classified right, ``S_ood`` = AUROC of MSP between ID and OOD, ``S_avg`` their mean.
"""

from __future__ import annotations

from dataclasses import dataclass

OBJECTIVES = ("acc", "ood", "avg")


@dataclass(frozen=True)
class Measured:
    """What one evaluation counted.

    Attributes:
        correct: ID samples classified right, of ``n_id``.
        two_u: twice the Mann-Whitney U of OOD scoring above ID, ties counted one half; None without OOD data.
    """

    correct: int
    n_id: int
    two_u: int | None
    n_ood: int

    def key(self, objective: str) -> int:
        """An integer that orders evaluations over the same data exactly as the objective does."""
        if objective == "acc":
            return self.correct
        assert self.two_u is not None
        if objective == "ood":
            return self.two_u
        # correct / n_id + two_u / (2 n_id n_ood), on the common denominator
        return self.correct * 2 * self.n_ood + self.two_u

    def score(self, objective: str) -> float:
        """The objective as a fraction in [0, 1]."""
        accuracy = self.correct / self.n_id
        if objective == "acc":
            return accuracy
        assert self.two_u is not None
        auroc = self.two_u / (2 * self.n_id * self.n_ood)
        return auroc if objective == "ood" else (accuracy + auroc) / 2

    def to_json(self, objective: str) -> dict[str, int | float | None]:
        """The counts and the score, as a step of a circuit file holds them."""
        return {
            "correct": self.correct,
            "n_id": self.n_id,
            "two_u": self.two_u,
            "n_ood": self.n_ood if self.two_u is not None else None,
            "score": self.score(objective),
        }
