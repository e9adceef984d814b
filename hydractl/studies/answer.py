"""A study from predictions to its answer: choose on validation data, compare on test data, put the result into words.

ID data are in-distribution ("inside" in names), OOD data are not ("outside").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hydractl.files.header import read_header
from hydractl.files.model_records import ThresholdRecord
from hydractl.files.study_answer import (
    ChoiceRecord,
    DetectedRecord,
    FindingRecord,
    LadderRungRecord,
    SearchGainRecord,
    SearchStateRecord,
    StabilityRecord,
    StudiedModelRecord,
    StudyAnswer,
    StudyRowRecord,
    TestedRecord,
    UseRecord,
    ValidationRecord,
    VerdictRecord,
)
from hydractl.jsonio import read_json_file
from hydractl.log import Log
from hydractl.metrics.bootstrap import Resampled, mean_over_sets, paired_differences
from hydractl.metrics.calibrators import Calibration
from hydractl.report.texts import number
from hydractl.studies import doubts
from hydractl.studies.choosing import (
    BLIND,
    NLL_TOLERANCE,
    REFERENCE,
    SINGLE,
    Candidate,
    Evidence,
    Stability,
    StudyChoice,
    choose_candidate,
    stability,
)
from hydractl.studies.comparing import AgainstSingle, Rung, end_of, ladder
from hydractl.studies.measured_rows import MeasuredRow, fitted_temperature, measure_row
from hydractl.studies.mistakes import Mistakes, mistakes_of
from hydractl.studies.plan import Row
from hydractl.studies.verdict import Facts, Price, Use, verdict
from hydractl.studies.words import AUROC, AUROC_MARGIN, KINDS, Finding, judge, judge_all, smallest_set_behind

SCHEMA = "hydractl.study/2"
RULE = (
    "Decided on the halves of the validation data that the search has not seen, all differences paired. An OOD "
    "validation set tells something where some score of the single model has an AUROC whose interval lies above "
    "{blind:g}; others have no vote. A row with a score is admissible where its AUROC is on no such set more than "
    "{margin:g}, or significantly, below that of the single model with MSP, and its mean significantly above; a row "
    "also where its accuracy is at most {drop:g} below that of the single model, and its NLL after temperature "
    "scaling at most {nll:g} above it. All rows are compared under the admissible score of the single model with the "
    "highest mean AUROC. The cheapest admissible row is taken of which no dearer one is better by more than "
    "{margin:g}, significantly."
)
FOOTNOTE = (
    "Intervals cover the drawing of test samples: one base model, one search. Another training may decide otherwise."
)
_BARELY = 0.1
"""If a search raises the AUROC of its objective by less than this, the verdict says by how much."""
_LITTLE_MI = 0.01
"""Members with less mutual information than this, in nats, hardly differ."""


@dataclass(frozen=True)
class ValidatedRow:
    """One row (a model or ensemble of the study), measured on the validation data.

    Attributes:
        row: the row.
        calibration: its fitted temperature.
        measured: its samples with every OOD score.
        candidates: the row with each of its scores.
    """

    row: Row
    calibration: Calibration
    measured: MeasuredRow
    candidates: Sequence[Candidate]

    @property
    def mean_mi(self) -> float:
        """The mean mutual information of the members on the ID data, in nats."""
        mi_of_samples = self.measured.inside.mi
        return float(mi_of_samples.mean())


@dataclass(frozen=True)
class _Decided:
    """The choice on the validation data, and the figures behind it.

    Attributes:
        evidence: the figures of all candidates.
        choice: the choice.
        stability: how often resamples of the data lead to the same choice.
    """

    evidence: Evidence
    choice: StudyChoice
    stability: Stability

    @property
    def voting_sets(self) -> tuple[int, ...]:
        """The indices, in ``evidence.sets``, of the OOD validation sets with a vote."""
        sets = self.evidence.sets
        indices = [sets.index(name) for name in self.choice.telling]
        return tuple(indices)

    def mean(self, index: int) -> float:
        """Return the mean AUROC of the candidate at ``index`` over the OOD validation sets with a vote."""
        return self.evidence.mean(index, self.voting_sets, reading=0)


class Study:
    """The decisions of a study.

    Call :meth:`choose` with validation data first, then :meth:`test` with test data, and then :meth:`answer`. Most
    properties need the results of an earlier call; they say of which.

    Args:
        rows: the rows, the single model first.
        max_drop: the accuracy that may be lost, as a share of the samples.
        rounds: the number of resamples of the bootstrap.
        seed: the seed of the resamples.
        log: receives the progress.
        given_score: the OOD score that the studied model was given with, because it was stored in its file; or None.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        max_drop: float,
        rounds: int,
        seed: int,
        log: Log,
        given_score: str | None = None,
    ) -> None:
        self._rows = list(rows)
        self._given_score = given_score
        self._max_drop = max_drop
        self._rounds = rounds
        self._seed = seed
        self._log = log

        # Results of choose().
        self._results: dict[str, ValidatedRow] = {}  # by row
        self._decision: _Decided | None = None

        # Results of test().
        self._tests: dict[str, MeasuredRow] = {}  # by row
        self._uncalibrated_single: MeasuredRow | None = None
        self._facts: Facts | None = None
        self._mistakes: Mistakes | None = None

    @property
    def _decided(self) -> _Decided:
        """The choice on the validation data; needs :meth:`choose`."""
        assert self._decision is not None  # choose() has been called
        return self._decision

    @property
    def _single_uncalibrated(self) -> MeasuredRow:
        """The single model without a temperature, on the test data; needs :meth:`test`."""
        assert self._uncalibrated_single is not None  # test() has been called
        return self._uncalibrated_single

    @property
    def _tested(self) -> Facts:
        """The comparisons on the test data, which the verdict is based on; needs :meth:`test`."""
        assert self._facts is not None  # test() has been called
        return self._facts

    # --- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, predictions: Mapping[str, Path]) -> None:
        """Choose a row and a score, on validation data alone. The results are stored in this object.

        Args:
            predictions: by row, the file of its predictions on the validation data.
        """
        candidates: list[Candidate] = []
        with self._log.progress("choosing", len(self._rows), "rows") as progress:
            for row in self._rows:
                validated = self._measure_on_validation(row, predictions[row.name])
                self._results[row.name] = validated
                candidates += validated.candidates
                progress.advance(1, row.name)

        for sentence in self._doubts_of_guessing():
            self._log.warn(sentence)
        evidence = Evidence(candidates)
        choice = choose_candidate(evidence, self._max_drop)
        stability_of_choice = stability(evidence, self._max_drop, choice)
        self._decision = _Decided(evidence, choice, stability_of_choice)

    def _measure_on_validation(self, row: Row, path: Path) -> ValidatedRow:
        """Measure a row from the file of its predictions on the validation data.

        Returns:
            The row with its fitted temperature, and one candidate for each of its scores.
        """
        calibration = fitted_temperature(path)
        measured = measure_row(path, calibration, given_score=self._given_score)
        accuracy_and_nll = measured.accuracy_and_nll(self._rounds, self._seed)
        aurocs = measured.aurocs(measured.scores, self._rounds, self._seed)
        candidates = []
        for score, aurocs_of_score in aurocs.items():
            candidate = Candidate(
                row=row.name,
                score=score,
                members=measured.members,
                macs=measured.macs,
                inside=accuracy_and_nll,
                outside=aurocs_of_score,
                eligible=row.stored,
            )
            candidates.append(candidate)
        return ValidatedRow(row, calibration, measured, candidates)

    @property
    def candidates(self) -> Sequence[Candidate]:
        """Every row with every score of it; needs :meth:`choose`."""
        return self._decided.evidence.candidates

    def _rung_of_candidate(self, index: int) -> Rung:
        """Return the row and the score of the candidate at ``index``."""
        candidate = self.candidates[index]
        return Rung(candidate.row, candidate.score)

    @property
    def ladder(self) -> list[Rung]:
        """The choice, and below it the rungs (rows with a score) that test data may lead to; needs :meth:`choose`."""
        choice = self._decided.choice
        chosen = self._rung_of_candidate(choice.chosen)
        single_with_its_own_score = self._rung_of_candidate(choice.own_candidates[SINGLE])
        single_with_msp = Rung(SINGLE, REFERENCE)
        return ladder(chosen, single_with_its_own_score, single_with_msp)

    @property
    def scores(self) -> dict[str, str]:
        """By row, the score that suits the row best (see :func:`index_under_own_score`); needs :meth:`choose`."""
        scores = {}
        for row, index in self._decided.choice.own_candidates.items():
            scores[row] = self.candidates[index].score
        return scores

    @property
    def common_score(self) -> str:
        """The score under which all rows are compared: the single model's own score."""
        return self.scores[SINGLE]

    def temperature(self, row: str) -> float:
        """Return the temperature of a row, fitted to the validation data."""
        calibration = self._results[row].calibration
        assert calibration.temperature is not None  # it was fitted as a temperature
        return calibration.temperature

    def row(self, name: str) -> Row:
        """Return a row by its name."""
        return self._results[name].row

    def rivals_of(self, rung: Rung) -> list[str]:
        """Return the scores of the single model that a rung (a row with a score) is compared with on the test data.

        They are fixed before any test sample is read: MSP, the score that the model was given with, the score of the
        rung, the single model's own score, and scores that the validation data cannot tell from the latter. A rung is
        not compared with itself.
        """
        fixed = {REFERENCE, rung.score, self.common_score}
        if self._given_score is not None:
            fixed.add(self._given_score)
        for index in self._decided.choice.rivals:
            fixed.add(self.candidates[index].score)
        if rung.row == SINGLE:
            fixed.remove(rung.score)
        scores_of_single = self._results[SINGLE].measured.scores
        return [score for score in scores_of_single if score in fixed]

    def choice_document(self) -> dict[str, object]:
        """Return the JSON document of the choice (``hydractl.study-choice/2``), which needs only validation data."""
        choice = self._decided.choice
        taken = self.candidates[choice.chosen]
        rungs = [asdict(rung) for rung in self.ladder]
        indices = range(len(self.candidates))
        return {
            "schema": "hydractl.study-choice/2",
            "rule": self._rule,
            "row": taken.row,
            "score": taken.score,
            "temperature": self.temperature(taken.row),
            "telling": choice.telling,
            "blind": choice.blind,
            "rivals": self.rivals_of(self._rung_of_candidate(choice.chosen)),
            "ladder": rungs,
            "stability": asdict(self._decided.stability),
            "candidates": [self._candidate_document(index) for index in indices],
        }

    def _candidate_document(self, index: int) -> dict[str, object]:
        """Return the entry of the candidate at ``index`` in the document of the choice."""
        candidate = self.candidates[index]
        mean_auroc = None
        if self._decided.voting_sets:
            mean_auroc = self._decided.mean(index)
        return {
            "row": candidate.row,
            "score": candidate.score,
            "members": candidate.members,
            "macs": candidate.macs,
            "accuracy": candidate.accuracy,
            "nll": candidate.nll,
            "auroc": mean_auroc,
            "sets": dict(candidate.outside.values),
            "reason": self._decided.choice.reasons[index],
        }

    @property
    def _rule(self) -> str:
        """The rule of the choice in words, with its limits filled in."""
        return RULE.format(
            drop=self._max_drop,
            nll=NLL_TOLERANCE,
            margin=AUROC_MARGIN,
            blind=BLIND,
        )

    # --- testing ------------------------------------------------------------------------------------------------------

    def test(self, predictions: Mapping[str, Path]) -> None:
        """Compare the choice on the test data, and step down the ladder if it is no better than the rung below.

        A rung of the ladder is a row with an OOD score. The rungs are the choice, the single model with its own score,
        and the single model with MSP. The results are stored in this object: ``_tests``, ``_uncalibrated_single``,
        ``_facts`` and ``_mistakes``.

        Args:
            predictions: by row, the file of its predictions on the test data.
        """
        # Measure all rows.
        for name, validated in self._results.items():
            calibration = validated.calibration
            self._tests[name] = measure_row(predictions[name], calibration, given_score=self._given_score)
        self._uncalibrated_single = measure_row(predictions[SINGLE], None)
        single = self._tests[SINGLE]

        # Step down the ladder as long as a rung is no better than the next one.
        rungs = self.ladder
        figures_of_rungs = []
        for rung in rungs:
            measured = self._tests[rung.row]
            figures_of_rungs.append(self._measured_on_resamples(measured, rung))
        differences_to_next = []
        for upper in range(len(rungs) - 1):
            lower = upper + 1
            same_row = rungs[upper].row == rungs[lower].row
            differences = self._findings(figures_of_rungs[upper], figures_of_rungs[lower], same_row)
            differences_to_next.append(differences)
        final_index = end_of([step[AUROC] for step in differences_to_next])
        final_rung = rungs[final_index]
        final_figures = figures_of_rungs[final_index]
        is_single = final_rung.row == SINGLE

        # Compare all rungs with the single model under each of its scores ("free": they cost no further computation).
        aurocs_of_single = single.aurocs(single.scores, self._rounds, self._seed)
        against_single = [self._against_single(rung, aurocs_of_single) for rung in rungs]

        # Compare the final rung with its hardest rival in every metric and on every set.
        findings_against_hardest: dict[str, Finding] = {}
        findings_by_set: dict[str, Finding] = {}
        hardest_score = against_single[final_index].hardest
        if hardest_score is not None:
            rival = Rung(SINGLE, hardest_score)
            rival_figures = self._measured_on_resamples(single, rival)
            findings_against_hardest = self._findings(final_figures, rival_figures, is_single)
            findings_by_set = self._findings_by_set(final_rung, rival)

        # Compare it with the single model as it is: MSP, and no temperature.
        baseline_figures = self._measured_on_resamples(self._single_uncalibrated, Rung(SINGLE, REFERENCE))
        findings_against_baseline = self._findings(final_figures, baseline_figures, is_single)

        # If the choice was the single model, explain why no other row was taken.
        has_vote = bool(self._decided.choice.telling)
        reasons_for_single: list[str] = []
        if rungs[0].row == SINGLE and has_vote:
            reasons_for_single = self._why_no_other_row()

        # Find the score to trust for mistakes of the final row.
        name_in_sentence = "the single model" if is_single else final_rung.row
        self._mistakes = mistakes_of(
            final_rung.row,
            name_in_sentence,
            self._results[final_rung.row].measured,
            self._tests[final_rung.row],
            self._rounds,
            self._seed,
        )
        self._facts = Facts(
            ladder=rungs,
            differences_to_next=differences_to_next,
            final_index=final_index,
            against_single=against_single,
            against_hardest=findings_against_hardest,
            by_test_set=findings_by_set,
            against_baseline=findings_against_baseline,
            labelled=self._single_uncalibrated.inside.labels is not None,
            has_vote=has_vote,
            has_other_rows=len(self._rows) > 1,
            reasons_for_single=reasons_for_single,
            doubts=self._sentences_of_doubt(final_rung),
            mistakes="" if self._mistakes is None else self._mistakes.line,
        )

    @property
    def used(self) -> Rung:
        """The final rung: the row and the score to use; needs :meth:`test`."""
        return self._tested.rung

    @property
    def free_alternative(self) -> str | None:
        """The score with which the single model is as good as the rung to use, or better; needs :meth:`test`."""
        return self._tested.free_alternative

    @property
    def stepped_down(self) -> bool:
        """Whether the test data changed which row or score is used."""
        return self._tested.final_index > 0

    @property
    def note(self) -> str:
        """The sentence about the choice in ``best.st`` and its card, if test data changed it; else empty."""
        if not self.stepped_down:
            return ""
        chosen = self.ladder[0]
        return (
            f"Chosen on validation data was {chosen.row} with {chosen.score}; the test data reported here led from "
            "there to this one, so they are no longer untouched."
        )

    def options_of_table(self) -> dict[str, str | list[str]]:
        """Return the options of ``eval`` for the table of all rows, with the temperature of each row.

        Usually every row has the score of the single model, with other common scores beside it. But if any row does not
        have that score, each row gets one score: the single model's if it has it, else its own.
        """
        rows = list(self._results)
        temperatures = [f"{row}={self.temperature(row)!r}" for row in rows]
        scores_of_all_rows = self._scores_of_all_rows()
        if self.common_score in scores_of_all_rows:
            scores = [",".join(scores_of_all_rows)]
        else:
            scores = [f"{row}={self._score_in_table(row)}" for row in rows]
        return {"ood_score": scores, "temperature": temperatures}

    def _scores_of_all_rows(self) -> list[str]:
        """Return the scores for the table: the single model's, MSP and the rows' own, if all rows have them."""
        wanted = [self.common_score, REFERENCE]
        wanted += self.scores.values()
        scores = []
        for score in dict.fromkeys(wanted):  # without repetition, in this order
            rows_have_it = [score in measured.scores for measured in self._tests.values()]
            if all(rows_have_it):
                scores.append(score)
        return scores

    def _score_in_table(self, row: str) -> str:
        """Return the score of the single model if the row has it, else the row's own score."""
        if self.common_score in self._tests[row].scores:
            return self.common_score
        return self.scores[row]

    @property
    def _samples_by_metric(self) -> dict[str, int]:
        """By metric of the verdict, the number of samples of the smallest test set that it is measured on."""
        single = self._tests[SINGLE]
        ood_sets = [(single.groups[name], len(samples)) for name, samples in single.outside.items()]
        return {metric: smallest_set_behind(metric, len(single.inside), ood_sets) for metric in KINDS}

    def _measured_on_resamples(self, measured: MeasuredRow, rung: Rung) -> Resampled:
        """Return the metrics that the verdict judges, on the test data and on their resamples, with progress.

        Args:
            measured: the row, measured on the test data.
            rung: the score to measure it under, and the name of the row for the progress.
        """
        title = f"intervals of {rung.row}, {rung.score}"
        rounds = self._rounds
        with self._log.progress(title, rounds, "resamples") as progress:
            return measured.resampled(rung.score, rounds, self._seed, advance=progress.advance)

    def _findings(self, figures: Resampled, other: Resampled, same_row: bool) -> dict[str, Finding]:
        """Return the findings for the paired differences ``figures`` minus ``other``, by metric.

        Args:
            figures, other: the metrics of two rungs on the same resamples.
            same_row: whether the rungs have the same row.
        """
        differences = paired_differences(other, figures)
        return judge_all(differences, self._samples_by_metric, same_row)

    def _against_single(self, rung: Rung, free_scores: Mapping[str, Resampled]) -> AgainstSingle:
        """Compare the mean AUROC of a rung with that of the single model under each of its scores.

        Args:
            rung: a row and the score that it is used with.
            free_scores: by score, the AUROC of the single model against each test set.

        Returns:
            The differences (rung minus single model) in two groups: scores that were fixed before, and all others.
        """
        mean_of_rung = mean_over_sets(self._aurocs(rung), AUROC)
        fixed_beforehand = self.rivals_of(rung)
        rivals = {}
        others = {}
        for score, aurocs in free_scores.items():
            if Rung(SINGLE, score) == rung:  # it is not compared with itself
                continue
            mean_of_single = mean_over_sets(aurocs, AUROC)
            difference = paired_differences(mean_of_single, mean_of_rung)[AUROC]
            assert difference["value"] is not None and difference["ci"] is not None  # no test set is empty
            finding = judge(AUROC, difference["value"], difference["ci"], self._samples_by_metric[AUROC])
            if score in fixed_beforehand:
                rivals[score] = finding
            else:
                others[score] = finding
        return AgainstSingle(rivals, others)

    def _aurocs(self, rung: Rung) -> Resampled:
        """Return the AUROC of a rung against each OOD test set, on the test data and on their resamples."""
        measured = self._tests[rung.row]
        by_score = measured.aurocs([rung.score], self._rounds, self._seed)
        return by_score[rung.score]

    def _findings_by_set(self, rung: Rung, rival: Rung) -> dict[str, Finding]:
        """Return, by the name of each test set, the finding for the AUROC of ``rung`` minus that of ``rival``."""
        aurocs_of_rung = self._aurocs(rung)
        aurocs_of_rival = self._aurocs(rival)
        differences = paired_differences(aurocs_of_rival, aurocs_of_rung)
        single = self._tests[SINGLE]
        findings = {}
        for name, difference in differences.items():
            assert difference["value"] is not None and difference["ci"] is not None  # no test set is empty
            smaller_set = min(len(single.inside), len(single.outside[name]))
            findings[name] = judge(AUROC, difference["value"], difference["ci"], smaller_set)
        return findings

    def _sentences_of_doubt(self, rung: Rung) -> list[str]:
        """Return the sentences on what makes the verdict less certain.

        Args:
            rung: the row and the score to use.
        """
        choice = self._decided.choice
        has_circuits = any(row.circuit is not None for row in self._rows)
        first_set = self._decided.evidence.sets[0]  # a search takes the first OOD validation set
        searched = first_set if has_circuits else None
        sentences = doubts.of_blind_sets(choice.telling, choice.blind, searched)
        sentences += self._doubts_of_guessing()
        if self._single_uncalibrated.inside.labels is not None:
            sentences += self._doubts_of_labelled(rung.row)
        sentences += doubts.of_stability(self._decided.stability)
        return sentences

    def _doubts_of_guessing(self) -> list[str]:
        """Return the doubts about rows whose accuracy on the validation data is no better than guessing."""
        right = {}
        for name, validated in self._results.items():
            right[name] = int(validated.measured.inside.correct.sum())
        labels = self._results[SINGLE].measured.inside.labels
        assert labels is not None  # --val has labels
        return doubts.of_guessing(right, SINGLE, labels)

    def _doubts_of_labelled(self, row: str) -> list[str]:
        """Return the doubts about the row to use that need labels of the test data: accuracy, and temperature."""
        validation = self._results[SINGLE].measured.inside
        test = self._single_uncalibrated.inside
        sentences = doubts.of_accuracies(
            right=int(validation.correct.sum()),
            n=len(validation),
            test_right=int(test.correct.sum()),
            test_n=len(test),
        )
        calibrated = self._tests[row]
        uncalibrated = measure_row(calibrated.source, None)
        sentences += doubts.of_temperature(
            self.temperature(row),
            self._validation_gain(row),
            calibrated.accuracy_and_nll(self._rounds, self._seed),
            uncalibrated.accuracy_and_nll(self._rounds, self._seed),
        )
        return sentences

    def _validation_gain(self, row: str) -> float:
        """Return by how much its temperature lowers a row's negative log-likelihood of the validation data, in nats.

        Of a temperature of 1 or above, which raises no doubt, it is not looked at: the answer is 0.
        """
        if self.temperature(row) >= 1:
            return 0.0
        calibrated = self._results[row].measured
        uncalibrated = measure_row(calibrated.source, None)
        log_probs = calibrated.inside.label_log_probs
        log_probs_before = uncalibrated.inside.label_log_probs
        assert log_probs is not None and log_probs_before is not None  # --val has labels
        return float(log_probs.sum() - log_probs_before.sum())

    def _why_no_other_row(self) -> list[str]:
        """Return the reasons why no other row was taken, as sentences; the last one is on the best other row."""
        others = [validated for name, validated in self._results.items() if name != SINGLE]
        if not others:
            return []

        # Reason 1: the search found hardly anything.
        gains = [_search_gain(validated.row) for validated in others]
        lines = sentences_on_search([gain for gain in gains if gain is not None])

        # Reason 2: the members of all ensembles hardly differ.
        mi_of_ensembles = [validated.mean_mi for validated in others if validated.measured.members > 1]
        highest_mi = max(mi_of_ensembles, default=math.inf)
        if highest_mi < _LITTLE_MI:
            lines.append(
                f"Members hardly differ: their mean mutual information on ID data is at most {highest_mi:.2g} nats."
            )

        # Reason 3: all other rows lose too much accuracy.
        names = [validated.row.name for validated in others]
        limits = [self._decided.choice.limits[name] for name in names]
        if all(limit.startswith("accuracy") for limit in limits):
            lines.append("Every other row loses more accuracy on validation data than --max-drop allows.")

        # And why the best of them was not taken.
        lines += self._why_not_the_best_other_row(names)
        return lines

    def _why_not_the_best_other_row(self, rows: Sequence[str]) -> list[str]:
        """Return a sentence on the best of these rows under the single model's score; empty if none has that score."""
        decided = self._decided
        indices = [decided.evidence.index_under(row, self.common_score) for row in rows]
        indices_with_score = [index for index in indices if index is not None]
        if not indices_with_score:
            return []

        best = max(indices_with_score, key=decided.mean)
        name = self.candidates[best].row
        auroc = number(decided.mean(best))
        single = decided.choice.own_candidates[SINGLE]
        auroc_of_single = number(decided.mean(single))
        reason = decided.choice.reasons[best]
        return [
            f"On validation data the best of the other rows under {self.common_score}, {name}, has "
            f"a mean AUROC of {auroc}; the single model has {auroc_of_single}. It was not taken: {reason}."
        ]

    # --- saying it ----------------------------------------------------------------------------------------------------

    def answer(
        self, name: str, sha256: str, steps: Sequence[Sequence[str]], threshold: ThresholdRecord | None
    ) -> StudyAnswer:
        """Return the document ``hydractl.study/2``. It holds no times and no dates, so it can be reproduced.

        Args:
            name, sha256: the name and the hash of the studied model.
            steps: the command line of each step.
            threshold: the threshold of ``best.st``; None without one.
        """
        rung = self._tested.rung
        threshold_value = None
        doubts_of_threshold: list[str] = []
        if threshold is not None:
            threshold_value = threshold.value
            doubts_of_threshold = self._doubts_of_threshold(rung, threshold)
        use = Use(
            rung=rung,
            temperature=self.temperature(rung.row),
            threshold=threshold_value,
            price=self._price_of_row(rung.row),
        )
        return StudyAnswer(
            model=StudiedModelRecord(name=name, sha256=sha256),
            verdict=self._verdict_record(use, doubts_of_threshold),
            use=UseRecord(
                row=rung.row,
                score=rung.score,
                temperature=self.temperature(rung.row),
                threshold=threshold,
                mac_ratio=use.price.macs,
                param_ratio=use.price.params,
                stepped_down=self.stepped_down,
            ),
            choice=self._choice_record(),
            ladder=self._ladder_records(),
            common_score=self.common_score,
            baseline=TestedRecord(ood_score=REFERENCE, **dict(self._single_uncalibrated.metrics(REFERENCE))),
            rows=[self._row_record(row) for row in self._results],
            steps=[list(step) for step in steps],
        )

    def _doubts_of_threshold(self, rung: Rung, threshold: ThresholdRecord) -> list[str]:
        """Return the doubts about the threshold that ``best.st`` holds for the score of a rung."""
        scores = self._tests[rung.row].inside.scores[rung.score]
        if scores is None or threshold.value is None or threshold.rule is None:
            return []
        scores_chosen_on = self._results[rung.row].measured.inside.scores[rung.score]
        assert scores_chosen_on is not None  # a row has the same scores on both data
        flagged = int((scores >= threshold.value).sum())
        chosen_flagged = int((scores_chosen_on >= threshold.value).sum())
        return doubts.of_threshold(threshold.rule, flagged, len(scores), chosen_flagged, len(scores_chosen_on))

    def _verdict_record(self, use: Use, further_doubts: Sequence[str]) -> VerdictRecord:
        """Return the verdict in words, and the comparisons behind it."""
        facts = replace(self._tested, doubts=[*self._tested.doubts, *further_doubts])
        in_words = verdict(facts, use)
        against_single = facts.against_single[facts.final_index]
        return VerdictRecord(
            answer=in_words.answer,
            lines=list(in_words.lines),
            doubts=list(facts.doubts),
            footnote=FOOTNOTE,
            hardest=against_single.hardest,
            rivals=_by_name(against_single.rivals),
            afterwards=_by_name(against_single.better_afterwards),
            sets=_by_name(facts.by_test_set),
            against_hardest=_finding_records(facts.against_hardest),
            against_baseline=_finding_records(facts.against_baseline),
            mistakes=None if self._mistakes is None else self._mistakes.record(),
        )

    def _choice_record(self) -> ChoiceRecord:
        """Return the record of the choice on the validation data."""
        choice = self._decided.choice
        chosen = self._rung_of_candidate(choice.chosen)
        shares = self._decided.stability
        return ChoiceRecord(
            row=chosen.row,
            score=chosen.score,
            rule=self._rule,
            telling=choice.telling,
            blind=choice.blind,
            stability=StabilityRecord(row=shares.row, score=shares.score),
        )

    def _ladder_records(self) -> list[LadderRungRecord]:
        """Return the rungs of the ladder (rows with a score), each with its differences to the next rung."""
        facts = self._tested
        records = []
        for index, rung in enumerate(facts.ladder):
            against_next: list[FindingRecord] = []
            if index < len(facts.differences_to_next):
                against_next = _finding_records(facts.differences_to_next[index])
            records.append(LadderRungRecord(row=rung.row, score=rung.score, against_next=against_next))
        return records

    def _price_of_row(self, row: str) -> Price:
        """Return the cost of a row as ratios to the single model."""
        measured = self._tests[row]
        single = self._tests[SINGLE]
        return Price(
            macs=_ratio(measured.macs, single.macs),
            params=_ratio(measured.params, single.params),
        )

    def _row_record(self, name: str) -> StudyRowRecord:
        """Return the figures of one row on the validation data and on the test data, under its own score.

        With ``common``, also its OOD detection under the score of the single model, if it has that score.
        """
        validated = self._results[name]
        measured = self._tests[name]
        choice = self._decided.choice
        candidate = self.candidates[choice.own_candidates[name]]

        aurocs = {}
        for candidate_of_score in validated.candidates:
            aurocs[candidate_of_score.score] = dict(candidate_of_score.outside.values)
        validation = ValidationRecord(
            accuracy=candidate.accuracy, nll=candidate.nll, mi=validated.mean_mi, auroc=aurocs
        )

        detection_under_common_score = None
        if self.common_score in measured.scores:
            under_common_score = dict(measured.metrics(self.common_score))
            detection_under_common_score = DetectedRecord(ood_score=self.common_score, **under_common_score)
        return StudyRowRecord(
            name=name,
            chosen=name == self._rung_of_candidate(choice.chosen).row,
            used=name == self.used.row,
            members=measured.members,
            macs=measured.macs,
            params=measured.params,
            mac_ratio=self._price_of_row(name).macs,
            temperature=self.temperature(name),
            score=candidate.score,
            search=_search_gain(validated.row),
            lr=_kept_learning_rates(validated.row),
            validation=validation,
            test=TestedRecord(ood_score=candidate.score, **dict(measured.metrics(candidate.score))),
            common=detection_under_common_score,
        )


