"""The choice of a row and an OOD score, made on validation data alone.

A candidate is a row with an OOD score. The reference is the single model with MSP. Every row has its fitted
temperature, the single model too. All differences are paired: they are measured on the same resamples.

1. **Blind sets have no vote.** A set of OOD validation samples has a vote only if the single model separates it from
   the ID samples: under at least one of its scores, the 95 % interval of the AUROC lies above :data:`BLIND`.
2. **No harm.** The reference is admissible. Another candidate is admissible if, on every set with a vote, its AUROC is
   at most the margin below that of the reference and not significantly below it, and if the mean of its differences
   over these sets is significantly above 0.
3. **One score for all rows**: the admissible score of the single model with the highest mean AUROC, MSP if it has none.
   A row is admissible if it is so under that score, if its accuracy is at most a limit below that of the single model,
   and if its NLL is at most :data:`NLL_TOLERANCE` above it. The single model always is.
4. **The cheapest suitable row is taken**: the cheapest admissible row such that no dearer one is better by more than
   the margin, significantly. The price is mult-adds, then members, then the place in the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hydractl.metrics.bootstrap import Resampled
from hydractl.metrics.probabilities import Floats
from hydractl.studies.words import ACCURACY, AUROC_MARGIN, NLL

SINGLE = "single"
REFERENCE = "msp"
NLL_TOLERANCE = 0.02
"""How much a row's NLL may lie above that of the single model, in nats."""
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
        macs: the mult-adds of one sample; None if they are not known, which makes it dearer than any known row.
        inside: accuracy and NLL on the ID data, after temperature scaling, with their resamples.
        outside: the AUROC against each OOD set, by its name, with its resamples.
        eligible: whether it may be taken; a candidate that may not is only compared.
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
    """Return a figure on the data themselves."""
    value = resampled.values[key]
    assert value is not None  # validation data have labels, and OOD samples
    return value


def _readings(resampled: Resampled, key: str) -> Floats:
    """Return a figure on the data, then in every round of the bootstrap, [1 + rounds]."""
    on_data = _value(resampled, key)
    in_rounds = resampled.rounds[key]
    return np.concatenate([[on_data], in_rounds])


def _aurocs(candidate: Candidate, sets: Sequence[str]) -> Floats:
    """Return the AUROC of a candidate against each of the OOD sets in every reading, [sets, readings]."""
    by_set = [_readings(candidate.outside, name) for name in sets]
    return np.stack(by_set)


