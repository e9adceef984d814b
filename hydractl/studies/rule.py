"""The choice of a row and an OOD score, made on validation data alone.

A candidate is a row with an OOD score. The reference is the single model with MSP. Every row has its fitted
temperature, the single model too. All differences are paired: they are measured on the same resamples.

1. **Blind sets have no vote.** A set of OOD validation samples has a vote only if the single model separates it from
   the ID samples: under at least one of its scores, the 95 % interval of the AUROC lies above :data:`BLIND`.
2. **No harm.** The reference is admissible. Another candidate is admissible if, on every set with a vote, its AUROC is
   at most the margin below that of the reference and not significantly below it, and if the mean of its differences
   over these sets is significantly above 0.
3. **One score for all rows**: the admissible score of the single model with the highest mean AUROC, MSP if it has none.
   A row is admissible if it is so under that score, and if neither its accuracy nor its NLL is significantly worse than
   that of the single model, and by more than a limit. The single model always is.
4. **The cheapest suitable row is taken**: the cheapest admissible row such that no dearer one is better by more than
   the margin, significantly. The price is mult-adds, then members, then the order in the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hydractl.files.study_answer import StabilityRecord
from hydractl.metrics.bootstrap import Resampled
from hydractl.metrics.probabilities import Floats
from hydractl.studies.words import ACCURACY, AUROC_MARGIN, KINDS, NLL

SINGLE = "single"
REFERENCE = "msp"
NLL_TOLERANCE = 0.02
"""The limit of NLL: how much that of a row may be above that of the single model, in nats."""
BLIND = 0.6
"""A set has a vote only if the interval of an AUROC of the single model lies above this value."""
_ROUNDING = 1e-9
"""Ratios of equal counts may differ by this much through rounding alone."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A row with an OOD score, on validation data.

    Attributes:
        row, score: the names of both.
        members: the number of members of the row.
        macs: the mult-adds of one sample; None if they are not known, which counts as more than any number.
        inside: accuracy and NLL on the ID data, after temperature scaling, with their resamples.
        outside: the AUROC against each OOD set, by its name, with its resamples.
        eligible: whether it may be chosen; otherwise it is only compared.
    """

    row: str
    score: str
    members: int
    macs: int | None
    inside: Resampled
    outside: Resampled
    eligible: bool = True

    @property
    def accuracy(self) -> float:
        """Accuracy on the ID data."""
        return _value(self.inside, ACCURACY)

    @property
    def nll(self) -> float:
        """NLL on the ID data, in nats."""
        return _value(self.inside, NLL)

    @property
    def price(self) -> tuple[float, int]:
        """The key that candidates are sorted by, cheapest first: mult-adds, then members."""
        if self.macs is None:
            return math.inf, self.members
        return self.macs, self.members


def _value(resampled: Resampled, key: str) -> float:
    """Return a figure on the data themselves, e.g. for the key ``id.accuracy``."""
    value = resampled.values[key]
    assert value is not None  # validation data have labels, and OOD samples
    return value


def _readings(resampled: Resampled, key: str) -> Floats:
    """Return a figure on the data, followed by its value in every round of the bootstrap, [1 + rounds]."""
    return np.concatenate([[_value(resampled, key)], resampled.rounds[key]])


def _aurocs(candidate: Candidate, sets: Sequence[str]) -> Floats:
    """Return the AUROC of a candidate against each of the OOD sets in every reading, [sets, readings]."""
    return np.stack([_readings(candidate.outside, name) for name in sets])


@dataclass(frozen=True)
class Difference:
    """A paired difference of a figure, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def exceeds(self, limit: float) -> bool:
        """Return whether it is above a limit, and significantly above 0."""
        return self.value > limit + _ROUNDING and self.low > 0


Figure = str | tuple[int, ...]
"""What candidates are compared by: a metric, or the indices of the OOD sets that the mean AUROC is over."""


