"""A study from its predictions to its answer: choose on validation data, compare on test data, say it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
    Choice,
    Evidence,
    Stability,
    choose_candidate,
    stability,
)
from hydractl.studies.comparing import Met, Rung, end_of, ladder
from hydractl.studies.measured_rows import MeasuredRow, fitted_temperature, measure_row
from hydractl.studies.rows import Row
from hydractl.studies.verdict import Facts, Price, Use, verdict
from hydractl.studies.words import AUROC, AUROC_MARGIN, Finding, judge, judge_all

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
"""A rise of the AUROC that the search looked for, below which heads hardly matter to it."""
_LITTLE_MI = 0.01


@dataclass(frozen=True)
class ValidatedRow:
    """One row on validation data.

    Attributes:
        row: the row.
        calibration: its temperature.
        measured: it, under every score.
        candidates: one for each score.
    """

    row: Row
    calibration: Calibration
    measured: MeasuredRow
    candidates: Sequence[Candidate]

    @property
    def mean_mi(self) -> float:
        """The mean mutual information of its members on the ID data, in nats."""
        return float(self.measured.inside.mi.mean())


@dataclass(frozen=True)
class _Decided:
    """What validation data led to.

    Attributes:
        evidence: of all candidates.
        choice: what was decided.
        stability: how often resamples decide the same.
    """

    evidence: Evidence
    choice: Choice
    stability: Stability

    @property
    def telling(self) -> tuple[int, ...]:
        """The OOD validation sets that have a vote."""
        return tuple(self.evidence.sets.index(name) for name in self.choice.telling)

    def mean(self, place: int) -> float:
        """Return the mean AUROC of a candidate over the sets that have a vote."""
        return self.evidence.mean(place, self.telling, 0)


class Study:
    """The decisions of a study, made once each.

    Args:
        rows: the single model first.
        max_drop: accuracy that may be lost.
        rounds, seed: of the bootstrap.
        log: hears of the progress.
    """

    def __init__(self, rows: Sequence[Row], max_drop: float, rounds: int, seed: int, log: Log) -> None:
        self._rows = list(rows)
        self._max_drop = max_drop
        self._rounds = rounds
        self._seed = seed
        self._log = log
        self._results: dict[str, ValidatedRow] = {}
        self._decision: _Decided | None = None
        self._tests: dict[str, MeasuredRow] = {}
        self._uncalibrated_single: MeasuredRow | None = None
        self._facts: Facts | None = None

    @property
    def _decided(self) -> _Decided:
        assert self._decision is not None  # choose() has been here
        return self._decision

    @property
    def _raw(self) -> MeasuredRow:
        """The single model as it is, without a temperature, on the test data."""
        assert self._uncalibrated_single is not None  # test() has been here
        return self._uncalibrated_single

    @property
    def _tested(self) -> Facts:
        assert self._facts is not None  # test() has been here
        return self._facts

    # --- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, predictions: Mapping[str, Path]) -> None:
        """Decide which row and score to take, from the predictions of every row on validation data."""
        candidates: list[Candidate] = []
        with self._log.progress("choosing", len(self._rows), "rows") as progress:
            for row in self._rows:
                result = self._result(row, predictions[row.name])
                self._results[row.name] = result
                candidates += result.candidates
                progress.advance(1, row.name)
        evidence = Evidence(candidates)
        choice = choose_candidate(evidence, self._max_drop)
        self._decision = _Decided(evidence, choice, stability(evidence, self._max_drop, choice))

    def _result(self, row: Row, path: Path) -> ValidatedRow:
        calibration = fitted_temperature(path)
        measured = measure_row(path, calibration)
        inside = measured.accuracy_and_nll(self._rounds, self._seed)
        candidates = []
        for score, outside in measured.aurocs(measured.scores, self._rounds, self._seed).items():
            candidates.append(
                Candidate(row.name, score, measured.members, measured.macs, inside, outside, eligible=row.stored)
            )
        return ValidatedRow(row, calibration, measured, candidates)

    @property
    def candidates(self) -> Sequence[Candidate]:
        """Every row with every score."""
        return self._decided.evidence.candidates

    def _rung(self, place: int) -> Rung:
        candidate = self.candidates[place]
        return Rung(candidate.row, candidate.score)

    @property
    def ladder(self) -> list[Rung]:
        """The choice, and what test data may step down to."""
        choice = self._decided.choice
        chosen = self._rung(choice.chosen)
        single_with_its_own_score = self._rung(choice.own_places[SINGLE])
        return ladder(chosen, single_with_its_own_score, Rung(SINGLE, REFERENCE))

    @property
    def scores(self) -> dict[str, str]:
        """The own score of each row."""
        own_places = self._decided.choice.own_places
        return {row: self.candidates[place].score for row, place in own_places.items()}

    @property
    def common_score(self) -> str:
        """The score under which all rows are compared: that of the single model."""
        return self.scores[SINGLE]

    def temperature(self, row: str) -> float:
        """Return the temperature that validation data gave a row."""
        temperature = self._results[row].calibration.temperature
        assert temperature is not None  # fitted as one
        return temperature

    def row(self, name: str) -> Row:
        """Return a row by its name."""
        return self._results[name].row

    def rivals_of(self, rung: Rung) -> list[str]:
        """Return the scores of the single model that a rung meets on test data, fixed beforehand.

        MSP, the rung's own, that of the single model, and those that validation data cannot tell from it.
        """
        fixed = {REFERENCE, rung.score, self.common_score}
        for place in self._decided.choice.rivals:
            fixed.add(self.candidates[place].score)
        rivals = []
        for score in self._results[SINGLE].measured.scores:
            if score in fixed and Rung(SINGLE, score) != rung:
                rivals.append(score)
        return rivals

    def choice_document(self) -> dict[str, Any]:
        """Return what was decided, and why, from validation data alone."""
        choice = self._decided.choice
        taken = self.candidates[choice.chosen]
        return {
            "schema": "hydractl.study-choice/2",
            "rule": self._rule,
            "row": taken.row,
            "score": taken.score,
            "temperature": self.temperature(taken.row),
            "telling": choice.telling,
            "blind": choice.blind,
            "rivals": self.rivals_of(self._rung(choice.chosen)),
            "ladder": list(map(asdict, self.ladder)),
            "stability": asdict(self._decided.stability),
            "candidates": [self._candidate_document(place) for place in range(len(self.candidates))],
        }

    def _candidate_document(self, place: int) -> dict[str, Any]:
        candidate = self.candidates[place]
        return {
            "row": candidate.row,
            "score": candidate.score,
            "members": candidate.members,
            "macs": candidate.macs,
            "accuracy": candidate.accuracy,
            "nll": candidate.nll,
            "auroc": self._decided.mean(place) if self._decided.telling else None,
            "sets": dict(candidate.outside.values),
            "reason": self._decided.choice.reasons[place],
        }

    @property
    def _rule(self) -> str:
        return RULE.format(drop=self._max_drop, nll=NLL_TOLERANCE, margin=AUROC_MARGIN, blind=BLIND)

    # --- testing ------------------------------------------------------------------------------------------------------

    def test(self, predictions: Mapping[str, Path]) -> None:
        """Compare the choice on the test data, and step down where they say so.

        Args:
            predictions: of every row on the test data.
        """
        for name, result in self._results.items():
            self._tests[name] = measure_row(predictions[name], result.calibration)
        self._uncalibrated_single = measure_row(predictions[SINGLE], None)

        rungs = self.ladder
        figures = [self._figures(self._tests[rung.row], rung) for rung in rungs]
        steps = [self._judged(upper, lower) for upper, lower in itertools.pairwise(figures)]
        ends = end_of([step[AUROC] for step in steps])
        rung = rungs[ends]
        single = self._tests[SINGLE]
        free_scores = single.aurocs(single.scores, self._rounds, self._seed)
        met = [self._met(each_rung, free_scores) for each_rung in rungs]

        hardest: dict[str, Finding] = {}
        sets: dict[str, Finding] = {}
        if met[ends].hardest is not None:
            rival = Rung(SINGLE, str(met[ends].hardest))
            hardest = self._judged(figures[ends], self._figures(single, rival))
            sets = self._set_by_set(rung, rival)
        baseline = self._figures(self._raw, Rung(SINGLE, REFERENCE))
        has_vote = bool(self._decided.choice.telling)
        why: list[str] = []
        if rungs[0].row == SINGLE and has_vote:
            why = self._why()
        self._facts = Facts(
            ladder=rungs,
            steps=steps,
            ends=ends,
            met=met,
            hardest=hardest,
            sets=sets,
            baseline=self._judged(figures[ends], baseline),
            n=self._smallest_test_set,
            labelled=self._raw.inside.labels is not None,
            told=has_vote,
            others=len(self._rows) > 1,
            why=why,
            doubts=self._doubts(rung),
        )

    @property
    def used(self) -> Rung:
        """Where the verdict ends: the row and the score to use."""
        return self._tested.rung

    @property
    def stepped_down(self) -> bool:
        """Whether test data had a say in what is used."""
        return self._tested.ends > 0

    @property
    def note(self) -> str:
        """The sentence in card and provenance of ``best.st`` on how it was chosen; empty where test data had no say."""
        if not self.stepped_down:
            return ""
        chosen = self.ladder[0]
        return (
            f"Chosen on validation data was {chosen.row} with {chosen.score}; the test data reported here led from "
            "there to this one, so they are no longer untouched."
        )

    def options_of_table(self) -> dict[str, str | list[str]]:
        """Return options of ``eval`` that put all rows under one score, with their temperatures and own scores beside.

        A row that has not that score is under its own.
        """
        everywhere = []
        for name in dict.fromkeys([self.common_score, REFERENCE, *self.scores.values()]):
            if all(name in test.scores for test in self._tests.values()):
                everywhere.append(name)
        scores = [",".join(everywhere)]
        if self.common_score not in everywhere:
            scores = [f"{row}={self._score_in_table(row)}" for row in self._results]
        temperatures = [f"{row}={self.temperature(row)!r}" for row in self._results]
        return {"ood_score": scores, "temperature": temperatures}

    def _score_in_table(self, row: str) -> str:
        """Return the score of the single model where a row has it, else its own."""
        return self.common_score if self.common_score in self._tests[row].scores else self.scores[row]

    @property
    def _smallest_test_set(self) -> int:
        single = self._tests[SINGLE]
        return min(len(single.inside), *map(len, single.outside.values()))

    def _figures(self, measured: MeasuredRow, rung: Rung) -> Resampled:
        """Return what is judged, on the test data and their resamples."""
        with self._log.progress(f"intervals of {rung.row}, {rung.score}", self._rounds, "resamples") as progress:
            return measured.resampled(rung.score, self._rounds, self._seed, progress.advance)

    def _judged(self, figures: Resampled, other: Resampled) -> dict[str, Finding]:
        return judge_all(paired_differences(other, figures), self._smallest_test_set)

    def _met(self, rung: Rung, free_scores: Mapping[str, Resampled]) -> Met:
        """Compare the mean AUROC of a rung with that of the single model under each of its scores."""
        mean_of_rung = mean_over_sets(self._aurocs(rung), AUROC)
        fixed = self.rivals_of(rung)
        rivals = {}
        others = {}
        for score, by_set in free_scores.items():
            if Rung(SINGLE, score) == rung:
                continue
            difference = paired_differences(mean_over_sets(by_set, AUROC), mean_of_rung)[AUROC]
            assert difference["value"] is not None and difference["ci"] is not None  # no test set is empty
            finding = judge(AUROC, difference["value"], difference["ci"], self._smallest_test_set)
            if score in fixed:
                rivals[score] = finding
            else:
                others[score] = finding
        return Met(rivals, others)

    def _aurocs(self, rung: Rung) -> Resampled:
        """Return the AUROC against each test set."""
        by_score = self._tests[rung.row].aurocs([rung.score], self._rounds, self._seed)
        return by_score[rung.score]

    def _set_by_set(self, rung: Rung, rival: Rung) -> dict[str, Finding]:
        """Judge the difference of AUROC on each test set."""
        findings = {}
        for name, difference in paired_differences(self._aurocs(rival), self._aurocs(rung)).items():
            assert difference["value"] is not None and difference["ci"] is not None  # no test set is empty
            findings[name] = judge(AUROC, difference["value"], difference["ci"], self._smallest_test_set)
        return findings

    def _doubts(self, rung: Rung) -> list[str]:
        """Say what makes the verdict less sure."""
        choice = self._decided.choice
        sentences = doubts.of_blind_sets(choice.telling, choice.blind)
        test = self._raw.inside
        if test.labels is not None:
            validation = self._results[SINGLE].measured.inside
            sentences += doubts.of_accuracies(
                int(validation.correct.sum()), len(validation), int(test.correct.sum()), len(test)
            )
            calibrated = self._tests[rung.row]
            uncalibrated = measure_row(calibrated.source, None)
            sentences += doubts.of_temperature(
                self.temperature(rung.row),
                calibrated.accuracy_and_nll(self._rounds, self._seed),
                uncalibrated.accuracy_and_nll(self._rounds, self._seed),
            )
        sentences += doubts.of_stability(self._decided.stability)
        return sentences

    def _why(self) -> list[str]:
        """Say why no other row was taken: what the search, the members and the rule tell."""
        others = [result for name, result in self._results.items() if name != SINGLE]
        if not others:
            return []
        lines = _search_text(others)
        highest_mi = max((result.mean_mi for result in others if result.measured.members > 1), default=None)
        if highest_mi is not None and highest_mi < _LITTLE_MI:
            lines.append(f"Members hardly differ: their mutual information on ID data is at most {highest_mi:.2g}.")
        limits = [self._decided.choice.limits[result.row.name] for result in others]
        if all(limit.startswith("accuracy") for limit in limits):
            lines.append("Every other row loses more accuracy on validation data than --max-drop allows.")
        return lines + self._best_of_others([result.row.name for result in others])

    def _best_of_others(self, rows: Sequence[str]) -> list[str]:
        """Say what the best of the other rows has under the score of the single model, and why it was not taken."""
        decided = self._decided
        compared = []
        for row in rows:
            place = decided.evidence.under(row, self.common_score)
            if place is not None:
                compared.append(place)
        if not compared:
            return []
        best = max(compared, key=decided.mean)
        name = self.candidates[best].row
        single = decided.choice.own_places[SINGLE]
        return [
            f"On validation data the best of the other rows under {self.common_score}, {name}, has "
            f"a mean AUROC of {number(decided.mean(best))}; the single model has "
            f"{number(decided.mean(single))}. It was not taken: {decided.choice.reasons[best]}."
        ]

    # --- saying it ----------------------------------------------------------------------------------------------------

    def answer(
        self, name: str, sha256: str, steps: Sequence[Sequence[str]], threshold: ThresholdRecord | None
    ) -> StudyAnswer:
        """Return ``hydractl.study/2``: no times and no dates.

        Args:
            name, sha256: of the model.
            steps: the commands.
            threshold: of ``best.st``.
        """
        rung = self._tested.rung
        threshold_value = None
        if threshold is not None:
            threshold_value = threshold.value
        use = Use(
            rung=rung,
            temperature=self.temperature(rung.row),
            threshold=threshold_value,
            price=self._price(rung.row),
        )
        return StudyAnswer(
            model=StudiedModelRecord(name=name, sha256=sha256),
            verdict=self._verdict_record(use),
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
            baseline=TestedRecord.from_json(self._raw.block(REFERENCE)),
            rows=[self._row_record(row) for row in self._results],
            steps=[list(step) for step in steps],
        )

    def _verdict_record(self, use: Use) -> VerdictRecord:
        """Return the answer in words, and what it rests on."""
        tested = self._tested
        said = verdict(tested, use)
        met = tested.met[tested.ends]
        return VerdictRecord(
            answer=said.answer,
            lines=list(said.lines),
            doubts=list(tested.doubts),
            footnote=FOOTNOTE,
            hardest=met.hardest,
            rivals=_by_name(met.rivals),
            afterwards=_by_name(met.better_afterwards),
            sets=_by_name(tested.sets),
            against_hardest=_finding_records(tested.hardest),
            against_baseline=_finding_records(tested.baseline),
        )

    def _choice_record(self) -> ChoiceRecord:
        """Return what was chosen on validation data."""
        choice = self._decided.choice
        chosen = self._rung(choice.chosen)
        resampled = self._decided.stability
        return ChoiceRecord(
            row=chosen.row,
            score=chosen.score,
            rule=self._rule,
            telling=choice.telling,
            blind=choice.blind,
            stability=StabilityRecord(row=resampled.row, score=resampled.score),
        )

    def _ladder_records(self) -> list[LadderRungRecord]:
        """Return the rungs, each with its differences to the next one."""
        tested = self._tested
        records = []
        for place, rung in enumerate(tested.ladder):
            against_next: list[FindingRecord] = []
            if place < len(tested.steps):
                against_next = _finding_records(tested.steps[place])
            records.append(LadderRungRecord(row=rung.row, score=rung.score, against_next=against_next))
        return records

    def _price(self, row: str) -> Price:
        measured = self._tests[row]
        single = self._tests[SINGLE]
        return Price(_ratio(measured.macs, single.macs), _ratio(measured.params, single.params))

    def _row_record(self, name: str) -> StudyRowRecord:
        """Return one row on validation and on test data."""
        result = self._results[name]
        measured = self._tests[name]
        choice = self._decided.choice
        candidate = self.candidates[choice.own_places[name]]
        under_common = None
        if self.common_score in measured.scores:
            under_common = DetectedRecord.from_json(_detection(measured.block(self.common_score)))
        validation = ValidationRecord(
            accuracy=candidate.accuracy,
            nll=candidate.nll,
            mi=result.mean_mi,
            auroc={under.score: dict(under.outside.values) for under in result.candidates},
        )
        return StudyRowRecord(
            name=name,
            chosen=name == self._rung(choice.chosen).row,
            used=name == self.used.row,
            members=measured.members,
            macs=measured.macs,
            params=measured.params,
            mac_ratio=self._price(name).macs,
            temperature=self.temperature(name),
            score=candidate.score,
            search=_search(result.row),
            validation=validation,
            test=TestedRecord.from_json(measured.block(candidate.score)),
            common=under_common,
        )


def _finding_records(findings: Mapping[str, Finding]) -> list[FindingRecord]:
    """Return findings as a document holds them, in their order."""
    return list(_by_name(findings).values())


def _by_name(findings: Mapping[str, Finding]) -> dict[str, FindingRecord]:
    """Return findings as a document holds them, by the names they have."""
    records = {}
    for name, finding in findings.items():
        records[name] = FindingRecord(
            metric=finding.metric, value=finding.value, ci=finding.ci, kind=finding.kind, needed=finding.needed
        )
    return records


def _detection(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a block of metrics that depend on the OOD score."""
    return {key: block[key] for key in ("ood", "near_avg", "far_avg", "ood_avg", "ood_score")}


