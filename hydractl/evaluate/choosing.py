"""What is chosen on validation data: a temperature, a threshold, the size of prediction sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hydractl.evaluate.contenders import Contender
from hydractl.evaluate.eval_set import VAL, VAL_OOD, EvalSet
from hydractl.evaluate.gathering import Kept, gather
from hydractl.evaluate.running import Reader
from hydractl.evaluate.sets import chosen_on
from hydractl.metrics import conformal, threshold
from hydractl.metrics.calibrators import Calibration, fit
from hydractl.metrics.conformal import Conformal
from hydractl.metrics.probabilities import pooled_log_probs
from hydractl.metrics.samples import samples_of
from hydractl.settings import EvalSettings


@dataclass
class Chosen:
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
    conformal: Conformal | None = None

    def calibration_json(self) -> dict[str, Any] | None:
        """As it stands in the row."""
        if self.calibration is None:
            return None
        where = None if self.fitted_on is None else dict(self.fitted_on)
        return {**self.calibration.to_json(), "fitted_on": where, "stored": self.stored}


def needs_val(settings: EvalSettings) -> bool:
    """Whether something is chosen on ``--val``."""
    fitted = settings.temperature in ("fit", "vector") or settings.conformal is not None
    return fitted or (settings.threshold or "").startswith("id:")


def unused_sets(sets: Sequence[EvalSet], settings: EvalSettings) -> list[EvalSet]:
    """The validation sets that are given for nothing: nothing is chosen on them, and no predictions keep them."""
    if (settings.predictions or "").endswith(".st"):
        return []
    idle = [] if needs_val(settings) else chosen_on(sets, VAL)
    return idle + ([] if (settings.threshold or "").startswith("ood:") else chosen_on(sets, VAL_OOD))


def choose(contender: Contender, sets: Sequence[EvalSet], settings: EvalSettings, read: Reader) -> Chosen:
    """Choose everything that the settings ask for, in the order calibration, threshold."""
    found = Chosen(contender.calibration, contender.fitted_on, stored=contender.calibration is not None)
    logits = labels = None
    if needs_val(settings):
        (val,) = chosen_on(sets, VAL)  # settings.check() holds it
        keep = Kept()
        gather(read(val), val, contender.name, score="msp", calibration=None, pairs=False, sinks=[keep])
        logits = keep.logits()
        assert val.labels is not None  # opened with need_labels
        labels = val.labels[keep.rows]
    if settings.temperature is not None:
        found.calibration, found.stored = _calibration(settings.temperature, logits, labels), False
        found.fitted_on = val.to_json() if settings.temperature in ("fit", "vector") else None
    rule = settings.threshold
    if rule is None:
        stored = contender.threshold
        # A threshold of another score, or of other probabilities, says nothing here.
        if stored is not None and stored.get("score") == settings.ood_score and settings.temperature is None:
            found.threshold = dict(stored)
    else:
        found.threshold = _threshold(rule, contender, sets, settings, read, found, logits)
    if settings.conformal is not None:
        assert logits is not None and labels is not None  # settings.check() holds it
        own: dict[str, Any] = {"method": settings.conformal_score, "alpha": settings.conformal}
        found.conformal = conformal.fit(logits, labels, calibration=found.calibration, **own)
    return found


def _calibration(asked: str, logits: np.ndarray | None, labels: np.ndarray | None) -> Calibration | None:
    if asked == "none":
        return None
    if asked not in ("fit", "vector"):
        return Calibration.of_temperature(float(asked))
    assert logits is not None and labels is not None  # settings.check() holds it
    return fit("temperature" if asked == "fit" else "vector", pooled_log_probs(logits), labels)


def _threshold(
    rule: str,
    contender: Contender,
    sets: Sequence[EvalSet],
    settings: EvalSettings,
    read: Reader,
    found: Chosen,
    logits: np.ndarray | None,
) -> dict[str, Any]:
    score = settings.ood_score
    if ":" not in rule:
        return {"score": score, "value": float(rule), "rule": "given"}
    parsed = threshold.parse_rule(rule)
    if parsed.side == "id":
        assert logits is not None  # settings.check() holds it
        scores = samples_of(logits, score=score, calibration=found.calibration).score
    else:
        parts = [
            gather(
                read(one), one, contender.name, score=score, calibration=found.calibration, pairs=False
            ).samples.score
            for one in chosen_on(sets, VAL_OOD)
        ]
        scores = np.concatenate(parts)
    return {"score": score, "value": threshold.choose(parsed, scores), "rule": str(parsed)}