class Evidence:
    """The figures of all candidates on the validation data and on every resample of them.

    A decision is made from one reading. Reading 0 is the data themselves. Reading r is round r of the bootstrap: its
    figures are those of the resample. Its intervals have the width of the intervals on the data, and move along with
    the figures. So a decision can be repeated on a resample without a second bootstrap inside the first.

    In all methods, ``sets`` are indices in :attr:`sets`, and ``index`` and ``other`` are indices in :attr:`candidates`.

    Args:
        candidates: all candidates in the order of the table, with those of one row next to each other. The reference
            (the single model with MSP) is among them.
        may_vote: whether sets can have a vote; not where their OOD samples are made because nobody gave any.
    """

    def __init__(self, candidates: Sequence[Candidate], *, may_vote: bool = True) -> None:
        self.candidates = tuple(candidates)
        self._may_vote = may_vote
        self.sets = tuple(self.candidates[0].outside.values)

        # The figures of all candidates as arrays. A reading is one way to measure them: reading 0 is the data
        # themselves, and each other reading is a round of the bootstrap.
        aurocs = [_aurocs(candidate, self.sets) for candidate in self.candidates]
        self._aurocs = np.stack(aurocs)  # [candidates, sets, readings]
        self._figures: dict[Figure, Floats] = {}  # [candidates, readings]
        for metric in (ACCURACY, NLL):
            self._figures[metric] = np.stack([_readings(candidate.inside, metric) for candidate in self.candidates])
        self._spreads: dict[tuple[int, int, Figure], tuple[float, float]] = {}

    @property
    def readings(self) -> int:
        """The number of readings, the data themselves included."""
        return int(self._aurocs.shape[-1])

    @cached_property
    def rows(self) -> dict[str, list[int]]:
        """By row, the indices of its candidates."""
        indices: dict[str, list[int]] = {}
        for index, candidate in enumerate(self.candidates):
            indices.setdefault(candidate.row, []).append(index)
        return indices

    def index_under(self, row: str, score: str) -> int | None:
        """Return the index of the candidate of a row with a score; None if the row does not have that score."""
        found = (index for index in self.rows[row] if self.candidates[index].score == score)
        return next(found, None)

    @cached_property
    def reference(self) -> int:
        """The index of the single model with MSP."""
        index = self.index_under(SINGLE, REFERENCE)
        assert index is not None  # the class requires it among the candidates
        return index

    def voting_sets(self, reading: int) -> tuple[int, ...]:
        """Return the sets with a vote: those that some score of the single model separates from the ID samples."""
        if not self._may_vote:
            return ()
        # The interval of an AUROC keeps the width that it has on the data, and moves along with the AUROC of the
        # reading.
        aurocs_of_single = self._aurocs[self.rows[SINGLE], :, reading]  # [scores, sets]
        highest_lower_ends = (aurocs_of_single + self._auroc_spreads).max(axis=0)  # [sets]
        return tuple(np.flatnonzero(highest_lower_ends > BLIND).tolist())

    @cached_property
    def _auroc_spreads(self) -> Floats:
        """For each AUROC of the single model, the lower end of its interval minus its value, [scores, sets]."""
        aurocs = self._aurocs[self.rows[SINGLE]]  # [scores, sets, readings]
        lower_ends: Floats = np.quantile(aurocs[..., 1:], 0.025, axis=-1)
        return lower_ends - aurocs[..., 0]

    def loss(self, metric: str, index: int, reading: int) -> Difference:
        """Return by how much the accuracy or the NLL of a candidate is worse than that of the single model."""
        if metric == ACCURACY:  # higher is better
            return self.difference(self.reference, index, metric, reading)
        return self.difference(index, self.reference, metric, reading)

    def mean(self, index: int, sets: tuple[int, ...], reading: int) -> float:
        """Return the mean AUROC of a candidate over ``sets`` in a reading; 0 without sets."""
        return float(self._of_all(sets)[index, reading]) if sets else 0.0

    def _of_all(self, figure: Figure) -> Floats:
        """Return a figure of all candidates, [candidates, readings]; a mean AUROC is computed once."""
        if figure not in self._figures:
            self._figures[figure] = self._aurocs[:, np.asarray(figure)].mean(axis=1)
        return self._figures[figure]

    def difference(self, index: int, other: int, figure: Figure, reading: int) -> Difference:
        """Return a figure of one candidate minus that of another, with its 95 % interval.

        The interval has the width that it has on the data, and moves along with the difference of the reading.

        Args:
            index: the index of the candidate.
            other: the index of the other candidate, whose figure is subtracted.
            figure: a metric, or the indices of the OOD sets that the mean AUROC is over; there are some.
            reading: 0 for the data themselves, else the number of a round of the bootstrap.
        """
        figures = self._of_all(figure)
        key = (index, other, figure)
        if key not in self._spreads:
            differences = figures[index] - figures[other]  # [readings]
            low, high = np.quantile(differences[1:], [0.025, 0.975])
            self._spreads[key] = (float(low - differences[0]), float(high - differences[0]))
        to_low, to_high = self._spreads[key]
        value = float(figures[index, reading] - figures[other, reading])
        return Difference(value, low=value + to_low, high=value + to_high)


