"""A study from its predictions to its answer: choose on validation data, compare on test data, say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydractl.jsonio import read_json_file
from hydractl.log import Log
from hydractl.metrics.bootstrap import Resampled, differences, mean_over_sets
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
    choose,
    stability,
)
from hydractl.studies.comparing import Met, Rung, end_of, ladder
from hydractl.studies.measuring import Measured, fitted_temperature, measure
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
class Result:
    """One row on validation data.

    Attributes:
        row: the row.
        calibration: its temperature.
        measured: it, under every score.
        candidates: one for each score.
    """

    row: Row
    calibration: Calibration
    measured: Measured
    candidates: Sequence[Candidate]


class Study:
    """The decisions of a study, made once each.

    Args:
        rows: the single model first.
        max_drop: accuracy that may be lost.
        rounds, seed: of the bootstrap.
        log: hears of the progress.
    """

    def __init__(self, rows: Sequence[Row], max_drop: float, rounds: int, seed: int, log: Log) -> None:
        self._rows, self._max_drop, self._rounds, self._seed, self._log = list(rows), max_drop, rounds, seed, log
        self._results: dict[str, Result] = {}
        self._evidence: Evidence | None = None
        self._choice: Choice | None = None
        self._stability: Stability | None = None
        self._tests: dict[str, Measured] = {}
        self._raw: Measured | None = None
        self._tested: Facts | None = None

    # --- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, predictions: Mapping[str, Path]) -> None:
        """Decide which row and score to take, from the predictions of every row on validation data."""
        with self._log.progress("choosing", len(self._rows), "rows") as progress:
            for row in self._rows:
                self._results[row.name] = self._result(row, predictions[row.name])
                progress.advance(1, row.name)
        candidates = [candidate for result in self._results.values() for candidate in result.candidates]
        self._evidence = Evidence(candidates)
        self._choice = choose(self._evidence, self._max_drop)
        self._stability = stability(self._evidence, self._max_drop, self._choice)

    def _result(self, row: Row, path: Path) -> Result:
        calibration = fitted_temperature(path)
        measured = measure(path, calibration)
        inside = measured.accuracy_and_nll(self._rounds, self._seed)
        by_score = measured.aurocs(measured.scores, self._rounds, self._seed)
        candidates = [
            Candidate(row.name, score, measured.members, measured.macs, inside, outside, eligible=row.stored)
            for score, outside in by_score.items()
        ]
        return Result(row, calibration, measured, candidates)

    @property
    def candidates(self) -> Sequence[Candidate]:
        """Every row with every score."""
        assert self._evidence is not None  # choose() has been here
        return self._evidence.candidates

    def _rung(self, place: int) -> Rung:
        candidate = self.candidates[place]
        return Rung(candidate.row, candidate.score)

    @property
    def ladder(self) -> list[Rung]:
        """The choice, and what test data may step down to."""
        assert self._choice is not None
        return ladder(self._rung(self._choice.chosen), self._rung(self._choice.own[SINGLE]), Rung(SINGLE, REFERENCE))

    @property
    def scores(self) -> dict[str, str]:
        """The own score of each row."""
        assert self._choice is not None
        return {row: self.candidates[place].score for row, place in self._choice.own.items()}

    @property
    def common_score(self) -> str:
        """The score under which all rows are compared: that of the single model."""
        return self.scores[SINGLE]

    def temperature(self, row: str) -> float:
        """The temperature that validation data gave a row."""
        temperature = self._results[row].calibration.temperature
        assert temperature is not None  # fitted as one
        return temperature

    def row(self, name: str) -> Row:
        """A row by its name."""
        return self._results[name].row

    def rivals_of(self, rung: Rung) -> list[str]:
        """Return the scores of the single model that a rung meets on test data, fixed beforehand.

        MSP, the rung's own, that of the single model, and those that validation data cannot tell from it.
        """
        assert self._choice is not None
        fixed = {REFERENCE, rung.score, self.common_score}
        fixed |= {self.candidates[place].score for place in self._choice.rivals}
        available = self._results[SINGLE].measured.scores
        return [score for score in available if score in fixed and Rung(SINGLE, score) != rung]

    def choice_document(self) -> dict[str, Any]:
        """Return what was decided, and why, from validation data alone."""
        choice, evidence = self._choice, self._evidence
        assert choice is not None and evidence is not None and self._stability is not None
        taken = self.candidates[choice.chosen]
        telling = tuple(evidence.sets.index(name) for name in choice.telling)
        listed = []
        for place, candidate in enumerate(self.candidates):
            listed.append(
                {
                    "row": candidate.row,
                    "score": candidate.score,
                    "members": candidate.members,
                    "macs": candidate.macs,
                    "accuracy": candidate.accuracy,
                    "nll": candidate.nll,
                    "auroc": evidence.mean(place, telling, 0) if telling else None,
                    "sets": dict(candidate.outside.values),
                    "reason": choice.reasons[place],
                }
            )
        return {
            "schema": "hydractl.study-choice/2",
            "rule": self._rule,
            "row": taken.row,
            "score": taken.score,
            "temperature": self.temperature(taken.row),
            "telling": choice.telling,
            "blind": choice.blind,
            "rivals": self.rivals_of(self._rung(choice.chosen)),
            "ladder": [asdict(rung) for rung in self.ladder],
            "stability": asdict(self._stability),
            "candidates": listed,
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
        assert self._choice is not None and self._stability is not None
        for name, result in self._results.items():
            self._tests[name] = measure(predictions[name], result.calibration)
        self._raw = measure(predictions[SINGLE], None)
        rungs = self.ladder
        figures = [self._figures(self._tests[rung.row], rung) for rung in rungs]
        steps = [self._judged(figures[place], figures[place + 1]) for place in range(len(rungs) - 1)]
        ends = end_of([step[AUROC] for step in steps])
        free = self._tests[SINGLE].aurocs(self._tests[SINGLE].scores, self._rounds, self._seed)
        rung, met = rungs[ends], [self._met(one, free) for one in rungs]
        hardest: dict[str, Finding] = {}
        sets: dict[str, Finding] = {}
        if met[ends].hardest is not None:
            rival = Rung(SINGLE, str(met[ends].hardest))
            hardest = self._judged(figures[ends], self._figures(self._tests[SINGLE], rival))
            sets = self._set_by_set(rung, rival)
        self._tested = Facts(
            ladder=rungs,
            steps=steps,
            ends=ends,
            met=met,
            hardest=hardest,
            sets=sets,
            baseline=self._judged(figures[ends], self._figures(self._raw, Rung(SINGLE, REFERENCE))),
            n=self._smallest_test_set,
            labelled=self._raw.inside.labels is not None,
            told=bool(self._choice.telling),
            others=len(self._rows) > 1,
            why=self._why() if rungs[0].row == SINGLE and self._choice.telling else [],
            doubts=self._doubts(rung),
        )

    @property
    def used(self) -> Rung:
        """Where the verdict ends: the row and the score to use."""
        assert self._tested is not None  # test() has been here
        return self._tested.rung

    @property
    def stepped_down(self) -> bool:
        """Whether test data had a say in what is used."""
        assert self._tested is not None
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
        """Options of ``eval`` that put all rows under one score, with their temperatures, and their own scores beside.

        A row that has not that score is under its own.
        """
        rows = [*self._results]
        names = list(dict.fromkeys([self.common_score, REFERENCE, *self.scores.values()]))
        everywhere = [name for name in names if all(name in self._tests[row].scores for row in rows)]
        scores = [",".join(everywhere)]
        if self.common_score not in everywhere:
            lacking = [row for row in rows if self.common_score not in self._tests[row].scores]
            scores = [f"{row}={self.scores[row] if row in lacking else self.common_score}" for row in rows]
        return {"ood_score": scores, "temperature": [f"{row}={self.temperature(row)!r}" for row in rows]}

    @property
    def _smallest_test_set(self) -> int:
        single = self._tests[SINGLE]
        return min(len(samples) for samples in (single.inside, *single.outside.values()))

    def _figures(self, measured: Measured, rung: Rung) -> Resampled:
        """What is judged, on the test data and their resamples."""
        with self._log.progress(f"intervals of {rung.row}, {rung.score}", self._rounds, "resamples") as progress:
            return measured.resampled(rung.score, self._rounds, self._seed, progress.advance)

    def _judged(self, figures: Resampled, other: Resampled) -> dict[str, Finding]:
        return judge_all(differences(other, figures), self._smallest_test_set)

    def _met(self, rung: Rung, free: Mapping[str, Resampled]) -> Met:
        """The differences of mean AUROC between a rung and the single model under each of its scores, ``free``."""
        own = mean_over_sets(self._aurocs(rung), AUROC)
        fixed = self.rivals_of(rung)
        rivals, others = {}, {}
        for score, of_sets in free.items():
            if Rung(SINGLE, score) == rung:
                continue
            found = differences(mean_over_sets(of_sets, AUROC), own)[AUROC]
            finding = judge(AUROC, found["value"], found["ci"], self._smallest_test_set)
            if score in fixed:
                rivals[score] = finding
            else:
                others[score] = finding
        return Met(rivals, others)

    def _aurocs(self, rung: Rung) -> Resampled:
        """The AUROC against each test set."""
        return self._tests[rung.row].aurocs([rung.score], self._rounds, self._seed)[rung.score]

    def _set_by_set(self, rung: Rung, rival: Rung) -> dict[str, Finding]:
        """The differences of AUROC on each test set."""
        findings = {}
        for name, found in differences(self._aurocs(rival), self._aurocs(rung)).items():
            findings[name] = judge(AUROC, found["value"], found["ci"], self._smallest_test_set)
        return findings

    def _doubts(self, rung: Rung) -> list[str]:
        assert self._choice is not None and self._stability is not None and self._raw is not None
        sentences = doubts.of_blind_sets(self._choice.telling, self._choice.blind)
        if self._raw.inside.labels is not None:
            validation, test = self._results[SINGLE].measured.inside, self._raw.inside
            sentences += doubts.of_accuracies(
                int(validation.correct.sum()), len(validation), int(test.correct.sum()), len(test)
            )
            sentences += doubts.of_temperature(
                self.temperature(rung.row),
                self._tests[rung.row].accuracy_and_nll(self._rounds, self._seed),
                self._uncalibrated(rung.row).accuracy_and_nll(self._rounds, self._seed),
            )
        return [*sentences, *doubts.of_stability(self._stability)]

    def _uncalibrated(self, row: str) -> Measured:
        return measure(self._tests[row].source, None)

    def _why(self) -> list[str]:
        """Why no other row was taken: what the search, the members and the rule say."""
        assert self._choice is not None and self._evidence is not None
        others = [result for name, result in self._results.items() if name != SINGLE]
        if not others:
            return []
        lines = _search_text(others)
        members = [result for result in others if result.measured.members > 1]
        most = max((float(result.measured.inside.mi.mean()) for result in members), default=None)
        if most is not None and most < _LITTLE_MI:
            lines.append(f"Members hardly differ: their mutual information on ID data is at most {most:.2g}.")
        limits = [self._choice.limits[result.row.name] for result in others]
        if all(limit.startswith("accuracy") for limit in limits):
            lines.append("Every other row loses more accuracy on validation data than --max-drop allows.")
        return [*lines, *self._best_of_others([result.row.name for result in others])]

    def _best_of_others(self, rows: Sequence[str]) -> list[str]:
        """Say what the best of the other rows has under the score of the single model, and why it was not taken."""
        assert self._choice is not None and self._evidence is not None
        telling = tuple(self._evidence.sets.index(name) for name in self._choice.telling)
        under = [self._evidence.under(row, self.common_score) for row in rows]
        compared = [place for place in under if place is not None]
        if not compared:
            return []
        best = max(compared, key=lambda place: self._evidence_mean(place, telling))
        name = self.candidates[best].row
        single = self._choice.own[SINGLE]
        return [
            f"On validation data the best of the other rows under {self.common_score}, {name}, has "
            f"a mean AUROC of {number(self._evidence_mean(best, telling))}; the single model has "
            f"{number(self._evidence_mean(single, telling))}. It was not taken: {self._choice.reasons[best]}."
        ]

    def _evidence_mean(self, place: int, telling: tuple[int, ...]) -> float:
        assert self._evidence is not None
        return self._evidence.mean(place, telling, 0)

    # --- saying it ----------------------------------------------------------------------------------------------------

    def document(
        self, name: str, sha256: str, steps: Sequence[Sequence[str]], threshold: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """``hydractl.study/2``: no times and no dates.

        Args:
            name, sha256: of the model.
            steps: the commands.
            threshold: of ``best.st``.
        """
        tested, choice = self._tested, self._choice
        assert tested is not None and choice is not None and self._stability is not None and self._raw is not None
        rung = tested.rung
        price = self._price(rung.row)
        use = Use(rung, self.temperature(rung.row), None if threshold is None else threshold["value"], price)
        said = verdict(tested, use)
        met = tested.met[tested.ends]
        chosen = self._rung(choice.chosen)
        return {
            "schema": SCHEMA,
            "model": {"name": name, "sha256": sha256},
            "verdict": {
                "answer": said.answer,
                "lines": list(said.lines),
                "doubts": list(tested.doubts),
                "footnote": FOOTNOTE,
                "hardest": met.hardest,
                "rivals": {score: asdict(finding) for score, finding in met.rivals.items()},
                "afterwards": {score: asdict(finding) for score, finding in met.better_afterwards.items()},
                "sets": {name: asdict(finding) for name, finding in tested.sets.items()},
                "against_hardest": [asdict(finding) for finding in tested.hardest.values()],
                "against_baseline": [asdict(finding) for finding in tested.baseline.values()],
            },
            "use": {
                "row": rung.row,
                "score": rung.score,
                "temperature": use.temperature,
                "threshold": None if threshold is None else dict(threshold),
                "mac_ratio": price.macs,
                "param_ratio": price.params,
                "stepped_down": self.stepped_down,
            },
            "choice": {
                "row": chosen.row,
                "score": chosen.score,
                "rule": self._rule,
                "telling": choice.telling,
                "blind": choice.blind,
                "stability": asdict(self._stability),
            },
            "ladder": self._ladder_document(),
            "common_score": self.common_score,
            "baseline": self._raw.block(REFERENCE),
            "rows": [self._row(row, rung) for row in self._results],
            "steps": [list(step) for step in steps],
        }

    def _ladder_document(self) -> list[dict[str, Any]]:
        tested = self._tested
        assert tested is not None
        rungs = []
        for place, rung in enumerate(tested.ladder):
            against = tested.steps[place] if place < len(tested.steps) else {}
            rungs.append({**asdict(rung), "against_next": [asdict(finding) for finding in against.values()]})
        return rungs

    def _price(self, row: str) -> Price:
        measured, single = self._tests[row], self._tests[SINGLE]
        return Price(_ratio(measured.macs, single.macs), _ratio(measured.params, single.params))

    def _row(self, name: str, used: Rung) -> dict[str, Any]:
        assert self._choice is not None
        result, measured = self._results[name], self._tests[name]
        chosen = self._rung(self._choice.chosen)
        candidate = self.candidates[self._choice.own[name]]
        common = self.common_score if self.common_score in measured.scores else None
        return {
            "name": name,
            "chosen": name == chosen.row,
            "used": name == used.row,
            "members": measured.members,
            "macs": measured.macs,
            "params": measured.params,
            "mac_ratio": self._price(name).macs,
            "temperature": self.temperature(name),
            "score": candidate.score,
            "search": _search(result.row),
            "validation": {
                "accuracy": candidate.accuracy,
                "nll": candidate.nll,
                "mi": float(result.measured.inside.mi.mean()),
                "auroc": {one.score: dict(one.outside.values) for one in result.candidates},
            },
            "test": measured.block(candidate.score),
            "common": None if common is None else _detection(measured.block(common)),
        }


def _detection(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a block of metrics that depend on the OOD score."""
    return {key: block[key] for key in ("ood", "near_avg", "far_avg", "ood_avg", "ood_score")}


