"""Makes the row of a model: fits on validation data, measures on test data, writes predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hydractl.evaluation.answer import corruption_metrics
from hydractl.evaluation.fitting import fit
from hydractl.evaluation.gathering import gather, read_logits
from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.plausibility import warnings_of_row
from hydractl.evaluation.predictions.lines import log_what_resumes
from hydractl.evaluation.predictions.reading import is_predictions
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.rows import row_scores
from hydractl.evaluation.sets import CORRUPTION, TRAIN, EvalSet, of_role, only, tested
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

    def row(self, model: LogitsProvider, output: Output | None, seen: Mapping[str, int]) -> EvalRow:
        """Return the row of one model: its measurements, without the samples that it has seen; frees its weights.

        Its predictions are written to ``output``, if there is one, while it runs.

        Args:
            model: the model.
            output: the file for its predictions; None if none are written.
            seen: the number of samples that it has seen, by the name of the data set, for the file.

        Raises:
            NonFiniteError: if a logit is not finite.
        """
        writer = None
        if output is not None:
            assert isinstance(model, RunningModel)  # only models that run have files of predictions
            writer = self._open_writer(model, output, seen)
        try:
            row = self._measure(model, writer)
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

    def _open_writer(self, model: RunningModel, output: Output, seen: Mapping[str, int]) -> PredictionsWriter:
        """Return the open predictions file of a model; log what it holds already.

        ===============  =======================  =============================================================
        ``--resume``     ``NAME.part`` exists     what is opened
        ===============  =======================  =============================================================
        no               yes or no                a new ``NAME.part``
        yes              yes                      ``NAME.part``, to be continued
        yes              no                       ``NAME`` if it is there, to be read; else a new ``NAME.part``
        ===============  =======================  =============================================================

        Args:
            model: the model of the row.
            output: the finished file.
            seen: the number of samples that the model has seen, by the name of the data set.

        Raises:
            InputError: with ``--resume``, if the file was made with other settings or data.
        """
        options, log = self._options, self._log
        # An earlier run may have finished the file: there is no NAME.part then.
        is_finished = options.resume and not output.unfinished.exists() and is_predictions(output.target)
        if is_finished:
            log.info(f"{output.path} is complete: its predictions are read")
        else:
            log_what_resumes(output, log, resume=options.resume)

        # Training data are not in the file.
        scores = on_features(row_scores(model, options))
        fitted_on = model.fit_record(scores, only(self._sets, TRAIN), options)
        kept_sets = [dataset for dataset in self._sets if dataset.role != TRAIN]
        writer = PredictionsWriter(
            output.target if is_finished else output.unfinished,
            model.header(scores, fitted_on).to_dict(),
            [replace(dataset, seen=seen.get(dataset.name, 0)) for dataset in kept_sets],
            members=model.members,
            classes=model.classes,
            kind="F64" if model.options.dtype == "float64" else "F32",
            scores=scores,
            resume=options.resume,
        )
        if not writer.resumed:
            return writer

        # What is missing in a finished file could not be read, so it is skipped in its data set. Of an unfinished file
        # it is left to do.
        missing = [np.flatnonzero(writer.missing(index)) for index in range(len(kept_sets))]
        if not is_finished:
            left, total = sum(map(len, missing)), sum(map(len, kept_sets))
            log.info(f"{output.unfinished} is resumed: {left:,} of {total:,} samples are left")
            return writer
        for eval_set, rows in zip(kept_sets, missing, strict=True):
            if eval_set.dataset is not None and eval_set.dataset.skipped is not None:
                for row in rows:
                    eval_set.dataset.skipped.setdefault(int(row), "it could not be read for these predictions")
        return writer

    def _measure(self, model: LogitsProvider, writer: PredictionsWriter | None) -> EvalRow:
        """Return the row of one model, after fitting what the options ask for and running the test sets.

        The order matters: everything is fitted on training and validation data, before a test set is run.

        Args:
            model: the model.
            writer: the predictions file to which logits are written; None if there is none.
        """
        # Fit on training and validation data. `scores` are names of OOD scores; the first is that of the main figures.
        read = partial(read_logits, model, writer, self._log)
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
            heads=model.record.heads,
            cost=model.cost,
            training=model.record.training,
            calibration=fitted.calibration,
            threshold=threshold,
            fitted_on=model.scores_fitted_on if on_features(scores) else None,
            mc_dropout=model.record.mc_dropout,
            conformal=conformal,
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
