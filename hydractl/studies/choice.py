"""The choice of a row and a score on the validation data, with the figures behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from hydractl.files.model_records import Calibration
from hydractl.files.study_answer import ChoiceRecord
from hydractl.metrics.ood_scores import HEDGE
from hydractl.studies.measured_rows import MeasuredRow, fitted_temperature, measure_row
from hydractl.studies.plan import Plan, Row
from hydractl.studies.rule import (
    BLIND,
    NLL_TOLERANCE,
    REFERENCE,
    SINGLE,
    Candidate,
    Decision,
)
from hydractl.studies.verdict import Rung
from hydractl.studies.words import AUROC_MARGIN

RULE = (
    "Decided on the halves of the validation data that the search has not seen, all differences paired. An OOD "
    "validation set tells something where some score of the single model has an AUROC whose interval lies above "
    "{blind:g}; others have no vote. A row with a score is admissible where its AUROC is on no such set more than "
    "{margin:g}, or significantly, below that of the single model with MSP, and its mean significantly above; a row "
    "also unless its accuracy is more than {drop:g} below that of the single model, or its NLL after temperature "
    "scaling more than {nll:g} above it, significantly so. All rows are compared under the admissible score of the "
    "single model with the highest mean AUROC. The cheapest admissible row is taken of which no dearer one is better "
    "by more than {margin:g}, significantly. Where no set tells anything, or none was given, it is the single model "
    "with the sum of scores hedge, or with MSP where scores on features are left out."
)


@dataclass(frozen=True)
class Chosen:
    """What was chosen before any test sample is read.

    Attributes:
        plan: the plan of the study.
        rows: the rows by name, measured on the validation data.
        choice: the decision on the validation data, and the reasons against all others.
    """

    plan: Plan
    rows: Mapping[str, MeasuredRow]
    choice: Decision

    @property
    def tested_rows(self) -> list[Row]:
        """The rows that run on the test data: those that somebody named, and all that are not in :attr:`ruled_out`."""
        return [row for row in self.plan.rows if row.name not in self.ruled_out]

    @property
    def ruled_out(self) -> dict[str, str]:
        """By row, why it does not run on the test data: validation data rule it out, and nobody named it."""
        named = self.plan.request.rows
        # The name of a row is that of its kind, perhaps with the number of heads behind an @.
        return {row: why for row, why in self.choice.ruled_out.items() if row.partition("@")[0] not in named}

    @property
    def taken(self) -> Rung:
        """The row and the OOD score that were chosen by the OOD validation sets; all rows are compared under one score.

        If no such set has a vote (``telling`` is empty), it is the single model with a score that needs no choice:
        hedge, or MSP where hedge is missing.
        """
        return Rung(self.choice.chosen.row, self.common_score)

    @property
    def ladder(self) -> list[Rung]:
        """The rungs (a row with an OOD score each) that test data may lead to, one after the other.

        They are the choice, the single model with its own score, and the single model with MSP. If two are the same,
        there is one rung for both.
        """
        return list(dict.fromkeys([self.taken, Rung(SINGLE, self.common_score), Rung(SINGLE, REFERENCE)]))

    @property
    def common_score(self) -> str:
        """The score under which all rows are compared: the single model's own score."""
        return self.score_of(SINGLE)

    def score_of(self, row: str) -> str:
        """Return the OOD score of a row: the admissible one with the highest mean AUROC on the OOD validation sets.

        If no set has a vote (``telling`` is empty), the single model gets hedge, where it has that sum of scores.
        """
        if row == SINGLE and not self.choice.telling and HEDGE in self.rows[SINGLE].scores:
            return HEDGE
        return self.choice.own_candidate(row).score

    def rivals_of(self, rung: Rung) -> list[str]:
        """Return the scores of the single model that a rung (a row with a score) is compared with on the test data.

        They are fixed before any test sample is read: MSP, the single model's own score, and scores that the validation
        data cannot tell from the latter. A rung is not compared with itself.
        """
        fixed = {REFERENCE, self.common_score, *(rival.score for rival in self.choice.rivals)}
        return [score for score in self.rows[SINGLE].scores if score in fixed and Rung(SINGLE, score) != rung]

    @property
    def record(self) -> ChoiceRecord:
        """The choice, as the answer of the study has it."""
        max_drop = self.plan.request.max_drop
        return ChoiceRecord(
            row=self.taken.row,
            score=self.taken.score,
            rule=RULE.format(drop=max_drop, nll=NLL_TOLERANCE, margin=AUROC_MARGIN, blind=BLIND),
            telling=self.choice.telling,
            blind=self.choice.blind,
            n=len(self.rows[SINGLE].inside),
            stability=self.choice.stability,
        )

    def document(self) -> dict[str, object]:
        """Return the JSON document of the choice (``hydractl.study-choice/2``), which needs only validation data.

        A candidate is a row (a model of the study) with an OOD score. Of the keys, ``telling`` and ``blind`` are the
        OOD validation sets with and without a vote; ``rivals`` the scores of the single model that the choice is
        compared with on test data; ``ladder`` the candidates that test data may lead to, the choice first;
        ``stability`` how often resamples choose the same.
        """
        taken = self.taken
        return {
            "schema": "hydractl.study-choice/2",
            **self.record.to_dict(),
            "temperature": self.rows[taken.row].temperature,
            "rivals": self.rivals_of(taken),
            "ladder": [asdict(rung) for rung in self.ladder],
            "candidates": [self._candidate_document(candidate) for candidate in self.choice.candidates],
        }

    def _candidate_document(self, candidate: Candidate) -> dict[str, object]:
        """Return the entry of a candidate (a row with an OOD score) in the document of the choice.

        ``auroc`` is its mean over the OOD validation sets with a vote, None without such sets; ``sets`` has the AUROC
        against each set; ``reason`` says why it was not taken, and is empty for the chosen one.
        """
        return {
            "row": candidate.row,
            "score": candidate.score,
            "members": candidate.members,
            "macs": candidate.macs,
            "accuracy": candidate.accuracy,
            "nll": candidate.nll,
            "auroc": self.choice.mean_auroc(candidate) if self.choice.telling else None,
            "sets": dict(candidate.outside.values),
            "reason": self.choice.why_not_taken(candidate),
        }


