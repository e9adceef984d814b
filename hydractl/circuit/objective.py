"""What a circuit search maximises, kept as integers so that ties are ties (paper D.1.2).

``S_acc`` = share of ID samples classified right, ``S_ood`` = AUROC of an OOD score between ID and OOD samples,
``S_avg`` their mean. Beside the paper's three: ``nll`` and ``brier``, minus the mean loss over ID samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

LOSS_UNIT = 2.0**-20
"""Losses are counted per sample in whole units of this size: about what float32 logits can tell apart."""


class Doubt(NamedTuple):
    """By how much rounding may have changed what an evaluation counted.

    Attributes:
        fewer, more: ID samples classified right.
        lower, higher: twice the Mann-Whitney U.
        loss: each of the summed losses, in either direction.
    """

    fewer: int = 0
    more: int = 0
    lower: int = 0
    higher: int = 0
    loss: int = 0


@dataclass(frozen=True)
class Measured:
    """What one evaluation counted, perhaps over a part of the data.

    Attributes:
        correct: ID samples classified right, of ``n_id``.
        two_u: twice the Mann-Whitney U of OOD scoring above ID, ties counted one half; None where it was not measured.
        nll: the sum over ID samples of -log p of the label, each rounded to units of :data:`LOSS_UNIT` nats.
        brier: the sum over ID samples of the squared distance of p from the label, in the same units.
        doubt: how far another machine may count otherwise.
    """

    correct: int
    n_id: int
    two_u: int | None
    n_ood: int
    nll: int = 0
    brier: int = 0
    doubt: Doubt = Doubt()

    @property
    def least(self) -> Measured:
        """The same with every sample that rounding leaves undecided counted against it."""
        return self._moved(-self.doubt.fewer, -self.doubt.lower, self.doubt.loss)

    @property
    def most(self) -> Measured:
        """The same with every such sample counted in its favour."""
        return self._moved(self.doubt.more, self.doubt.higher, -self.doubt.loss)

    def _moved(self, correct: int, two_u: int, loss: int) -> Measured:
        moved = None if self.two_u is None else self.two_u + two_u
        return Measured(self.correct + correct, self.n_id, moved, self.n_ood, self.nll + loss, self.brier + loss)

    def read_by(self, objective: str) -> Measured:
        """The counts without those of OOD samples, where the objective reads none."""
        if OBJECTIVES[objective].needs_ood:
            return self
        return replace(self, two_u=None, n_ood=0, doubt=self.doubt._replace(lower=0, higher=0))

    def best_case(self, n_id: int, n_ood: int) -> Measured:
        """The most that the whole data can still give: every sample not yet seen right, certain, and on its side."""
        unseen_pairs = n_id * n_ood - self.n_id * self.n_ood
        two_u = (self.two_u or 0) + 2 * unseen_pairs
        return Measured(self.correct + n_id - self.n_id, n_id, two_u, n_ood, self.nll, self.brier)

    def key(self, objective: str) -> int:
        """An integer that orders evaluations over the same data exactly as the objective does."""
        return OBJECTIVES[objective].key(self)

    def score(self, objective: str) -> float:
        """The objective as a number: a fraction in [0, 1], or minus a mean loss."""
        return OBJECTIVES[objective].score(self)

    def to_json(self, objective: str) -> dict[str, int | float | None]:
        """The counts and the score, as a step of a circuit file holds them."""
        loss = {objective: getattr(self, objective)} if objective in ("nll", "brier") else {}
        return {
            "correct": self.correct,
            "n_id": self.n_id,
            "two_u": self.two_u,
            "n_ood": self.n_ood if self.two_u is not None else None,
            **loss,
            "score": self.score(objective),
        }


@dataclass(frozen=True)
class Objective:
    """One objective.

    Attributes:
        needs_ood: whether it reads OOD samples.
        key: an integer that grows with the score over the same data, and with any of correct, two_u, -nll, -brier.
        score: the score as a number.
    """

    needs_ood: bool
    key: Callable[[Measured], int]
    score: Callable[[Measured], float]


def _accuracy(m: Measured) -> float:
    return m.correct / m.n_id


def _auroc(m: Measured) -> float:
    assert m.two_u is not None
    return m.two_u / (2 * m.n_id * m.n_ood)


def _pairs(m: Measured) -> int:
    assert m.two_u is not None
    return m.two_u


OBJECTIVES: dict[str, Objective] = {
    "acc": Objective(False, lambda m: m.correct, _accuracy),
    "ood": Objective(True, _pairs, _auroc),
    # correct / n_id + two_u / (2 n_id n_ood), on the common denominator
    "avg": Objective(True, lambda m: m.correct * 2 * m.n_ood + _pairs(m), lambda m: (_accuracy(m) + _auroc(m)) / 2),
    "nll": Objective(False, lambda m: -m.nll, lambda m: -m.nll * LOSS_UNIT / m.n_id),
    "brier": Objective(False, lambda m: -m.brier, lambda m: -m.brier * LOSS_UNIT / m.n_id),
}
