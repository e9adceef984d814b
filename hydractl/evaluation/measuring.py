"""From a model to its row: fit on validation data, measure on test data, keep predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from hydractl.evaluation.answer import row_of
from hydractl.evaluation.doubts import row_doubts, signed_features
from hydractl.evaluation.features import FeaturesFile
from hydractl.evaluation.fitting import RowFit, fit_on_validation
from hydractl.evaluation.gathering import Gathered, LogitsSink, Reading, WentOn, gather
from hydractl.evaluation.keeping import KeptRow, open_writer
from hydractl.evaluation.options import EvalOptions, RowScores
from hydractl.evaluation.predictions.lines import write_lines
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.providers.running import RunningModel, fitted_on_of
from hydractl.evaluation.rows import row_scores
from hydractl.evaluation.sets import CORRUPTION, TRAIN, VAL, EvalSet, of_role, tested
from hydractl.evaluation.words import digest_of_words, words_for
from hydractl.files.atomic import Output
from hydractl.files.eval_answer import ConformalSets, EvalRow, PairedDifference
from hydractl.files.model_records import CascadeRecord, MeasuredCascade, ScoreDataRecord
from hydractl.log import Log
from hydractl.metrics import bootstrap
from hydractl.metrics.conformal import SetCounts
from hydractl.metrics.ood_scores import says_nothing


@dataclass
class _OnTests:
    """The results of one model on the test sets.

    Attributes:
        gathered: the samples, by the name of the set.
        counts: the counts of the prediction sets of the ID samples; None if there are no prediction sets.
        went_on: in a cascade, the samples that ran all members, by the name of the set.
    """

    gathered: dict[str, Gathered] = field(default_factory=dict)
    counts: SetCounts | None = None
    went_on: dict[str, WentOn] = field(default_factory=dict)


class Measuring:
    """Makes the rows of one command, one after another.

    Attributes:
        warnings: the warnings about the rows measured so far.
    """

    def __init__(self, sets: Sequence[EvalSet], options: EvalOptions, log: Log) -> None:
        self.warnings: list[str] = []
        self._sets = [dataset for dataset in sets if dataset.role != TRAIN]
        self._training = _only_set(sets, TRAIN)
        self._options = options
        self._log = log
        self._warned_of: set[str] = set()  # names of scores
        self._resampled_first_row: bootstrap.Resampled | None = None  # until the first row is measured
        self._fitted: dict[str, RowFit] = {}  # by the name of the row

    def row(
        self,
        model: LogitsProvider,
        output: Output | None,
        seen: Mapping[str, int],
        features: Path | Output | None = None,
    ) -> EvalRow:
        """Measure one model, and write its predictions if they are asked for.

        The model forgets its weights afterwards.

        Args:
            model: the model.
            output: the file for its predictions; None to keep none.
            seen: how many samples of each set it has seen.
            features: its features of the training data: a file that holds them, or one to write them to.

        Raises:
            NonFiniteError: if a logit is not finite.
        """
        # Preparation: the probe, the features of the training data and the predictions file.
        if self._options.fit.probe is not None:
            assert self._training is not None  # the settings require --train with a probe
            model.fit_probe(self._training, _only_set(self._sets, VAL))
        kept_features = None
        if features is not None:
            kept_features = FeaturesFile(features)
        writer = None
        if output is not None and self._options.keep_logits:
            writer = self._open_writer(model, output, seen)
        try:
            row, inside = self._measure(model, writer, seen, kept_features)
        finally:
            model.release()
            if writer is not None:
                writer.close()

        # The predictions are published only now that the whole row is measured.
        if output is None:
            return row
        if writer is None:  # predictions sample by sample, not logits
            self._write_lines(model, inside, output)
            return row
        was_finished_before = writer.path == output.target
        if not was_finished_before:
            output.adopt(writer.path)
            output.commit()
        return row

    # --- predictions --------------------------------------------------------------------------------------------------

    def _open_writer(self, model: LogitsProvider, output: Output, seen: Mapping[str, int]) -> PredictionsWriter:
        """Return the predictions file to fill, or that of a stopped run to go on with."""
        assert isinstance(model, RunningModel)  # check_writable() has refused all others
        scores = row_scores(model, self._options)
        fitted_on: dict[str, object] = {}
        if self._training is not None:
            fitted_on = {**self._training.to_json(), "knn_k": self._options.fit.knn_k}
        words = words_for(scores.on_features, self._options.fit)
        if words:
            fitted_on["negative_words"] = digest_of_words(words)
        kept_row = KeptRow(
            model, self._sets, seen, feature_scores=scores.on_features, scores_fitted_on=fitted_on or None
        )
        return open_writer(kept_row, output, self._options.resume, self._log)

    def _write_lines(self, model: LogitsProvider, inside: Gathered, output: Output) -> None:
        """Write the predictions on the ID test data, one sample a line; they are flagged if there is a threshold."""
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
        """Fit what the options ask for, run the test sets, and measure.

        Args:
            model: the model.
            writer: the predictions file that takes its logits; None to keep none.
            seen: how many samples of each set it has seen.
            kept_features: the file that keeps its features of the training data; None to keep none.

        Returns:
            The row of the model, and its samples of the ID test data.
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
        inside = gathered[id_set.name]
        # In a cascade, the share of the samples of each set that ran all members.
        shares = {name: went_on.share for name, went_on in on_tests.went_on.items()}
        for name, share in shares.items():
            self._log.info(f"{model.name}: {share:.1%} of the samples of {name} run all members")
        self.warnings += row_doubts(model, inside.samples, fitted, on_tests.counts, test_sets)
        self._warn_of_signed_features(model)
        for dataset in of_role(self._sets, CORRUPTION):
            gathered[dataset.name] = gather(
                read(dataset),
                dataset,
                model.name,
                scores=scores,
                calibration=fitted.calibration,
                pairs=False,
            )

        # A predictions file holds all sets, so the others have to run as well.
        if writer is not None:
            for dataset in read.unread():
                gather(read(dataset), dataset, model.name, pairs=False)

        # The row: what every model has, then what only some models or options add.
        prediction_sets = None
        if on_tests.counts is not None:
            prediction_sets = ConformalSets.from_json(on_tests.counts.to_json())
        row = row_of(model, self._sets, gathered, fitted, scores.leading)
        row = replace(
            row,
            fitted_on=_scores_fitted_on(model),
            mc_dropout=model.mc_dropout,
            probe=model.probe,
            conformal=prediction_sets,
            seen=dict(seen),
        )
        if model.cascade is not None:
            row = _with_cascade(row, model.cascade, shares)
        if self._options.bootstrap:
            row = self._with_intervals(row, test_sets, gathered)
        return row, inside

    def _row_scores(self, model: LogitsProvider) -> RowScores:
        """Return the OOD scores of a row, and warn of those that are constant for its model."""
        scores = row_scores(model, self._options)
        is_named_by_command = self._options.fit.scores.are_named
        if model.stored.score is not None and not is_named_by_command:
            self._log.info(f"{model.name}: the OOD score of its file is taken: {scores.leading}")

        names_once = dict.fromkeys([scores.leading, *scores.beside])
        constant = [name for name in names_once if says_nothing(name, model.members)]
        if constant:
            names = " and ".join(constant)
            self.warnings.append(f"{model.name}: no OOD metrics by {names}, which of a single model is constant")
        return scores

    def _fit_scores(self, model: LogitsProvider, scores: RowScores, kept_features: FeaturesFile | None) -> None:
        """Fit the OOD scores on features to the training data, and warn of those that came out constant."""
        model.fit_scores(scores.on_features, self._training, self._options.fit.knn_k, kept_features)
        if model.detector is None:
            return
        for name in model.detector.constant:
            self.warnings.append(
                f"{model.name}: {name} learns from wrong and right predictions, and those on --train are all alike: it "
                "is constant; give data that the model was not trained on"
            )

    def _warn_of_signed_features(self, model: LogitsProvider) -> None:
        """Warn, once for each, of scores that were made for features that are not negative, where some are."""
        if model.detector is None:
            return
        doubtful = [name for name in model.detector.doubtful if name not in self._warned_of]
        if doubtful:
            self.warnings.append(signed_features(model.name, doubtful))
            self._warned_of.update(doubtful)

    def _gather_tests(self, model: LogitsProvider, fitted: RowFit, scores: RowScores, read: Reading) -> _OnTests:
        """Run the clean test sets, the ID data first, and return their samples with what is counted on the way."""
        test_sets = tested(self._sets)
        id_set = test_sets[0]
        on_tests = _OnTests()

        # Prediction sets and members alone are measured on the ID data, by their labels. In a cascade the other members
        # have not run for all samples, so that none can be measured alone.
        id_sinks: list[LogitsSink] = []
        members_alone = False
        if id_set.labels is not None:
            members_alone = model.cascade is None
            if fitted.conformal is not None:
                on_tests.counts = SetCounts(fitted.conformal, fitted.calibration)
                id_sinks.append(_counting_sink(on_tests.counts, id_set.labels))

        for dataset in test_sets:
            is_id = dataset is id_set
            sinks: list[LogitsSink] = []
            if model.cascade is not None:
                went_on = WentOn()
                on_tests.went_on[dataset.name] = went_on
                sinks.append(went_on)
            if is_id:
                sinks += id_sinks
            on_tests.gathered[dataset.name] = gather(
                read(dataset),
                dataset,
                model.name,
                scores=scores,
                calibration=fitted.calibration,
                alone=members_alone and is_id,
                pairs=model.mc_dropout is None,
                sinks=sinks,
            )
        return on_tests

    def _with_intervals(self, row: EvalRow, test_sets: Sequence[EvalSet], gathered: Mapping[str, Gathered]) -> EvalRow:
        """Return a row with its bootstrap intervals, and with its paired differences to the first row.

        The first row that comes here is the one that later rows are compared with.
        """
        inside = gathered[test_sets[0].name].samples
        outside = {}
        groups = {}
        for dataset in test_sets[1:]:
            outside[dataset.name] = gathered[dataset.name].samples
            groups[dataset.name] = dataset.group

        rounds = self._options.bootstrap
        with self._log.progress(f"intervals of {row.name}", rounds, "resamples") as progress:
            resampled = bootstrap.resample(
                inside,
                outside,
                groups,
                rounds=rounds,
                seed=self._options.seed,
                advance=progress.advance,
            )
        with_intervals = replace(row, ci=bootstrap.intervals(resampled))

        if self._resampled_first_row is None:
            self._resampled_first_row = resampled
            return with_intervals
        differences = {}
        for key, difference in bootstrap.paired_differences(self._resampled_first_row, resampled).items():
            differences[key] = PairedDifference.from_json(difference)
        return replace(with_intervals, difference=differences)