def choose(plan: Plan, rows: Mapping[str, MeasuredRow]) -> Chosen:
    """Return the row (a model of the study) and the OOD score that are chosen on the validation data.

    The result knows the reasons against all others. Every row with every score that it has is a candidate, but for
    hedge, a sum of several scores.

    Args:
        plan: the plan of the study, whose steps up to the choice are done.
        rows: its rows by name, measured on the validation data.
    """
    candidates = []
    for row in plan.rows:
        measured = rows[row.name]
        inside = measured.on_id({"accuracy", "nll"})
        members, macs = measured.source.members, measured.macs
        for score, outside in measured.aurocs(_scores_to_choose_from(measured)).items():
            candidates.append(Candidate(row.name, score, members, macs, inside, outside, eligible=row.stored))
    request = plan.request
    return Chosen(plan, rows, Decision(candidates, request.max_drop, may_vote=request.has_ood_val))


def validated(plan: Plan, row: Row) -> MeasuredRow:
    """Return a row (a model of the study) measured on the validation data, from its stored predictions."""
    return measured(plan, row, "choose", fitted_temperature(plan.calibration_file(row)))


def measured(plan: Plan, row: Row, purpose: str, calibration: Calibration | None) -> MeasuredRow:
    """Return a row (a model of the study) measured from its stored predictions.

    Args:
        plan: the plan of the study.
        row: the row.
        purpose: ``choose`` for its predictions on validation data, ``test`` for those on test data.
        calibration: what its probabilities are calibrated by; None for nothing.
    """
    request = plan.request
    return measure_row(plan.predictions(row, purpose), calibration, rounds=request.bootstrap, seed=request.seed)


def _scores_to_choose_from(row: MeasuredRow) -> list[str]:
    """Return the scores of a row without hedge, a sum of several, which is taken where no OOD samples choose."""
    return [score for score in row.scores if score != HEDGE]


_NAMED_SCORES = 4
"""How many scores of the single model are named while a study runs, beside MSP."""


def validated_in_words(row: str, rows: Mapping[str, MeasuredRow]) -> str:
    """Return the line that is shown when a row (a model of the study) has run on the validation data.

    For the single model it lists the mean AUROC of its four best OOD scores and of MSP, e.g. ``energy 0.912, msp
    0.874``. For another row it compares one score: the best one of the single model, or MSP if the row lacks that.

    Args:
        row: the name of the row.
        rows: by name, this row and the single model, which runs before all others, on the validation data.
    """
    # By score, the mean AUROC over the OOD validation sets.
    of_row = rows[row].mean_aurocs(rows[row].scores)
    of_single = rows[SINGLE].mean_aurocs(_scores_to_choose_from(rows[SINGLE]))
    best_first = sorted(of_single, key=lambda score: -of_single[score])
    if row == SINGLE:
        # As keys of a dict, so that MSP is named once if it is among the best.
        named = dict.fromkeys([*best_first[:_NAMED_SCORES], REFERENCE])
        figures = ", ".join(f"{score} {of_single[score]:.3f}" for score in named)
        sets = " and ".join(rows[SINGLE].outside)
        return f"{row}: mean AUROC against {sets} of the validation data, by score: {figures}"
    best = best_first[0]
    score = best if best in of_row else REFERENCE
    return f"{row}: {of_row[score]:.3f} with {score}, of which the single model has {of_single[score]:.3f}"
