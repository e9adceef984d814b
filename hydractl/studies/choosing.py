"""Which row and which OOD score a study takes: decided on validation data alone.

A candidate is a row with an OOD score. The reference is the single model with MSP; every row, that one too, has its
fitted temperature. All differences are paired: they are taken on the same resamples.

1. **Blind sets have no vote.** A set of OOD validation samples tells something only where the single model separates
   it from the ID samples: the 95 % interval of its AUROC lies above :data:`BLIND` under one of its scores at least.
2. **No harm.** Another candidate than the reference is admissible where its AUROC is, on every set that tells, at most
   the margin below that of the reference and not significantly below it, and where the mean of its differences is
   significantly above 0.
3. **One score for all rows**: the admissible score of the single model with the highest mean AUROC, MSP where it has
   none. A row is admissible where it is so under that score, its accuracy is not below that of the single model by more
   than a limit, and its NLL not above it by more than :data:`NLL_TOLERANCE`. The single model always is.
4. **The cheapest admissible row is taken of which no dearer one is better by more than the margin, significantly.** The
   price is mult-adds, then members, then the place in the table.
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
"""Nats."""
BLIND = 0.6
"""A set of OOD samples that no score of the single model separates better, its interval considered, tells nothing."""
_ROUNDING = 1e-9
"""Ratios of counts may differ by so much without a sample having moved."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A row with an OOD score, on validation data.

    Attributes:
        row, score: their names.
        members: of the row.
        macs: mult-adds of a sample; None where they are not known: then no row is cheaper for it.
        inside: accuracy and NLL on the ID data, after temperature scaling, with their resamples.
        outside: the AUROC against each OOD set, by its name, with its resamples.
        eligible: whether it may be taken; others are compared only.
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
        """Mult-adds, then members."""
        if self.macs is None:
            return math.inf, self.members
        return self.macs, self.members


def _value(resampled: Resampled, key: str) -> float:
    value = resampled.values[key]
    assert value is not None  # validation data have labels, and OOD samples
    return value


def _readings(resampled: Resampled, key: str) -> Floats:
    """Return the figure on the data, then in every round, [1 + R]."""
    return np.concatenate([[_value(resampled, key)], resampled.rounds[key]])


def _aurocs(candidate: Candidate, sets: Sequence[str]) -> Floats:
    """Return the AUROC of a candidate against each of the OOD sets in every reading, [sets, 1 + R]."""
    return np.stack([_readings(candidate.outside, name) for name in sets])


@dataclass(frozen=True)
class AurocDifference:
    """A paired difference of mean AUROC with its 95 % interval."""

    value: float
    low: float
    high: float


class Evidence:
    """What validation data say of all candidates.

    Reading 0 is the data themselves. Reading r is the data as round r of the bootstrap drew them: its figures, with the
    intervals of the data moved along, so that a decision can be made again without a bootstrap inside the bootstrap.

    Args:
        candidates: in the order of the table, those of each row together; the reference is among them.
    """

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = tuple(candidates)
        self.sets = tuple(self.candidates[0].outside.values)
        aurocs = [_aurocs(candidate, self.sets) for candidate in self.candidates]
        accuracies = [_readings(candidate.inside, ACCURACY) for candidate in self.candidates]
        nlls = [_readings(candidate.inside, NLL) for candidate in self.candidates]
        self._aurocs = np.stack(aurocs)  # [candidates, sets, readings]
        self._accuracies = np.stack(accuracies)  # [candidates, readings]
        self._nlls = np.stack(nlls)  # [candidates, readings]
        self._means: dict[tuple[int, ...], Floats] = {}
        self._spreads: dict[tuple[int, int, tuple[int, ...]], tuple[float, float]] = {}

    @property
    def readings(self) -> int:
        """How many readings there are, the data themselves included."""
        return int(self._aurocs.shape[-1])

    @cached_property
    def rows(self) -> dict[str, list[int]]:
        """The places of the candidates of each row."""
        places: dict[str, list[int]] = {}
        for place, candidate in enumerate(self.candidates):
            places.setdefault(candidate.row, []).append(place)
        return places

    def under(self, row: str, score: str) -> int | None:
        """Return the place of a row with a score; None where it has not that score."""
        for place in self.rows[row]:
            if self.candidates[place].score == score:
                return place
        return None

    @cached_property
    def reference(self) -> int:
        """The place of the single model with MSP."""
        place = self.under(SINGLE, REFERENCE)
        assert place is not None  # it is among the candidates
        return place

    def telling(self, reading: int) -> tuple[int, ...]:
        """Return the sets that some score of the single model separates from the ID samples."""
        lower_ends = self._aurocs[self.rows[SINGLE], :, reading] + self._auroc_spreads
        return tuple(np.flatnonzero(lower_ends.max(axis=0) > BLIND).tolist())

    @cached_property
    def _auroc_spreads(self) -> Floats:
        """The lower end of each AUROC of the single model minus its value, [scores of the single model, sets]."""
        aurocs = self._aurocs[self.rows[SINGLE]]
        ends: Floats = np.quantile(aurocs[..., 1:], 0.025, axis=-1)
        return ends - aurocs[..., 0]

    def accuracy(self, place: int, reading: int) -> float:
        """Return the accuracy of a candidate."""
        return float(self._accuracies[place, reading])

    def nll(self, place: int, reading: int) -> float:
        """Return the NLL of a candidate."""
        return float(self._nlls[place, reading])

    def mean(self, place: int, sets: tuple[int, ...], reading: int) -> float:
        """Return the mean AUROC of a candidate over some sets; 0 without any."""
        if not sets:
            return 0.0
        return float(self._mean_aurocs(sets)[place, reading])

    def _mean_aurocs(self, sets: tuple[int, ...]) -> Floats:
        """Return the mean AUROC over some sets, [candidates, readings]."""
        if sets not in self._means:
            self._means[sets] = self._aurocs[:, list(sets)].mean(axis=1)
        return self._means[sets]

    def difference(self, place: int, other: int, sets: tuple[int, ...], reading: int) -> AurocDifference:
        """Return the mean AUROC of one candidate over some sets minus that of another."""
        key = (place, other, sets)
        if key not in self._spreads:
            self._spreads[key] = self._spread_of_difference(place, other, sets)
        below, above = self._spreads[key]
        value = self.mean(place, sets, reading) - self.mean(other, sets, reading)
        return AurocDifference(value, value + below, value + above)

    def _spread_of_difference(self, place: int, other: int, sets: tuple[int, ...]) -> tuple[float, float]:
        """Return both ends of the interval of a difference minus its value, on the data."""
        aurocs = self._mean_aurocs(sets)
        gains = aurocs[place] - aurocs[other]
        on_data = gains[0]
        low, high = np.quantile(gains[1:], [0.025, 0.975])
        return float(low - on_data), float(high - on_data)


