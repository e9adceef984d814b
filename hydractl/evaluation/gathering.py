"""Reads the logits of one row from the model or a predictions file, and reduces them batch by batch for metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hydractl.data.batching import batches_of, longest_first
from hydractl.errors import InputError, NonFiniteError
from hydractl.evaluation.predictions.store import LogitsBatch, PredictionsWriter
from hydractl.evaluation.providers.interface import LogitsBatches, LogitsProvider
from hydractl.evaluation.providers.running import RunningModel
from hydractl.evaluation.sets import EvalSet, option_of
from hydractl.files.calibrate_answer import Conformal
from hydractl.files.model_records import Calibration
from hydractl.log import Log
from hydractl.metrics.samples import Samples, joined_samples, samples_of

LogitsReader = Callable[[EvalSet], LogitsBatches]
"""A function that returns the logits of a data set, batch by batch."""


@dataclass
class Gathered:
    """The predictions of one model on one data set.

    Attributes:
        samples: the averaged predictions for all samples that could be read, in the order of the data set.
        members: the predictions of each member alone; empty if they were not asked for, or there is only one member.
    """

    samples: Samples
    members: list[Samples] = field(default_factory=list)


# --- reducing logits --------------------------------------------------------------------------------------------------


def gather(
    batches: LogitsBatches,
    dataset: EvalSet,
    name: str,
    *,
    scores: Sequence[str] = ("msp",),
    calibration: Calibration | None = None,
    conformal: Conformal | None = None,
    alone: bool = False,
) -> Gathered:
    """Return the predictions of a model on a data set: its logits reduced to a few numbers for each sample.

    They are those of all members together, and if ``alone`` also those of each member by itself. The samples are in the
    order of the data set; samples that could not be read are left out.

    Args:
        batches: the batches of logits ``[M, B, C]``; every sample that can be read is in one of them, in any order.
        dataset: the data set.
        name: the name of the model, for errors.
        scores: the names of the OOD scores to compute, the main one first.
        calibration: the calibration of the averaged prediction; None if there is none.
        conformal: the threshold of prediction sets, for a labelled set; None makes no sets.
        alone: whether to reduce the logits of each of several members separately as well.

    Raises:
        InputError: if no sample could be read.
        NonFiniteError: if a logit is not finite; the message names the first such sample.
    """
    # Reduce one batch after another, so that the logits of the whole set are never in memory.
    batch_rows: list[npt.NDArray[np.int64]] = []
    batch_samples: list[list[Samples]] = []  # for each batch, those of all members together, then of each alone
    for batch in batches:
        check_finite_batch(batch, dataset.ids, name)
        labels = None
        if dataset.labels is not None:
            labels = dataset.labels[list(batch.rows)]  # [B]
        together = samples_of(
            batch.logits,
            labels,
            scores=scores,
            fitted_scores=batch.mean_scores,
            calibration=calibration,
            conformal=conformal,
        )
        members = batch.logits if alone and len(batch.logits) > 1 else ()
        batch_rows.append(np.asarray(batch.rows, dtype=np.int64))
        batch_samples.append([together, *(samples_of(logits[np.newaxis], labels) for logits in members)])
    if not batch_rows:
        raise none_readable(dataset, name)

    # Join the batches, and sort the samples into the order of the data set.
    order = np.argsort(np.concatenate(batch_rows), kind="stable")
    samples, *of_members = [joined_samples(parts, order) for parts in zip(*batch_samples, strict=True)]
    return Gathered(samples, of_members)


def none_readable(dataset: EvalSet, name: str) -> InputError:
    """Return the error for a data set of which a model has no predictions."""
    return InputError(
        f"{name} has no predictions of {option_of(dataset)}: none of its {len(dataset)} samples could be read"
    )


def check_finite_batch(batch: LogitsBatch, ids: Sequence[str], name: str) -> None:
    """Raise an error if a logit of a batch is NaN or infinite.

    Args:
        batch: the batch.
        ids: the ids of all samples in the data set.
        name: the name of the model, for the message.

    Raises:
        NonFiniteError: with the number of such samples and the id of the first.
    """
    is_bad = ~np.isfinite(batch.logits).all(axis=(0, 2))  # of logits [M, B, C]: [B]
    if not is_bad.any():
        return
    first_bad = int(is_bad.argmax())  # its position in the batch
    index_in_set = int(batch.rows[first_bad])
    raise NonFiniteError(
        f"{name} gives NaN or infinite logits for {int(is_bad.sum())} samples of one batch, "
        f"the first is {ids[index_in_set]}",
        hint="run with --dtype float32, or check the checkpoint's weights",
    )


# --- where logits come from -------------------------------------------------------------------------------------------


def read_logits(model: LogitsProvider, writer: PredictionsWriter | None, log: Log, dataset: EvalSet) -> LogitsBatches:
    """Yield the logits of a data set, batch by batch, and write them to a predictions file if there is one.

    Logits that the file already has are read from it, and not computed again.

    Args:
        model: the model.
        writer: the predictions file; None if none is written.
        log: shows the progress.
        dataset: the data set, which is one of the file.
    """
    with log.progress(f"{model.name} on {dataset.name}", len(dataset), "samples") as progress:
        if writer is None:
            batches = model.batches(dataset)
        else:
            names = [(each.role, each.name) for each in writer.sets]
            batches = _kept_then_computed(model, dataset, names.index((dataset.role, dataset.name)), writer)
        for batch in batches:
            yield batch
            progress.advance(len(batch.rows))


def _kept_then_computed(
    model: LogitsProvider, dataset: EvalSet, index: int, writer: PredictionsWriter
) -> LogitsBatches:
    """Yield the logits that are already in the predictions file, then compute, write and yield all others.

    If any sample of a batch has no logits in the file, the whole batch runs again: the last bits of logits can depend
    on the other samples of a batch, and so they equal those of a run without interruption.

    Args:
        model: the model.
        dataset: the data set.
        index: its index among the sets of the file.
        writer: the file.
    """
    rows_to_run: list[int] | None = None  # the indices of the samples that have to run; None means all
    if writer.resumed:
        # An earlier run began the file. Divide the samples into batches as it did: those that it completed are read.
        assert isinstance(model, RunningModel) and dataset.dataset is not None
        is_missing = writer.missing(index)  # whether the file lacks the logits of each sample, [N]
        is_missing[list(dataset.dataset.skipped or ())] = False  # these samples could not be read
        rows_to_run = []
        for rows in batches_of(longest_first(dataset.dataset), model.options.batch_size):
            if is_missing[rows].any():
                rows_to_run += rows
        yield from writer.batches(index, without=rows_to_run)
        if not rows_to_run:
            return

    # Run the model on the others.
    for batch in model.batches(dataset, rows_to_run):
        writer.write(index, *batch)  # the indices of its samples, logits and scores
        yield batch
