"""Opens the predictions file of a row that is measured: a new one, or that of a stopped run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from hydractl.evaluation.predictions.reading import is_predictions
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.sets import EvalSet
from hydractl.files.atomic import Output
from hydractl.log import Log


def open_writer(
    model: RunningModel,
    sets: Sequence[EvalSet],
    scores: Sequence[str],
    fitted_on: Mapping[str, object],
    output: Output,
    resume: bool,
    log: Log,
) -> PredictionsWriter:
    """Open the predictions file of a row, and log how complete it is.

    While it is filled, the file is called ``NAME.part``.

    Args:
        model: the model of the row.
        sets: the data sets, in the order of the file.
        scores: the names of the OOD scores on features that are stored beside the logits.
        fitted_on: the record of the training data and words to which these scores are fitted; empty for none.
        output: the finished file.
        resume: whether to continue the unfinished file of a stopped run. If there is none, but a finished file of the
            same run exists, that file is returned and will only be read.
        log: receives messages.

    Raises:
        InputError: with ``resume``, if the file was made with other settings or data.
    """
    open_file = partial(
        PredictionsWriter,
        model=model.header(scores, fitted_on).to_dict(),
        sets=sets,
        members=model.members,
        classes=model.classes,
        kind="F64" if model.options.dtype == "float64" else "F32",
        scores=scores,
        resume=resume,
    )
    unfinished = output.target.with_name(f"{output.target.name}.part")
    unfinished_exists = unfinished.exists()
    if resume and not unfinished_exists:
        if is_predictions(output.target):
            finished = open_file(output.target)
            if _skipped_what_is_missing(finished, sets):
                log.info(f"{output.path} is complete: its predictions are read")
                return finished
            finished.close()
        log.info(f"nothing to resume: {output.path} is begun")
    if unfinished_exists and not resume:
        log.info(f"an unfinished {unfinished} is begun anew; --resume would have gone on with it")

    writer = open_file(unfinished)
    if writer.resumed:
        missing_samples = sum(int(writer.missing(index).sum()) for index in range(len(sets)))
        all_samples = sum(len(dataset) for dataset in sets)
        log.info(f"{unfinished} is resumed: {missing_samples:,} of {all_samples:,} samples are left")
    return writer


def _skipped_what_is_missing(finished: PredictionsWriter, sets: Sequence[EvalSet]) -> bool:
    """Note the samples without logits in a finished file as skipped in their data sets, in place.

    Returns:
        Whether all were noted; False if none was, because a set with such samples may not skip any.
    """
    # First check all sets, so that nothing is changed if one of them may not skip samples.
    missing_by_set = [np.flatnonzero(finished.missing(index)) for index in range(len(sets))]
    skipped_by_set = [None if dataset.dataset is None else dataset.dataset.skipped for dataset in sets]
    for rows, skipped in zip(missing_by_set, skipped_by_set, strict=True):
        if len(rows) and skipped is None:
            return False
    for rows, skipped in zip(missing_by_set, skipped_by_set, strict=True):
        for row in rows:
            assert skipped is not None  # as checked
            skipped[int(row)] = "it could not be read for these predictions"
    return True
