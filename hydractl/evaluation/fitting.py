"""What is fitted on validation data: a calibration, a threshold, the size of prediction sets."""

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
from hydractl.metrics.probabilities import Floats, pooled_log_probs
from hydractl.metrics.samples import Samples, samples_of
from hydractl.metrics.threshold import ThresholdEntry, ThresholdRule, choose_threshold, parse_rule


@dataclass(frozen=True)
class RowFit:
    """The calibration, threshold and prediction sets that one row is measured with.

    Attributes:
        calibration: of the averaged prediction, None for none.
        fitted_on: the validation set that the calibration was fitted on, as it stands in the row.
        stored: whether the calibration is that of the checkpoint.
        threshold: None for none.
        conformal: what makes prediction sets, None for none.
        validation: the predictions, not calibrated, that all this was fitted to; None where nothing was.
    """

    calibration: Calibration | None = None
    fitted_on: DataEntry | None = None
    stored: bool = False
    threshold: ThresholdEntry | None = None
    conformal: Conformal | None = None
    validation: Samples | None = None

    def calibration_record(self) -> CalibrationRecord | None:
        """Return the calibration as the row has it; None without one."""
        if self.calibration is None:
            return None
        fitted_on = None
        if self.fitted_on is not None:
            fitted_on = DataSetRecord.from_json(self.fitted_on)
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
    """Return validation sets that are given for nothing: nothing is fitted on them, and no predictions keep them."""
    if options.keep_logits:
        return []
    unused = []
    if not options.fit.needs_val and options.fit.probe != "linear":
        unused += of_role(sets, VAL)
    if not options.fit.needs_ood_val:
        unused += of_role(sets, OOD_VAL)
    return unused


def fit_on_validation(
    model: LogitsProvider, sets: Sequence[EvalSet], options: FitOptions, scores: RowScores, read: LogitsReader
) -> RowFit:
    """Fit everything that the options ask for: the calibration first, as threshold and prediction sets depend on it.

    Args:
        model: the row.
        sets: all data sets.
        options: what is asked for.
        scores: the OOD scores of the row; the threshold is one of the score that leads.
        read: gives the logits of a data set.
    """
    return _RowFitting(model, sets, options, scores.leading, read).fitted()


@dataclass(frozen=True)
class _Validation:
    """The ID validation set: its logits ``[M, N, C]``, labels ``[N]``, and what metrics take of uncalibrated logits."""

    source: EvalSet
    logits: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    samples: Samples


class _RowFitting:
    """The fits of one row; the arguments are those of :func:`fit_on_validation`."""

    def __init__(
        self, model: LogitsProvider, sets: Sequence[EvalSet], options: FitOptions, score: str, read: LogitsReader
    ) -> None:
        self._model = model
        self._sets = sets
        self._options = options
        self._score = score
        self._read = read
        self._validation = self._read_validation() if options.needs_val else None

    def fitted(self) -> RowFit:
        """Return everything."""
        calibrated = self._calibrated()
        validation_samples = None
        if self._validation is not None:
            validation_samples = self._validation.samples
        return RowFit(
            calibration=calibrated.calibration,
            fitted_on=calibrated.fitted_on,
            stored=calibrated.stored,
            threshold=self._threshold(calibrated.calibration),
            conformal=self._conformal(calibrated.calibration),
            validation=validation_samples,
        )

    def _read_validation(self) -> _Validation:
        (val,) = of_role(self._sets, VAL)  # the settings hold it
        logits = Logits()
        gathered = gather(
            self._read(val), val, self._model.name, scores=RowScores(self._score), pairs=False, sinks=[logits]
        )
        assert val.labels is not None  # opened with need_labels
        return _Validation(val, logits.logits(), val.labels[gathered.rows], gathered.samples)

    def _calibrated(self) -> RowFit:
        """Return the calibration: that of the file, none, the one that is given, or one that is fitted now."""
        requested = self._options.temperature_of(self._model.name)
        if requested is None:
            stored = self._model.stored
            return RowFit(stored.calibration, stored.fitted_on, stored=stored.calibration is not None)
        if requested == "none":
            return RowFit()
        if requested not in ("fit", "vector"):
            return RowFit(Calibration.of_temperature(float(requested)))
        validation = self._validation
        assert validation is not None
        kind = "temperature" if requested == "fit" else "vector"
        calibration = fit_calibration(kind, pooled_log_probs(validation.logits), validation.labels)
        return RowFit(calibration, validation.source.to_json())

    def _threshold(self, calibration: Calibration | None) -> ThresholdEntry | None:
        """Return the threshold: that of the file, the one that is given, or one that is chosen now."""
        rule = self._options.threshold
        if rule is None:
            return self._stored_threshold()
        if says_nothing(self._score, self._model.members):
            return None
        if ":" not in rule:
            return {"score": self._score, "value": float(rule), "rule": "given"}
        parsed = parse_rule(rule)
        value = choose_threshold(parsed, self._validation_scores(parsed, calibration))
        return {"score": self._score, "value": value, "rule": str(parsed)}

    def _stored_threshold(self) -> ThresholdEntry | None:
        """Return the threshold of the file; of another score, or of other probabilities, it would say nothing here."""
        stored = self._model.stored.threshold
        if stored is None or stored["score"] != self._score:
            return None
        if self._options.temperature_of(self._model.name) is not None:
            return None
        return stored

    def _validation_scores(self, rule: ThresholdRule, calibration: Calibration | None) -> Floats:
        """Return the OOD scores of the samples that a rule looks at, ``[N]``."""
        if rule.side == "ood":
            samples = [self._outside(dataset, calibration) for dataset in of_role(self._sets, OOD_VAL)]
        else:
            samples = [self._inside(calibration)]
        return np.concatenate([part.score for part in samples if part.score is not None])

    def _inside(self, calibration: Calibration | None) -> Samples:
        """Return the ID validation samples, calibrated."""
        validation = self._validation
        assert validation is not None
        given: dict[str, Floats] = {}
        if self._score in ON_FEATURES and validation.samples.score is not None:
            given[self._score] = validation.samples.score
        return samples_of(validation.logits, score=self._score, fitted_scores=given, calibration=calibration)

    def _outside(self, dataset: EvalSet, calibration: Calibration | None) -> Samples:
        """Return the samples of one OOD validation set, calibrated."""
        scores = RowScores(self._score)
        gathered = gather(
            self._read(dataset), dataset, self._model.name, scores=scores, calibration=calibration, pairs=False
        )
        return gathered.samples

    def _conformal(self, calibration: Calibration | None) -> Conformal | None:
        alpha = self._options.conformal
        if alpha is None:
            return None
        validation = self._validation
        assert validation is not None
        method = cast('Literal["lac", "aps"]', self._options.conformal_score)
        return fit_conformal(validation.logits, validation.labels, method=method, alpha=alpha, calibration=calibration)
