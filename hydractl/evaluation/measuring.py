"""From a model to its row: fit on validation data, measure on test data, keep predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from hydractl.evaluation.answer import row_of
from hydractl.evaluation.doubts import row_doubts
from hydractl.evaluation.features import FeaturesFile
from hydractl.evaluation.fitting import RowFit, fit_on_validation
from hydractl.evaluation.gathering import Gathered, LogitsSink, Reading, WentOn, gather
from hydractl.evaluation.keeping import KeptRow, open_writer
from hydractl.evaluation.options import EvalOptions, RowScores
from hydractl.evaluation.predictions.header import ScoreDataEntry
from hydractl.evaluation.predictions.lines import write_lines
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.providers.running import RunningModel, fitted_on_of
from hydractl.evaluation.rows import row_scores
from hydractl.evaluation.sets import CORRUPTION, TRAIN, VAL, EvalSet, of_role, tested
from hydractl.files.atomic import Output
from hydractl.files.eval_answer import ConformalSets, EvalRow, PairedDifference
from hydractl.files.model_records import CascadeRecord, MeasuredCascade, ScoreDataRecord
from hydractl.log import Log
from hydractl.metrics import bootstrap
from hydractl.metrics.conformal import SetCounts
from hydractl.metrics.ood_scores import says_nothing


@dataclass
class _OnTests:
    """What one row gives on the test sets.

    Attributes:
        gathered: by the name of the set.
        counts: of the prediction sets of the ID samples; None where there are none.
        went_on: in a cascade, by the name of the set, the samples that ran all members.
    """

    gathered: dict[str, Gathered] = field(default_factory=dict)
    counts: SetCounts | None = None
    went_on: dict[str, WentOn] = field(default_factory=dict)


class Measuring:
    """Makes the rows of one command, one after another.

    Attributes:
        warnings: of the rows measured so far.
    """

    def __init__(self, sets: Sequence[EvalSet], options: EvalOptions, log: Log) -> None:
        self.warnings: list[str] = []
        self._sets = [dataset for dataset in sets if dataset.role != TRAIN]
        self._training = next(iter(of_role(sets, TRAIN)), None)
        self._options = options
        self._log = log
        self._first: bootstrap.Resampled | None = None
        self._fitted: dict[str, RowFit] = {}

    def row(
        self,
        model: LogitsProvider,
        output: Output | None,
        seen: Mapping[str, int],
        features: Path | Output | None = None,
    ) -> EvalRow:
        """Measure one model.

        Args:
            model: the row.
            output: where its predictions go.
            seen: how many samples of each set it has seen.
            features: its features of the training data: a file that holds them, or one that they go to.

        Raises:
            NonFiniteError: a logit is not finite.
        """
        if self._options.fit.probe is not None:
            assert self._training is not None  # the settings hold it
            model.fit_probe(self._training, next(iter(of_role(self._sets, VAL)), None))
        kept_features = None if features is None else FeaturesFile(features)
        writer = None
        if output is not None and self._options.keep_logits:
            writer = self._writer(model, output, seen)
        try:
            row, inside = self._measured(model, writer, seen, kept_features)
        finally:
            model.release()
            if writer is not None:
                writer.close()
        if output is None:
            return row
        if writer is None:
            self._write_lines(model, inside, output)
        elif writer.path != output.target:  # else it was finished before, and only read
            output.adopt(writer.path)
            output.commit()
        return row

    # --- predictions --------------------------------------------------------------------------------------------------

    def _writer(self, model: LogitsProvider, output: Output, seen: Mapping[str, int]) -> PredictionsWriter:
        """Return the predictions file to fill."""
        assert isinstance(model, RunningModel)  # check_writable() has been here
        fitted_on: ScoreDataEntry | None = None
        if self._training is not None:
            fitted_on = {**self._training.to_json(), "knn_k": self._options.fit.knn_k}
        scores = row_scores(model, self._options).on_features
        kept = KeptRow(model, self._sets, seen, feature_scores=scores, scores_fitted_on=fitted_on)
        return open_writer(kept, output, self._options.resume, self._log)

    def _write_lines(self, model: LogitsProvider, inside: Gathered, output: Output) -> None:
        """Write the predictions on the ID test data, one sample a line."""
        threshold = self._fitted[model.name].threshold
        value = None if threshold is None else float(threshold["value"])
        ids = [self._sets[0].ids[row] for row in inside.rows]
        write_lines(output, inside.samples, ids, model.labels, value)

    # --- one row ------------------------------------------------------------------------------------------------------

    def _measured(
        self,
        model: LogitsProvider,
        writer: PredictionsWriter | None,
        seen: Mapping[str, int],
        kept_features: FeaturesFile | None,
    ) -> tuple[EvalRow, Gathered]:
        """Return the row of a model, and what it gives on the ID test data."""
        read = Reading(model, self._sets, writer, self._log)
        scores = self._scores(model)
        if scores.on_features:
            self._fit_scores(model, scores, kept_features)
        fitted = fit_on_validation(model, self._sets, self._options.fit, scores, read)
        self._fitted[model.name] = fitted

        tests = tested(self._sets)
        on_tests = self._gather_tests(model, fitted, scores, read)
        gathered = on_tests.gathered
        inside = gathered[tests[0].name]
        shares = {name: went_on.share for name, went_on in on_tests.went_on.items()}
        for name, share in shares.items():
            self._log.info(f"{model.name}: {share:.1%} of the samples of {name} run all members")
        self.warnings += row_doubts(model, inside.samples, fitted, on_tests.counts, tests)

        for dataset in of_role(self._sets, CORRUPTION):
            gathered[dataset.name] = gather(
                read(dataset), dataset, model.name, scores=scores, calibration=fitted.calibration, pairs=False
            )
        if writer is not None:
            for dataset in read.unread():  # what is kept is kept of all sets
                gather(read(dataset), dataset, model.name, pairs=False)

        prediction_sets = None
        if on_tests.counts is not None:
            prediction_sets = ConformalSets.from_json(on_tests.counts.to_json())
        row = replace(
            row_of(model, self._sets, gathered, fitted, scores.leading),
            fitted_on=_scores_fitted_on(model),
            mc_dropout=model.mc_dropout,
            probe=model.probe,
            conformal=prediction_sets,
            seen=dict(seen),
        )
        if model.cascade is not None:
            row = _with_cascade(row, model.cascade, shares)
        if self._options.bootstrap:
            row = self._with_intervals(row, tests, gathered)
        return row, inside

    def _scores(self, model: LogitsProvider) -> RowScores:
        """Return the OOD scores of a row, and warn of those that say nothing of it."""
        scores = row_scores(model, self._options)
        if model.stored.score is not None and not self._options.fit.scores.told:
            self._log.info(f"{model.name}: the OOD score of its file is taken: {scores.leading}")
        each_once = dict.fromkeys([scores.leading, *scores.beside])
        constant = [name for name in each_once if says_nothing(name, model.members)]
        if constant:
            names = " and ".join(constant)
            self.warnings.append(f"{model.name}: no OOD metrics by {names}, which of a single model is constant")
        return scores

    def _fit_scores(self, model: LogitsProvider, scores: RowScores, kept_features: FeaturesFile | None) -> None:
        """Fit the OOD scores on features, and warn of those that learned nothing."""
        model.fit_scores(scores.on_features, self._training, self._options.fit.knn_k, kept_features)
        if model.detector is None:
            return
        for name in model.detector.constant:
            self.warnings.append(
                f"{model.name}: {name} learns from wrong and right predictions, and those on --train are all alike: it "
                "is constant; give data that the model was not trained on"
            )

    def _gather_tests(self, model: LogitsProvider, fitted: RowFit, scores: RowScores, read: Reading) -> _OnTests:
        """Run the test sets, the ID data first."""
        tests = tested(self._sets)
        inside = tests[0]
        on_tests = _OnTests()
        if fitted.conformal is not None and inside.labels is not None:
            on_tests.counts = SetCounts(fitted.conformal, fitted.calibration)
        # In a cascade the other members have not run for all samples, so that none can be measured alone.
        members_alone = inside.labels is not None and model.cascade is None
        for dataset in tests:
            sinks: list[LogitsSink] = []
            if model.cascade is not None:
                on_tests.went_on[dataset.name] = WentOn()
                sinks.append(on_tests.went_on[dataset.name])
            if dataset is inside and inside.labels is not None and on_tests.counts is not None:
                sinks.append(_counting(on_tests.counts, inside.labels))
            on_tests.gathered[dataset.name] = gather(
                read(dataset),
                dataset,
                model.name,
                scores=scores,
                calibration=fitted.calibration,
                alone=members_alone and dataset is inside,
                pairs=model.mc_dropout is None,
                sinks=sinks,
            )
        return on_tests

    def _with_intervals(self, row: EvalRow, tests: Sequence[EvalSet], gathered: Mapping[str, Gathered]) -> EvalRow:
        """Return a row with its intervals, and with its differences to the first row."""
        rounds = self._options.bootstrap
        outside = {dataset.name: gathered[dataset.name].samples for dataset in tests[1:]}
        groups = {dataset.name: dataset.group for dataset in tests[1:]}
        with self._log.progress(f"intervals of {row.name}", rounds, "resamples") as progress:
            resampled = bootstrap.resample(
                gathered[tests[0].name].samples,
                outside,
                groups,
                rounds=rounds,
                seed=self._options.seed,
                advance=progress.advance,
            )
        row = replace(row, ci=bootstrap.intervals(resampled))
        if self._first is None:
            self._first = resampled
            return row
        differences = {}
        for key, difference in bootstrap.paired_differences(self._first, resampled).items():
            differences[key] = PairedDifference.from_json(difference)
        return replace(row, difference=differences)


def _scores_fitted_on(model: LogitsProvider) -> ScoreDataRecord | None:
    """Return the training data that the OOD scores of a row were fitted to; None where none were needed."""
    entry = None if model.detector is None else fitted_on_of(model.detector)
    return None if entry is None else ScoreDataRecord.from_json(entry)


def _with_cascade(row: EvalRow, cascade: CascadeRecord, shares: Mapping[str, float]) -> EvalRow:
    """Return a row with its cascade and the share of each set that goes on, and with its mean mult-adds as cost."""
    assert row.cost is not None
    share_of_id = next(iter(shares.values()))
    mean = round(cascade.first_macs + share_of_id * cascade.rest_macs)
    measured = MeasuredCascade(
        member=cascade.member,
        score=cascade.score,
        value=cascade.value,
        first_macs=cascade.first_macs,
        rest_macs=cascade.rest_macs,
        share=shares,
    )
    return replace(row, cascade=measured, cost=replace(row.cost, macs=mean))


def _counting(counts: SetCounts, labels: npt.NDArray[Any]) -> LogitsSink:
    """Return a sink that counts the prediction sets of the samples with these labels."""
    return lambda rows, logits: counts.add(logits, labels[list(rows)])
