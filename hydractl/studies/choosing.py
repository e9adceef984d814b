"""Which row and which OOD score a study takes: decided on validation data alone.

A candidate is a row with a score. In each row MSP, the simplest score, gives way only to one that is significantly
better (the paired bootstrap interval of the difference in mean AUROC excludes 0), and so does every later one. A row is
admissible where its accuracy is not below that of the single model by more than a limit, and its NLL, both after
temperature scaling, not above it by more than :data:`NLL_TOLERANCE`. Of the admissible rows that are not worse than the
best one by more than :data:`AUROC_TOLERANCE`, or not significantly, the cheapest in mult-adds is taken; of equally
cheap ones the one of fewer members, then the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hydractl.metrics.bootstrap import Resampled, differences

AUROC = "ood_avg.auroc"
NLL_TOLERANCE = 0.02
"""Nats."""
AUROC_TOLERANCE = 0.01
"""A mean AUROC that is lower by no more is no reason to take a dearer row."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A row with an OOD score, on validation data.

    Attributes:
        row, score: their names.
        members: of the row.
        macs: mult-adds of a sample; None where they are not known: then no row is cheaper for it.
        accuracy, nll: on the ID data, after temperature scaling.
        auroc: the mean over the OOD sets under the key :data:`AUROC`, with its resamples.
        eligible: whether it may be taken; others are compared only.
    """

    row: str
    score: str
    members: int
    macs: int | None
    accuracy: float
    nll: float
    auroc: Resampled
    eligible: bool = True

    @property
    def mean(self) -> float:
        """The mean AUROC; 0 where it has no value."""
        return self.auroc.values[AUROC] or 0.0


@dataclass(frozen=True)
class Choice:
    """What was decided.

    Attributes:
        chosen: the place of the candidate that is taken.
        best: the place of the admissible one with the highest AUROC.
        reasons: for each candidate why it was not taken; empty for the chosen one.
    """

    chosen: int
    best: int
    reasons: list[str]


def own_score(candidates: Sequence[Candidate]) -> Candidate:
    """The score of one row: the first that is not significantly worse than the best one."""
    best = max(candidates, key=lambda one: one.mean)  # the first of equal ones
    return next(one for one in candidates if one is best or not _worse(one, best))


def _worse(one: Candidate, best: Candidate) -> bool:
    """Whether the AUROC of one is significantly lower."""
    return bool(differences(best.auroc, one.auroc)[AUROC]["ci"][1] < 0)


def choose(candidates: Sequence[Candidate], single: str, max_drop: float) -> Choice:
    """Apply the rule of this module.

    Args:
        candidates: in the order that ties are decided by; among them are those of the single model.
        single: the name of the row of the single model, which is always admissible.
        max_drop: how much accuracy may be lost.
    """
    rows = {one.row: own_score([other for other in candidates if other.row == one.row]) for one in candidates}
    reasons = {row: "" if row == single else _inadmissible(one, rows[single], max_drop) for row, one in rows.items()}
    admissible = [one for row, one in rows.items() if not reasons[row]]
    best = max(admissible, key=lambda one: one.mean)
    near = []
    for one in admissible:
        if one is best or one.mean >= best.mean - AUROC_TOLERANCE - 1e-9 or not _worse(one, best):
            near.append(one)
        else:
            reasons[one.row] = f"AUROC lower than that of {best.row} ({one.mean - best.mean:+.4f})"
    chosen = min(near, key=_price)  # the first of equal ones
    for one in near:
        if one is not chosen:
            price = "of the same cost" if _price(one) == _price(chosen) else "which costs less"
            reasons[one.row] = f"hardly better than {chosen.row}, {price}"
    places = [next(place for place, other in enumerate(candidates) if other is one) for one in (chosen, best)]
    each = [reasons[one.row] if one is rows[one.row] else f"the row takes {rows[one.row].score}" for one in candidates]
    return Choice(places[0], places[1], each)


def _inadmissible(one: Candidate, base: Candidate, max_drop: float) -> str:
    # Accuracies are ratios of counts: the share of a sample that rounding may move is no drop.
    if base.accuracy - one.accuracy > max_drop + 1e-9:
        return f"accuracy {one.accuracy:.4f}, lower than {base.accuracy:.4f} by more than {max_drop:g}"
    if one.nll - base.nll > NLL_TOLERANCE:
        return f"NLL {one.nll:.4f}, higher than {base.nll:.4f} by more than {NLL_TOLERANCE:g}"
    return "" if one.eligible else "no single file can hold it: it is compared only"


def _price(one: Candidate) -> tuple[float, int]:
    return (math.inf if one.macs is None else one.macs, one.members)


def hindsight(aurocs: Sequence[float | None]) -> int:
    """The place of the highest AUROC on the test data."""
    return int(np.argmax([-1.0 if value is None else value for value in aurocs]))
