"""The objectives of a circuit search, counted in integers so that ties are exact (paper D.1.2).

``S_acc`` = share of ID samples classified right, ``S_ood`` = AUROC of an OOD score between ID and OOD samples,
``S_avg`` their mean. One more than in the paper: ``nll``, minus the mean loss over ID samples.

With several tasks (each an ID set and perhaps an OOD set), every score is the weighted mean over the tasks. Samples and
pairs are then counted several times (:class:`Share`), so that all tasks have equally many: the ratios of the counts
are exactly these means, and everything else works as with one task.

Everything here is arithmetic on integers. ``counting.py`` makes them from logits, ``winners.py`` decides by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

LOSS_UNIT = 2.0**-20
"""The NLL is counted in whole units of this size for each sample: about the resolution of float32 logits."""


class Share(NamedTuple):
    """How often each ID sample, each OOD sample, and each pair of the two is counted in one task."""

    inside: int = 1
    outside: int = 1
    pairs: int = 1


def shares_of(sizes: Sequence[tuple[int, int]]) -> list[Share]:
    """Return how often the samples and pairs of each task are counted, so that a mean over all is the mean over tasks.

    The samples of each task are repeated until all tasks are equally large. E.g. for ID sets of 4 and 6 samples, they
    are counted 3 and 2 times, so both make up 12.

    Args:
        sizes: how many ID and OOD samples each task has; 0 OOD samples if it has no OOD set.
    """
    # Repeat samples up to the least common multiple of the sizes (a missing set counts as one sample, as 0 would make
    # the multiple 0).
    id_sizes = [max(1, n_id) for n_id, _ in sizes]
    ood_sizes = [max(1, n_ood) for _, n_ood in sizes]
    common_id = math.lcm(*id_sizes)
    common_ood = math.lcm(*ood_sizes)
    tasks = len(sizes)
    shares = []
    for id_size, ood_size in zip(id_sizes, ood_sizes, strict=True):
        times_id = common_id // id_size
        times_ood = common_ood // ood_size
        share = Share(
            inside=times_id,
            outside=times_ood,
            # The factor makes the pairs of all tasks add up to (all ID samples) * (all OOD samples), both as often as
            # they are counted.
            pairs=tasks * times_id * times_ood,
        )
        shares.append(share)
    return shares


# --- counts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvaluationCounts:
    """The counts of one evaluation, perhaps over some of the data; with several tasks weighted by :class:`Share`.

    Attributes:
        correct: how many of the ``n_id`` ID samples were classified right.
        n_id, n_ood: how many ID and OOD samples were counted.
        two_u: twice the Mann-Whitney U of OOD scoring above ID, ties counted one half; None if it was not measured.
        nll: the sum over ID samples of -log p of the label, each rounded to units of :data:`LOSS_UNIT` nats.
    """

    correct: int
    n_id: int
    two_u: int | None
    n_ood: int
    nll: int = 0

    def read_by(self, objective: str) -> EvaluationCounts:
        """Return the counts that an objective reads: without OOD counts if the objective reads no OOD samples."""
        rule = OBJECTIVE_BY_NAME[objective]
        if rule.needs_ood:
            return self
        return replace(self, two_u=None, n_ood=0)

    def best_case(self, n_id: int, n_ood: int, seen_pairs: int | None = None) -> EvaluationCounts:
        """Return the best counts that the whole data can still give, when these are the counts of a part of them.

        Every sample that was not seen is assumed to be right and without loss, with each of its pairs in order. E.g.
        after 6 of 10 ID samples, 5 of them right, at most 9 can be right in the end.

        Args:
            n_id, n_ood: how many ID and OOD samples the whole data have.
            seen_pairs: how many pairs of an ID and an OOD sample were counted; None: all pairs of the samples seen.
        """
        if seen_pairs is None:
            seen_pairs = self.n_id * self.n_ood
        unseen_pairs = n_id * n_ood - seen_pairs
        unseen_id = n_id - self.n_id
        seen_two_u = self.two_u or 0
        return EvaluationCounts(
            correct=self.correct + unseen_id,
            n_id=n_id,
            two_u=seen_two_u + 2 * unseen_pairs,
            n_ood=n_ood,
            nll=self.nll,
        )

    def key(self, objective: str) -> int:
        """Return an integer that orders evaluations of the same data exactly as the objective does."""
        rule = OBJECTIVE_BY_NAME[objective]
        return rule.key(self)

    def score(self, objective: str) -> float:
        """Return the objective as a number: a fraction in [0, 1], or minus a mean loss."""
        rule = OBJECTIVE_BY_NAME[objective]
        return rule.score(self)


# --- objectives -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ObjectiveRule:
    """One objective.

    Attributes:
        needs_ood: whether it reads OOD samples.
        key: returns an integer that orders evaluations of the same data like the score; it grows with each of correct,
            two_u and -nll.
        score: returns the score as a number.
    """

    needs_ood: bool
    key: Callable[[EvaluationCounts], int]
    score: Callable[[EvaluationCounts], float]


def _accuracy_of(counts: EvaluationCounts) -> float:
    """Return the share of ID samples that are classified right."""
    return counts.correct / counts.n_id


def _two_u(counts: EvaluationCounts) -> int:
    """Return twice the Mann-Whitney U, which must have been measured."""
    assert counts.two_u is not None, "an objective that reads OOD samples was counted on some"
    return counts.two_u


def _auroc_of(counts: EvaluationCounts) -> float:
    """Return the AUROC: U as a share of the number of pairs."""
    most_two_u = 2 * counts.n_id * counts.n_ood
    return _two_u(counts) / most_two_u


def _average_key(counts: EvaluationCounts) -> int:
    """Return the sum of accuracy and AUROC as an integer: their numerator over the denominator 2 n_id n_ood."""
    # correct / n_id + two_u / (2 n_id n_ood) = (correct * 2 n_ood + two_u) / (2 n_id n_ood)
    correct_on_denominator = counts.correct * 2 * counts.n_ood
    return correct_on_denominator + _two_u(counts)


OBJECTIVE_BY_NAME: dict[str, ObjectiveRule] = {
    "acc": ObjectiveRule(
        needs_ood=False,
        key=lambda counts: counts.correct,
        score=_accuracy_of,
    ),
    "ood": ObjectiveRule(
        needs_ood=True,
        key=_two_u,
        score=_auroc_of,
    ),
    "avg": ObjectiveRule(
        needs_ood=True,
        key=_average_key,
        score=lambda counts: (_accuracy_of(counts) + _auroc_of(counts)) / 2,
    ),
    "nll": ObjectiveRule(
        needs_ood=False,
        key=lambda counts: -counts.nll,
        score=lambda counts: -counts.nll * LOSS_UNIT / counts.n_id,
    ),
}


def reads_ood(objectives: Iterable[str]) -> bool:
    """Return whether any of some objectives reads OOD samples."""
    rules = [OBJECTIVE_BY_NAME[objective] for objective in objectives]
    return any(rule.needs_ood for rule in rules)


# --- a limit ----------------------------------------------------------------------------------------------------------


def fewest_correct(base: EvaluationCounts, max_drop: Fraction) -> int:
    """Return how many samples must be right for accuracy to be at most ``max_drop`` below that of ``base``, exactly."""
    most_lost = max_drop * base.n_id
    return math.ceil(base.correct - most_lost)