@dataclass(frozen=True)
class ReadingDecision:
    """What one reading of the evidence leads to.

    Attributes:
        telling: the sets that have a vote.
        compared: by row its place under the score of the single model; rows that may not have it are not there.
        admissible: the rows that may be taken, cheapest first.
        chosen: the place of the candidate that is taken.
    """

    telling: tuple[int, ...]
    compared: dict[str, int]
    admissible: list[str]
    chosen: int


def decide(evidence: Evidence, max_drop: float, reading: int = 0) -> ReadingDecision:
    """Apply the rule of this module to one reading."""
    telling = evidence.telling(reading)
    score = evidence.candidates[own_score(evidence, SINGLE, telling, reading)].score
    compared = {}
    for row in evidence.rows:
        place = evidence.under(row, score)
        if place is not None and not harm(evidence, place, telling, reading):
            compared[row] = place
    admissible = [row for row, place in compared.items() if not too_bad(evidence, place, max_drop, reading)]
    admissible.sort(key=lambda row: evidence.candidates[compared[row]].price)  # the first of equals
    for number, row in enumerate(admissible):
        place = compared[row]
        dearer = [compared[other] for other in admissible[number + 1 :]]
        if not any(clearly_better(evidence, other, place, telling, reading) for other in dearer):
            return ReadingDecision(telling, compared, admissible, place)
    raise AssertionError("the single model is always admissible")


def own_score(evidence: Evidence, row: str, telling: tuple[int, ...], reading: int = 0) -> int:
    """Return the place of the admissible score of a row with the highest mean AUROC, else of its first score."""
    admissible = [place for place in evidence.rows[row] if not harm(evidence, place, telling, reading)]
    if not admissible:
        return evidence.rows[row][0]
    return max(admissible, key=lambda place: evidence.mean(place, telling, reading))  # the first of equals


def harm(evidence: Evidence, place: int, telling: tuple[int, ...], reading: int) -> str:
    """Say why a candidate is no safe replacement of the reference; nothing where it is one."""
    reference = evidence.reference
    if place == reference:
        return ""
    if not telling:
        return "no OOD validation set tells anything"
    for index in telling:
        gain = evidence.difference(place, reference, (index,), reading)
        if gain.value < -AUROC_MARGIN - _ROUNDING or gain.high < 0:
            return f"AUROC on {evidence.sets[index]} below that of the single model with MSP ({gain.value:+.4f})"
    mean_gain = evidence.difference(place, reference, telling, reading)
    if mean_gain.low <= 0:
        return f"mean AUROC not significantly above that of the single model with MSP ({mean_gain.value:+.4f})"
    return ""


def too_bad(evidence: Evidence, place: int, max_drop: float, reading: int) -> str:
    """Say why a row may not be taken whatever its score; nothing where it may."""
    candidate = evidence.candidates[place]
    if candidate.row == SINGLE:
        return ""
    accuracy = evidence.accuracy(place, reading)
    single_accuracy = evidence.accuracy(evidence.reference, reading)
    if single_accuracy - accuracy > max_drop + _ROUNDING:
        return f"accuracy {accuracy:.4f}, lower than {single_accuracy:.4f} by more than {max_drop:g}"
    nll = evidence.nll(place, reading)
    single_nll = evidence.nll(evidence.reference, reading)
    if nll - single_nll > NLL_TOLERANCE:
        return f"NLL {nll:.4f}, higher than {single_nll:.4f} by more than {NLL_TOLERANCE:g}"
    if not candidate.eligible:
        return "no single file can hold it: it is compared only"
    return ""


