"""Fits a calibration, a threshold, prediction sets and OOD scores of one model, and chooses one of several scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from hydractl.evaluation.choosing import as_good_as_the_best, compare_scores
from hydractl.evaluation.fitted import Fit
from hydractl.evaluation.gathering import LogitsReader, gather
from hydractl.evaluation.options import EvalOptions, FitOptions, RowScores
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.sets import OOD_VAL, TRAIN, VAL, EvalSet, of_role
from hydractl.files.model_records import DataSetRecord, ThresholdRecord
from hydractl.log import Log
from hydractl.metrics.calibrators import Calibration, fit_calibration
from hydractl.metrics.conformal import Conformal, fit_conformal
from hydractl.metrics.ood_scores import says_nothing
from hydractl.metrics.plausibility import calibration_warning, few_for_sets_warning, threshold_warning
from hydractl.metrics.probabilities import Floats, pooled_log_probs
from hydractl.metrics.samples import Samples, samples_of
from hydractl.metrics.threshold import choose_threshold


def unused_sets(sets: Sequence[EvalSet], options: EvalOptions) -> list[EvalSet]:
    """Return the validation sets that are not used: nothing is fitted on them, and no predictions file stores them."""
    if options.keep_logits:
        return []
    unused = []
    if not options.fit.uses_val:
        unused += of_role(sets, VAL)
    if not options.fit.needs_ood_val:
        unused += of_role(sets, OOD_VAL)
    return unused


def fit_scores(
    model: LogitsProvider,
    sets: Sequence[EvalSet],
    what: FitOptions,
    scores: RowScores,
    log: Log,
) -> None:
    """Fit the OOD scores of a row that are on features to the training data; warn of each that is constant.

    Args:
        model: the model of the row, whose ``detector`` is set.
        sets: all data sets of the command.
        what: the options of fitting.
        scores: the OOD scores of the row.
        log: receives the warnings.
    """
    if not scores.on_features:
        return
    training = next(iter(of_role(sets, TRAIN)), None)
    model.fit_scores(scores.on_features, training, what.knn_k)
    if model.detector is None:
        return
    # Reduce the bank (stored training features) to the number in --knn-bank. A bank in the checkpoint is not changed.
    if training is not None and what.knn_bank is not None:
        model.detector = model.detector.with_bank(what.knn_bank)
    for name in model.detector.constant:
        log.warn(
            f"{model.name}: {name} learns from wrong and right predictions, and those on --train are all alike: it is "
            "constant; give data that the model was not trained on"
        )


def fit(model: LogitsProvider, sets: Sequence[EvalSet], what: FitOptions, scores: RowScores, read: LogitsReader) -> Fit:
    """Fit what the options ask for, using only validation data.

    The calibration comes first, because scores are compared with calibrated predictions; then the OOD score, if there
    are several; then the threshold of this score and the prediction sets.

    Args:
        model: the model; its scores on features are fitted already.
        sets: all data sets of the command.
        what: the options of fitting.
        scores: the OOD scores of the row. If there are several, one of them is chosen.
        read: returns the logits of a data set.

    Raises:
        InputError: if all scores are constant for the model, or a set has no sample that can be read.
    """
    fitting = _Fitting(model, what, scores)
    for validation_set in of_role(sets, VAL):
        if what.uses_val or scores.beside:
            fitting.read_validation(validation_set, read)
    calibration, fitted_on, stored = fitting.calibration()

    # Compare the scores. The threshold may need the same predictions on the OOD validation sets.
    outside: dict[str, Samples] = {}
    if scores.beside or what.needs_ood_val:
        for dataset in of_role(sets, OOD_VAL):
            gathered = gather(read(dataset), dataset, model.name, scores=scores, calibration=calibration, pairs=False)
            outside[dataset.name] = gathered.samples
    score = scores.leading
    compared = {}
    near_ties: Sequence[str] = ()
    if scores.beside:
        inside = fitting.calibrated_validation(calibration)
        compared = compare_scores(scores.beside, inside, outside, model.members)
        score, *near_ties = as_good_as_the_best(compared, model.name)

    return Fit(
        score=score,
        calibration=calibration,
        fitted_on=fitted_on,
        stored=stored,
        threshold=fitting.threshold(score, calibration, outside),
        conformal=fitting.prediction_sets(calibration),
        compared=compared,
        near_ties=near_ties,
        validation=fitting.validation.samples if fitting.validation is not None and what.uses_val else None,
        warnings=fitting.warnings,
    )


@dataclass(frozen=True)
class _Validation:
    """The ID validation set: the set, its logits ``[M, N, C]``, labels ``[N]``, and uncalibrated predictions."""

    source: EvalSet
    logits: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    samples: Samples


class _Fitting:
    """Fits the parts for one model; the arguments are those of :func:`fit`.

    Attributes:
        validation: the ID validation set; None as long as it was not read.
        warnings: sentences on what is odd, which grow while the parts are fitted.
    """

    def __init__(self, model: LogitsProvider, what: FitOptions, scores: RowScores) -> None:
        self._model = model
        self._what = what
        self._scores = scores
        self.validation: _Validation | None = None
        self.warnings: list[str] = []

    def read_validation(self, val: EvalSet, read: LogitsReader) -> None:
        """Read the logits of the ID validation set, and reduce them to uncalibrated predictions."""
        batches = list(read(val))
        gathered = gather(iter(batches), val, self._model.name, scores=self._scores, pairs=False)
        rows = np.concatenate([batch.rows for batch in batches])
        logits = np.concatenate([batch.logits for batch in batches], axis=1)
        in_order = logits[:, np.argsort(rows, kind="stable")]
        assert val.labels is not None  # opened with need_labels
        labels = val.labels[gathered.rows]  # without samples that could not be read
        self.validation = _Validation(val, in_order, labels, gathered.samples)

    def calibration(self) -> tuple[Calibration | None, DataSetRecord | None, bool]:
        """Return the calibration, the record of the data it was fitted to, and whether it is in the model's file."""
        requested = self._what.temperature
        if requested is None:  # the one in the model's file, if there is one
            in_file = self._model.stored
            return in_file.calibration, in_file.fitted_on, in_file.stored
        if requested.value is not None:
            return Calibration.of_temperature(requested.value), None, False
        if not requested.is_fitted:
            return None, None, False

        # Fit to log p of the averaged prediction on the validation set.
        validation = self.validation
        assert validation is not None
        log_probs = pooled_log_probs(validation.logits)  # [N, C]
        kind: Literal["vector", "temperature"] = "vector" if requested.text == "vector" else "temperature"
        calibration = fit_calibration(kind, log_probs, validation.labels)
        self._note(calibration_warning(calibration, log_probs))
        return calibration, validation.source.record(), False

    def calibrated_validation(self, calibration: Calibration | None) -> Samples:
        """Return the calibrated predictions on the ID validation set, with all scores."""
        validation = self.validation
        assert validation is not None
        # Scores on features do not depend on the calibration, so take those of the uncalibrated predictions.
        on_features: dict[str, Floats] = {}
        for name in self._scores.on_features:
            values = _values_of(validation.samples, name)
            if values is not None:
                on_features[name] = values
        return samples_of(
            validation.logits,
            score=self._scores.leading,
            beside=self._scores.beside,
            fitted_scores=on_features,
            calibration=calibration,
            pairs=False,
        )

    def threshold(
        self, score: str, calibration: Calibration | None, outside: dict[str, Samples]
    ) -> ThresholdRecord | None:
        """Return the threshold of an OOD score that the options ask for; None if there is none.

        Args:
            score: the name of the score.
            calibration: the calibration of the predictions from which a threshold is chosen.
            outside: the calibrated predictions on the OOD validation sets, by the name of the set.
        """
        requested = self._what.threshold
        if requested is None:
            return self._stored_threshold(score)
        # A constant score (e.g. mutual information of a single member) has no useful threshold.
        if says_nothing(score, self._model.members):
            return None
        # score:0.5 is the threshold itself. Validation data, if there are some, only tell what it flags.
        value = float(requested.number)
        if requested.side == "score" and self.validation is None:
            return ThresholdRecord(score=score, value=value, rule=requested.rule)
        samples_by_set = list(outside.values())
        option = "--ood-val"
        if requested.side != "ood":
            samples_by_set = [self.calibrated_validation(calibration)]
            option = "--val"
        scores = _joined_values(samples_by_set, score)
        if requested.side != "score":
            value = choose_threshold(requested, scores)
        self._note(threshold_warning(requested, value, scores, option))
        return ThresholdRecord(score=score, value=value, rule=requested.rule)

    def _stored_threshold(self, score: str) -> ThresholdRecord | None:
        """Return the threshold in the model's file; None if it is for another OOD score or another calibration."""
        stored_threshold = self._model.stored.threshold
        if stored_threshold is None or stored_threshold.score != score:
            return None
        is_recalibrated = self._what.temperature is not None
        if is_recalibrated:
            return None
        return stored_threshold

    def prediction_sets(self, calibration: Calibration | None) -> Conformal | None:
        """Fit prediction sets on the ID validation set; return None if the options ask for none."""
        alpha = self._what.conformal
        if alpha is None:
            return None
        validation = self.validation
        assert validation is not None
        method = cast('Literal["lac", "aps"]', self._what.conformal_score)
        fitted = fit_conformal(
            validation.logits, validation.labels, method=method, alpha=alpha, calibration=calibration
        )
        self._note(few_for_sets_warning(fitted, self._model.classes))
        return fitted

    def _note(self, warning: str | None) -> None:
        """Keep a sentence on what was fitted; None is none."""
        if warning is not None:
            self.warnings.append(warning)


def _values_of(samples: Samples, score: str) -> Floats | None:
    """Return one OOD score of samples, ``[N]``; None if it is constant."""
    if samples.leading == score:
        return samples.score
    return samples.scores[score]


def _joined_values(samples_by_set: Sequence[Samples], score: str) -> Floats:
    """Return one OOD score of the samples of several sets, ``[N]``."""
    values_by_set = [_values_of(samples, score) for samples in samples_by_set]
    return np.concatenate([values for values in values_by_set if values is not None])