@dataclass(frozen=True)
class ReadingDecision:
    """The decision that one reading of the evidence leads to.

    Attributes:
        voting_sets: the indices of the OOD validation sets that have a vote.
        common_score: the score of the single model, under which all rows are compared.
        admissible: the indices of the candidates with that score that may be taken, cheapest first.
        chosen: the index of the candidate that is taken.
    """

    voting_sets: tuple[int, ...]
    common_score: str
    admissible: list[int]
    chosen: int


def decide(evidence: Evidence, max_drop: float, reading: int = 0) -> ReadingDecision:
    """Apply the rule of this module to one reading of the evidence: the data themselves, or a round of the bootstrap.

    All rows are compared under the score of the single model. The cheapest row that does no harm and may be taken is
    chosen, unless a dearer row of this kind is clearly better.

    Args:
        evidence: the figures of all candidates.
        max_drop: how much accuracy a row may lose against the single model.
        reading: 0 for the data themselves, else the number of a round.
    """
    voting_sets = evidence.voting_sets(reading)
    own_index = index_under_own_score(evidence, SINGLE, voting_sets, reading)
    common_score = evidence.candidates[own_index].score

    # Find the rows that do no harm under that score, and that may be taken. Sort them by cost, cheapest first.
    admissible = []
    for row in evidence.rows:
        index = evidence.index_under(row, common_score)
        if index is None or harm_done_by(evidence, index, voting_sets, reading):
            continue
        if not why_not_eligible(evidence, index, max_drop, reading):
            admissible.append(index)
    # This is stable: rows of the same price stay in the order of the table.
    admissible.sort(key=lambda index: evidence.candidates[index].price)

    # Take the first row for which no dearer row is clearly better.
    for place, index in enumerate(admissible):
        if _first_clearly_better(evidence, index, admissible[place + 1 :], voting_sets, reading) is None:
            return ReadingDecision(voting_sets, common_score, admissible, index)
    raise AssertionError("the single model is always admissible")


def _first_clearly_better(
    evidence: Evidence, index: int, others: Sequence[int], voting_sets: tuple[int, ...], reading: int
) -> int | None:
    """Return the index of the first of some other candidates that is better by more than the margin, significantly.

    Args:
        evidence: the figures of all candidates.
        index: the index of the candidate to compare with.
        others: the indices of the other candidates.
        voting_sets: the indices of the OOD validation sets with a vote, whose mean counts; without any none is better.
        reading: 0 for the data themselves, else the number of a round of the bootstrap.
    """
    for other in others:
        if voting_sets and evidence.difference(other, index, voting_sets, reading).exceeds(AUROC_MARGIN):
            return other
    return None


def index_under_own_score(evidence: Evidence, row: str, voting_sets: tuple[int, ...], reading: int = 0) -> int:
    """Return the index of a row's candidate with its own score: the admissible score with the highest mean AUROC.

    Of equal scores the first counts. A row without an admissible score has its first score as its own.
    """
    indices = evidence.rows[row]
    admissible = [index for index in indices if not harm_done_by(evidence, index, voting_sets, reading)]
    if not admissible:
        return indices[0]

    return max(admissible, key=lambda index: evidence.mean(index, voting_sets, reading))


