"""Makes the row of a model: fits on validation data, measures on test data, writes predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from hydractl.evaluation.answer import corruption_metrics
from hydractl.evaluation.fitting import fit
from hydractl.evaluation.gathering import gather, read_logits
from hydractl.evaluation.keeping import open_writer
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.plausibility import warnings_of_row
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.rows import row_scores
from hydractl.evaluation.sets import CORRUPTION, EvalSet, of_role, tested
from hydractl.files.atomic import Output
from hydractl.files.eval_answer import EvalRow
from hydractl.log import Log
from hydractl.metrics import bootstrap
from hydractl.metrics.conformal import measured_sets
from hydractl.metrics.curves import curves
from hydractl.metrics.ood_scores import on_features, says_nothing
from hydractl.metrics.rows import id_block, little_diversity, row_blocks
from hydractl.metrics.samples import Samples
from hydractl.metrics.threshold import measured_threshold


class Measuring:
    """Measures the rows of one command, one after another.

    Args:
        sets: all data sets of the command, the ID set first.
        options: the options of the command.
        log: receives messages, warnings and progress.
    """

    def __init__(self, sets: Sequence[EvalSet], options: EvalOptions, log: Log) -> None:
        self._sets = sets
        self._options = options
        self._log = log
        self._resampled_first_row: bootstrap.Resampled | None = None  # set by the first row with intervals

    def row(
        self,
        model: LogitsProvider,
        output: Output | None,
        seen: Mapping[str, int],
    ) -> EvalRow:
        """Return the row of one model: its measurements. Its weights are freed afterwards.

        Its predictions are written to ``output``, if there is one, while it runs.

        Args:
            model: the model.
            output: the file for its predictions; None if none are written.
            seen: the number of samples that it has seen, by the name of the data set.

        Raises:
            NonFiniteError: if a logit is not finite.
        """
        writer = None
        if output is not None:
            assert isinstance(model, RunningModel)  # only models that run have files of predictions
            writer = open_writer(model, self._sets, self._options, output, seen, self._log)
        try:
            row = self._measure(model, writer, seen)
        finally:
            model.release()
            if writer is not None:
                writer.close()

        # Publish the predictions, which the writer has put into an unfinished file, now that the whole row is measured.
        # If an earlier run had completed the file, the writer has that file, and nothing is left to do.
        if output is not None and writer is not None:
            was_complete = writer.path == output.target
            if not was_complete:
                output.adopt(writer.path)
                output.commit()
        return row

    def _measure(
        self,
        model: LogitsProvider,
        writer: PredictionsWriter | None,
        seen: Mapping[str, int],
    ) -> EvalRow:
        """Return the row of one model, after fitting what the options ask for and running the test sets.

        The order matters: everything is fitted on training and validation data, before a test set is run.

        Args:
            model: the model.
            writer: the predictions file to which logits are written; None if there is none.
            seen: the number of samples that the model has seen, by the name of the data set.
        """
        # Fit on training and validation data. `scores` are names of OOD scores; the first is that of the main figures.
        read = partial(read_logits, model, self._sets, writer, self._log)
        scores = self._row_scores(model)
        fitted = fit(model, self._sets, self._options, scores, read)

        # Run the clean test sets, the ID set first. Its labels are needed for metrics of each member alone, and for how
        # many prediction sets hold them.
        test_sets = tested(self._sets)
        id_set, *ood_sets = test_sets
        predicted = partial(gather, name=model.name, scores=scores, calibration=fitted.calibration)
        id_predictions = predicted(read(id_set), id_set, conformal=fitted.conformal, alone=id_set.labels is not None)
        inside = id_predictions.samples
        outside = {dataset.name: predicted(read(dataset), dataset).samples for dataset in ood_sets}

        # Prediction sets are measured if they were fitted and the ID set has labels.
        conformal = None
        if fitted.conformal is not None and inside.set_sizes is not None and inside.covered is not None:
            conformal = measured_sets(fitted.conformal, inside.set_sizes, inside.covered)

        # A warning of a bad NLL advises to fit a temperature, unless one was fitted or logits are stored: these are
        # calibrated by the command that reads them, as in a study.
        was_calibrated = fitted.calibration is not None and fitted.calibration.fitted_on is not None
        advises_temperature = not was_calibrated and self._options.predictions is None
        warnings = warnings_of_row(model, inside, fitted, conformal, test_sets, advises_temperature=advises_temperature)
        self._log.warn_all(warnings)

        # Then the corrupted test sets.
        corrupted_sets = of_role(self._sets, CORRUPTION)
        corrupted = [(dataset, predicted(read(dataset), dataset).samples) for dataset in corrupted_sets]

        # All metrics, and the share of each test set that the threshold flags.
        groups = {dataset.name: dataset.group for dataset in ood_sets}
        figures = row_blocks(inside, outside, groups)
        diversity = figures.diversity["id"]
        warning = little_diversity(diversity.mi, diversity.disagreement, id_set.option_and_spec())
        if warning is not None:
            self._log.warn(f"{model.name}: {warning}")
        threshold = None
        if fitted.threshold is not None and inside.score is not None:
            ood_scores = {name: samples.score for name, samples in outside.items() if samples.score is not None}
            threshold = measured_threshold(fitted.threshold, inside.score, ood_scores)

        # The model's entry in the answer, with its intervals if they are asked for.
        return EvalRow(
            name=model.name,
            sha256=model.sha256,
            ood_score=scores[0],
            **dict(figures),
            members=[id_block(samples) for samples in id_predictions.members],
            curves=curves(inside, outside),
            heads=model.heads,
            cost=model.cost,
            training=model.training,
            calibration=fitted.calibration,
            threshold=threshold,
            fitted_on=model.scores_fitted_on if on_features(scores) else None,
            mc_dropout=model.mc_dropout,
            conformal=conformal,
            seen=dict(seen),
            **corruption_metrics(corrupted),
            **self._intervals(model.name, inside, outside, groups),
        )

    def _row_scores(self, model: LogitsProvider) -> list[str]:
        """Return the names of the OOD scores of a model, the main one first.

        The log gets a line if the main score is taken from the model's file, and a warning of scores that are constant
        for a model of one member.
        """
        scores = row_scores(model, self._options)
        if model.stored.ood_score is not None and not self._options.scores:
            self._log.info(f"{model.name}: the OOD score of its file is taken: {scores[0]}")

        constant_scores = [name for name in scores if says_nothing(name, model.members)]
        if constant_scores:
            names = " and ".join(constant_scores)
            self._log.warn(f"{model.name}: no OOD metrics by {names}, which of a single model is constant")
        return scores

    def _intervals(
        self, name: str, inside: Samples, outside: Mapping[str, Samples], groups: Mapping[str, str | None]
    ) -> dict[str, Any]:
        """Return what the bootstrap adds to a row (a model of the answer); empty if no intervals were asked for.

        * ``ci``: the interval of each metric;
        * ``difference``, except for the first row: each metric of the row minus that of the first row, with an
          interval.

        The resamples of the first row are kept in this object for the rows after it.

        Args:
            name: the name of the row.
            inside: the predictions on the ID set.
            outside: the predictions on each OOD set, by its name.
            groups: ``near``, ``far`` or None for each OOD set.
        """
        rounds = self._options.bootstrap
        if not rounds:
            return {}
        # The metrics of this row on many random resamples of the data. The seed makes all rows use the same resamples.
        with self._log.progress(f"intervals of {name}", rounds, "resamples") as progress:
            resampled = bootstrap.resample(
                inside, outside, groups, rounds=rounds, seed=self._options.seed, advance=progress.advance
            )
        intervals = bootstrap.intervals(resampled)
        if self._resampled_first_row is None:  # this is the first row, which has nothing to be compared with
            self._resampled_first_row = resampled
            return {"ci": intervals}
        differences = bootstrap.paired_differences(self._resampled_first_row, resampled)
        return {"ci": intervals, "difference": differences}
