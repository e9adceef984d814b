"""What a circuit search maximises, kept as integers so that ties are ties (paper D.1.2).

``S_acc`` = share of ID samples classified right, ``S_ood`` = AUROC of an OOD score between ID and OOD samples,
``S_avg`` their mean. Beside the paper's three: ``nll`` and ``brier``, minus the mean loss over ID samples.

With several tasks (each an ID set and perhaps an OOD set), every score is the weighted mean over the tasks. Samples and
pairs then count more than once (:class:`Share`), so often that all tasks have as many: the ratios of the counts are
those means, exactly, and all that follows is as for one task.

Processors, versions of torch and numbers of threads add up in orders of their own, so that logits differ in their last
digits. That decides nothing where a sample is far from being classified otherwise, and everything where two logits are
the same but for rounding. So an evaluation says, beside what it counted, how far another machine may count otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hydractl.errors import NonFiniteError
from hydractl.expressions.conditions import Constraint
from hydractl.metrics.ood import OOD_SCORES, two_u
from hydractl.metrics.probabilities import Block, Floats

LOSS_UNIT = 2.0**-20
"""Losses are counted per sample in whole units of this size: about what float32 logits can tell apart."""

LOSSES = ("nll", "brier")


class Share(NamedTuple):
    """The count of each ID sample, OOD sample, and pair of an ID and an OOD sample of one task."""

    inside: int = 1
    outside: int = 1
    pairs: int = 1


def shares_of(sizes: Sequence[tuple[int, int]], weights: Sequence[int]) -> list[Share]:
    """The shares of tasks by the numbers of their ID and OOD samples and their weights; without OOD samples, in all."""
    total = sum(weights)
    inside, outside = (math.lcm(*(max(1, size) for size in side)) for side in zip(*sizes, strict=True))
    found = []
    for (n_id, n_ood), weight in zip(sizes, weights, strict=True):
        own, others = weight * inside // max(1, n_id), outside // max(1, n_ood)
        found.append(Share(own, weight * others, total * own * others))
    return found


class Doubt(NamedTuple):
    """The amounts by which rounding may have changed what an evaluation counted.

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
    """The counts of one evaluation, perhaps over a part of the data; with several tasks weighted by :class:`Share`.

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
        """Return the counts without those of OOD samples, where the objective reads none."""
        if OBJECTIVES[objective].needs_ood:
            return self
        return replace(self, two_u=None, n_ood=0, doubt=self.doubt._replace(lower=0, higher=0))

    def best_case(self, n_id: int, n_ood: int, seen_pairs: int | None = None) -> Measured:
        """The most that the whole data can still give: every sample not yet seen right, certain, and on its side.

        Args:
            n_id, n_ood: of the whole data.
            seen_pairs: of ID and OOD samples; None: all of those seen, which are of one task.
        """
        seen = self.n_id * self.n_ood if seen_pairs is None else seen_pairs
        two_u = (self.two_u or 0) + 2 * (n_id * n_ood - seen)
        return Measured(self.correct + n_id - self.n_id, n_id, two_u, n_ood, self.nll, self.brier)

    def key(self, objective: str) -> int:
        """Return an integer that orders evaluations over the same data exactly as the objective does."""
        return OBJECTIVES[objective].key(self)

    def score(self, objective: str) -> float:
        """Return the objective as a number: a fraction in [0, 1], or minus a mean loss."""
        return OBJECTIVES[objective].score(self)

    def to_json(self, objective: str, more: Iterable[str] = ()) -> dict[str, int | float | None]:
        """The counts and the score, as a step of a circuit file holds them, those of ``more`` objectives with them."""
        loss = {name: getattr(self, name) for name in LOSSES if name in (objective, *more)}
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
        scale: by how much the key grows where the score grows by 1, from the numbers of ID and OOD samples.
    """

    needs_ood: bool
    key: Callable[[Measured], int]
    score: Callable[[Measured], float]
    scale: Callable[[int, int], int]


def _accuracy(m: Measured) -> float:
    return m.correct / m.n_id


def _pairs(m: Measured) -> int:
    assert m.two_u is not None
    return m.two_u


def _auroc(m: Measured) -> float:
    return _pairs(m) / (2 * m.n_id * m.n_ood)


def _units_of_loss(n_id: int, n_ood: int) -> int:
    return round(n_id / LOSS_UNIT)