def _finding_records(findings: Mapping[str, Finding]) -> list[FindingRecord]:
    """Return the records of findings, in their order."""
    records = _by_name(findings)
    return list(records.values())


def _by_name(findings: Mapping[str, Finding]) -> dict[str, FindingRecord]:
    """Return the records of findings by the same names."""
    records = {}
    for name, finding in findings.items():
        records[name] = FindingRecord(
            metric=finding.metric, value=finding.value, ci=finding.ci, kind=finding.kind, needed=finding.needed
        )
    return records


def _ratio(value: int | None, base: int | None) -> float | None:
    """Return ``value / base``; None if one of them is not known or ``base`` is 0."""
    if value is None:
        return None
    if not base:
        return None
    return value / base


def _search_gain(row: Row) -> SearchGainRecord | None:
    """Return the figures that the search measured before and after the removals of a row; None without a circuit."""
    if row.circuit is None:
        return None
    path, removed_heads = row.circuit
    document = read_json_file(str(path))
    before = document["base"]
    after = document["removed"][removed_heads - 1]  # the step that removed the last of these heads
    return SearchGainRecord(removed=removed_heads, before=_search_state(before), after=_search_state(after))


def _kept_learning_rates(row: Row) -> list[float] | None:
    """Return the learning rate that each training of a row kept, in their order; None for a row without any."""
    rates = []
    for model in row.trained:
        header = read_header(model)
        assert header.description is not None  # a model that hydractl wrote
        learning_rate = header.description["provenance"]["settings"].get("lr")
        if learning_rate is not None:  # a posterior has none
            rates.append(float(learning_rate))
    return rates or None


