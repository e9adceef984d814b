"""Opens the predictions file of a row that is measured: a new one, or that of a stopped run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hydractl.evaluation.options import EvalOptions
from hydractl.evaluation.predictions.lines import log_what_resumes
from hydractl.evaluation.predictions.reading import is_predictions
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.rows import row_scores
from hydractl.evaluation.sets import TRAIN, EvalSet, only
from hydractl.files.atomic import Output
from hydractl.log import Log
from hydractl.metrics.ood_scores import on_features


def open_writer(
    model: RunningModel,
    all_sets: Sequence[EvalSet],
    options: EvalOptions,
    output: Output,
    seen: Mapping[str, int],
    log: Log,
) -> PredictionsWriter:
    """Return the open predictions file of a model; log what it holds already.

    ===============  =======================  =============================================================
    ``--resume``     ``NAME.part`` exists     what is opened
    ===============  =======================  =============================================================
    no               yes or no                a new ``NAME.part``
    yes              yes                      ``NAME.part``, to be continued
    yes              no                       ``NAME`` if it is there, to be read; else a new ``NAME.part``
    ===============  =======================  =============================================================

    Args:
        model: the model of the row.
        all_sets: all data sets of the command; training data are not in the file.
        options: the options of the command.
        output: the finished file.
        seen: the number of samples that the model has seen, by the name of the data set.
        log: receives messages.

    Raises:
        InputError: with ``--resume``, if the file was made with other settings or data.
    """
    scores = on_features(row_scores(model, options))
    training = only(all_sets, TRAIN)
    fitted_on = model.fit_record(scores, training, options)
    sets = [replace(dataset, seen=seen.get(dataset.name, 0)) for dataset in all_sets if dataset.role != TRAIN]
    open_file = partial(
        PredictionsWriter,
        model=model.header(scores, fitted_on).to_dict(),
        sets=sets,
        members=model.members,
        classes=model.classes,
        kind="F64" if model.options.dtype == "float64" else "F32",
        scores=scores,
        resume=options.resume,
    )

    # An earlier run may have finished the file: there is no NAME.part then.
    if options.resume and not output.unfinished.exists() and is_predictions(output.target):
        log.info(f"{output.path} is complete: its predictions are read")
        finished = open_file(output.target)
        _skip_what_is_missing(finished, sets)
        return finished

    # A new file, or one to be continued.
    log_what_resumes(output, log, resume=options.resume)
    writer = open_file(output.unfinished)
    if writer.resumed:
        missing_samples = sum(int(writer.missing(index).sum()) for index in range(len(sets)))
        all_samples = sum(len(dataset) for dataset in sets)
        log.info(f"{output.unfinished} is resumed: {missing_samples:,} of {all_samples:,} samples are left")
    return writer


def _skip_what_is_missing(finished: PredictionsWriter, sets: Sequence[EvalSet]) -> None:
    """Note the samples without logits in a finished file as skipped in their data sets, which may skip samples."""
    for index, eval_set in enumerate(sets):
        if eval_set.dataset is not None and eval_set.dataset.skipped is not None:
            for row in np.flatnonzero(finished.missing(index)):
                eval_set.dataset.skipped.setdefault(int(row), "it could not be read for these predictions")