def harm_done_by(evidence: Evidence, index: int, voting_sets: tuple[int, ...], reading: int) -> str:
    """Return the reason why a candidate cannot safely replace the single model with MSP; empty if it can.

    It can if two conditions hold. On no set with a vote is its AUROC lower by more than the margin, or significantly
    lower. And its mean AUROC over these sets is significantly higher.

    Args:
        evidence: the figures of all candidates.
        index: the index of the candidate.
        voting_sets: the indices of the OOD validation sets with a vote.
        reading: 0 for the data themselves, else the number of a round of the bootstrap.
    """
    reference = evidence.reference
    if index == reference:
        return ""
    if not voting_sets:
        return "no OOD validation set tells anything"

    # On no set alone may it be worse. difference() takes the mean over several sets, here over one.
    for set_index in voting_sets:
        gain = evidence.difference(index, reference, (set_index,), reading)
        if gain.value < -AUROC_MARGIN - _ROUNDING or gain.high < 0:
            return f"AUROC on {evidence.sets[set_index]} below that of the single model with MSP ({gain.value:+.4f})"

    # Over all sets it must be better.
    mean_gain = evidence.difference(index, reference, voting_sets, reading)
    if mean_gain.low <= 0:
        return f"mean AUROC not significantly above that of the single model with MSP ({mean_gain.value:+.4f})"
    return ""


def why_not_eligible(evidence: Evidence, index: int, max_drop: float, reading: int) -> str:
    """Return the reason why a row may not be taken, whatever its score; empty if it may.

    Args:
        evidence: the figures of all candidates.
        index: the index of a candidate of the row.
        max_drop: how much accuracy a row may lose against the single model.
        reading: 0 for the data themselves, else the number of a round of the bootstrap.
    """
    candidate = evidence.candidates[index]
    if candidate.row == SINGLE:
        return ""
    beyond_limit = _beyond_limit(evidence, index, max_drop, reading)
    if beyond_limit:
        return beyond_limit
    if not candidate.eligible:
        return "no single file can hold it: it is compared only"
    return ""


def _beyond_limit(evidence: Evidence, index: int, max_drop: float, reading: int) -> str:
    """Return how a row is beyond a limit of accuracy or NLL; empty if it keeps to both."""
    for metric, limit in limits_of(max_drop).items():
        if evidence.loss(metric, index, reading).exceeds(limit):
            figure = _value(evidence.candidates[index].inside, metric)
            of_single = _value(evidence.candidates[evidence.reference].inside, metric)
            worse = "lower" if metric == ACCURACY else "higher"
            name = KINDS[metric].words
            return f"{name} {figure:.4f}, significantly {worse} than {of_single:.4f}, and by more than {limit:g}"
    return ""


def limits_of(max_drop: float) -> dict[str, float]:
    """Return by how much accuracy and NLL of a row may be worse than those of the single model, by metric."""
    return {ACCURACY: max_drop, NLL: NLL_TOLERANCE}


def doubtful_losses(evidence: Evidence, index: int, max_drop: float) -> dict[str, Difference]:
    """Return by metric the losses of a candidate that are above their limit and may be none, as its sample is small."""
    doubtful = {}
    for metric, limit in limits_of(max_drop).items():
        loss = evidence.loss(metric, index, 0)
        if loss.value > limit + _ROUNDING and not loss.exceeds(limit):
            doubtful[metric] = loss
    return doubtful


@dataclass(frozen=True)
class StudyChoice:
    """The decisions made before any test sample is read.

    Attributes:
        chosen: the index of the candidate that is taken.
        admissible: the indices of all candidates that might have been taken, cheapest first.
        own_candidates: by row, the index of its candidate with its own score; see :func:`index_under_own_score`.
        telling, blind: the names of the OOD validation sets with and without a vote.
        rivals: the indices of the single model's admissible candidates that are not significantly below its best one.
        reasons: why each candidate was not taken, in the order of the candidates; empty for the chosen one.
        ruled_out: by row, why the validation data rule it out.
    """

    chosen: int
    admissible: list[int]
    own_candidates: dict[str, int]
    telling: list[str]
    blind: list[str]
    rivals: list[int]
    reasons: list[str]
    ruled_out: dict[str, str] = field(default_factory=dict)


