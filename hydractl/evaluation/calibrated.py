"""The checkpoint of ``calibrate``: that of a model, with what was fitted for it in its description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

from hydractl.evaluation.fitting import RowFit
from hydractl.evaluation.predictions.header import ScoreDataEntry, StoredScoreEntry
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.sets import EvalSet, fitted_entries
from hydractl.files.atomic import Output
from hydractl.files.checkpoint import TensorSource, beside, with_tensors, write_checkpoint
from hydractl.files.description import CHOSEN_BY_CALIBRATE
from hydractl.files.fingerprints import merged
from hydractl.metrics.conformal import stored_conformal
from hydractl.model.laplace import START as POSTERIOR


def write_calibrated(
    model: RunningModel,
    fitted: RowFit,
    score: str | None,
    sets: Sequence[EvalSet],
    note: str | None,
    output: Output,
) -> Path:
    """Write the checkpoint of a model with its calibration, threshold, prediction sets and OOD score.

    Args:
        model: of one checkpoint.
        fitted: its calibration, threshold and prediction sets.
        score: its OOD score; None where none was asked for.
        sets: all data sets of the command, whose samples it has now seen where something was fitted to them.
        note: a sentence about how the model was chosen, for its provenance.
        output: where it goes.
    """
    (source,) = model.argument.sources
    description = source.description
    tensors: TensorSource = with_tensors(source.tensors, beside(source.tensors, POSTERIOR))
    extra = dict(description.extra)
    for key in CHOSEN_BY_CALIBRATE:
        extra.pop(key, None)
    calibration = fitted.calibration_record()
    if calibration is not None:
        extra["calibration"] = replace(calibration, stored=True).to_json()
    if fitted.threshold is not None:
        extra["threshold"] = fitted.threshold
    conformal = fitted.conformal
    keeps_probabilities = fitted.stored or (calibration is None and model.stored.calibration is None)
    if conformal is None and keeps_probabilities:
        conformal = stored_conformal(description.extra.get("conformal"))
    if conformal is not None:
        extra["conformal"] = asdict(conformal)
    if score is not None:
        entry: StoredScoreEntry = {"score": score}
        detector = model.detector
        if detector is not None and score in detector.names:
            entry["fitted_on"] = cast("ScoreDataEntry", dict(detector.fitted_on))
            tensors = with_tensors(tensors, detector.tensors(score))
        extra["ood_score"] = entry
    provenance = {**description.provenance, "bases": source.lineage}
    if note is not None:
        provenance["note"] = note
    seen = tuple(merged(description.seen, fitted_entries(sets, "calibrate")))
    calibrated = replace(description, extra=extra, seen=seen, layout="sliced", provenance=provenance)
    write_checkpoint(output, tensors, calibrated.to_json())
    return output.path
