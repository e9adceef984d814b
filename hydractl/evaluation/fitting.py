"""Fits a calibration, a threshold and prediction sets on validation data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from hydractl.evaluation.gathering import Logits, LogitsReader, gather
from hydractl.evaluation.options import EvalOptions, FitOptions, RowScores
from hydractl.evaluation.predictions.header import DataEntry
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.sets import OOD_VAL, VAL, EvalSet, of_role
from hydractl.files.model_records import CalibrationRecord, DataSetRecord
from hydractl.metrics.calibrators import Calibration, fit_calibration
from hydractl.metrics.conformal import Conformal, fit_conformal
from hydractl.metrics.ood_scores import ON_FEATURES, says_nothing
from hydractl.metrics.plausibility import calibration_warning, few_for_sets_warning, threshold_warning
from hydractl.metrics.probabilities import Floats, pooled_log_probs
from hydractl.metrics.samples import Samples, samples_of
from hydractl.metrics.threshold import ThresholdEntry, choose_threshold, parse_rule


@dataclass(frozen=True)
class RowFit:
    """The calibration, threshold and prediction sets with which one row is measured; a field is None if not used.

    Attributes:
        calibration: the calibration of the averaged prediction.
        fitted_on: the record of the validation set to which the calibration was fitted.
        stored: whether the calibration comes from the checkpoint.
        threshold: the threshold of the OOD score.
        conformal: the fit from which prediction sets are made.
        validation: the uncalibrated predictions on the ID validation set; None if it was not needed.
        warnings: sentences on what is odd about what was fitted, such as a temperature by few samples.
    """

    calibration: Calibration | None = None
    fitted_on: DataEntry | None = None
    stored: bool = False
    threshold: ThresholdEntry | None = None
    conformal: Conformal | None = None
    validation: Samples | None = None
    warnings: tuple[str, ...] = ()

    def calibration_record(self) -> CalibrationRecord | None:
        """Return the record of the calibration for the row; None if there is none."""
        if self.calibration is None:
            return None
        fitted_on = None
        if self.fitted_on is not None:
            fitted_on = DataSetRecord.model_validate(self.fitted_on)
        entry = self.calibration.to_json()
        return CalibrationRecord(
            kind=entry["kind"],
            temperature=entry["temperature"],
            scale=entry["scale"],
            bias=entry["bias"],
            fitted_on=fitted_on,
            stored=self.stored,
        )


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


def fit_on_validation(
    model: LogitsProvider, sets: Sequence[EvalSet], options: FitOptions, scores: RowScores, read: LogitsReader
) -> RowFit:
    """Fit the calibration, then the threshold and the prediction sets, which depend on it, as the options ask.

    Args:
        model: the model of the row.
        sets: all data sets of the command.
        options: the options of fitting.
        scores: the OOD scores of the row; the threshold is for the leading one.
        read: returns the logits of a data set.
    """
    fitting = _RowFitting(model, sets, options, scores.leading, read)
    return fitting.fitted()


@dataclass(frozen=True)
class _Validation:
    """The ID validation set: the set, its logits ``[M, N, C]``, labels ``[N]``, and uncalibrated predictions."""

    source: EvalSet
    logits: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    samples: Samples


class _RowFitting:
    """Fits everything for one row; the arguments are those of :func:`fit_on_validation`."""

    def __init__(
        self, model: LogitsProvider, sets: Sequence[EvalSet], options: FitOptions, score: str, read: LogitsReader
    ) -> None:
        self._model = model
        self._sets = sets
        self._options = options
        self._score = score
        self._read = read
        self._warnings: list[str] = []  # grows while the parts are fitted
        self._validation: _Validation | None = None
        if options.uses_val and of_role(sets, VAL):
            self._validation = self._read_validation()

    def fitted(self) -> RowFit:
        """Fit everything that the options ask for."""
        only_calibration = self._calibration_alone()
        validation_samples = None
        if self._validation is not None:
            validation_samples = self._validation.samples
        threshold = self._threshold_of_row(only_calibration.calibration)
        conformal = self._fit_conformal_sets(only_calibration.calibration)
        return RowFit(
            calibration=only_calibration.calibration,
            fitted_on=only_calibration.fitted_on,
            stored=only_calibration.stored,
            threshold=threshold,
            conformal=conformal,
            validation=validation_samples,
            warnings=tuple(self._warnings),
        )

    def _note(self, warning: str | None) -> None:
        """Keep a sentence on what was fitted; None is none."""
        if warning is not None:
            self._warnings.append(warning)

    def _read_validation(self) -> _Validation:
        """Read the logits of the ID validation set, and reduce them to uncalibrated predictions."""
        (val,) = of_role(self._sets, VAL)  # the settings require it
        scores = RowScores(self._score)
        logits_sink = Logits()  # stores all logits while gather() reads them
        batches = self._read(val)
        gathered = gather(batches, val, self._model.name, scores=scores, pairs=False, sinks=[logits_sink])
        assert val.labels is not None  # opened with need_labels
        labels = val.labels[gathered.rows]  # without samples that could not be read
        return _Validation(val, logits_sink.logits(), labels, gathered.samples)

    def _calibration_alone(self) -> RowFit:
        """Return a fit with only the calibration that the option ``--temperature`` asks for."""
        requested = self._options.temperature_of(self._model.name)
        # Without the option: the calibration in the model's file, if there is one.
        if requested is None:
            stored_fit = self._model.stored
            has_calibration = stored_fit.calibration is not None
            return RowFit(stored_fit.calibration, stored_fit.fitted_on, stored=has_calibration)
        if requested == "none":
            return RowFit()
        # A number is the temperature itself.
        is_number = requested not in ("fit", "vector")
        if is_number:
            calibration = Calibration.of_temperature(float(requested))
            return RowFit(calibration)

        # "fit" or "vector": fit to log p of the averaged prediction on the validation set.
        validation = self._validation
        assert validation is not None
        log_probs = pooled_log_probs(validation.logits)  # [N, C]
        if requested == "vector":
            calibration = fit_calibration("vector", log_probs, validation.labels)
        else:
            calibration = fit_calibration("temperature", log_probs, validation.labels)
        self._note(calibration_warning(calibration, log_probs))
        return RowFit(calibration, validation.source.to_json())

    def _threshold_of_row(self, calibration: Calibration | None) -> ThresholdEntry | None:
        """Return the threshold of the OOD score that the option ``--threshold`` asks for; None if there is none.

        Args:
            calibration: the calibration of the predictions from which a threshold is chosen.
        """
        requested = self._options.threshold
        # Without the option: the threshold in the model's file, if it is still valid.
        if requested is None:
            return self._stored_threshold()
        # A constant score (e.g. mutual information of a single member) has no useful threshold.
        if says_nothing(self._score, self._model.members):
            return None
        # score:0.5 is the threshold itself. Validation data, if there are some, only tell what it flags.
        side, _, number = requested.partition(":")
        if side == "score":
            value = float(number)
            if self._validation is not None:
                id_scores = self._validation_scores("id", calibration)
                self._note(threshold_warning(None, value, id_scores, "--val"))
            return {"score": self._score, "value": value, "rule": "given"}

        # A rule such as ood:0.95: choose the threshold on validation data.
        rule = parse_rule(requested)
        scores = self._validation_scores(rule.side, calibration)
        value = choose_threshold(rule, scores)
        option = "--val" if rule.side == "id" else "--ood-val"
        self._note(threshold_warning(rule, value, scores, option))
        return {"score": self._score, "value": value, "rule": str(rule)}

    def _stored_threshold(self) -> ThresholdEntry | None:
        """Return the threshold in the model's file; None if it is for another OOD score or another calibration."""
        stored_threshold = self._model.stored.threshold
        if stored_threshold is None:
            return None
        if stored_threshold["score"] != self._score:
            return None
        is_recalibrated = self._options.temperature_of(self._model.name) is not None
        if is_recalibrated:
            return None
        return stored_threshold

    def _validation_scores(self, side: Literal["id", "ood"], calibration: Calibration | None) -> Floats:
        """Return the OOD scores of the validation samples from which a rule chooses a threshold, ``[N]``.

        Args:
            side: whether these are the samples of the ID validation set or of all OOD ones.
            calibration: the calibration of the predictions.
        """
        samples_by_set = []
        if side == "ood":
            for dataset in of_role(self._sets, OOD_VAL):
                samples_by_set.append(self._calibrated_ood_samples(dataset, calibration))
        else:
            samples_by_set.append(self._calibrated_id_samples(calibration))
        scores = [samples.score for samples in samples_by_set if samples.score is not None]
        return np.concatenate(scores)

    def _calibrated_id_samples(self, calibration: Calibration | None) -> Samples:
        """Return the calibrated predictions on the ID validation set."""
        validation = self._validation
        assert validation is not None
        # Scores on features do not depend on the calibration, so take those of the uncalibrated predictions.
        feature_scores: dict[str, Floats] = {}
        if self._score in ON_FEATURES and validation.samples.score is not None:
            feature_scores[self._score] = validation.samples.score
        return samples_of(validation.logits, score=self._score, fitted_scores=feature_scores, calibration=calibration)

    def _calibrated_ood_samples(self, dataset: EvalSet, calibration: Calibration | None) -> Samples:
        """Return the calibrated predictions on one OOD validation set, whose logits are read now."""
        scores = RowScores(self._score)
        gathered = gather(
            self._read(dataset), dataset, self._model.name, scores=scores, calibration=calibration, pairs=False
        )
        return gathered.samples

    def _fit_conformal_sets(self, calibration: Calibration | None) -> Conformal | None:
        """Fit prediction sets on the ID validation set; return None if the options ask for none."""
        alpha = self._options.conformal
        if alpha is None:
            return None
        validation = self._validation
        assert validation is not None
        method = cast('Literal["lac", "aps"]', self._options.conformal_score)
        fitted = fit_conformal(
            validation.logits, validation.labels, method=method, alpha=alpha, calibration=calibration
        )
        self._note(few_for_sets_warning(fitted, self._model.classes))
        return fitted