def _ratio(value: int | None, base: int | None) -> float | None:
    return None if value is None or not base else value / base


def _search(row: Row) -> dict[str, Any] | None:
    """How far the search raised the AUROC that it looked for, by the circuit of a row."""
    if row.circuit is None:
        return None
    path, count = row.circuit
    document = read_json_file(str(path))
    before, after = document["base"], document["removed"][count - 1]
    return {"removed": count, "before": _state(before), "after": _state(after)}


def _state(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a search measured at one step."""
    auroc = None if step["two_u"] is None else step["two_u"] / (2 * step["n_id"] * step["n_ood"])
    return {"score": step["score"], "accuracy": step["correct"] / step["n_id"], "auroc": auroc}


def _search_text(results: Sequence[Result]) -> list[str]:
    """Say so where even the search that gained most hardly raised its AUROC."""
    gains = {}
    for result in results:
        search = _search(result.row)
        if search is not None and search["after"]["auroc"] is not None:
            gains[search["after"]["auroc"] - search["before"]["auroc"]] = search
    if not gains or max(gains) >= _BARELY:
        return []
    search = gains[max(gains)]
    raised = "hardly raised" if max(gains) > 0 else "did not raise"
    return [
        f"The search itself {raised} the AUROC it looked for: from {number(search['before']['auroc'], 3)} to "
        f"{number(search['after']['auroc'], 3)} with {search['removed']} heads removed."
    ]