def _search_state(step: Mapping[str, Any]) -> SearchStateRecord:
    """Return the figures of a search at one of its steps, from the counts that the circuit file holds.

    The AUROC is the Mann-Whitney U divided by the number of pairs of an ID and an OOD sample.
    """
    n_id = step["n_id"]
    twice_u = step["two_u"]  # twice the Mann-Whitney U; None if the objective has no AUROC
    auroc = None
    if twice_u is not None:
        auroc = twice_u / (2 * n_id * step["n_ood"])
    accuracy = step["correct"] / n_id
    return SearchStateRecord(score=step["score"], accuracy=accuracy, auroc=auroc)


def _auroc_gain(search: SearchGainRecord) -> float | None:
    """Return by how much a search raised the AUROC of its objective; None if the objective has no AUROC."""
    before = search.before.auroc
    after = search.after.auroc
    if before is None or after is None:
        return None
    return after - before


def sentences_on_search(searches: Sequence[SearchGainRecord]) -> list[str]:
    """Return a sentence if the most successful search raised its AUROC by less than :data:`_BARELY`; else empty."""
    best: SearchGainRecord | None = None
    highest_gain = -math.inf
    for search in searches:
        gain = _auroc_gain(search)
        if gain is None:
            continue
        if gain >= highest_gain:  # of equal gains, the last one counts
            best = search
            highest_gain = gain
    if best is None or highest_gain >= _BARELY:
        return []

    # More than the margin is no small gain. But it was found on the samples of the search, where it looks largest.
    raised = "raised"
    if highest_gain <= 0:
        raised = "did not raise"
    elif highest_gain <= AUROC_MARGIN:
        raised = "hardly raised"
    return [
        f"The search itself {raised} the AUROC it looked for, on the samples that it searched on: from "
        f"{number(best.before.auroc, 3)} to {number(best.after.auroc, 3)} with {best.removed} heads removed."
    ]
