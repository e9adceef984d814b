"""The reference for watching a model: its scores and predictions on ID samples to which nothing was fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hydractl.data.part import dataset_part
from hydractl.evaluation.choosing import Choice
from hydractl.evaluation.gathering import Reading, gather
from hydractl.evaluation.options import DataOptions, RowScores
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.sets import EvalSet, fitted_entries, open_reference, reference_set
from hydractl.files.fingerprints import known_in_part, marked, who_saw
from hydractl.files.model_records import DataSetRecord
from hydractl.log import Log
from hydractl.metrics.watching import FEWEST, Reference, reference_of


@dataclass(frozen=True)
class HeldOut:
    """The held-out samples of a data set: nothing was fitted to them or chosen on them.

    Attributes:
        samples: the held-out samples; None if there are too few.
        notes: sentences for the user about samples that were left out, and about too few samples.
    """

    samples: EvalSet | None
    notes: Sequence[str] = ()


def open_held_out(spec: str, options: DataOptions, model: RunningModel, sets: Sequence[EvalSet]) -> HeldOut:
    """Open ID samples, and leave out those that the model has seen or that this command uses for fitting.

    Args:
        spec: the SPEC of the samples.
        options: the data options of the command.
        model: the model; it has fingerprints of all samples to which something was fitted.
        sets: the data sets to which this command fits something, or on which it chooses.

    Returns:
        The remaining samples, or none if fewer than :data:`FEWEST` remain.

    Raises:
        UsageError, InputError: if the set cannot be opened, or does not fit the model.
    """
    dataset = open_reference(spec, options, model)
    notes = []

    # Mark the samples that were seen.
    entries = [*model.seen, *fitted_entries(sets, "calibrate")]
    is_seen = marked(entries, dataset)  # [N]
    if is_seen.any():
        count = int(is_seen.sum())
        who = who_saw(entries, dataset)
        notes.append(f"{count:,} of {len(dataset):,} samples of --reference were seen, and are left out: {who}")
    if known_in_part(entries, dataset):
        # Of a very large set only some samples are recorded, so samples that are not marked may also have been seen.
        is_seen[:] = True
        notes.append("the others may be of the same set, which is too large for all its samples to be known")

    # Keep the samples that are not marked, if there are enough.
    held_out_rows = np.flatnonzero(~is_seen).tolist()
    if len(held_out_rows) < FEWEST:
        notes.append(
            f"--reference gives no reference: {len(held_out_rows):,} of its samples are held out, and {FEWEST} are "
            "needed; name ID samples that nothing was fitted to or chosen on"
        )
        return HeldOut(None, notes)
    if len(held_out_rows) == len(dataset):
        return HeldOut(reference_set(dataset), notes)
    held_out = dataset_part(dataset, dataset.spec, held_out_rows)
    left_out = int(is_seen.sum())
    return HeldOut(reference_set(held_out, left_out), notes)


def reference_of_samples(model: RunningModel, samples: EvalSet, choice: Choice, log: Log) -> Reference | None:
    """Run a model on held-out samples, and return the reference: its scores, confidences and predicted classes.

    Args:
        model: the model; its OOD scores on features are already fitted.
        samples: the held-out samples.
        choice: the OOD score, calibration and threshold that were chosen for the model.
        log: shows the progress.

    Returns:
        The reference, or None (with a line in the log) if the OOD score is constant for a single member, or too few
        samples can be read.
    """
    read = Reading(model, [samples], None, log)
    gathered = gather(
        read(samples),
        samples,
        model.name,
        scores=RowScores(choice.score),
        calibration=choice.fitted.calibration,
        pairs=False,
    )
    scores = gathered.samples.score
    if scores is None:
        log.info(f"--reference gives no reference: of a single member {choice.score} is the same for all samples")
        return None
    if len(scores) < FEWEST:
        log.info(f"--reference gives no reference: {len(scores)} of its samples can be read, and {FEWEST} are needed")
        return None

    # The number of samples that the threshold flags as OOD.
    flagged = None
    threshold = choice.fitted.threshold
    if threshold is not None:
        is_flagged = scores >= threshold["value"]
        flagged = int(is_flagged.sum())

    counts_by_class = _counts_by_class(gathered.samples.predicted, model)
    data = DataSetRecord.from_json(samples.to_json())
    return reference_of(scores, gathered.samples.confidence, counts_by_class, flagged, data)


def _counts_by_class(predicted: np.ndarray, model: RunningModel) -> dict[str, int]:
    """Return how often each class is predicted, by its name, or by its number if there are no names.

    Args:
        predicted: the predicted class of every sample, ``[N]``.
        model: the model.
    """
    counts = np.bincount(predicted, minlength=model.classes)
    names = model.labels
    if not names:
        names = [str(index) for index in range(model.classes)]
    by_name = dict.fromkeys(names, 0)
    for name, count in zip(names, counts.tolist(), strict=True):
        by_name[name] += count  # several classes may have the same name
    return by_name