@dataclass(frozen=True)
class AurocDifference:
    """A paired difference of mean AUROC and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


class Evidence:
    """The figures of all candidates on the validation data and on every resample of them.

    A decision is made from one reading. Reading 0 is the data themselves. Reading r is round r of the bootstrap: its
    figures are those of the resample; its intervals are those of the data, moved along with the figures. So a decision
    can be repeated on a resample without a second bootstrap inside the first.

    Sets are given by their indices in ``sets``, and candidates by their indices ("places") in ``candidates``.

    Args:
        candidates: all candidates in the order of the table, those of one row next to each other; the reference is
            among them.
    """

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = tuple(candidates)
        self.sets = tuple(self.candidates[0].outside.values)
        aurocs = []
        accuracies = []
        nlls = []
        for candidate in self.candidates:
            aurocs.append(_aurocs(candidate, self.sets))
            accuracies.append(_readings(candidate.inside, ACCURACY))
            nlls.append(_readings(candidate.inside, NLL))
        self._aurocs = np.stack(aurocs)  # [candidates, sets, readings]
        self._accuracies = np.stack(accuracies)  # [candidates, readings]
        self._nlls = np.stack(nlls)  # [candidates, readings]
        # Kept after they were computed: means by their sets, ends of intervals by both candidates and the sets.
        self._means: dict[tuple[int, ...], Floats] = {}
        self._spreads: dict[tuple[int, int, tuple[int, ...]], tuple[float, float]] = {}

    @property
    def readings(self) -> int:
        """The number of readings, the data themselves included."""
        _, _, readings = self._aurocs.shape
        return int(readings)

    @cached_property
    def rows(self) -> dict[str, list[int]]:
        """The places of the candidates of each row, by row."""
        places: dict[str, list[int]] = {}
        for place, candidate in enumerate(self.candidates):
            places.setdefault(candidate.row, []).append(place)
        return places

    def place_under(self, row: str, score: str) -> int | None:
        """Return the place of the candidate of a row with a score; None if the row does not have that score."""
        for place in self.rows[row]:
            if self.candidates[place].score == score:
                return place
        return None

    @cached_property
    def reference(self) -> int:
        """The place of the single model with MSP."""
        place = self.place_under(SINGLE, REFERENCE)
        assert place is not None  # it is among the candidates
        return place

    def voting_sets(self, reading: int) -> tuple[int, ...]:
        """Return the sets with a vote: those that a score of the single model separates from the ID samples."""
        aurocs_of_single = self._aurocs[self.rows[SINGLE], :, reading]  # [scores, sets]
        lower_ends = aurocs_of_single + self._auroc_spreads
        highest_lower_ends = lower_ends.max(axis=0)  # [sets]
        sets = np.flatnonzero(highest_lower_ends > BLIND)
        return tuple(sets.tolist())

    @cached_property
    def _auroc_spreads(self) -> Floats:
        """The lower end of the interval of each AUROC of the single model minus its value, [scores, sets]."""
        aurocs = self._aurocs[self.rows[SINGLE]]  # [scores, sets, readings]
        on_data = aurocs[..., 0]
        in_rounds = aurocs[..., 1:]
        lower_ends: Floats = np.quantile(in_rounds, 0.025, axis=-1)
        return lower_ends - on_data

    def accuracy(self, place: int, reading: int) -> float:
        """Return the accuracy of a candidate."""
        accuracy = self._accuracies[place, reading]
        return float(accuracy)

    def nll(self, place: int, reading: int) -> float:
        """Return the NLL of a candidate, in nats."""
        nll = self._nlls[place, reading]
        return float(nll)

    def mean(self, place: int, sets: tuple[int, ...], reading: int) -> float:
        """Return the mean AUROC of a candidate over some sets; 0 without sets."""
        if not sets:
            return 0.0
        means = self._mean_aurocs(sets)
        return float(means[place, reading])

    def _mean_aurocs(self, sets: tuple[int, ...]) -> Floats:
        """Return the mean AUROC over some sets, [candidates, readings]; the means of each choice of sets are kept."""
        if sets not in self._means:
            aurocs = self._aurocs[:, list(sets)]  # [candidates, sets, readings]
            self._means[sets] = aurocs.mean(axis=1)
        return self._means[sets]

    def difference(self, place: int, other: int, sets: tuple[int, ...], reading: int) -> AurocDifference:
        """Return the mean AUROC of one candidate over some sets minus that of another one, with its 95 % interval.

        The interval has the width that it has on the data, and moves along with the difference of the reading.

        Args:
            place: the index of the candidate.
            other: the index of the other one, whose mean is subtracted.
            sets: the indices of the OOD sets that the means are over.
            reading: the data themselves, 0, or the number of a round of the bootstrap.
        """
        key = (place, other, sets)
        if key not in self._spreads:
            self._spreads[key] = self._spread_of_difference(place, other, sets)
        to_low, to_high = self._spreads[key]
        mean = self.mean(place, sets, reading)
        mean_of_other = self.mean(other, sets, reading)
        value = mean - mean_of_other
        return AurocDifference(value, low=value + to_low, high=value + to_high)

    def _spread_of_difference(self, place: int, other: int, sets: tuple[int, ...]) -> tuple[float, float]:
        """Return both ends of the 95 % interval of a difference, each minus the difference on the data."""
        aurocs = self._mean_aurocs(sets)
        differences = aurocs[place] - aurocs[other]  # [readings]
        on_data = differences[0]
        in_rounds = differences[1:]
        low, high = np.quantile(in_rounds, [0.025, 0.975])
        return float(low - on_data), float(high - on_data)


@dataclass(frozen=True)
class ReadingDecision:
    """The decision that one reading of the evidence leads to.

    Attributes:
        voting_sets: the sets that have a vote.
        compared: the place of each row under the score of the single model, without the rows that it harms.
        admissible: the rows that may be taken, cheapest first.
        chosen: the place of the candidate that is taken.
    """

    voting_sets: tuple[int, ...]
    compared: dict[str, int]
    admissible: list[str]
    chosen: int


def decide(evidence: Evidence, max_drop: float, reading: int = 0) -> ReadingDecision:
    """Apply the rule of this module to one reading of the evidence: the data themselves, or a round of the bootstrap.

    All rows are compared under the score of the single model. The cheapest row that does no harm and may be taken is
    chosen, unless a dearer one of these is clearly better.

    Args:
        evidence: the figures of all candidates.
        max_drop: how much accuracy a row may lose against the single model.
        reading: 0 for the data themselves, else the number of a round.
    """
    voting_sets = evidence.voting_sets(reading)

    # Rows without harm, under the score of the single model.
    place_of_single = place_under_own_score(evidence, SINGLE, voting_sets, reading)
    common_score = evidence.candidates[place_of_single].score
    compared = {}
    for row in evidence.rows:
        place = evidence.place_under(row, common_score)
        if place is None:
            continue
        if harm_done_by(evidence, place, voting_sets, reading):
            continue
        compared[row] = place

    # Those of them that may be taken, cheapest first.
    admissible = []
    for row, place in compared.items():
        if not why_not_eligible(evidence, place, max_drop, reading):
            admissible.append(row)

    def price(row: str) -> tuple[float, int]:
        place = compared[row]
        return evidence.candidates[place].price

    admissible.sort(key=price)  # stable: rows of one price stay in the order of the table

    # The first that no dearer one is clearly better than.
    for number_of_cheaper, row in enumerate(admissible):
        place = compared[row]
        dearer_rows = admissible[number_of_cheaper + 1 :]
        dearer = [compared[dearer_row] for dearer_row in dearer_rows]
        better = _first_clearly_better(evidence, place, dearer, voting_sets, reading)
        if better is None:
            return ReadingDecision(voting_sets, compared, admissible, place)
    raise AssertionError("the single model is always admissible")


def _first_clearly_better(
    evidence: Evidence, place: int, others: Sequence[int], voting_sets: tuple[int, ...], reading: int
) -> int | None:
    """Return the place of the first of some other candidates that is clearly better; None if none of them is.

    Args:
        evidence: the figures of all candidates.
        place: the index of the candidate that they are compared with.
        others: the indices of the others.
        voting_sets: the indices of the OOD validation sets with a vote.
        reading: the data themselves, 0, or the number of a round of the bootstrap.
    """
    for other in others:
        if clearly_better(evidence, other, place, voting_sets, reading):
            return other
    return None


def place_under_own_score(evidence: Evidence, row: str, voting_sets: tuple[int, ...], reading: int = 0) -> int:
    """Return the place of the candidate with a row's admissible score of highest mean AUROC, the first of equals.

    A row without an admissible score has its first one. Candidates are told by their indices, their "places".
    """
    places = evidence.rows[row]
    admissible = [place for place in places if not harm_done_by(evidence, place, voting_sets, reading)]
    if not admissible:
        return places[0]

    def mean_auroc(place: int) -> float:
        return evidence.mean(place, voting_sets, reading)

    return max(admissible, key=mean_auroc)


def harm_done_by(evidence: Evidence, place: int, voting_sets: tuple[int, ...], reading: int) -> str:
    """Return the reason why a candidate cannot safely replace the single model with MSP; empty if it can.

    It can if its AUROC is on none of the sets with a vote lower by more than the margin, or significantly, and its mean
    over these sets significantly higher.

    Args:
        evidence: the figures of all candidates.
        place: the index of the candidate.
        voting_sets: the indices of the OOD validation sets with a vote.
        reading: the data themselves, 0, or the number of a round of the bootstrap.
    """
    reference = evidence.reference
    if place == reference:
        return ""
    if not voting_sets:
        return "no OOD validation set tells anything"

    for index in voting_sets:
        gain = evidence.difference(place, reference, (index,), reading)
        is_large_loss = gain.value < -AUROC_MARGIN - _ROUNDING
        is_significant_loss = gain.high < 0
        if is_large_loss or is_significant_loss:
            return f"AUROC on {evidence.sets[index]} below that of the single model with MSP ({gain.value:+.4f})"

    mean_gain = evidence.difference(place, reference, voting_sets, reading)
    if mean_gain.low <= 0:
        return f"mean AUROC not significantly above that of the single model with MSP ({mean_gain.value:+.4f})"
    return ""


def why_not_eligible(evidence: Evidence, place: int, max_drop: float, reading: int) -> str:
    """Return the reason why a row may not be taken, whatever its score; empty if it may.

    Args:
        evidence: the figures of all candidates.
        place: the index of a candidate of the row.
        max_drop: how much accuracy a row may lose against the single model.
        reading: the data themselves, 0, or the number of a round of the bootstrap.
    """
    candidate = evidence.candidates[place]
    if candidate.row == SINGLE:
        return ""

    accuracy = evidence.accuracy(place, reading)
    single_accuracy = evidence.accuracy(evidence.reference, reading)
    loss = single_accuracy - accuracy
    if loss > max_drop + _ROUNDING:
        return f"accuracy {accuracy:.4f}, lower than {single_accuracy:.4f} by more than {max_drop:g}"

    nll = evidence.nll(place, reading)
    single_nll = evidence.nll(evidence.reference, reading)
    if nll - single_nll > NLL_TOLERANCE:
        return f"NLL {nll:.4f}, higher than {single_nll:.4f} by more than {NLL_TOLERANCE:g}"

    if not candidate.eligible:
        return "no single file can hold it: it is compared only"
    return ""


def clearly_better(evidence: Evidence, place: int, other: int, voting_sets: tuple[int, ...], reading: int) -> bool:
    """Return whether the mean AUROC of a candidate is above that of another by more than the margin, significantly.

    The mean is over the sets with a vote; without any, no candidate is better.
    """
    if not voting_sets:
        return False
    gain = evidence.difference(place, other, voting_sets, reading)
    is_large = gain.value > AUROC_MARGIN + _ROUNDING
    is_significant = gain.low > 0
    return is_large and is_significant


@dataclass(frozen=True)
class StudyChoice:
    """The decisions made before any test sample is read.

    Attributes:
        chosen: the place of the candidate that is taken.
        own_places: the place of each row under its own score, by row; see :func:`place_under_own_score`.
        telling, blind: the names of the OOD validation sets with and without a vote.
        rivals: the places of the admissible scores of the single model that are not significantly below its best one.
        reasons: why each candidate was not taken, in the order of the candidates; empty for the chosen one.
        limits: the reason why each row may not be taken, whatever its score, by row; empty if it may.
    """

    chosen: int
    own_places: dict[str, int]
    telling: list[str]
    blind: list[str]
    rivals: list[int]
    reasons: list[str]
    limits: dict[str, str] = field(default_factory=dict)


def choose_candidate(evidence: Evidence, max_drop: float) -> StudyChoice:
    """Apply the rule of this module to the data themselves, and tell why each other candidate was not taken."""
    decision = decide(evidence, max_drop)
    voting_sets = decision.voting_sets
    own_places = {row: place_under_own_score(evidence, row, voting_sets) for row in evidence.rows}

    # Scores of the single model that may be as good as its best one.
    rivals = []
    for place in evidence.rows[SINGLE]:
        if place == evidence.reference:
            continue
        if harm_done_by(evidence, place, voting_sets, 0):
            continue
        to_best = evidence.difference(place, own_places[SINGLE], voting_sets, 0)
        if to_best.high >= 0:
            rivals.append(place)

    telling_names = []
    blind_names = []
    for index, name in enumerate(evidence.sets):
        if index in voting_sets:
            telling_names.append(name)
        else:
            blind_names.append(name)

    places = range(len(evidence.candidates))
    reasons = [_why_not_taken(evidence, decision, place, max_drop) for place in places]
    limits = {row: why_not_eligible(evidence, place, max_drop, 0) for row, place in own_places.items()}
    return StudyChoice(
        chosen=decision.chosen,
        own_places=own_places,
        telling=telling_names,
        blind=blind_names,
        rivals=rivals,
        reasons=reasons,
        limits=limits,
    )


def _why_not_taken(evidence: Evidence, decision: ReadingDecision, place: int, max_drop: float) -> str:
    """Return the first reason why a candidate was not taken; empty for the one that was.

    In the order of the rule: harm, a score other than that of the comparison, a limit of the row, a better dearer row,
    and at last a chosen row that costs no more.
    """
    if place == decision.chosen:
        return ""
    harm_done = harm_done_by(evidence, place, decision.voting_sets, 0)
    if harm_done:
        return harm_done
    candidate = evidence.candidates[place]
    chosen = evidence.candidates[decision.chosen]
    if candidate.score != chosen.score:
        return f"rows are compared under {chosen.score}, the score of the single model"
    limit = why_not_eligible(evidence, place, max_drop, 0)
    if limit:
        return limit

    # Both rows are admissible, which are sorted by their price.
    rank = decision.admissible.index(candidate.row)
    rank_of_chosen = decision.admissible.index(chosen.row)
    if rank < rank_of_chosen:
        dearer_rows = decision.admissible[rank + 1 :]
        return _better_row(evidence, decision, place, dearer_rows)
    price = "which costs less"
    if candidate.price == chosen.price:
        price = "of the same cost"
    return f"not significantly better by more than {AUROC_MARGIN:g} than {chosen.row}, {price}"


def _better_row(evidence: Evidence, decision: ReadingDecision, place: int, dearer_rows: Sequence[str]) -> str:
    """Name the first of some dearer rows that is clearly better than a candidate, with its gain."""
    dearer = [decision.compared[row] for row in dearer_rows]
    better = _first_clearly_better(evidence, place, dearer, decision.voting_sets, 0)
    if better is None:
        raise AssertionError("a cheaper row is left only for a better one")
    gain = evidence.difference(better, place, decision.voting_sets, 0)
    row = evidence.candidates[better].row
    return f"{row} is better ({gain.value:+.4f})"


@dataclass(frozen=True)
class Stability:
    """The shares of resamples of the validation data that lead to the same row, and to the same score, as the data."""

    row: float
    score: float


def stability(evidence: Evidence, max_drop: float, choice: StudyChoice) -> Stability:
    """Return how often the rounds of the bootstrap lead to the same choice as the data.

    Args:
        evidence: the figures of all candidates on the data and in every round.
        max_drop: how much accuracy a row may lose against the single model.
        choice: the choice that the data led to.
    """
    chosen = evidence.candidates[choice.chosen]
    same_row = 0
    same_score = 0
    rounds = range(1, evidence.readings)  # reading 0 is the data themselves, which the choice was made on
    for reading in rounds:
        decision = decide(evidence, max_drop, reading)
        chosen_again = evidence.candidates[decision.chosen]
        if chosen_again.row == chosen.row:
            same_row += 1
        if chosen_again.score == chosen.score:
            same_score += 1
    return Stability(same_row / len(rounds), same_score / len(rounds))