OBJECTIVES: dict[str, Objective] = {
    "acc": Objective(False, lambda m: m.correct, _accuracy, lambda n_id, n_ood: n_id),
    "ood": Objective(True, _pairs, _auroc, lambda n_id, n_ood: 2 * n_id * n_ood),
    # correct / n_id + two_u / (2 n_id n_ood), on the common denominator
    "avg": Objective(
        True,
        lambda m: m.correct * 2 * m.n_ood + _pairs(m),
        lambda m: (_accuracy(m) + _auroc(m)) / 2,
        lambda n_id, n_ood: 4 * n_id * n_ood,
    ),
    "nll": Objective(False, lambda m: -m.nll, lambda m: -m.nll * LOSS_UNIT / m.n_id, _units_of_loss),
    "brier": Objective(False, lambda m: -m.brier, lambda m: -m.brier * LOSS_UNIT / m.n_id, _units_of_loss),
}


# --- constraints ------------------------------------------------------------------------------------------------------

Limits = Mapping[str, int]
"""The lowest key that is allowed, by objective."""


def limits_of(constraints: Iterable[Constraint], base: Measured) -> dict[str, int]:
    """Return the lowest allowed key of each objective, exactly; of several constraints on one, the strictest counts.

    Args:
        constraints: of ``--subject-to``.
        base: the counts of the model before the first removal.
    """
    limits: dict[str, int] = {}
    for key, number, below_base in constraints:
        scaled = number * OBJECTIVES[key].scale(base.n_id, base.n_ood)
        least = math.ceil(base.key(key) - scaled if below_base else scaled)
        limits[key] = max(least, limits.get(key, least))
    return limits


def allowed(measured: Measured, limits: Limits) -> bool:
    """Return whether the counts keep every limit."""
    return all(measured.key(objective) >= least for objective, least in limits.items())


# --- what rounding may change -----------------------------------------------------------------------------------------

