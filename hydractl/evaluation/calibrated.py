"""The checkpoint of ``calibrate``: that of a model, with what was fitted for it in its description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

from hydractl.evaluation.fitting import RowFit
from hydractl.evaluation.predictions.header import ScoreDataEntry, StoredScoreEntry
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.sets import EvalSet, fitted_entries
from hydractl.files.atomic import Output
from hydractl.files.checkpoint import TensorSource, beside, with_tensors, write_checkpoint
from hydractl.files.description import CHOSEN_BY_CALIBRATE
from hydractl.files.fingerprints import merged
from hydractl.metrics.conformal import Conformal, stored_conformal
from hydractl.metrics.threshold import stored_score
from hydractl.metrics.watching import Reference, stored_reference
from hydractl.model.laplace import START as POSTERIOR


def write_calibrated(
    model: RunningModel,
    fitted: RowFit,
    score: str | None,
    reference: Reference | None,
    sets: Sequence[EvalSet],
    note: str | None,
    output: Output,
) -> Reference | None:
    """Write the checkpoint of a model with its calibration, threshold, prediction sets, OOD score and reference.

    Args:
        model: the model, which is one checkpoint.
        fitted: the calibration, threshold and prediction sets that were fitted for it.
        score: the OOD score that was chosen for it; None where none was asked for.
        reference: the samples that inputs are compared with; None for those of the model's own file, which stay where
            their scores, flags and classes do.
        sets: all data sets of the command, whose samples it has now seen where something was fitted to them.
        note: a sentence about how the model was chosen, for its provenance.
        output: where it goes.

    Returns:
        The reference that the checkpoint holds.
    """
    (source,) = model.argument.sources
    description = source.description
    tensors: TensorSource = with_tensors(source.tensors, beside(source.tensors, POSTERIOR))

    # What was chosen before is replaced, entry by entry; all other entries stay.
    extra = {key: value for key, value in description.extra.items() if key not in CHOSEN_BY_CALIBRATE}
    calibration = fitted.calibration_record()
    if calibration is not None:
        extra["calibration"] = replace(calibration, stored=True).to_json()
    if fitted.threshold is not None:
        extra["threshold"] = fitted.threshold
    conformal = _kept_conformal(model, fitted)
    if conformal is not None:
        extra["conformal"] = asdict(conformal)
    if score is not None:
        entry: StoredScoreEntry = {"score": score}
        detector = model.detector
        if detector is not None and score in detector.names:
            entry["fitted_on"] = cast("ScoreDataEntry", dict(detector.fitted_on))
            tensors = with_tensors(tensors, detector.tensors(score))
        extra["ood_score"] = entry

    # A reference holds scores, flags and classes: that of the file stays only where none of these changes.
    if reference is not None:
        extra["reference"] = reference.to_json()
    elif "reference" in description.extra and _decides_as_before(description.extra, extra):
        extra["reference"] = description.extra["reference"]

    provenance = {**description.provenance, "bases": source.lineage}
    if note is not None:
        provenance["note"] = note
    seen = merged(description.seen, fitted_entries(sets, "calibrate"))
    calibrated = replace(description, extra=extra, seen=tuple(seen), layout="sliced", provenance=provenance)
    write_checkpoint(output, tensors, calibrated.to_json())
    return stored_reference(extra.get("reference"))


def _kept_conformal(model: RunningModel, fitted: RowFit) -> Conformal | None:
    """Return the prediction sets that a checkpoint holds after it was calibrated.

    They are those that were fitted now; else those of the model's file, as long as its probabilities stay the same:
    its calibration is kept, or there is none before and after.
    """
    if fitted.conformal is not None:
        return fitted.conformal
    never_calibrated = fitted.calibration is None and model.stored.calibration is None
    keeps_probabilities = fitted.stored or never_calibrated
    if not keeps_probabilities:
        return None
    (source,) = model.argument.sources
    return stored_conformal(source.description.extra.get("conformal"))


def _decides_as_before(before: Mapping[str, Any], extra: Mapping[str, Any]) -> bool:
    """Return whether scores, flags and classes are those of a checkpoint before it was calibrated again.

    Args:
        before: what its description held.
        extra: what its description holds now.
    """
    if before.get("calibration") != extra.get("calibration"):
        return False
    if before.get("threshold") != extra.get("threshold"):
        return False
    if stored_score(before) != stored_score(extra):
        return False
    return bool(_fitted_on(before) == _fitted_on(extra))


def _fitted_on(extra: Mapping[str, Any]) -> Any:
    """Return the training data that the stored OOD score is fitted to; None where it is fitted to none."""
    entry = extra.get("ood_score")
    if not isinstance(entry, Mapping):
        return None
    return entry.get("fitted_on")
