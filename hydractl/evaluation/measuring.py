"""Makes the row of a model: fits on validation data, measures on test data, writes predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hydractl.evaluation.answer import row_of
from hydractl.evaluation.fitting import fit, fit_scores
from hydractl.evaluation.gathering import Gathered, Reading, gather
from hydractl.evaluation.keeping import open_writer
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.plausibility import warnings_of_row
from hydractl.evaluation.predictions.lines import write_lines
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.providers.interface import LogitsBatches, LogitsProvider
from hydractl.evaluation.providers.predicted import PredictedModel
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.rows import row_scores
from hydractl.evaluation.sets import CORRUPTION, TRAIN, EvalSet, of_role, tested
from hydractl.files.atomic import Output
from hydractl.files.eval_answer import EvalRow, PairedDifference
from hydractl.files.model_records import ScoreDataRecord
from hydractl.log import Log
from hydractl.metrics import bootstrap
from hydractl.metrics.conformal import SetCounts
from hydractl.metrics.ood_scores import on_features, says_nothing
from hydractl.metrics.rows import little_diversity


class Measuring:
    """Measures the rows of one command, one after another.

    Args:
        sets: all data sets of the command, the ID set first.
        options: the options of the command.
        log: receives messages, warnings and progress.
    """

    def __init__(self, sets: Sequence[EvalSet], options: EvalOptions, log: Log) -> None:
        self._all_sets = sets
        self._sets = [dataset for dataset in sets if dataset.role != TRAIN]
        self._options = options
        self._log = log
        self._resampled_first_row: bootstrap.Resampled | None = None  # set by the first row with intervals

    def row(
        self,
        model: LogitsProvider,
        output: Output | None,
        seen: Mapping[str, int],
    ) -> EvalRow:
        """Measure one model, write its predictions if they are asked for, and release its weights.

        Args:
            model: the model.
            output: the file for its predictions; None if none are written.
            seen: the number of samples that it has seen, by the name of the data set.

        Raises:
            NonFiniteError: if a logit is not finite.
        """
        writer = None
        if output is not None and self._options.keep_logits:
            assert isinstance(model, RunningModel)  # check_writable() allows no others
            writer = open_writer(model, self._all_sets, self._options, output, seen, self._log)
        try:
            row, id_predictions = self._measure(model, writer, seen)
        finally:
            model.release()
            if writer is not None:
                writer.close()

        # Publish the predictions only after the whole row was measured.
        if output is None:
            return row
        if writer is None:  # the output has one line for each sample instead of logits
            threshold = None if row.threshold is None else row.threshold.value
            ids = [self._sets[0].ids[index] for index in id_predictions.rows]
            write_lines(output, id_predictions.samples, ids, model.labels, threshold)
        elif writer.path != output.target:  # else an earlier run had already completed the file
            output.adopt(writer.path)
            output.commit()
        return row

    def _measure(
        self,
        model: LogitsProvider,
        writer: PredictionsWriter | None,
        seen: Mapping[str, int],
    ) -> tuple[EvalRow, Gathered]:
        """Fit everything that the options ask for, run the test sets, and measure the model.

        Args:
            model: the model.
            writer: the predictions file to which logits are written; None if there is none.
            seen: the number of samples that the model has seen, by the name of the data set.

        Returns:
            The row of the model, and its predictions on the ID test data.
        """
        # Fit on training and validation data.
        read = Reading(model, self._sets, writer, self._log)
        scores = self._row_scores(model)
        fit_scores(model, self._all_sets, self._options.fit, scores, self._log)
        fitted = fit(model, self._sets, self._options.fit, scores[:1], read)

        # Run the clean test sets, the ID set first. Two things need its labels: metrics of each member alone, and the
        # counts of prediction sets.
        test_sets = tested(self._sets)
        id_set = test_sets[0]
        counts = None
        if id_set.labels is not None and fitted.conformal is not None:
            counts = SetCounts(fitted.conformal, fitted.calibration)
        gathered: dict[str, Gathered] = {}
        for dataset in test_sets:
            is_id = dataset is id_set
            batches = read(dataset)
            if is_id and counts is not None:
                batches = _counted(batches, counts, dataset)
            gathered[dataset.name] = gather(
                batches,
                dataset,
                model.name,
                scores=scores,
                calibration=fitted.calibration,
                alone=is_id and dataset.labels is not None,
                pairs=model.mc_dropout is None,  # passes of MC dropout are alike, so comparing pairs says nothing
            )
        id_predictions = gathered[id_set.name]

        # Stored logits are calibrated by the command that reads them, as in a study.
        no_temperature_was_fitted = fitted.fitted_on is None and not self._options.keep_logits
        warnings = warnings_of_row(
            model, id_predictions.samples, fitted, counts, test_sets, advises_temperature=no_temperature_was_fitted
        )
        self._log.warn_all(warnings)

        # Then the corrupted test sets.
        for dataset in of_role(self._sets, CORRUPTION):
            gathered[dataset.name] = gather(
                read(dataset), dataset, model.name, scores=scores, calibration=fitted.calibration, pairs=False
            )

        # A predictions file contains all sets, so run those that nothing else needed. Reading also writes them.
        if writer is not None:
            for dataset in read.unread():
                gather(read(dataset), dataset, model.name, pairs=False)

        # Make the row: first the metrics that every model has, then entries that depend on the model and the options.
        scores_fitted_on = None
        if isinstance(model, PredictedModel) and on_features(scores):
            scores_fitted_on = model.scores_fitted_on
        elif model.detector is not None and model.detector.fitted_on:
            scores_fitted_on = ScoreDataRecord.model_validate(dict(model.detector.fitted_on))
        row = row_of(model, self._sets, gathered, fitted, scores[0])
        warning = little_diversity(row.diversity["id"].metrics, id_set.option_and_spec())
        if warning is not None:
            self._log.warn(f"{model.name}: {warning}")
        row = row.model_copy(
            update={
                "fitted_on": scores_fitted_on,
                "mc_dropout": model.mc_dropout,
                "conformal": None if counts is None else counts.record(),
                "seen": dict(seen),
            }
        )
        if self._options.bootstrap:
            row = self._with_intervals(row, test_sets, gathered)
        return row, id_predictions

    def _row_scores(self, model: LogitsProvider) -> list[str]:
        """Return the OOD scores of a row, and warn of those that are constant for a single member.

        A line in the log says if the leading score comes from the model's file.
        """
        scores = row_scores(model, self._options)
        if model.stored.score is not None and not self._options.fit.scores:
            self._log.info(f"{model.name}: the OOD score of its file is taken: {scores[0]}")

        constant_scores = [name for name in scores if says_nothing(name, model.members)]
        if constant_scores:
            names = " and ".join(constant_scores)
            self._log.warn(f"{model.name}: no OOD metrics by {names}, which of a single model is constant")
        return scores

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


def _counted(batches: LogitsBatches, counts: SetCounts, dataset: EvalSet) -> LogitsBatches:
    """Yield the batches of a labelled data set, and count the prediction sets of each."""
    assert dataset.labels is not None
    for batch in batches:
        yield batch
        counts.add(batch.logits, dataset.labels[list(batch.rows)])
