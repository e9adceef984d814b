"""The reference of watching: what a model makes of ID samples that nothing was fitted to."""

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
    """The held-out samples of a data set.

    Attributes:
        samples: those that nothing was fitted to or chosen on; None where they are too few.
        notes: sentences on what was left out, and on why there are too few.
    """

    samples: EvalSet | None
    notes: Sequence[str] = ()


def open_held_out(spec: str, options: DataOptions, model: RunningModel, sets: Sequence[EvalSet]) -> HeldOut:
    """Open ID samples, without those that the model has seen or this command fits to.

    The result has no samples where fewer than :data:`FEWEST` are left.

    Args:
        spec: the SPEC of the samples.
        options: the data sets of the command.
        model: the model, with the fingerprints of all that was fitted for it.
        sets: the sets that this command fits to or chooses on.

    Raises:
        UsageError, InputError: the set cannot be opened, or does not fit the model.
    """
    dataset = open_reference(spec, options, model)
    notes = []

    # Which of its samples were seen.
    entries = [*model.seen, *fitted_entries(sets, "calibrate")]
    is_seen = marked(entries, dataset)  # [N]
    if is_seen.any():
        count = int(is_seen.sum())
        who = who_saw(entries, dataset)
        notes.append(f"{count:,} of {len(dataset):,} samples of --reference were seen, and are left out: {who}")
    if known_in_part(entries, dataset):
        # Not every sample of such a set is known: those that are not marked may have been seen, too.
        is_seen[:] = True
        notes.append("the others may be of the same set, which is too large for all its samples to be known")

    # The others, if there are enough of them.
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
    """Run a model on held-out samples, and return the reference with what was chosen for it.

    None, with a line about it, where its OOD score says nothing of a single member, or too few samples can be read.

    Args:
        model: the model, its scores on features fitted.
        samples: the held-out samples.
        choice: what was chosen for it.
        log: shows the progress.
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
    flagged = None
    threshold = choice.fitted.threshold
    if threshold is not None:
        is_flagged = scores >= threshold["value"]
        flagged = int(is_flagged.sum())
    counts_by_class = _counts_by_class(gathered.samples.predicted, model)
    data = DataSetRecord.from_json(samples.to_json())
    return reference_of(scores, gathered.samples.confidence, counts_by_class, flagged, data)


def _counts_by_class(predicted: np.ndarray, model: RunningModel) -> dict[str, int]:
    """Return how often each class is predicted, by its name, or its number where it has none; ``predicted`` is [N]."""
    counts = np.bincount(predicted, minlength=model.classes)
    names = model.labels
    if not names:
        names = [str(index) for index in range(model.classes)]
    by_name = dict.fromkeys(names, 0)
    for name, count in zip(names, counts.tolist(), strict=True):
        by_name[name] += count  # several classes may have one name
    return by_name