def clearly_better(evidence: Evidence, place: int, other: int, telling: tuple[int, ...], reading: int) -> bool:
    """Return whether the mean AUROC of a candidate is above another's by more than the margin, significantly."""
    if not telling:
        return False
    gain = evidence.difference(place, other, telling, reading)
    return gain.value > AUROC_MARGIN + _ROUNDING and gain.low > 0


@dataclass(frozen=True)
class Choice:
    """What was decided before any test sample is read.

    Attributes:
        chosen: the place of the candidate that is taken.
        own_places: by row the place of its own score: the admissible one of the highest mean, MSP where none is.
        telling, blind: names of the OOD validation sets that have a vote, and of those that have none.
        rivals: places of the admissible candidates of the single model that are not significantly below its best.
        reasons: for each candidate why it was not taken; empty for the chosen one.
        limits: by row what speaks against taking it whatever its score.
    """

    chosen: int
    own_places: dict[str, int]
    telling: list[str]
    blind: list[str]
    rivals: list[int]
    reasons: list[str]
    limits: dict[str, str] = field(default_factory=dict)


def choose_candidate(evidence: Evidence, max_drop: float) -> Choice:
    """Apply the rule to the data, and say of each candidate why it was not taken."""
    decision = decide(evidence, max_drop)
    telling = decision.telling
    own_places = {row: own_score(evidence, row, telling) for row in evidence.rows}
    rivals = []
    for place in evidence.rows[SINGLE]:
        if place == evidence.reference or harm(evidence, place, telling, 0):
            continue
        if evidence.difference(place, own_places[SINGLE], telling, 0).high >= 0:
            rivals.append(place)
    telling_names = []
    blind_names = []
    for index, name in enumerate(evidence.sets):
        if index in telling:
            telling_names.append(name)
        else:
            blind_names.append(name)
    places = range(len(evidence.candidates))
    reasons = [_reason(evidence, decision, place, max_drop) for place in places]
    limits = {row: too_bad(evidence, place, max_drop, 0) for row, place in own_places.items()}
    return Choice(
        chosen=decision.chosen,
        own_places=own_places,
        telling=telling_names,
        blind=blind_names,
        rivals=rivals,
        reasons=reasons,
        limits=limits,
    )


def _reason(evidence: Evidence, decision: ReadingDecision, place: int, max_drop: float) -> str:
    """Say why a candidate was not taken; nothing of the one that was."""
    if place == decision.chosen:
        return ""
    candidate = evidence.candidates[place]
    chosen = evidence.candidates[decision.chosen]
    harmful = harm(evidence, place, decision.telling, 0)
    if harmful:
        return harmful
    if candidate.score != chosen.score:
        return f"rows are compared under {chosen.score}, the score of the single model"
    limit = too_bad(evidence, place, max_drop, 0)
    if limit:
        return limit
    rank = decision.admissible.index(candidate.row)
    if rank < decision.admissible.index(chosen.row):
        return _better_row(evidence, decision, place, decision.admissible[rank + 1 :])
    price = "of the same cost" if candidate.price == chosen.price else "which costs less"
    return f"not significantly better by more than {AUROC_MARGIN:g} than {chosen.row}, {price}"


def _better_row(evidence: Evidence, decision: ReadingDecision, place: int, dearer: Sequence[str]) -> str:
    """Name the first of some dearer rows that is clearly better than a candidate."""
    for row in dearer:
        other = decision.compared[row]
        if clearly_better(evidence, other, place, decision.telling, 0):
            gain = evidence.difference(other, place, decision.telling, 0)
            return f"{row} is better ({gain.value:+.4f})"
    raise AssertionError("a cheaper row is left only for a better one")


@dataclass(frozen=True)
class Stability:
    """The shares of resamples of the validation data that lead to the same row, and to the same score."""

    row: float
    score: float


def stability(evidence: Evidence, max_drop: float, choice: Choice) -> Stability:
    """Return how often the choice is made again in the rounds of the bootstrap."""
    chosen = evidence.candidates[choice.chosen]
    same_row = 0
    same_score = 0
    # Reading 0 is of the samples themselves, which the choice was made on; the others are of resampled ones.
    rounds = range(1, evidence.readings)
    for reading in rounds:
        decision = decide(evidence, max_drop, reading)
        chosen_again = evidence.candidates[decision.chosen]
        if chosen_again.row == chosen.row:
            same_row += 1
        if chosen_again.score == chosen.score:
            same_score += 1
    return Stability(same_row / len(rounds), same_score / len(rounds))
