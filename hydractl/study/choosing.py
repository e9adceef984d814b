"""Which row and which OOD score a study takes: decided on validation data alone.

A candidate is a row with a score. It is admissible where its accuracy is not below that of the single model by more
than a limit, and its NLL, both after temperature scaling, not above it by more than :data:`NLL_TOLERANCE`. The
admissible candidate with the highest mean AUROC is the best one. Of those that are not significantly worse (the paired
bootstrap interval of the difference includes 0) the cheapest in mult-adds is taken; of equally cheap ones the one of
fewer members, then the first: MSP, the simplest score, gives way only to one that is significantly better.
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
    return candidates[choose(candidates, candidates[0].row, 1.0).chosen]


def choose(candidates: Sequence[Candidate], single: str, max_drop: float) -> Choice:
    """Apply the rule of this module.

    Args:
        candidates: in the order that ties are decided by; among them are those of the single model.
        single: the name of the row of the single model; its candidates are always admissible.
        max_drop: how much accuracy may be lost.
    """
    base = next(one for one in candidates if one.row == single)
    reasons = ["" if one.row == single else _inadmissible(one, base, max_drop) for one in candidates]
    admissible = [place for place, reason in enumerate(reasons) if not reason]
    best = max(admissible, key=lambda place: (candidates[place].mean, -place))
    near = []
    for place in admissible:
        change = differences(candidates[best].auroc, candidates[place].auroc)[AUROC]
        if place == best or change["ci"][1] >= 0:
            near.append(place)
        else:
            reasons[place] = f"significantly lower AUROC than the best ({change['value']:+.4f})"
    chosen = min(near, key=lambda place: _price(candidates[place], place))
    for place in near:
        if place != chosen:
            same = _price(candidates[place], 0) == _price(candidates[chosen], 0)
            reasons[place] = "not significantly better, " + ("of the same cost" if same else "and more expensive")
    return Choice(chosen, best, reasons)


def _inadmissible(one: Candidate, base: Candidate, max_drop: float) -> str:
    # Accuracies are ratios of counts: the share of a sample that rounding may move is no drop.
    if base.accuracy - one.accuracy > max_drop + 1e-9:
        return f"accuracy {one.accuracy:.4f}, lower than {base.accuracy:.4f} by more than {max_drop:g}"
    if one.nll - base.nll > NLL_TOLERANCE:
        return f"NLL {one.nll:.4f}, higher than {base.nll:.4f} by more than {NLL_TOLERANCE:g}"
    return "" if one.eligible else "no single file can hold it: it is compared only"


def _price(one: Candidate, place: int) -> tuple[float, int, int]:
    return (math.inf if one.macs is None else one.macs, one.members, place)


def hindsight(aurocs: Sequence[float | None]) -> int:
    """The place of the highest AUROC on the test data."""
    return int(np.argmax([-1.0 if value is None else value for value in aurocs]))
