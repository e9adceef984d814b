"""The choice of a study on the test data: how it compares, and the answer in figures and words.

ID data are in-distribution ("inside" in names), OOD data are not ("outside").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hydractl.files.model_records import ThresholdRecord
from hydractl.files.study_answer import (
    ChoiceRecord,
    DetectedRecord,
    LadderRungRecord,
    RuledOutRecord,
    StudiedModelRecord,
    StudyAnswer,
    StudyRowRecord,
    TestedRecord,
    UseRecord,
    ValidationRecord,
    VerdictRecord,
)
from hydractl.log import Log
from hydractl.metrics.bootstrap import Resampled, mean_over_sets, paired_differences
from hydractl.model.source import Source
from hydractl.report.texts import number
from hydractl.studies import doubts
from hydractl.studies.choice import Chosen
from hydractl.studies.choosing import REFERENCE, SINGLE, doubtful_losses, limits_of
from hydractl.studies.comparing import AgainstSingle, Rung, end_of
from hydractl.studies.measured_rows import MeasuredRow, measure_row
from hydractl.studies.mistakes import Mistakes, mistakes_of
from hydractl.studies.search_gain import kept_learning_rates, search_gain, sentences_on_search
from hydractl.studies.verdict import Facts, NextBest, Price, Use, verdict
from hydractl.studies.words import AUROC, KINDS, Finding, judge, judge_all, smallest_set_behind

FOOTNOTE = (
    "Intervals cover the drawing of test samples: one base model, one search. Another training may decide otherwise."
)
MADE_OF_TEST = (
    "No OOD test data were given, so these are made of the ID test data: the figures say little of samples to come."
)
_LITTLE_MI = 0.01
"""Members with less mutual information than this, in nats, hardly differ."""


@dataclass(frozen=True)
class Tested:
    """The rows of a study on the test data.

    A rung is a row with an OOD score. The rungs of the ladder are the choice, the single model with its own score, and
    the single model with MSP.

    Attributes:
        chosen: what was chosen on the validation data.
        rows: by name, the rows that are not ruled out, with their temperature, measured on the test data.
        uncalibrated: the single model without a temperature.
        log: receives the progress.
    """

    chosen: Chosen
    rows: Mapping[str, MeasuredRow]
    uncalibrated: MeasuredRow
    log: Log

    @property
    def _single(self) -> MeasuredRow:
        """The single model with its temperature."""
        return self.rows[SINGLE]

    @property
    def note(self) -> str:
        """The sentence about the choice in ``best.st``, if test data changed it; else empty."""
        if self._final_index == 0:
            return ""
        chosen = self.chosen.taken
        return (
            f"Chosen on validation data was {chosen.row} with {chosen.score}; the test data reported here led from "
            "there to this one, so they are no longer untouched."
        )

    # --- comparisons --------------------------------------------------------------------------------------------------

    @cached_property
    def _figures(self) -> list[Resampled]:
        """The metrics of each rung of the ladder."""
        return [self._measured_on_resamples(self.rows[rung.row], rung) for rung in self.chosen.ladder]

    @cached_property
    def _differences_to_next(self) -> list[dict[str, Finding]]:
        """For each rung of the ladder except the last, its differences to the next rung, by metric."""
        rungs = self.chosen.ladder
        differences_to_next = []
        for upper in range(len(rungs) - 1):
            lower = upper + 1
            same_row = rungs[upper].row == rungs[lower].row
            differences = self._findings(self._figures[upper], self._figures[lower], same_row)
            differences_to_next.append(differences)
        return differences_to_next

    @property
    def _final_index(self) -> int:
        """The index of the rung where the ladder ends: a rung is left if it is no better than the next one."""
        return end_of([differences[AUROC] for differences in self._differences_to_next])

    @property
    def used(self) -> Rung:
        """The row and the score to use: the final rung."""
        return self.chosen.ladder[self._final_index]

    @cached_property
    def mistakes(self) -> Mistakes | None:
        """Which score to trust for mistakes of the row to use; None without labels of the test data."""
        row = self.used.row
        request = self.chosen.plan.request
        name_in_sentence = "the single model" if row == SINGLE else row
        validated = self.chosen.rows[row].measured
        return mistakes_of(row, name_in_sentence, validated, self.rows[row], request.bootstrap, request.seed)

    @cached_property
    def facts(self) -> Facts:
        """The comparisons that the verdict is based on."""
        rungs = self.chosen.ladder
        figures_of_used = self._figures[self._final_index]
        is_single = self.used.row == SINGLE

        # Compare all rungs with the single model under each of its scores ("free": they cost no further computation).
        aurocs_of_single = self._aurocs(SINGLE, self._single.scores)
        against_single = [self._against_single(rung, aurocs_of_single) for rung in rungs]

        # Compare the rung to use with its hardest rival in every metric and on every set.
        findings_against_hardest: dict[str, Finding] = {}
        findings_by_set: dict[str, Finding] = {}
        hardest_score = against_single[self._final_index].hardest
        if hardest_score is not None:
            rival_figures = self._measured_on_resamples(self._single, Rung(SINGLE, hardest_score))
            findings_against_hardest = self._findings(figures_of_used, rival_figures, is_single)
            findings_by_set = self._findings_by_set(self.used, aurocs_of_single[hardest_score])

        # The same with the best of the other scores, where the rung does not beat that one for certain.
        findings_against_unbeaten: dict[str, Finding] = {}
        unbeaten_score = against_single[self._final_index].unbeaten
        if unbeaten_score is not None and not is_single:
            unbeaten_figures = self._measured_on_resamples(self._single, Rung(SINGLE, unbeaten_score))
            findings_against_unbeaten = self._findings(figures_of_used, unbeaten_figures, is_single)

        # Compare it with the single model as it is: MSP, and no temperature.
        baseline_figures = self._measured_on_resamples(self.uncalibrated, Rung(SINGLE, REFERENCE))
        findings_against_baseline = self._findings(figures_of_used, baseline_figures, is_single)

        # If the choice was the single model, explain why no other row was taken.
        has_vote = bool(self.chosen.choice.telling)
        reasons_for_single: list[str] = []
        if rungs[0].row == SINGLE and has_vote:
            reasons_for_single = self._why_no_other_row()
        return Facts(
            ladder=rungs,
            differences_to_next=self._differences_to_next,
            final_index=self._final_index,
            against_single=against_single,
            against_hardest=findings_against_hardest,
            against_unbeaten=findings_against_unbeaten,
            by_test_set=findings_by_set,
            against_baseline=findings_against_baseline,
            labelled=self.uncalibrated.inside.labels is not None,
            has_vote=has_vote,
            has_ood_val=self.chosen.plan.has_ood_val,
            has_other_rows=len(self.chosen.rows) > 1,
            reasons_for_single=reasons_for_single,
            next_best=self._next_best,
            uncertain=" ".join(doubts.of_stability(self.chosen.stability)) if has_vote else "",
            doubts=self._sentences_of_doubt(),
            mistakes="" if self.mistakes is None else self.mistakes.line,
        )

    @cached_property
    def _next_best(self) -> NextBest | None:
        """What comes next to the choice on validation data, compared with what is to be used; None without any."""
        rung = self.chosen.next_best(self.used)
        if rung is None:
            return None
        figures = self._measured_on_resamples(self.rows[rung.row], rung)
        findings = self._findings(figures, self._figures[self._final_index], same_row=False)
        return NextBest(rung, self._price_of_row(rung.row), findings)

    @property
    def _samples_by_metric(self) -> dict[str, int]:
        """By metric of the verdict, the number of samples of the smallest test set that it is measured on."""
        single = self._single
        ood_sets = [(single.groups[name], len(samples)) for name, samples in single.outside.items()]
        return {metric: smallest_set_behind(metric, len(single.inside), ood_sets) for metric in KINDS}

    def _measured_on_resamples(self, measured: MeasuredRow, rung: Rung) -> Resampled:
        """Return the metrics that the verdict judges, on the test data and on their resamples, with progress.

        Args:
            measured: the row, measured on the test data.
            rung: the score to measure it under, and the name of the row for the progress.
        """
        request = self.chosen.plan.request
        title = f"intervals of {rung.row}, {rung.score}"
        with self.log.progress(title, request.bootstrap, "resamples") as progress:
            return measured.resampled(rung.score, request.bootstrap, request.seed, advance=progress.advance)

    def _findings(self, figures: Resampled, other: Resampled, same_row: bool) -> dict[str, Finding]:
        """Return the findings for the paired differences ``figures`` minus ``other``, by metric.

        Args:
            figures, other: the metrics of two rungs on the same resamples.
            same_row: whether the rungs have the same row.
        """
        differences = paired_differences(other, figures)
        return judge_all(differences, self._samples_by_metric, same_row)

    def _against_single(self, rung: Rung, aurocs_of_single: Mapping[str, Resampled]) -> AgainstSingle:
        """Compare the mean AUROC of a rung with that of the single model under each of its scores.

        Args:
            rung: a row and the score that it is used with.
            aurocs_of_single: by score, the AUROC of the single model against each test set.

        Returns:
            The differences (rung minus single model) in two groups: scores that were fixed before, and all others.
        """
        mean_of_rung = mean_over_sets(self._aurocs_of(rung), AUROC)
        fixed_beforehand = self.chosen.rivals_of(rung)
        rivals = {}
        others = {}
        for score, aurocs in aurocs_of_single.items():
            if Rung(SINGLE, score) == rung:  # it is not compared with itself
                continue
            mean_of_single = mean_over_sets(aurocs, AUROC)
            differences = paired_differences(mean_of_single, mean_of_rung)
            finding = _finding(differences[AUROC], self._samples_by_metric[AUROC])
            if score in fixed_beforehand:
                rivals[score] = finding
            else:
                others[score] = finding
        return AgainstSingle(rivals, others)

    def _aurocs(self, row: str, scores: Sequence[str]) -> dict[str, Resampled]:
        """Return, by score, the AUROC of a row against each OOD test set, on the test data and on their resamples."""
        request = self.chosen.plan.request
        return self.rows[row].aurocs(scores, request.bootstrap, request.seed)

    def _aurocs_of(self, rung: Rung) -> Resampled:
        """Return the AUROC of a rung against each OOD test set, on the test data and on their resamples."""
        return self._aurocs(rung.row, [rung.score])[rung.score]

    def _findings_by_set(self, rung: Rung, aurocs_of_rival: Resampled) -> dict[str, Finding]:
        """Return, by the name of each test set, the finding for the AUROC of a rung minus that of its rival."""
        differences = paired_differences(aurocs_of_rival, self._aurocs_of(rung))
        findings = {}
        for name, difference in differences.items():
            smaller_set = min(len(self._single.inside), len(self._single.outside[name]))
            findings[name] = _finding(difference, smaller_set)
        return findings

    # --- reasons and doubts -------------------------------------------------------------------------------------------

    def _sentences_of_doubt(self) -> list[str]:
        """Return the sentences on what makes the verdict less certain."""
        chosen = self.chosen
        has_circuits = any(row.circuit is not None for row in chosen.plan.rows)
        first_set = chosen.evidence.sets[0]  # a search takes the first OOD validation set
        searched = first_set if has_circuits else None
        sentences = []
        if chosen.plan.has_ood_val:
            sentences += doubts.of_blind_sets(chosen.choice.telling, chosen.choice.blind, searched)
        if not chosen.plan.has_ood:
            sentences.append(MADE_OF_TEST)
        sentences += chosen.doubts_of_guessing
        sentences += self._doubts_of_limits()
        if self.uncalibrated.inside.labels is not None:
            sentences += self._doubts_of_labelled(self.used.row)
        return sentences

    def _doubts_of_limits(self) -> list[str]:
        """Return the doubts whether the row to use keeps to the limits of accuracy and NLL."""
        chosen = self.chosen
        row = self.used.row
        max_drop = chosen.plan.request.max_drop
        losses = doubtful_losses(chosen.evidence, chosen.evidence.rows[row][0], max_drop)
        return doubts.of_limits(row, losses, limits_of(max_drop))

    def _doubts_of_labelled(self, row: str) -> list[str]:
        """Return the doubts about the row to use that need labels of the test data: accuracy, and temperature."""
        request = self.chosen.plan.request
        validation = self.chosen.rows[SINGLE].measured.inside
        test = self.uncalibrated.inside
        sentences = doubts.of_accuracies(
            right=int(validation.correct.sum()),
            n=len(validation),
            test_right=int(test.correct.sum()),
            test_n=len(test),
        )
        calibrated = self.rows[row]
        uncalibrated = measure_row(calibrated.source, None)
        sentences += doubts.of_temperature(
            self.chosen.rows[row].temperature,
            self._validation_gain(row),
            calibrated.accuracy_and_nll(request.bootstrap, request.seed),
            uncalibrated.accuracy_and_nll(request.bootstrap, request.seed),
        )
        return sentences

    def _validation_gain(self, row: str) -> float:
        """Return by how much its temperature lowers a row's negative log-likelihood of the validation data, in nats.

        Of a temperature of 1 or above, which raises no doubt, it is not looked at: the answer is 0.
        """
        validated = self.chosen.rows[row]
        if validated.temperature >= 1:
            return 0.0
        calibrated = validated.measured
        uncalibrated = measure_row(calibrated.source, None)
        log_probs = calibrated.inside.label_log_probs
        log_probs_before = uncalibrated.inside.label_log_probs
        assert log_probs is not None and log_probs_before is not None  # --val has labels
        return float(log_probs.sum() - log_probs_before.sum())

    def _why_no_other_row(self) -> list[str]:
        """Return the reasons why no other row was taken, as sentences; the last one is on the best other row."""
        others = [validated for name, validated in self.chosen.rows.items() if name != SINGLE]
        if not others:
            return []

        # Reason 1: the search found hardly anything.
        gains = [search_gain(validated.row) for validated in others]
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
        limits = [self.chosen.choice.limits[name] for name in names]
        if all(limit.startswith("accuracy") for limit in limits):
            lines.append("Every other model loses more accuracy on validation data than --max-drop allows.")

        # And why the best of them was not taken.
        lines += self._why_not_the_best_of(names)
        return lines

    def _why_not_the_best_of(self, rows: Sequence[str]) -> list[str]:
        """Return a sentence on the best of these rows under the single model's score; empty if none has that score."""
        chosen = self.chosen
        indices = [chosen.evidence.index_under(row, chosen.common_score) for row in rows]
        indices_with_score = [index for index in indices if index is not None]
        if not indices_with_score:
            return []

        best = max(indices_with_score, key=chosen.mean_auroc)
        auroc = number(chosen.mean_auroc(best))
        auroc_of_single = number(chosen.mean_auroc(chosen.choice.own_candidates[SINGLE]))
        return [
            f"On validation data the best of the other models under {chosen.common_score}, {chosen.rung(best).row}, "
            f"has a mean AUROC of {auroc}; the single model has {auroc_of_single}. It was not taken: "
            f"{chosen.choice.reasons[best]}."
        ]

    def _doubts_of_threshold(self, threshold: ThresholdRecord) -> list[str]:
        """Return the doubts about the threshold that ``best.st`` holds for the row and the score to use."""
        used = self.used
        scores = self.rows[used.row].inside.scores[used.score]
        if scores is None or threshold.value is None:
            return []
        scores_chosen_on = self.chosen.rows[used.row].measured.inside.scores[used.score]
        assert scores_chosen_on is not None  # a row has the same scores on both data
        flagged = int((scores >= threshold.value).sum())
        chosen_flagged = int((scores_chosen_on >= threshold.value).sum())
        promised = float(self.chosen.plan.request.threshold.number)
        return doubts.of_threshold(promised, flagged, len(scores), chosen_flagged, len(scores_chosen_on))

    # --- the table of all rows ----------------------------------------------------------------------------------------

    def score_of_table(self) -> str:
        """Return the OOD score of the table of the rows: the single model's, or MSP if any row does not have it."""
        common_score = self.chosen.common_score
        if all(common_score in measured.scores for measured in self.rows.values()):
            return common_score
        return REFERENCE

    # --- the answer ---------------------------------------------------------------------------------------------------

    def answer(self, source: Source, steps: Sequence[Sequence[str]], threshold: ThresholdRecord | None) -> StudyAnswer:
        """Return the document ``hydractl.study/2``. It holds no times and no dates, so it can be reproduced.

        Args:
            source: the studied model.
            steps: the command line of each step.
            threshold: the threshold of ``best.st``; None without one.
        """
        chosen = self.chosen
        used = self.used
        temperature = chosen.rows[used.row].temperature
        price = self._price_of_row(used.row)
        doubts_of_threshold = []
        if threshold is not None:
            doubts_of_threshold = self._doubts_of_threshold(threshold)
        use = Use(used, temperature, None if threshold is None else threshold.value, price)
        return StudyAnswer(
            model=StudiedModelRecord(name=source.name, sha256=source.sha256),
            verdict=self._verdict_record(use, doubts_of_threshold),
            use=UseRecord(
                row=used.row,
                score=used.score,
                temperature=temperature,
                threshold=threshold,
                mac_ratio=price.macs,
                param_ratio=price.params,
                stepped_down=self._final_index > 0,
            ),
            choice=ChoiceRecord(
                row=chosen.taken.row,
                score=chosen.taken.score,
                rule=chosen.rule,
                telling=chosen.choice.telling,
                blind=chosen.choice.blind,
                stability=chosen.stability,
            ),
            ladder=self._ladder_records(),
            common_score=chosen.common_score,
            baseline=TestedRecord(ood_score=REFERENCE, **dict(self.uncalibrated.metrics(REFERENCE))),
            rows=[self._row_record(row) for row in self.rows],
            ruled_out=[self._ruled_out_record(row, reason) for row, reason in chosen.ruled_out.items()],
            steps=[list(step) for step in steps],
        )

    def _verdict_record(self, use: Use, further_doubts: Sequence[str]) -> VerdictRecord:
        """Return the verdict in words, and the comparisons behind it."""
        facts = replace(self.facts, doubts=[*self.facts.doubts, *further_doubts])
        in_words = verdict(facts, use)
        against_single = facts.against_single[facts.final_index]
        return VerdictRecord(
            answer=in_words.answer,
            lines=list(in_words.lines),
            next_best=None if facts.next_best is None else facts.next_best.record(facts.rung),
            uncertain=facts.uncertain or None,
            doubts=list(facts.doubts),
            footnote=FOOTNOTE,
            hardest=against_single.hardest,
            rivals=against_single.rivals,
            afterwards=against_single.better_afterwards,
            sets=facts.by_test_set,
            against_hardest=list(facts.against_hardest.values()),
            against_baseline=list(facts.against_baseline.values()),
            mistakes=None if self.mistakes is None else self.mistakes.record(),
        )

    def _ladder_records(self) -> list[LadderRungRecord]:
        """Return the rungs of the ladder, each with its differences to the next rung; the last has none."""
        differences_to_next = [*self.facts.differences_to_next, {}]
        records = []
        for rung, differences in zip(self.facts.ladder, differences_to_next, strict=True):
            findings = list(differences.values())
            records.append(LadderRungRecord(row=rung.row, score=rung.score, against_next=findings))
        return records

    def _price_of_row(self, row: str) -> Price:
        """Return the cost of a row as ratios to the single model."""
        measured = self.chosen.rows[row].measured
        return Price(
            macs=_ratio(measured.macs, self._single.macs),
            params=_ratio(measured.params, self._single.params),
        )

    def _row_record(self, name: str) -> StudyRowRecord:
        """Return the figures of one row on the validation data and on the test data, under its own score.

        With ``common``, also its OOD detection under the score of the single model, if it has that score.
        """
        chosen = self.chosen
        validated = chosen.rows[name]
        measured = self.rows[name]
        own = chosen.own_candidate(name)
        score = chosen.score_of(name)
        indices = chosen.evidence.rows[name]
        candidates = [chosen.evidence.candidates[index] for index in indices]
        aurocs = {candidate.score: dict(candidate.outside.values) for candidate in candidates}

        detection_under_common_score = None
        if chosen.common_score in measured.scores:
            under_common_score = dict(measured.metrics(chosen.common_score))
            detection_under_common_score = DetectedRecord(ood_score=chosen.common_score, **under_common_score)
        return StudyRowRecord(
            name=name,
            chosen=name == chosen.taken.row,
            used=name == self.used.row,
            members=measured.members,
            macs=measured.macs,
            params=measured.params,
            mac_ratio=self._price_of_row(name).macs,
            temperature=validated.temperature,
            score=score,
            search=search_gain(validated.row),
            lr=kept_learning_rates(validated.row),
            validation=ValidationRecord(accuracy=own.accuracy, nll=own.nll, mi=validated.mean_mi, auroc=aurocs),
            test=TestedRecord(ood_score=score, **dict(measured.metrics(score))),
            common=detection_under_common_score,
        )

    def _ruled_out_record(self, name: str, reason: str) -> RuledOutRecord:
        """Return the figures of a row that did not run on the test data: those on validation data, under one score.

        That is the score of the single model if the row has it, else its own.
        """
        chosen = self.chosen
        measured = chosen.rows[name].measured
        score = chosen.common_score if chosen.common_score in measured.scores else chosen.score_of(name)
        return RuledOutRecord(
            name=name,
            reason=reason,
            members=measured.members,
            macs=measured.macs,
            params=measured.params,
            mac_ratio=self._price_of_row(name).macs,
            temperature=chosen.rows[name].temperature,
            validation=TestedRecord(ood_score=score, **dict(measured.metrics(score))),
        )


def test_rows(chosen: Chosen, log: Log) -> Tested:
    """Measure the rows on the test data, whose predictions are there.

    Args:
        chosen: what was chosen on the validation data.
        log: receives the progress of what follows.
    """
    rows = {}
    for row in chosen.tested_rows:
        path = chosen.plan.predictions(row, "test")
        calibration = chosen.rows[row.name].calibration
        rows[row.name] = measure_row(path, calibration, given_score=chosen.given_score)
    return Tested(chosen, rows, measure_row(rows[SINGLE].source, None), log)


def _finding(difference: Mapping[str, Any], samples: int) -> Finding:
    """Return the finding for a paired difference of AUROC, measured on so many samples of the smallest set."""
    return judge(AUROC, difference["value"], difference["ci"], samples)


def _ratio(value: int | None, base: int | None) -> float | None:
    """Return ``value / base``; None if one of them is not known or ``base`` is 0."""
    if value is None:
        return None
    if not base:
        return None
    return value / base
