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

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
        macs: the mult-adds of one sample.
        inside: accuracy and NLL on the ID data, after temperature scaling, with their resamples.
        outside: the AUROC against each OOD set, by its name, with its resamples.
        eligible: whether it may be chosen; otherwise it is only compared.
    """

    row: str
    score: str
    members: int
    macs: int
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
    def price(self) -> tuple[int, int]:
        """The key that candidates are sorted by, cheapest first: mult-adds, then members."""
        return self.macs, self.members

    def readings(self, figure: Figure) -> Floats:
        """Return a figure on the data, followed by its value in every round of the bootstrap, [1 + rounds].

        It is a metric of the ID data, such as ``id.accuracy``, or the mean AUROC over the OOD sets of a tuple.
        """
        if isinstance(figure, str):
            return np.append(_value(self.inside, figure), self.inside.rounds[figure])
        aurocs = [np.append(_value(self.outside, name), self.outside.rounds[name]) for name in figure]
        return np.mean(aurocs, axis=0)


def _value(resampled: Resampled, key: str) -> float:
    """Return a figure on the data themselves, e.g. for the key ``id.accuracy``."""
    value = resampled.values[key]
    assert value is not None  # validation data have labels, and OOD samples
    return value


Figure = str | tuple[str, ...]
"""What candidates are compared by: a metric, or the names of the OOD sets that the mean AUROC is over."""


@dataclass(frozen=True)
class Difference:
    """A paired difference of a figure, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Decision:
    """The decision that one reading of the figures leads to: the data themselves, or a round of the bootstrap.

    All rows are compared under the score of the single model. The cheapest row that does no harm and may be taken is
    chosen, unless a dearer row of this kind is clearly better.

    Reading 0 is the data themselves. Reading r is round r of the bootstrap: its figures are those of the resample. Its
    intervals have the width of the intervals on the data, and move along with the figures. So a decision can be
    repeated on a resample without a second bootstrap inside the first.

    Attributes:
        candidates: all candidates in the order of the table. The reference (the single model with MSP) is among them.
        max_drop: how much accuracy a row may lose against the single model.
        may_vote: whether sets can have a vote; not where their OOD samples are made because nobody gave any.
        reading: the number of the reading.
        known: what :meth:`_difference` has computed, for all readings: differences of candidates in every reading,
            [1 + rounds], and the ends of the interval minus the value, e.g. -0.02 and 0.03.
    """

    candidates: Sequence[Candidate]
    max_drop: float
    may_vote: bool = True
    reading: int = 0
    known: dict[tuple[Candidate, Candidate | None, Figure], tuple[Floats, float, float]] = field(default_factory=dict)

    @cached_property
    def rows(self) -> dict[str, dict[str, Candidate]]:
        """By row, its candidates by their score; a row has the score that comes first in the table first."""
        rows: dict[str, dict[str, Candidate]] = {}
        for candidate in self.candidates:
            rows.setdefault(candidate.row, {})[candidate.score] = candidate
        return rows

    @property
    def reference(self) -> Candidate:
        """The single model with MSP."""
        return self.rows[SINGLE][REFERENCE]

    @property
    def limits(self) -> dict[str, float]:
        """By metric, how much worse accuracy and NLL of a row may be than those of the single model."""
        return {ACCURACY: self.max_drop, NLL: NLL_TOLERANCE}

    @property
    def sets(self) -> tuple[str, ...]:
        """The names of the OOD validation sets."""
        return tuple(self.candidates[0].outside.values)

    @cached_property
    def telling(self) -> tuple[str, ...]:
        """The names of the OOD sets with a vote, those that a score of the single model separates from ID data.

        For such a set the 95 % interval of its AUROC lies above 0.6 under one score at least. Empty if no set may vote.
        """
        if not self.may_vote:
            return ()
        with_vote = []
        for name in self.sets:
            # The AUROC of the single model on this set under each of its scores (a difference to nothing).
            aurocs = (self._difference(candidate, None, (name,)) for candidate in self.rows[SINGLE].values())
            if any(auroc.low > BLIND for auroc in aurocs):
                with_vote.append(name)
        return tuple(with_vote)

    @property
    def blind(self) -> list[str]:
        """The names of the OOD validation sets without a vote."""
        return [name for name in self.sets if name not in self.telling]

    # --- figures ------------------------------------------------------------------------------------------------------

    def _difference(self, candidate: Candidate, other: Candidate | None, figure: Figure) -> Difference:
        """Return a figure of one candidate minus that of another, with its 95 % interval.

        The interval has the width that it has on the data, and moves along with the difference of the reading: if it
        is 0.02 (0.01 to 0.04) on the data, it is 0.05 (0.04 to 0.07) in a round with a difference of 0.05.

        Args:
            candidate: the candidate.
            other: the other one; None for the figure of the first alone.
            figure: a metric, or the names of the OOD sets that the mean AUROC is over; there are some.
        """
        # The differences, and the ends of the interval minus the value, once for every pair: index 0 is the data, the
        # others are rounds.
        key = (candidate, other, figure)
        if key not in self.known:
            differences = candidate.readings(figure)
            if other is not None:
                differences = differences - other.readings(figure)
            low, high = np.quantile(differences[1:], [0.025, 0.975])
            self.known[key] = differences, float(low - differences[0]), float(high - differences[0])

        # The value in this reading, with an interval of the same width.
        differences, to_low, to_high = self.known[key]
        value = float(differences[self.reading])
        return Difference(value, low=value + to_low, high=value + to_high)

    def _gain(self, candidate: Candidate, other: Candidate | None) -> Difference:
        """Return the mean AUROC of a candidate over the sets with a vote, of which there are some, minus another's."""
        return self._difference(candidate, other, self.telling)

    def mean_auroc(self, candidate: Candidate) -> float:
        """Return the mean AUROC of a candidate over the sets with a vote; 0 without any."""
        return self._gain(candidate, None).value if self.telling else 0.0

    def losses_beyond_limit(self, row: str) -> dict[str, Difference]:
        """Return by how much accuracy and NLL of a row are worse than those of the single model, by metric.

        It has only those above their limit, significantly or not: with a limit of 0.01 an accuracy that is lower by
        0.02, not one that is lower by 0.005.
        """
        candidate, *_ = self.rows[row].values()  # accuracy and NLL do not depend on the score
        losses = {
            ACCURACY: self._difference(self.reference, candidate, ACCURACY),  # higher is better
            NLL: self._difference(candidate, self.reference, NLL),
        }
        return {metric: loss for metric, loss in losses.items() if loss.value > self.limits[metric] + _ROUNDING}

    # --- the rule -----------------------------------------------------------------------------------------------------

    def own_candidate(self, row: str) -> Candidate:
        """Return the candidate of a row with its own score, the admissible one with the highest mean AUROC.

        A score is admissible for a row if both together do no harm compared with the single model with MSP. Of equal
        scores the first counts. A row without an admissible score has its first score as its own.
        """
        candidates = [*self.rows[row].values()]
        admissible = [candidate for candidate in candidates if not self._harm_done_by(candidate)]
        return max(admissible, key=self.mean_auroc, default=candidates[0])

    @cached_property
    def common_score(self) -> str:
        """The score of the single model, under which all rows are compared."""
        return self.own_candidate(SINGLE).score

    @cached_property
    def admissible(self) -> list[Candidate]:
        """The candidates with the common score that do no harm and may be taken, cheapest first."""
        admissible = []
        for candidate in self.candidates:
            is_compared = candidate.score == self.common_score
            if is_compared and not self._why_not_admissible(candidate):
                admissible.append(candidate)
        # This is stable: rows of the same price stay in the order of the table.
        return sorted(admissible, key=lambda candidate: candidate.price)

    @cached_property
    def chosen(self) -> Candidate:
        """The candidate that is taken: the cheapest admissible one for which no dearer one is clearly better.

        There is always one: nothing is dearer than the last, and the single model is admissible.
        """
        return next(candidate for candidate in self.admissible if self._better_and_dearer(candidate) is None)

    def _better_and_dearer(self, candidate: Candidate) -> Candidate | None:
        """Return the cheapest dearer candidate that is significantly better by more than the margin; None without one.

        Only admissible candidates are looked at; without an OOD set with a vote there is no other one. With a margin of
        0.01, one that is better by 0.02 (0.005 to 0.035) is returned, by 0.02 (-0.001 to 0.041) not.
        """
        # They are sorted by cost, so all that are dearer, or cost the same and come later, stand behind this one.
        index = self.admissible.index(candidate)
        for other in self.admissible[index + 1 :]:
            gain = self._gain(other, candidate)
            if gain.value > AUROC_MARGIN + _ROUNDING and gain.low > 0:
                return other
        return None

    def _harm_done_by(self, candidate: Candidate) -> str:
        """Return the reason why a candidate cannot safely replace the single model with MSP; empty if it can.

        It can if two conditions hold. On no set with a vote is its AUROC lower by more than the margin, or
        significantly lower. And its mean AUROC over these sets is significantly higher.
        """
        reference = self.reference  # the single model with MSP
        if candidate is reference:
            return ""
        if not self.telling:  # no set has a vote
            return "no OOD validation set tells anything"

        # On no set alone may it be worse: _difference() takes the mean over the sets of a tuple, here over one.
        for name in self.telling:
            gain = self._difference(candidate, reference, (name,))
            if gain.value < -AUROC_MARGIN - _ROUNDING or gain.high < 0:
                return f"AUROC on {name} below that of the single model with MSP ({gain.value:+.4f})"

        # Over all sets it must be better.
        mean_gain = self._gain(candidate, reference)
        if mean_gain.low <= 0:
            return f"mean AUROC not significantly above that of the single model with MSP ({mean_gain.value:+.4f})"
        return ""

    def _why_not_admissible(self, candidate: Candidate) -> str:
        """Return the first reason against a candidate, whatever the others cost and gain; empty without one.

        The reasons come in the order of the rule: harm; another score than that of the comparison; a limit of accuracy
        or NLL, which the single model keeps; no single file can hold the row.
        """
        harm_done = self._harm_done_by(candidate)
        if harm_done:
            return harm_done
        if candidate.score != self.common_score:
            return f"models are compared under {self.common_score}, the score of the single model"
        beyond_limit = self._beyond_limit(candidate)
        if beyond_limit:
            return beyond_limit
        return "" if candidate.eligible else "no single file can hold it: it is compared only"

    def _beyond_limit(self, candidate: Candidate) -> str:
        """Return the text that says how accuracy or NLL of a row is too much worse than that of the single model.

        Too much is significantly, and by more than the limit. Empty if neither is; if both are, it is about accuracy.
        """
        for metric, loss in self.losses_beyond_limit(candidate.row).items():
            if loss.low > 0:
                figure = _value(candidate.inside, metric)
                of_single = _value(self.reference.inside, metric)
                worse = "lower" if metric == ACCURACY else "higher"
                limit = f"by more than {self.limits[metric]:g}"
                return f"{KINDS[metric].words} {figure:.4f}, significantly {worse} than {of_single:.4f}, and {limit}"
        return ""

    # --- what is said of it -------------------------------------------------------------------------------------------

    @property
    def rivals(self) -> list[Candidate]:
        """The OOD scores of the single model, without MSP, that may be as good as its best score.

        A score may be if it is admissible and the interval of its difference to the best one reaches 0; so the best
        score is among them. Each is a candidate: the single model with that score. Empty if none is admissible.
        """
        best = self.own_candidate(SINGLE)
        rivals = []
        for candidate in self.rows[SINGLE].values():
            if candidate is self.reference or self._harm_done_by(candidate):
                continue
            if self._gain(candidate, best).high >= 0:
                rivals.append(candidate)
        return rivals

    @cached_property
    def ruled_out(self) -> dict[str, str]:
        """By row, why validation data rule it out: a limit, or the harm that the common score does to it.

        Rows that are compared only, or do not have that score, are not ruled out by harm.
        """
        reasons = {}
        for row, candidates in self.rows.items():
            # A limit of accuracy or NLL comes first; they are the same for all candidates of a row.
            first, *_ = candidates.values()
            reason = self._beyond_limit(first)
            # Then harm under the score that all rows are compared under; None if the row does not have that score.
            candidate = candidates.get(self.common_score)
            if not reason and candidate is not None and candidate.eligible:
                reason = self._harm_done_by(candidate)
            if reason:
                reasons[row] = reason
        return reasons

    def why_not_taken(self, candidate: Candidate) -> str:
        """Return the first reason why a candidate was not taken; empty for the chosen candidate.

        It is inadmissible, or a dearer row is better, or the chosen row costs no more.
        """
        chosen = self.chosen
        if candidate is chosen:
            return ""
        inadmissible = self._why_not_admissible(candidate)
        if inadmissible:
            return inadmissible

        # The candidate is admissible, like the chosen one. One that is cheaper (earlier in the list) is passed over
        # only for a dearer one that is better. One that is not cheaper is not better by enough.
        if self.admissible.index(candidate) < self.admissible.index(chosen):
            better = self._better_and_dearer(candidate)
            assert better is not None
            return f"{better.row} is better ({self._gain(better, candidate).value:+.4f})"
        price = "as much" if candidate.price == chosen.price else "less"
        gain = f"{self._gain(candidate, chosen).value:+.4f}"
        return (
            f"its gain over {chosen.row}, which costs {price}, is {gain} there, not for certain above {AUROC_MARGIN:g}"
        )

    @cached_property
    def stability(self) -> StabilityRecord:
        """How often resamples of the validation data lead to the same row, and to the same score, as a share of 1.

        ``difference`` is the mean AUROC of what they choose instead minus that of the choice, both on the data, as the
        mean over the resamples that choose otherwise; None if none does, or if no set has a vote.
        """
        rounds = len(self.chosen.inside.rounds[ACCURACY])
        # Repeat the whole decision on each resample. Reading 0 is the data themselves, which the choice was made on.
        others = [replace(self, reading=reading).chosen for reading in range(1, rounds + 1)]
        differences = []
        if self.telling:
            differences = [self._gain(other, self.chosen).value for other in others if other is not self.chosen]
        return StabilityRecord(
            row=sum(other.row == self.chosen.row for other in others) / rounds,
            score=sum(other.score == self.chosen.score for other in others) / rounds,
            difference=float(np.mean(differences)) if differences else None,
        )
