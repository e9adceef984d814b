"""What ``calibrate`` writes: a copy of a checkpoint with everything that was fitted for it, or a file for ``eval``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hydractl.evaluation.fitting import Fit
from hydractl.evaluation.providers.interface import LogitsProvider
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.sets import EvalSet, fitted_entries
from hydractl.files.atomic import Output
from hydractl.files.calibrate_answer import CalibrateAnswer, CalibratedModelRecord, Conformal
from hydractl.files.checkpoint import TensorSource, beside, with_tensors, write_checkpoint
from hydractl.files.description import CHOSEN_BY_CALIBRATE
from hydractl.files.fingerprints import merged
from hydractl.model.laplace import START as POSTERIOR
from hydractl.model.prediction import Chosen


def write_calibrated(
    model: RunningModel,
    fitted: Fit,
    score: str | None,
    sets: Sequence[EvalSet],
    note: str | None,
    output: Output,
) -> list[str]:
    """Return what of the model's file is not in the new one; write that, the model with all that was chosen for it.

    A threshold and prediction sets that were chosen before do not fit a new calibration or OOD score.

    Args:
        model: the model; it must be one checkpoint.
        fitted: the calibration, threshold and prediction sets that were fitted for it.
        score: the OOD score that was chosen for it; None if none was asked for.
        sets: all data sets of the command; samples to which something was fitted are recorded as seen.
        note: a sentence for the provenance about how the model was chosen, or None.
        output: the new file.

    Returns:
        ``threshold``, ``conformal``, both or none.
    """
    (source,) = model.argument.sources
    description = source.description
    tensors: TensorSource = with_tensors(source.tensors, beside(source.tensors, POSTERIOR))

    # Copy all entries except those that `calibrate` chooses, and then write the new ones.
    extra = {key: value for key, value in description.extra.items() if key not in CHOSEN_BY_CALIBRATE}
    calibration = fitted.calibration
    if calibration is not None:
        calibration = calibration.model_copy(update={"stored": True})
    entries = {"calibration": calibration, "threshold": fitted.threshold, "conformal": kept_conformal(model, fitted)}
    for key, chosen in entries.items():
        if chosen is not None:
            extra[key] = chosen.to_dict()

    # The OOD score. The fitted statistics of a score on features are stored as tensors.
    if score is not None:
        entry: dict[str, object] = {"score": score}
        detector = model.detector
        if detector is not None and score in detector.names:
            entry["fitted_on"] = {} if detector.fitted_on is None else detector.fitted_on.to_dict()
            tensors = with_tensors(tensors, detector.tensors(score))
        extra["ood_score"] = entry

    # The description of the new checkpoint.
    provenance = {**description.provenance, "bases": source.lineage}
    if note is not None:
        provenance["note"] = note
    seen = merged(model.seen, fitted_entries(sets, "calibrate"))
    calibrated = replace(description, extra=extra, seen=tuple(seen), layout="sliced", provenance=provenance)
    write_checkpoint(output, tensors, calibrated.to_json())
    return [key for key in ("threshold", "conformal") if key in description.extra and key not in extra]


def kept_conformal(model: LogitsProvider, chosen: Chosen) -> Conformal | None:
    """Return the threshold of prediction sets that goes with what was chosen for a model; None if there is none.

    It is the one that was chosen now, else the one in the model's file if the probabilities stay the same, i.e. if the
    file's calibration is kept, or there is no calibration before and after.
    """
    if chosen.conformal is not None:
        return chosen.conformal
    keeps_probabilities = chosen.calibration == model.stored.calibration
    return model.stored.conformal if keeps_probabilities else None


def calibrated_model(model: LogitsProvider) -> CalibratedModelRecord:
    """Return the record of a model that was calibrated, with all that its calibration depends on."""
    prompt = model.record.prompt  # of a zero-shot model
    return CalibratedModelRecord(
        name=model.name,
        sha256=model.sha256,
        mc_dropout=model.record.mc_dropout,
        prompt=prompt,
        labels=None if prompt is None else model.labels,
    )


def is_calibrated_by(model: LogitsProvider, answer: CalibrateAnswer) -> bool:
    """Return whether what ``calibrate`` chose is for this model, under any name, running or stored as predictions."""
    if model.sha256 is None:
        return False
    record = calibrated_model(model).model_copy(update={"name": answer.model.name})
    return record.to_dict() == answer.model.to_dict()
