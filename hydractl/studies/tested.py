"""The choice of a study on the test data: how it compares, and the answer in figures and words.

ID data are in-distribution ("inside" in names), OOD data are not ("outside").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from hydractl.files.header import read_header
from hydractl.files.model_records import MeasuredThreshold
from hydractl.files.study_answer import (
    DetectedRecord,
    LadderRungRecord,
    NextBestRecord,
    RuledOutRecord,
    StudiedModelRecord,
    StudyAnswer,
    StudyRowRecord,
    UseRecord,
    ValidationRecord,
)
from hydractl.metrics.bootstrap import Resampled, intervals, mean_over_sets, paired_differences
from hydractl.model.source import Source
from hydractl.report.texts import ratio
from hydractl.studies import doubts
from hydractl.studies.choice import Chosen, measured
from hydractl.studies.measured_rows import MeasuredRow
from hydractl.studies.mistakes import mistakes_of
from hydractl.studies.next_commands import next_commands
from hydractl.studies.plan import Row
from hydractl.studies.rule import REFERENCE, SINGLE, Candidate
from hydractl.studies.verdict import AgainstSingle, Facts, Rung, end_of, record_of_other, verdict
from hydractl.studies.words import AUROC, FPR95, Findings, judge, judge_all

MADE_OF_TEST = (
    "No OOD test data were given, so these are made of the ID test data: the figures say little of samples to come."
)


@dataclass(frozen=True)
class Tested(Chosen):
    """What was chosen, and the rows of a study on the test data.

    A rung is a row with an OOD score. The rungs of the ladder are the choice, the single model with its own score, and
    the single model with MSP.

    Attributes:
        tested: by name, the rows that are not ruled out, with their temperature, measured on the test data.
        uncalibrated: the single model without a temperature.
    """

    tested: Mapping[str, MeasuredRow]
    uncalibrated: MeasuredRow

    @property
    def _single(self) -> MeasuredRow:
        """The single model with its temperature."""
        return self.tested[SINGLE]

    @property
    def note(self) -> str:
        """The sentence about the choice in ``best.st``, if test data changed it; else empty."""
        if self._final_index == 0:
            return ""
        taken = self.taken
        return (
            f"Chosen on validation data was {taken.row} with {taken.score}; the test data reported here led from "
            "there to this one, so they are no longer untouched."
        )

    # --- comparisons --------------------------------------------------------------------------------------------------

    @cached_property
    def _steps_down(self) -> list[tuple[Rung, Findings]]:
        """The rungs of the ladder, each with its differences to the next rung, by metric; none for the last rung."""
        steps = [(upper, self._differences(upper, lower)) for upper, lower in pairwise(self.ladder)]
        return [*steps, (self.ladder[-1], {})]

    @property
    def _final_index(self) -> int:
        """The index of the rung where the ladder ends: a rung is left if it is no better than the next one."""
        return end_of([differences[AUROC] for _, differences in self._steps_down[:-1]])

    @property
    def used(self) -> Rung:
        """The row and the score to use: the final rung."""
        return self.ladder[self._final_index]

    def _facts(self) -> Facts:
        """Return the comparisons on the test data that the verdict is based on.

        A rung is a row (a model of the study) with an OOD score. The rung to use is compared with the single model,
        which is the studied model without an ensemble, under each OOD score of the latter.
        """
        used = self.used
        is_single = used.row == SINGLE
        has_vote = bool(self.choice.telling)

        # The single model as it is, with MSP and no temperature; and the rung to use.
        baseline = self.uncalibrated.resampled(REFERENCE)
        figures = self._on_resamples(used)
        against_baseline = paired_differences(baseline, figures)

        # Compare the rung to use with the single model under each of its scores: "hardest" is that of the scores fixed
        # before the test which the rung beats least. Under that they are compared on every test set, too.
        aurocs_of_used = self.tested[used.row].aurocs([used.score])[used.score]
        aurocs_of_single = self._single.aurocs(self._single.scores)
        against = self._against_single(aurocs_of_used, aurocs_of_single)
        by_test_set = {}
        if against.hardest is not None:
            by_set = paired_differences(aurocs_of_single[against.hardest], aurocs_of_used)
            for name, difference in by_set.items():
                smaller_set = min(len(self._single.inside), len(self._single.outside[name]))
                by_test_set[name] = judge(AUROC, difference, smaller_set)
        return Facts(
            rung=used,
            left=self._steps_down[: self._final_index],
            to_next=self._steps_down[self._final_index][1],
            against=against,
            against_hardest=self._against(against.hardest),
            against_nearest=self._against(None if is_single else against.nearest),
            by_test_set=by_test_set,
            against_baseline=judge_all(against_baseline, self._single.smallest_set, same_row=is_single),
            has_vote=has_vote,
            has_ood_val=self.plan.request.has_ood_val,
            has_other_rows=len(self.rows) > 1,
            next_best=self._compared("Next best on validation data", self._next_best),
            highest=self._compared("Highest of all models", self._highest),
            false_alarms=(baseline.values.get(FPR95), figures.values.get(FPR95)),
            uncertain=" ".join(doubts.of_stability(self.choice.stability)) if has_vote else "",
            doubts=self._sentences_of_doubt(),
            mistakes=mistakes_of(used.row, self.rows[used.row], self.tested[used.row]),
        )

    @property
    def _next_best(self) -> Candidate | None:
        """The row with the highest mean AUROC on the validation data, beside the chosen row and the row to use.

        Only admissible rows count: those that do no harm compared with the single model. They are sorted by cost, so of
        equal rows it is the cheapest. None if there is no other: always where no OOD validation set has a vote.
        """
        others = [other for other in self.choice.admissible if other.row not in (self.taken.row, self.used.row)]
        return max(others, key=self.choice.mean_auroc, default=None)

    @property
    def _highest(self) -> Candidate | None:
        """The row with the highest mean OOD AUROC on the test data, all rows under the single model's score.

        None if no other row is higher than the row to use.
        """
        # A candidate is a row with a score.
        others = [
            candidate
            for candidate in self.choice.candidates
            if candidate.score == self.common_score and candidate.row in self.tested and candidate.row != self.used.row
        ]
        highest = max(others, key=self._tested_auroc, default=None)

        # The row to use counts with the score that it is used with.
        if highest is None or self._tested_auroc(highest) <= self._tested_auroc(self.used):
            return None
        return highest

    def _compared(self, place: str, other: Candidate | None) -> NextBestRecord | None:
        """Return what might have been chosen instead, compared with the rung to use; see :func:`record_of_other`."""
        if other is None:
            return None
        rung = Rung(other.row, other.score)
        mac_ratio = self._mac_ratio(rung.row)
        why_not = self.choice.why_not_taken(other)
        return record_of_other(place, rung, mac_ratio, self._differences(rung, self.used), self.used, why_not)

    def _tested_auroc(self, rung: Rung | Candidate) -> float:
        """Return the mean AUROC of a row with a score on the test data."""
        return self.tested[rung.row].mean_aurocs([rung.score])[rung.score]

    def _on_resamples(self, rung: Rung) -> Resampled:
        """Return the metrics of a rung (a row with an OOD score) on the test data and on their resamples."""
        return self.tested[rung.row].resampled(rung.score)

    def _differences(self, rung: Rung, other: Rung) -> Findings:
        """Return the findings for the paired differences of a rung (row with an OOD score) minus another, by metric."""
        paired = paired_differences(self._on_resamples(other), self._on_resamples(rung))
        return judge_all(paired, self._single.smallest_set, same_row=rung.row == other.row)

    def _against(self, score: str | None) -> Findings:
        """Return the differences of the rung to use to the single model with this score, by metric; empty for None."""
        return {} if score is None else self._differences(self.used, Rung(SINGLE, score))

    def _against_single(self, aurocs_of_used: Resampled, aurocs_of_single: Mapping[str, Resampled]) -> AgainstSingle:
        """Return the mean AUROC of the rung to use (a row with a score) minus that of the single model, by score.

        The differences are in two groups: ``rivals`` for scores of the single model that were fixed before the test,
        and ``others`` for all its other scores.

        Args:
            aurocs_of_used: the AUROC of the rung against each OOD test set.
            aurocs_of_single: by score, the AUROC of the single model against each OOD test set.
        """
        mean_of_used = mean_over_sets(aurocs_of_used, AUROC)
        fixed_beforehand = self.rivals_of(self.used)
        against = AgainstSingle({}, {})
        for score, aurocs in aurocs_of_single.items():
            if Rung(SINGLE, score) == self.used:  # it is not compared with itself
                continue
            difference = paired_differences(mean_over_sets(aurocs, AUROC), mean_of_used)[AUROC]
            findings = against.rivals if score in fixed_beforehand else against.others
            findings[score] = judge(AUROC, difference, self._single.smallest_set(AUROC))
        return against

    # --- reasons and doubts -------------------------------------------------------------------------------------------

    def _sentences_of_doubt(self) -> list[str]:
        """Return sentences on what makes the verdict less certain; empty if nothing does."""
        row = self.used.row
        sentences = []

        # OOD validation sets that no score separates from ID data ("blind"), where somebody gave such sets.
        if self.plan.request.has_ood_val:
            has_circuits = any(step.verb == "extract-circuit" for step in self.plan.steps)
            first_set = self.choice.sets[0]  # a search takes the first OOD validation set
            searched = first_set if has_circuits else None
            made_of_val = self.plan.request.made_of_val.text
            made = [given.name for given in self.plan.request.choosing_sets() if given.spec.text == made_of_val]
            sentences += doubts.of_blind_sets(self.choice.telling, self.choice.blind, made=made, searched=searched)

        # OOD test samples that are made of the ID test data.
        if not self.plan.request.has_ood:
            sentences.append(MADE_OF_TEST)

        # Accuracy or NLL of the row that is beyond its limit; not significantly, else the row could not be used.
        losses = self.choice.losses_beyond_limit(row)
        sentences += doubts.of_limits(row, losses, self.choice.limits)
        if self.uncalibrated.inside.labels is not None:
            sentences += self._doubts_of_labelled(row)
        return sentences

    def _doubts_of_labelled(self, row: str) -> list[str]:
        """Return sentences on the doubts that need labels of the test data; empty if there are none.

        They say where accuracy differs between validation and test data, and where the temperature of the row to use
        makes the NLL of the test data worse.
        """
        # Accuracy of the single model: its correct predictions on the validation data and on the test data.
        sentences = doubts.of_accuracies(self.rows[SINGLE].inside.correct, self.uncalibrated.inside.correct)

        # NLL of the row to use on the test data, with its temperature and without.
        tested = self.tested[row]
        raw = tested.uncalibrated().on_id({"nll"})
        return sentences + doubts.of_temperature(tested.temperature, tested.on_id({"nll"}), raw)

    # --- the answer ---------------------------------------------------------------------------------------------------

    def score_of_table(self) -> str:
        """Return the OOD score of the table of the rows: the single model's, or MSP if any row does not have it."""
        common_score = self.common_score
        if all(common_score in measured.scores for measured in self.tested.values()):
            return common_score
        return REFERENCE

    def answer(
        self,
        source: Source,
        steps: Sequence[Sequence[str]],
        threshold: MeasuredThreshold | None,
        warnings: Sequence[str],
    ) -> StudyAnswer:
        """Return the document ``hydractl.study/2``. It holds no times and no dates, so it can be reproduced.

        Args:
            source: the studied model.
            steps: the command line of each step.
            threshold: the threshold of ``best.st``, as measured; None without one.
            warnings: sentences on what is odd about the data.
        """
        # What to use: the final rung (row with a score) of the ladder, and the threshold of ``best.st``.
        used = self.used
        row = self.tested[used.row]
        use = UseRecord(
            row=used.row,
            score=used.score,
            temperature=row.temperature,
            threshold=threshold,
            mac_ratio=self._mac_ratio(used.row),
            param_ratio=ratio(row.source.cost.params, self._single.source.cost.params),
            bytes=(self.plan.folder / "best.st").stat().st_size,
            stepped_down=self._final_index > 0,
        )

        facts = self._facts()

        ladder = []
        for rung, differences in self._steps_down:
            ladder.append(LadderRungRecord(row=rung.row, score=rung.score, against_next=list(differences.values())))
        return StudyAnswer(
            model=StudiedModelRecord(name=source.name, sha256=source.sha256, bytes=source.file_bytes),
            verdict=verdict(facts, self._mac_ratio(used.row)),
            use=use,
            choice=self.record,
            ladder=ladder,
            common_score=self.common_score,
            baseline=self.uncalibrated.metrics(REFERENCE),
            baseline_ci=intervals(self.uncalibrated.resampled(REFERENCE)),
            baseline_threshold=self.uncalibrated.thresholded(
                self.plan.request.threshold, self.rows[SINGLE].uncalibrated(), REFERENCE
            ),
            rows=[self._row_record(row) for row in self.tested_rows],
            ruled_out=[self._ruled_out_record(row, reason) for row, reason in self.ruled_out.items()],
            steps=[list(step) for step in steps],
            next=next_commands(self.plan, used, facts.free_alternative),
            warnings=list(warnings),
        )

    def _mac_ratio(self, row: str) -> float:
        """Return the mult-adds of a row over those of the single model."""
        return self.rows[row].macs / self.rows[SINGLE].macs

    def _about_row(self, name: str) -> dict[str, Any]:
        """Return what the records of a row have in common, whether it ran on the test data or not."""
        validated = self.rows[name]
        return {
            "name": name,
            "members": validated.source.members,
            "macs": validated.macs,
            "params": validated.source.cost.params,
            "mac_ratio": self._mac_ratio(name),
            "temperature": validated.temperature,
        }

    def _row_record(self, row: Row) -> StudyRowRecord:
        """Return the figures of one row on the validation data and on the test data, under its own score.

        With ``common``, also its OOD detection under the score of the single model, if it has that score.
        """
        validated = self.rows[row.name]
        tested = self.tested[row.name]

        # On validation data, by score: the candidates, which have the AUROC against each OOD set. Accuracy and NLL are
        # the same under any score.
        score = self.score_of(row.name)
        candidates = self.choice.rows[row.name]
        first, *_ = candidates.values()
        aurocs = {name: dict(candidate.outside.values) for name, candidate in candidates.items()}
        mean_mi = float(validated.inside.mi.mean())

        # On test data, under the score of the single model.
        common = None
        if self.common_score in tested.scores:
            common = DetectedRecord(**dict(tested.metrics(self.common_score)))
        return StudyRowRecord(
            **self._about_row(row.name),
            chosen=row.name == self.taken.row,
            used=row.name == self.used.row,
            score=score,
            lr=_kept_learning_rates(row),
            validation=ValidationRecord(accuracy=first.accuracy, nll=first.nll, mi=mean_mi, auroc=aurocs),
            test=tested.metrics(score),
            common=common,
        )

    def _ruled_out_record(self, name: str, reason: str) -> RuledOutRecord:
        """Return the figures of a row that did not run on the test data: those on validation data, under one score.

        That is the score of the single model if the row has it, else its own.
        """
        validated = self.rows[name]
        common_score = self.common_score
        score = common_score if common_score in validated.scores else self.score_of(name)
        return RuledOutRecord(**self._about_row(name), reason=reason, validation=validated.metrics(score))


def test_rows(chosen: Chosen) -> Tested:
    """Return what was chosen with its rows (models of the study) measured on the test data, from stored predictions."""
    rows = {
        row.name: measured(chosen.plan, row, "test", chosen.rows[row.name].calibration) for row in chosen.tested_rows
    }
    return Tested(chosen.plan, chosen.rows, chosen.choice, rows, rows[SINGLE].uncalibrated())


def _kept_learning_rates(row: Row) -> list[float] | None:
    """Return the learning rate that each training of a row kept, in the order of its trainings.

    They stand in the headers of the files that were written. None for a row that was not trained.
    """
    rates = []
    for model in row.trained:
        header = read_header(model)
        assert header.description is not None  # a model that hydractl wrote
        learning_rate = header.description["provenance"]["settings"].get("lr")
        if learning_rate is not None:  # a posterior has none
            rates.append(float(learning_rate))
    return rates or None
