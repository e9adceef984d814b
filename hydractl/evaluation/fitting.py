"""What is fitted on validation data: a calibration, a threshold, the size of prediction sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.evaluation.gathering import Logits, Reader, gather
from hydractl.evaluation.models import Model
from hydractl.evaluation.options import EvalOptions, FitOptions, RowScores
from hydractl.evaluation.sets import VAL, VAL_OOD, EvalSet, of_role
from hydractl.metrics import conformal, threshold
from hydractl.metrics.calibrators import Calibration, fit
from hydractl.metrics.ood_scores import ON_FEATURES, says_nothing
from hydractl.metrics.probabilities import pooled_log_probs
from hydractl.metrics.samples import Samples, samples_of


@dataclass(frozen=True)
class Fitted:
    """The calibration, threshold and prediction sets that one row is measured with.

    Attributes:
        calibration: of the averaged prediction, None for none.
        fitted_on: the validation set that the calibration was fitted on, as it stands in the row.
        stored: whether the calibration is that of the checkpoint.
        threshold: ``{"score", "value", "rule"}``, None for none.
        conformal: what makes prediction sets, None for none.
        validation: the predictions, not calibrated, that all this was fitted to; None where nothing was.
    """

    calibration: Calibration | None = None
    fitted_on: Mapping[str, Any] | None = None
    stored: bool = False
    threshold: dict[str, Any] | None = None
    conformal: conformal.Conformal | None = None
    validation: Samples | None = None

    def calibration_json(self) -> dict[str, Any] | None:
        """Return the row's entry for the calibration; None without one."""
        if self.calibration is None:
            return None
        where = None if self.fitted_on is None else dict(self.fitted_on)
        return {**self.calibration.to_json(), "fitted_on": where, "stored": self.stored}


def unused_sets(sets: Sequence[EvalSet], options: EvalOptions) -> list[EvalSet]:
    """Return validation sets that are given for nothing: nothing is fitted on them, and no predictions keep them."""
    if options.keep_logits:
        return []
    idle = [] if options.fit.needs_val or options.fit.probe == "linear" else of_role(sets, VAL)
    return idle + ([] if options.fit.needs_val_ood else of_role(sets, VAL_OOD))


def fit_on_validation(
    model: Model, sets: Sequence[EvalSet], options: FitOptions, scores: RowScores, read: Reader
) -> Fitted:
    """Fit everything that the options ask for: the calibration first, as threshold and prediction sets depend on it."""
    val = _validation(model, sets, scores.leading, read) if options.needs_val else None
    fitted = _calibrated(options, model, val)
    fitted = replace(fitted, threshold=_threshold(options, model, scores.leading, sets, read, fitted.calibration, val))
    if val is not None:
        fitted = replace(fitted, validation=val.samples)
    if options.conformal is None:
        return fitted
    assert val is not None
    own: dict[str, Any] = {"method": options.conformal_score, "alpha": options.conformal}
    return replace(fitted, conformal=conformal.fit(val.logits, val.labels, calibration=fitted.calibration, **own))


@dataclass(frozen=True)
class _Validation:
    """The ID validation set: its logits ``[M, N, C]``, labels ``[N]``, and what metrics take of uncalibrated logits."""

    source: EvalSet
    logits: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    samples: Samples


def _validation(model: Model, sets: Sequence[EvalSet], score: str, read: Reader) -> _Validation:
    (val,) = of_role(sets, VAL)  # the settings hold it
    kept = Logits()
    found = gather(read(val), val, model.name, scores=RowScores(score), pairs=False, sinks=[kept])
    assert val.labels is not None  # opened with need_labels
    return _Validation(val, kept.logits(), val.labels[found.rows], found.samples)


def _calibrated(options: FitOptions, model: Model, val: _Validation | None) -> Fitted:
    requested = options.temperature_of(model.name)
    if requested is None:
        stored = model.stored
        return Fitted(stored.calibration, stored.fitted_on, stored=stored.calibration is not None)
    if requested == "none":
        return Fitted()
    if requested not in ("fit", "vector"):
        return Fitted(Calibration.of_temperature(float(requested)))
    assert val is not None
    kind = "temperature" if requested == "fit" else "vector"
    return Fitted(fit(kind, pooled_log_probs(val.logits), val.labels), val.source.to_json())


def _threshold(
    options: FitOptions,
    model: Model,
    score: str,
    sets: Sequence[EvalSet],
    read: Reader,
    calibration: Calibration | None,
    val: _Validation | None,
) -> dict[str, Any] | None:
    rule = options.threshold
    if rule is None:
        stored = model.stored.threshold
        # A threshold of another score, or of other probabilities, says nothing here.
        right = stored is not None and stored.get("score") == score and options.temperature_of(model.name) is None
        return dict(stored) if stored is not None and right else None
    if says_nothing(score, model.members):
        return None
    if ":" not in rule:
        return {"score": score, "value": float(rule), "rule": "given"}
    parsed = threshold.parse_rule(rule)
    if parsed.side == "id":
        assert val is not None
        of_features = val.samples.score if score in ON_FEATURES else None
        given = {} if of_features is None else {score: of_features}
        parts = [samples_of(val.logits, score=score, given=given, calibration=calibration)]
    else:
        how: dict[str, Any] = {"scores": RowScores(score), "calibration": calibration, "pairs": False}
        outside = of_role(sets, VAL_OOD)
        parts = [gather(read(dataset), dataset, model.name, **how).samples for dataset in outside]
    scores = np.concatenate([part.score for part in parts if part.score is not None])
    return {"score": score, "value": threshold.choose(parsed, scores), "rule": str(parsed)}