def _scores_fitted_on(model: LogitsProvider) -> ScoreDataRecord | None:
    """Return the training data that the OOD scores of a row were fitted to; None if no score needed them."""
    if model.detector is None:
        return None
    entry = fitted_on_of(model.detector)
    if entry is None:
        return None
    return ScoreDataRecord.from_json(entry)


def _with_cascade(row: EvalRow, cascade: CascadeRecord, shares: Mapping[str, float]) -> EvalRow:
    """Return a row with its cascade, and with the mean mult-adds of an ID sample as its cost.

    Args:
        row: the row.
        cascade: the cascade that ran.
        shares: the share of the samples that ran all members, by the name of the test set, the ID set first.
    """
    assert row.cost is not None
    share_of_id = next(iter(shares.values()))
    mean_macs = round(cascade.first_macs + share_of_id * cascade.rest_macs)
    measured = MeasuredCascade(
        member=cascade.member,
        score=cascade.score,
        value=cascade.value,
        first_macs=cascade.first_macs,
        rest_macs=cascade.rest_macs,
        share=shares,
    )
    mean_cost = replace(row.cost, macs=mean_macs)
    return replace(row, cascade=measured, cost=mean_cost)


def _counting_sink(counts: SetCounts, labels: npt.NDArray[Any]) -> LogitsSink:
    """Return a sink that adds the prediction sets of each batch to the counts.

    Args:
        counts: the counts.
        labels: the labels of the whole data set, ``[N]``.
    """

    def add_batch(rows: Sequence[int], logits: npt.NDArray[Any]) -> None:
        batch_labels = labels[list(rows)]
        counts.add(logits, batch_labels)

    return add_batch


def _only_set(sets: Sequence[EvalSet], role: str) -> EvalSet | None:
    """Return the data set of a role that at most one set has; None if there is none."""
    of_this_role = of_role(sets, role)
    if not of_this_role:
        return None
    return of_this_role[0]