def _ratio(value: int | None, base: int | None) -> float | None:
    if value is None or not base:
        return None
    return value / base


def _search(row: Row) -> SearchGainRecord | None:
    """Return what the search did to the model, by the circuit of a row; None of a row without one."""
    if row.circuit is None:
        return None
    path, count = row.circuit
    document = read_json_file(str(path))
    return SearchGainRecord(
        removed=count, before=_state(document["base"]), after=_state(document["removed"][count - 1])
    )


def _state(step: Mapping[str, Any]) -> SearchStateRecord:
    """Return what a search measured at one step."""
    auroc = None
    if step["two_u"] is not None:
        auroc = step["two_u"] / (2 * step["n_id"] * step["n_ood"])
    return SearchStateRecord(score=step["score"], accuracy=step["correct"] / step["n_id"], auroc=auroc)


def _gain(search: SearchGainRecord) -> float | None:
    """Return by how much the AUROC that a search looked for rose; None where it looked for none."""
    before = search.before.auroc
    after = search.after.auroc
    if before is None or after is None:
        return None
    return after - before


def _search_text(results: Sequence[ValidatedRow]) -> list[str]:
    """Say so where even the search that gained most hardly raised its AUROC."""
    best: SearchGainRecord | None = None
    most = -math.inf
    for result in results:
        search = _search(result.row)
        if search is None:
            continue
        gain = _gain(search)
        if gain is not None and gain >= most:
            best = search
            most = gain
    if best is None or most >= _BARELY:
        return []
    raised = "hardly raised" if most > 0 else "did not raise"
    return [
        f"The search itself {raised} the AUROC it looked for: from {number(best.before.auroc, 3)} to "
        f"{number(best.after.auroc, 3)} with {best.removed} heads removed."
    ]
