"""Makes the row of a model: fits on validation data, measures on test data, writes predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from hydractl.evaluation.answer import row_of
from hydractl.evaluation.features import FeaturesFile
from hydractl.evaluation.fitting import RowFit, fit_on_validation
from hydractl.evaluation.gathering import Gathered, LogitsSink, Reading, gather
from hydractl.evaluation.keeping import open_writer
from hydractl.evaluation.options import EvalOptions, RowScores
from hydractl.evaluation.plausibility import (
    unsuited,
    warning_of_unsuited,
    warnings_of_constants,
    warnings_of_row,
)
from hydractl.evaluation.predictions.lines import write_lines
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.providers.running import RunningModel, fitted_on_of
from hydractl.evaluation.rows import row_scores
from hydractl.evaluation.sets import CORRUPTION, TRAIN, EvalSet, of_role, tested
from hydractl.files.atomic import Output
from hydractl.files.eval_answer import ConformalSets, EvalRow, PairedDifference
from hydractl.files.model_records import ScoreDataRecord
from hydractl.log import Log
from hydractl.metrics import bootstrap
from hydractl.metrics.conformal import SetCounts
from hydractl.metrics.ood_scores import says_nothing


@dataclass
class _OnTests:
    """The results of one model on the test sets.

    Attributes:
        gathered: the predictions on each set, by the name of the set.
        counts: the counts of prediction sets on the ID set; None if there are no prediction sets.
    """

    gathered: dict[str, Gathered] = field(default_factory=dict)
    counts: SetCounts | None = None


class Measuring:
    """Measures the rows of one command, one after another.

    Args:
        sets: all data sets of the command, the ID set first.
        options: the options of the command.
        log: receives messages, warnings and progress.
    """

    def __init__(self, sets: Sequence[EvalSet], options: EvalOptions, log: Log) -> None:
        self._sets = [dataset for dataset in sets if dataset.role != TRAIN]
        self._training = _only_set(sets, TRAIN)
        self._options = options
        self._log = log
        # State that grows from row to row.
        self._warned_of: set[str] = set()  # names of scores with a warning in any row
        self._resampled_first_row: bootstrap.Resampled | None = None  # set by the first row with intervals
        self._fitted: dict[str, RowFit] = {}  # by the name of the row

    def row(
        self,
        model: LogitsProvider,
        output: Output | None,
        seen: Mapping[str, int],
        features: Path | Output | None = None,
    ) -> EvalRow:
        """Measure one model, write its predictions if they are asked for, and release its weights.

        Args:
            model: the model.
            output: the file for its predictions; None if none are written.
            seen: the number of samples that it has seen, by the name of the data set.
            features: an existing file with its features of the training data, or the output of a new one; None means
                no file.

        Raises:
            NonFiniteError: if a logit is not finite.
        """
        # Prepare the file of features and the predictions file.
        features_file = None
        if features is not None:
            features_file = FeaturesFile(features)
        writer = None
        if output is not None and self._options.keep_logits:
            writer = self._open_writer(model, output, seen)
        try:
            row, id_predictions = self._measure(model, writer, seen, features_file)
        finally:
            model.release()
            if writer is not None:
                writer.close()

        # Publish the predictions only after the whole row was measured.
        if output is None:
            return row
        if writer is None:  # the output has one line for each sample instead of logits
            self._write_lines(model, id_predictions, output)
            return row
        was_finished_before = writer.path == output.target  # an earlier run had already completed the file
        if not was_finished_before:
            output.adopt(writer.path)
            output.commit()
        return row

    # --- predictions --------------------------------------------------------------------------------------------------

    def _open_writer(self, model: LogitsProvider, output: Output, seen: Mapping[str, int]) -> PredictionsWriter:
        """Open the predictions file of a row: a new one, or with ``--resume`` the file of a stopped run.

        Args:
            model: the model of the row.
            output: the finished file.
            seen: the number of samples that the model has seen, by the name of the data set.
        """
        assert isinstance(model, RunningModel)  # check_writable() allows no others
        scores = row_scores(model, self._options).on_features
        fitted_on = model.fit_record(scores, self._training, self._options.fit.knn_k)
        sets = [replace(dataset, seen=seen.get(dataset.name, 0)) for dataset in self._sets]
        return open_writer(model, sets, scores, fitted_on, output, self._options.resume, self._log)

    def _write_lines(self, model: LogitsProvider, inside: Gathered, output: Output) -> None:
        """Write the predictions on the ID test data with one line per sample, and flags if there is a threshold."""
        threshold = self._fitted[model.name].threshold
        threshold_value = None
        if threshold is not None:
            threshold_value = float(threshold["value"])
        id_set = self._sets[0]
        ids = [id_set.ids[row] for row in inside.rows]
        write_lines(output, inside.samples, ids, model.labels, threshold_value)

    # --- one row ------------------------------------------------------------------------------------------------------

    def _measure(
        self,
        model: LogitsProvider,
        writer: PredictionsWriter | None,
        seen: Mapping[str, int],
        kept_features: FeaturesFile | None,
    ) -> tuple[EvalRow, Gathered]:
        """Fit everything that the options ask for, run the test sets, and measure the model.

        Args:
            model: the model.
            writer: the predictions file to which logits are written; None if there is none.
            seen: the number of samples that the model has seen, by the name of the data set.
            kept_features: the file for its features of the training data; None if there is none.

        Returns:
            The row of the model, and its predictions on the ID test data.
        """
        # Fit on training and validation data.
        read = Reading(model, self._sets, writer, self._log)
        scores = self._row_scores(model)
        if scores.on_features:
            self._fit_scores(model, scores, kept_features)
        fitted = fit_on_validation(model, self._sets, self._options.fit, scores, read)
        self._fitted[model.name] = fitted

        # Run the clean test sets, then the corrupted ones.
        test_sets = tested(self._sets)
        on_tests = self._gather_tests(model, fitted, scores, read)
        gathered = on_tests.gathered
        id_set = test_sets[0]
        id_predictions = gathered[id_set.name]

        # Stored logits are calibrated by the command that reads them, as in a study.
        no_temperature_was_fitted = fitted.fitted_on is None and not self._options.keep_logits
        warnings = warnings_of_row(
            model,
            id_predictions.samples,
            fitted,
            on_tests.counts,
            test_sets,
            advises_temperature=no_temperature_was_fitted,
        )
        for warning in warnings:
            self._log.warn(warning)
        self._warn_of_unsuited_scores(model)
        for dataset in of_role(self._sets, CORRUPTION):
            gathered[dataset.name] = gather(
                read(dataset),
                dataset,
                model.name,
                scores=scores,
                calibration=fitted.calibration,
                pairs=False,
            )

        # A predictions file contains all sets, so run those that nothing else needed. Reading also writes them.
        if writer is not None:
            for dataset in read.unread():
                gather(read(dataset), dataset, model.name, pairs=False)

        # Make the row: first the metrics that every model has, then entries that depend on the model and the options.
        prediction_sets = None
        if on_tests.counts is not None:
            prediction_sets = ConformalSets.model_validate(on_tests.counts.to_json())
        row = row_of(model, self._sets, gathered, fitted, scores.leading)
        row = row.model_copy(
            update={
                "fitted_on": _scores_fitted_on(model),
                "mc_dropout": model.mc_dropout,
                "conformal": prediction_sets,
                "seen": dict(seen),
            }
        )
        if self._options.bootstrap:
            row = self._with_intervals(row, test_sets, gathered)
        return row, id_predictions

    def _row_scores(self, model: LogitsProvider) -> RowScores:
        """Return the OOD scores of a row, and warn of those that are constant for a single member.

        A line in the log says if the leading score comes from the model's file.
        """
        scores = row_scores(model, self._options)
        command_names_scores = self._options.fit.scores.are_named
        if model.stored.score is not None and not command_names_scores:
            self._log.info(f"{model.name}: the OOD score of its file is taken: {scores.leading}")

        distinct_names = dict.fromkeys([scores.leading, *scores.beside])  # in this order
        constant_scores = [name for name in distinct_names if says_nothing(name, model.members)]
        if constant_scores:
            names = " and ".join(constant_scores)
            self._log.warn(f"{model.name}: no OOD metrics by {names}, which of a single model is constant")
        return scores

    def _fit_scores(self, model: LogitsProvider, scores: RowScores, kept_features: FeaturesFile | None) -> None:
        """Fit the OOD scores on features to the training data, and warn of each that is constant."""
        model.fit_scores(scores.on_features, self._training, self._options.fit.knn_k, kept_features)
        for warning in warnings_of_constants(model):
            self._log.warn(warning)

    def _warn_of_unsuited_scores(self, model: LogitsProvider) -> None:
        """Warn of scores that expect features that are not negative, of each in the first row that it does not suit."""
        scores = row_scores(model, self._options)
        unsuited_scores = [name for name in unsuited(model, scores.on_features) if name not in self._warned_of]
        if unsuited_scores:
            self._log.warn(warning_of_unsuited(model.name, unsuited_scores))
            self._warned_of.update(unsuited_scores)

    def _gather_tests(self, model: LogitsProvider, fitted: RowFit, scores: RowScores, read: Reading) -> _OnTests:
        """Run the clean test sets, the ID set first; return the predictions and everything that is counted meanwhile.

        Args:
            model: the model.
            fitted: its calibration and its fit of prediction sets.
            scores: its OOD scores.
            read: returns the logits of a data set.
        """
        test_sets = tested(self._sets)
        id_set = test_sets[0]
        on_tests = _OnTests()

        # Two things need the labels of the ID set: the counts of prediction sets, and metrics of each member alone.
        id_sinks: list[LogitsSink] = []
        measure_members = id_set.labels is not None
        if id_set.labels is not None and fitted.conformal is not None:
            on_tests.counts = SetCounts(fitted.conformal, fitted.calibration)
            id_sinks.append(_counting_sink(on_tests.counts, id_set.labels))

        for dataset in test_sets:
            is_id = dataset is id_set
            sinks: list[LogitsSink] = []  # each receives the logits of every batch
            if is_id:
                sinks += id_sinks
            on_tests.gathered[dataset.name] = gather(
                read(dataset),
                dataset,
                model.name,
                scores=scores,
                calibration=fitted.calibration,
                alone=measure_members and is_id,
                pairs=model.mc_dropout is None,  # passes of MC dropout are alike, so comparing pairs says nothing
                sinks=sinks,
            )
        return on_tests

    def _with_intervals(self, row: EvalRow, test_sets: Sequence[EvalSet], gathered: Mapping[str, Gathered]) -> EvalRow:
        """Return a row with bootstrap confidence intervals and, except for the first row, paired differences to it.

        The first call stores the resampled metrics of its row in ``self._resampled_first_row``; later rows are compared
        with them.

        Args:
            row: the row.
            test_sets: the clean test sets, the ID set first.
            gathered: the predictions on each set, by the name of the set.
        """
        id_samples = gathered[test_sets[0].name].samples
        ood_samples = {}
        groups = {}
        for dataset in test_sets[1:]:
            ood_samples[dataset.name] = gathered[dataset.name].samples
            groups[dataset.name] = dataset.group

        # The metrics of this row on many random resamples of the data. The seed makes all rows use the same resamples.
        rounds = self._options.bootstrap
        with self._log.progress(f"intervals of {row.name}", rounds, "resamples") as progress:
            resampled = bootstrap.resample(
                id_samples,
                ood_samples,
                groups,
                rounds=rounds,
                seed=self._options.seed,
                advance=progress.advance,
            )
        row_with_intervals = row.model_copy(update={"ci": bootstrap.intervals(resampled)})

        # The first row has nothing to be compared with.
        if self._resampled_first_row is None:
            self._resampled_first_row = resampled
            return row_with_intervals

        differences = {}
        for key, difference in bootstrap.paired_differences(self._resampled_first_row, resampled).items():
            differences[key] = PairedDifference.model_validate(difference)
        return row_with_intervals.model_copy(update={"difference": differences})


def _scores_fitted_on(model: LogitsProvider) -> ScoreDataRecord | None:
    """Return the record of the training data to which the OOD scores of a row were fitted; None if none needed them."""
    if model.detector is None:
        return None
    entry = fitted_on_of(model.detector)
    if entry is None:
        return None
    return ScoreDataRecord.model_validate(entry)


def _counting_sink(counts: SetCounts, labels: npt.NDArray[Any]) -> LogitsSink:
    """Return a sink (a function that receives the logits of each batch) that counts prediction sets.

    Args:
        counts: the counts to which each batch is added.
        labels: the labels of the whole data set, ``[N]``.
    """

    def add_batch(rows: Sequence[int], logits: npt.NDArray[Any]) -> None:
        batch_labels = labels[list(rows)]
        counts.add(logits, batch_labels)

    return add_batch


def _only_set(sets: Sequence[EvalSet], role: str) -> EvalSet | None:
    """Return the only data set with a role (e.g. ``val``); None if there is none."""
    sets_of_role = of_role(sets, role)
    if not sets_of_role:
        return None
    return sets_of_role[0]