def choose_candidate(evidence: Evidence, max_drop: float) -> StudyChoice:
    """Apply the rule of this module to the data themselves, and tell why each other candidate was not taken."""
    decision = decide(evidence, max_drop)
    voting_sets = decision.voting_sets
    own_candidates = {row: index_under_own_score(evidence, row, voting_sets) for row in evidence.rows}

    # Find the rivals of the choice: the scores of the single model that may be as good as its best one. A score may be
    # if the interval of its difference to the best one reaches 0.
    rivals = []
    for index in evidence.rows[SINGLE]:
        if index == evidence.reference or harm_done_by(evidence, index, voting_sets, 0):
            continue
        if evidence.difference(index, own_candidates[SINGLE], voting_sets, 0).high >= 0:
            rivals.append(index)

    # Explain the choice.
    indices = range(len(evidence.candidates))
    return StudyChoice(
        chosen=decision.chosen,
        admissible=decision.admissible,
        own_candidates=own_candidates,
        telling=[name for index, name in enumerate(evidence.sets) if index in voting_sets],
        blind=[name for index, name in enumerate(evidence.sets) if index not in voting_sets],
        rivals=rivals,
        reasons=[_why_not_taken(evidence, decision, index, max_drop) for index in indices],
        ruled_out=_ruled_out(evidence, decision, max_drop),
    )


def _ruled_out(evidence: Evidence, decision: ReadingDecision, max_drop: float) -> dict[str, str]:
    """Return by row the reason why validation data rule it out: a limit, or the harm that the common score does to it.

    Rows that are compared only, or do not have that score, are not ruled out by harm.
    """
    reasons = {}
    for row, indices in evidence.rows.items():
        index = evidence.index_under(row, decision.common_score)
        reason = _beyond_limit(evidence, indices[0], max_drop, 0)
        if not reason and index is not None and evidence.candidates[index].eligible:
            reason = harm_done_by(evidence, index, decision.voting_sets, 0)
        if reason and row != SINGLE:
            reasons[row] = reason
    return reasons


def _why_not_taken(evidence: Evidence, decision: ReadingDecision, index: int, max_drop: float) -> str:
    """Return the first reason why a candidate was not taken; empty for the chosen candidate.

    The reasons come in the order of the rule: harm; another score than that of the comparison; a limit of the row; a
    dearer row that is better; a chosen row that costs no more.
    """
    if index == decision.chosen:
        return ""
    harm_done = harm_done_by(evidence, index, decision.voting_sets, 0)
    if harm_done:
        return harm_done

    # Rows are compared under one score, so a candidate with another score could not be taken.
    candidate = evidence.candidates[index]
    chosen = evidence.candidates[decision.chosen]
    if candidate.score != chosen.score:
        return f"models are compared under {chosen.score}, the score of the single model"
    limit = why_not_eligible(evidence, index, max_drop, 0)
    if limit:
        return limit

    # The row is admissible, like the chosen one. A cheaper one is passed over only for a dearer one that is better.
    rank = decision.admissible.index(index)
    if rank < decision.admissible.index(decision.chosen):
        dearer = decision.admissible[rank + 1 :]
        better = _first_clearly_better(evidence, index, dearer, decision.voting_sets, 0)
        assert better is not None
        gain = evidence.difference(better, index, decision.voting_sets, 0)
        return f"{evidence.candidates[better].row} is better ({gain.value:+.4f})"
    price = "of the same cost" if candidate.price == chosen.price else "which costs less"
    return f"not significantly better by more than {AUROC_MARGIN:g} than {chosen.row}, {price}"


def stability(evidence: Evidence, max_drop: float, choice: StudyChoice) -> StabilityRecord:
    """Return how often rounds of the bootstrap lead to the same row and score as the data, and what others would cost.

    Args:
        evidence: the figures of all candidates on the data and in every round.
        max_drop: how much accuracy a row may lose against the single model.
        choice: the choice that the data led to.
    """
    chosen = evidence.candidates[choice.chosen]
    sets = evidence.voting_sets(0)
    same_row = 0
    same_score = 0
    differences = []
    rounds = range(1, evidence.readings)  # reading 0 is the data themselves, which the choice was made on
    for reading in rounds:
        index = decide(evidence, max_drop, reading).chosen
        same_row += evidence.candidates[index].row == chosen.row
        same_score += evidence.candidates[index].score == chosen.score
        if index != choice.chosen and sets:
            differences.append(evidence.difference(index, choice.chosen, sets, 0).value)
    return StabilityRecord(
        row=same_row / len(rounds),
        score=same_score / len(rounds),
        difference=float(np.mean(differences)) if differences else None,
    )
