"""What is fitted on validation data: a calibration, a threshold, the size of prediction sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hydractl.evaluate.gathering import Logits, Reader, gather
from hydractl.evaluate.models import Model
from hydractl.evaluate.options import EvalOptions, FitOptions
from hydractl.evaluate.sets import VAL, VAL_OOD, EvalSet, of_role
from hydractl.metrics import conformal, threshold
from hydractl.metrics.calibrators import Calibration, fit
from hydractl.metrics.probabilities import pooled_log_probs
from hydractl.metrics.samples import samples_of


@dataclass(frozen=True)
class Fitted:
    """What one row is measured with.

    Attributes:
        calibration: of the averaged prediction, None for none.
        fitted_on: the validation set that the calibration was fitted on, as it stands in the row.
        stored: whether the calibration is that of the checkpoint.
        threshold: ``{"score", "value", "rule"}``, None for none.
        conformal: what makes prediction sets, None for none.
    """

    calibration: Calibration | None = None
    fitted_on: Mapping[str, Any] | None = None
    stored: bool = False
    threshold: dict[str, Any] | None = None
    conformal: conformal.Conformal | None = None

    def calibration_json(self) -> dict[str, Any] | None:
        """As it stands in the row."""
        if self.calibration is None:
            return None
        where = None if self.fitted_on is None else dict(self.fitted_on)
        return {**self.calibration.to_json(), "fitted_on": where, "stored": self.stored}


def unused_sets(sets: Sequence[EvalSet], options: EvalOptions) -> list[EvalSet]:
    """The validation sets that are given for nothing: nothing is fitted on them, and no predictions keep them."""
    if options.keep_logits:
        return []
    idle = [] if options.fit.needs_val else of_role(sets, VAL)
    return idle + ([] if options.fit.needs_val_ood else of_role(sets, VAL_OOD))


def fit_on_validation(model: Model, sets: Sequence[EvalSet], options: FitOptions, read: Reader) -> Fitted:
    """Fit everything that the options ask for: the calibration first, as threshold and prediction sets depend on it."""
    logits = labels = None
    if options.needs_val:
        (val,) = of_role(sets, VAL)  # the settings hold it
        kept = Logits()
        rows = gather(read(val), val, model.name, pairs=False, sinks=[kept]).rows
        logits = kept.logits()
        assert val.labels is not None  # opened with need_labels
        labels = val.labels[rows]
    fitted = _calibrated(options, model, None if logits is None else val, logits, labels)
    fitted = replace(fitted, threshold=_threshold(options, model, sets, read, fitted.calibration, logits))
    if options.conformal is None:
        return fitted
    assert logits is not None and labels is not None
    own: dict[str, Any] = {"method": options.conformal_score, "alpha": options.conformal}
    return replace(fitted, conformal=conformal.fit(logits, labels, calibration=fitted.calibration, **own))


def _calibrated(
    options: FitOptions,
    model: Model,
    val: EvalSet | None,
    logits: npt.NDArray[Any] | None,
    labels: npt.NDArray[Any] | None,
) -> Fitted:
    requested = options.temperature
    if requested is None:
        stored = model.stored
        return Fitted(stored.calibration, stored.fitted_on, stored=stored.calibration is not None)
    if requested == "none":
        return Fitted()
    if not options.fits_calibration:
        return Fitted(Calibration.of_temperature(float(requested)))
    assert val is not None and logits is not None and labels is not None
    kind = "temperature" if requested == "fit" else "vector"
    return Fitted(fit(kind, pooled_log_probs(logits), labels), val.to_json())


def _threshold(
    options: FitOptions,
    model: Model,
    sets: Sequence[EvalSet],
    read: Reader,
    calibration: Calibration | None,
    logits: npt.NDArray[Any] | None,
) -> dict[str, Any] | None:
    score, rule = options.ood_score, options.threshold
    if rule is None:
        stored = model.stored.threshold
        # A threshold of another score, or of other probabilities, says nothing here.
        right = stored is not None and stored.get("score") == score and options.temperature is None
        return dict(stored) if stored is not None and right else None
    if ":" not in rule:
        return {"score": score, "value": float(rule), "rule": "given"}
    parsed = threshold.parse_rule(rule)
    if parsed.side == "id":
        assert logits is not None
        scores = samples_of(logits, score=score, calibration=calibration).score
    else:
        parts = [
            gather(read(dataset), dataset, model.name, score=score, calibration=calibration, pairs=False)
            for dataset in of_role(sets, VAL_OOD)
        ]
        scores = np.concatenate([part.samples.score for part in parts])
    return {"score": score, "value": threshold.choose(parsed, scores), "rule": str(parsed)}