TOLERANCE = {torch.float64: 2e-14, torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Two logits that differ by less, times the largest logit of the sample or 1, are the same but for rounding.

Machines were seen to differ by a twentieth of it, in half precision by a half.
"""


def margins(logits: Floats, labels: np.ndarray) -> Floats:
    """Return the logit (or log p) of the label minus the highest other one, ``[B]``."""
    rows = np.arange(len(labels))
    others = logits.copy()
    others[rows, labels] = -np.inf
    return np.asarray(logits[rows, labels] - others.max(axis=1))


def _msp_slope(block: Block) -> Floats:
    top = block.pooled_log.argmax(axis=1)
    log_p = np.take_along_axis(block.member_log_probs, top[None, :, None], axis=2)[:, :, 0]
    return np.asarray((-np.exp(log_p) * np.expm1(log_p)).mean(axis=0))


def _entropy_slope(block: Block) -> Floats:
    p, log_p = block.member_powers, block.pooled_log
    cross_entropy = -(p * log_p).sum(axis=2, keepdims=True)
    return np.asarray((p * np.abs(log_p + cross_entropy)).sum(axis=2).mean(axis=0))


SLOPES: dict[str, Callable[[Block], Floats]] = {
    "msp": _msp_slope,
    "entropy": _entropy_slope,
    "energy": lambda block: np.ones(block.logits.shape[1]),
    "maxlogit": lambda block: np.ones(block.logits.shape[1]),
}
"""For each OOD score, the most that it changes for logits of a member that differ by 1, ``[B]``."""


# --- counting, batch by batch -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Values:
    """The results of one batch under one model.

    Attributes:
        labelled: whether the samples are ID.
        scores: the OOD score of each sample, higher = more OOD.
        correct, nll, brier: as in :class:`Measured`; zero for OOD samples.
        doubt: of these three, as in :class:`Doubt`.
        near: how far rounding may take each score; a number holds for all.
        tasks: the tasks that the samples belong to.
    """

    labelled: bool
    scores: Floats
    correct: int = 0
    nll: int = 0
    brier: int = 0
    doubt: Doubt = Doubt()
    near: Floats | float = 0.0
    tasks: Sequence[int] = (0,)


def values_of(logits: Tensor, labels: np.ndarray | None, ood_score: str, beside: Floats | None = None) -> Values:
    """Count one batch, in float64.

    Args:
        logits: ``[B, classes]``.
        labels: ``[B]``, or None for OOD samples.
        ood_score: a name of :data:`hydractl.metrics.ood.OOD_SCORES`.
        beside: the logits of other members ``[M - 1, B, classes]``: what is counted is then the ensemble.

    Raises:
        NonFiniteError: for a logit that is NaN or infinite.
    """
    own = logits.double().cpu().numpy()[None]
    z = own if beside is None else np.concatenate([beside, own])  # [M, B, classes]
    if not np.isfinite(z).all():
        raise NonFiniteError("a logit is NaN or infinite during the search", hint="try a wider --dtype")
    block, scores = Block(z), OOD_SCORES[ood_score](z)
    apart = TOLERANCE[logits.dtype] * np.maximum(1.0, np.abs(z).max(axis=(0, 2)))
    # Half of it, so that the scores of two samples differ by as much as two logits do.
    near = apart / 2 * SLOPES[ood_score](block)
    if labels is None:
        return Values(False, scores, near=near)
    rows = np.arange(len(labels))
    log_p = block.pooled_log
    p = np.exp(log_p)
    # The sum over classes of (p - y)^2, by the classes that are wrong and the one that is right.
    brier = (p * p).sum(axis=1) + 1 - 2 * p[rows, labels]
    # Two classes of an ensemble can each take their p from another member, so their log p move apart by twice as much.
    compared, apart = (z[0], apart) if beside is None else (log_p, 2 * apart)
    correct = int((compared.argmax(axis=1) == labels).sum())
    margin = margins(compared, labels)
    return Values(
        True,
        scores,
        correct,
        _units(-log_p[rows, labels]),
        _units(np.maximum(brier, 0)),
        Doubt(
            fewer=correct - int((margin > apart).sum()),
            more=int((margin >= -apart).sum()) - correct,
            loss=len(labels) * round(TOLERANCE[logits.dtype] / TOLERANCE[torch.float32]),
        ),
        near,
    )


def _units(losses: Floats) -> int:
    return int(np.rint(losses / LOSS_UNIT).astype(np.int64).sum())


class Pairs:
    """Twice the Mann-Whitney U of OOD scores above ID scores, over the batches so far."""

    def __init__(self) -> None:
        self.two_u = 0
        # Sorted, so that a batch is counted against everything before it in little time.
        self.inside = self.outside = np.empty(0)

    def add(self, labelled: bool, scores: Floats) -> None:
        """Count the scores of one batch."""
        if labelled:
            self.two_u += two_u(scores, self.outside)
            self.inside = np.sort(np.concatenate([self.inside, scores]))
        else:
            self.two_u += two_u(self.inside, scores)
            self.outside = np.sort(np.concatenate([self.outside, scores]))


class Tally:
    """The counts of one model over the batches it has seen so far, of tasks with these shares."""

    def __init__(self, shares: Sequence[Share] = (Share(),)) -> None:
        self.seen: set[int] = set()
        self._shares = shares
        self._correct = self._nll = self._brier = 0
        self._doubt = Doubt()
        # Of each task as counted, with rounding against the model, and with rounding for it.
        self._pairs = [(Pairs(), Pairs(), Pairs()) for _ in shares]

    def add(self, batch: int, values: Values) -> None:
        """Count one batch, which must be new."""
        assert batch not in self.seen
        self.seen.add(batch)
        against = values.near if values.labelled else -values.near
        for task in values.tasks:
            times = self._shares[task].inside
            self._correct += times * values.correct
            self._nll += times * values.nll
            self._brier += times * values.brier
            self._doubt = Doubt(*(one + times * more for one, more in zip(self._doubt, values.doubt, strict=True)))
            counted, least, most = self._pairs[task]
            counted.add(values.labelled, values.scores)
            least.add(values.labelled, values.scores + against)
            most.add(values.labelled, values.scores - against)

    def measured(self) -> Measured:
        """The counts over what has been seen."""
        n_id = n_ood = two_u = lower = higher = 0
        for share, (counted, least, most) in zip(self._shares, self._pairs, strict=True):
            n_id += share.inside * len(counted.inside)
            n_ood += share.outside * len(counted.outside)
            two_u += share.pairs * counted.two_u
            lower += share.pairs * (counted.two_u - least.two_u)
            higher += share.pairs * (most.two_u - counted.two_u)
        doubt = self._doubt._replace(lower=lower, higher=higher)
        return Measured(self._correct, n_id, two_u if n_ood else None, n_ood, self._nll, self._brier, doubt)

    @property
    def seen_pairs(self) -> int:
        """The pairs of ID and OOD samples seen so far."""
        pairs = zip(self._shares, self._pairs, strict=True)
        return sum(share.pairs * len(counted.inside) * len(counted.outside) for share, (counted, _, _) in pairs)
