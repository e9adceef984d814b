"""A study from its predictions to its answer: choose on validation data, compare on test data, say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hydractl.jsonio import read_json_file
from hydractl.log import Log
from hydractl.metrics.bootstrap import Resampled, differences
from hydractl.metrics.calibrators import Calibration
from hydractl.metrics.rows import id_block
from hydractl.report.texts import number
from hydractl.studies.choosing import (
    AUROC,
    AUROC_TOLERANCE,
    NLL_TOLERANCE,
    Candidate,
    Choice,
    choose,
    hindsight,
    own_score,
)
from hydractl.studies.measuring import Measured, fitted_temperature, measure
from hydractl.studies.rows import Row
from hydractl.studies.verdict import Chosen, judge_all, verdict

SINGLE, BASELINE = "single", "msp"
SCHEMA = "hydractl.study/1"
RULE = (
    "Decided on the halves of the validation data that the search has not seen. In each row an OOD score gives way to "
    "a later one of significantly better mean AUROC. Admissible are rows whose accuracy is at most {drop:g} below that "
    "of the single model, and whose NLL after temperature scaling is at most {nll:g} above it. Of the admissible rows "
    "whose mean AUROC is at most {auroc:g} below the best, or not significantly below, the one with the fewest "
    "mult-adds is taken; of equals the first."
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

    @cached_property
    def best(self) -> Candidate:
        """With its own score."""
        return own_score(self.candidates)


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
        self._choice: Choice | None = None
        self._tests: dict[str, dict[str, Any]] = {}
        self._verdict: dict[str, Any] = {}
        self._threshold: Mapping[str, Any] | None = None

    # --- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, predictions: Mapping[str, Path]) -> None:
        """Decide which row and score to take, from the predictions of every row on validation data."""
        with self._log.progress("choosing", len(self._rows), "rows") as progress:
            for row in self._rows:
                self._results[row.name] = self._result(row, predictions[row.name])
                progress.advance(1, row.name)
        self._choice = choose(self.candidates, SINGLE, self._max_drop)

    def _result(self, row: Row, path: Path) -> Result:
        calibration = fitted_temperature(path)
        found = measure(path, calibration)
        block = id_block(found.inside)
        own = (found.members, found.macs, block["accuracy"], block["nll"])
        candidates = [
            Candidate(row.name, score, *own, found.aurocs(score, self._rounds, self._seed), row.stored)
            for score in found.scores
        ]
        return Result(row, calibration, found, candidates)

    @property
    def candidates(self) -> list[Candidate]:
        """Every row with every score."""
        return [one for result in self._results.values() for one in result.candidates]

    @property
    def _taken(self) -> Candidate:
        assert self._choice is not None  # choose() has been here
        return self.candidates[self._choice.chosen]

    @property
    def chosen(self) -> tuple[Row, str]:
        """The row and the score that were chosen."""
        return self._results[self._taken.row].row, self._taken.score

    @property
    def scores(self) -> dict[str, str]:
        """The score of each row; of the chosen one what was chosen."""
        own = {name: result.best.score for name, result in self._results.items()}
        return {**own, self._taken.row: self._taken.score}

    @property
    def rival(self) -> Candidate:
        """The single model with its own score."""
        return self._results[SINGLE].best

    def choice_document(self) -> dict[str, Any]:
        """What was decided, and why, from validation data alone."""
        assert self._choice is not None
        row, score = self.chosen
        return {
            "schema": "hydractl.study-choice/1",
            "rule": RULE.format(drop=self._max_drop, nll=NLL_TOLERANCE, auroc=AUROC_TOLERANCE),
            "row": row.name,
            "score": score,
            "temperature": self._results[row.name].calibration.temperature,
            "rival": self.rival.score,
            "candidates": [
                {
                    "row": one.row,
                    "score": one.score,
                    "members": one.members,
                    "macs": one.macs,
                    "accuracy": one.accuracy,
                    "nll": one.nll,
                    "auroc": one.auroc.values[AUROC],
                    "reason": reason,
                }
                for one, reason in zip(self.candidates, self._choice.reasons, strict=True)
            ],
        }

    # --- testing ------------------------------------------------------------------------------------------------------

    def test(self, predictions: Mapping[str, Path], threshold: Mapping[str, Any] | None) -> None:
        """Measure every row with its score on the test data, and compare the chosen one.

        Args:
            predictions: of every row on the test data.
            threshold: of ``best.st``.
        """
        self._threshold = threshold
        row, score = self.chosen
        for name, result in self._results.items():
            self._tests[name] = measure(predictions[name], result.calibration).block(self.scores[name])
        chosen = self._resampled(row.name, predictions, score)
        baseline = self._resampled(SINGLE, predictions, BASELINE, calibrated=False)
        against: dict[str, Any] = {}
        if (row.name, score) != (SINGLE, self.rival.score):
            against = differences(self._resampled(SINGLE, predictions, self.rival.score), chosen)
        block = self._tests[SINGLE]
        n = min(block["id"]["n"], *(one["n"] for one in block["ood"].values()))
        base, own = self._results[SINGLE].measured, self._results[row.name].measured
        self._verdict = verdict(
            Chosen(
                row=row.name,
                score=score,
                temperature=self._results[row.name].calibration.temperature,
                threshold=None if threshold is None else threshold["value"],
                pruned=row.name != SINGLE,
                rival=self.rival.score,
                mac_ratio=_ratio(own.macs, base.macs),
                param_ratio=_ratio(own.params, base.params),
                n=n,
                baseline=judge_all(differences(baseline, chosen), n),
                against=judge_all(against, n),
                why=[] if row.name != SINGLE else self._why(),
            )
        )

    def _resampled(
        self, name: str, predictions: Mapping[str, Path], score: str, *, calibrated: bool = True
    ) -> Resampled:
        found = measure(predictions[name], self._results[name].calibration if calibrated else None)
        with self._log.progress(f"intervals of {name}", self._rounds, "resamples") as progress:
            return found.resampled(score, self._rounds, self._seed, progress.advance)

    def _why(self) -> list[str]:
        """Why no ensemble of pruned members was taken: what the search, the members and the rule say."""
        assert self._choice is not None
        others = [result for name, result in self._results.items() if name != SINGLE]
        lines = [text for text in map(_search_text, _longest(others)) if text]
        differing = [float(result.measured.inside.mi.mean()) for result in others]
        if differing and max(differing) < _LITTLE_MI:
            lines.append(f"Members hardly differ: their mutual information on ID data is at most {max(differing):.2g}.")
        reasons = zip(self.candidates, self._choice.reasons, strict=True)
        lost = {one.row for one, reason in reasons if reason.startswith("accuracy")}
        if lost and len(lost) == len(others):
            lines.append("Every ensemble loses more accuracy on validation data than --max-drop allows.")
        best = max((result.best for result in others), key=lambda one: one.mean, default=None)
        if best is not None:
            lines.append(
                f"On validation data the best of them, {best.row} with {best.score}, has a mean AUROC of "
                f"{number(best.mean)}; the single model has {number(self.rival.mean)} with {self.rival.score}."
            )
        return lines

    def document(self, name: str, sha256: str, steps: Sequence[Sequence[str]]) -> dict[str, Any]:
        """``hydractl.study/1``: no times and no dates."""
        row, score = self.chosen
        best = list(self._results)[hindsight([self._tests[one]["ood_avg"]["auroc"] for one in self._results])]
        return {
            "schema": SCHEMA,
            "model": {"name": name, "sha256": sha256},
            "verdict": self._verdict,
            "choice": {
                "row": row.name,
                "score": score,
                "rival": self.rival.score,
                "temperature": self._results[row.name].calibration.temperature,
                "threshold": None if self._threshold is None else dict(self._threshold),
                "rule": RULE.format(drop=self._max_drop, nll=NLL_TOLERANCE, auroc=AUROC_TOLERANCE),
            },
            "hindsight": best,
            "rows": [self._row(one, chosen=one == row.name) for one in self._results],
            "steps": [list(step) for step in steps],
        }

    def _row(self, name: str, *, chosen: bool) -> dict[str, Any]:
        result, single = self._results[name], self._results[SINGLE].measured
        found = result.measured
        return {
            "name": name,
            "chosen": chosen,
            "members": found.members,
            "macs": found.macs,
            "params": found.params,
            "mac_ratio": _ratio(found.macs, single.macs),
            "temperature": result.calibration.temperature,
            "score": self.scores[name],
            "search": _search(result.row),
            "validation": {
                "accuracy": result.best.accuracy,
                "nll": result.best.nll,
                "mi": float(found.inside.mi.mean()),
                "auroc": {one.score: one.auroc.values[AUROC] for one in result.candidates},
            },
            "test": self._tests[name],
        }


def _ratio(value: int | None, base: int | None) -> float | None:
    return None if value is None or not base else value / base


def _search(row: Row) -> dict[str, Any] | None:
    """How far the search raised the AUROC that it looked for, by the circuit of a row."""
    if row.circuit is None:
        return None
    path, count = row.circuit
    document = read_json_file(str(path))
    before, after = (
        {"score": step["score"], "accuracy": step["correct"] / step["n_id"], "auroc": _auroc(step)}
        for step in (document["base"], document["removed"][count - 1])
    )
    return {"removed": count, "before": before, "after": after}


def _auroc(step: Mapping[str, Any]) -> float | None:
    return None if step["two_u"] is None else step["two_u"] / (2 * step["n_id"] * step["n_ood"])


def _longest(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The search whose AUROC rose most, if there is one."""
    found = [
        one for result in results if (one := _search(result.row)) is not None and one["after"]["auroc"] is not None
    ]
    return sorted(found, key=lambda one: one["before"]["auroc"] - one["after"]["auroc"])[:1]


def _search_text(found: Mapping[str, Any]) -> str:
    before, after = found["before"]["auroc"], found["after"]["auroc"]
    if after - before >= _BARELY:
        return ""
    return (
        f"The search itself hardly raised the AUROC it looked for: from {number(before, 3)} to {number(after, 3)} with "
        f"{found['removed']} heads removed."
    )
